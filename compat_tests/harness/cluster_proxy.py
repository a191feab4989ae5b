"""Network partitions: TCP proxies in front of the nodes' ports, which can cut the traffic between two nodes.

The proxies find the source of a connection by the process that holds its other end (/proc/net/tcp and /proc/PID/fd),
so they need not know the protocol. A cut direction carries no bytes, in old connections and new ones; neither side gets
an error, as when a cable is pulled. Once healed, the delayed bytes arrive.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

Pids = Callable[[], dict[int, int]]  # node id -> process id, of those that run
_PIECE = 1 << 18


class Network:
    """Every proxied port of one cluster; `pids` returns the process ids of its nodes."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self._cut: set[tuple[int, int]] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="network")
        self._thread.start()

    def front(self, node: int, port: int) -> int:
        """Listen for `node`, whose own port is `port`; the proxy's port."""

        async def listen() -> int:
            server = await asyncio.start_server(
                lambda reader, writer: self._serve(node, port, reader, writer), "127.0.0.1", 0, limit=_PIECE
            )
            self._servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result(30)

    def cut(self, one: int, other: int) -> None:
        """Nothing passes between the two."""
        self._change(self._cut | {(one, other), (other, one)})

    def cut_one_way(self, sender: int, receiver: int) -> None:
        """Bytes from `sender` do not reach `receiver`."""
        self._change(self._cut | {(sender, receiver)})

    def isolate(self, node: int, others: Iterable[int]) -> None:
        """Cut a node from all others."""
        pairs = {(node, other) for other in others if other != node}
        self._change(self._cut | pairs | {(other, one) for one, other in pairs})

    def heal(self) -> None:
        """Everything passes again."""
        self._change(set())

    def close(self) -> None:
        """End all proxies."""

        async def stop() -> None:
            for server in self._servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _change(self, cut: set[tuple[int, int]]) -> None:
        done: Future[None] = Future()

        def change() -> None:
            self._cut = cut
            self._changed.set()
            self._changed = asyncio.Event()
            done.set_result(None)

        self._loop.call_soon_threadsafe(change)
        done.result(30)

    async def _passable(self, sender: int, receiver: int) -> None:
        while (sender, receiver) in self._cut:
            await self._changed.wait()

    async def _serve(
        self, node: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            source = self._source(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
            await self._passable(source, node)
            await self._passable(node, source)
            try:
                onward = await asyncio.open_connection("127.0.0.1", port, limit=_PIECE)
            except OSError:
                writer.transport.abort()  # nothing listens: a reset, as without a proxy
                return
            ways = [
                asyncio.create_task(self._carry(source, node, reader, onward[1])),
                asyncio.create_task(self._carry(node, source, onward[0], writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                await self._passable(source, node)
                await self._passable(node, source)
            finally:
                for way in ways:
                    way.cancel()
                onward[1].transport.abort()
        except asyncio.CancelledError:
            return  # by close(); asyncio's streams would log it
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _carry(
        self, sender: int, receiver: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward bytes until one side closes; while the direction is cut, read none."""
        with suppress(OSError):
            while data := await reader.read(_PIECE):
                await self._passable(sender, receiver)
                writer.write(data)
                await writer.drain()

    def _source(self, port: int, proxy_port: int) -> int:
        """The node whose process holds the socket between these ports; 0 for any other."""
        inode = _inode(port, proxy_port)
        for node, pid in self._pids().items():
            if inode and _holds(pid, inode):
                return node
        return 0


def _inode(port: int, remote_port: int) -> str:
    """The inode of the socket of this machine between these two ports; empty when there is none."""
    near, far = f":{port:04X}", f":{remote_port:04X}"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(near) and fields[2].endswith(far):
                return fields[9]
    return ""


def _holds(pid: int, inode: str) -> bool:
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(entry.path) == f"socket:[{inode}]":
                    return True
    return False
