"""The controls of one broker: what the routes work on, and the server that offers them."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.testing.control import table
from barnabas.testing.control.http import ControlServer

if TYPE_CHECKING:
    from barnabas.testing.broker import Broker
    from barnabas.testing.faults.engine import Link
    from barnabas.testing.snapshot import Snapshot

HOST: Final = "127.0.0.1"
ANY_HOST: Final = "0.0.0.0"


class Control:
    """Offers the controls of a broker that runs in a thread of its own, until `close`. OSError when the port is taken.
    Every client may do everything: it listens on this machine alone unless `host` names another address."""

    def __init__(self, broker: Broker, port: int = 0, host: str = HOST) -> None:
        self.broker = broker
        self._host = host
        self.links: dict[int, Link] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self._numbers = itertools.count(1)
        self._server = ControlServer(broker.loop, host, port, partial(table.answer, self))

    @property
    def url(self) -> str:
        """Where it is found from this machine."""
        host = HOST if self._host == ANY_HOST else self._host
        return f"http://{host}:{self._server.server.port}"

    def number(self) -> int:
        """One that no snapshot and no link has."""
        return next(self._numbers)

    def close(self) -> None:
        self._server.close()
