"""A node whose loop runs in a thread of its own; the test talks to it over sockets."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.extensions import EXTENSIONS
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.storage.disk.disk import Disk
from barnabas.testing.external.raw_client import RawClient


class ThreadedNode:
    """A node that serves from construction until `stop`, on a free port unless `properties` set one."""

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str],
        disk: Disk | None = None,
        *,
        prefer_uvloop: bool = True,
    ) -> None:
        self.runtime = AsyncioRuntime(prefer_uvloop)
        fixed = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
        self.node = Node(
            BrokerConfig.from_properties({**fixed, **properties}, EXTENSIONS), self.runtime, disk, EXTENSIONS
        )
        self.node.start()
        self._clients: list[RawClient] = []
        self._thread = threading.Thread(target=self.runtime.run)
        self._thread.start()

    @property
    def port(self) -> int:
        return self.node.endpoints[0].port

    def client(self) -> RawClient:
        """A new connection, closed by `stop` at the latest."""
        self._clients.append(RawClient(self.port))
        return self._clients[-1]

    def stop(self) -> None:
        """Close the clients, then the node."""
        for client in self._clients:
            client.socket.close()
        self.runtime.loop.call_soon_threadsafe(self.runtime.stop)
        self._thread.join()
        self.node.stop()
        self.runtime.close()
