"""The controls of one broker: what the routes work on, and the server that offers them, the web console beside them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.contents import services_of
from barnabas.testing.control import table
from barnabas.testing.control.http import CONSOLE, Answer, ControlServer, Request

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.console.console import Console
    from barnabas.runtime.interface import Runtime
    from barnabas.testing.broker import Broker
    from barnabas.testing.faults.engine import Link
    from barnabas.testing.snapshot import Snapshot

HOST: Final = "127.0.0.1"
ANY_HOST: Final = "0.0.0.0"
REQUESTS_SHOWN: Final = 100  # in the console
TOPICS_SHOWN: Final = 10  # of each of them
SCHEMA_REGISTRY: Final = "schema-registry"  # the paths below it are the registry's


class Control:
    """Offers the controls of a broker that runs in a thread of its own, until `close`. OSError when the port is taken.
    Every client may do everything: it listens on this machine alone unless `host` names another address."""

    def __init__(self, broker: Broker, port: int = 0, host: str = HOST) -> None:
        self.broker = broker
        self._host = host
        self.links: dict[int, Link] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self._numbers = itertools.count(1)
        self._server = ControlServer(broker.loop, broker.call, host, port, self._answer, self._new_console)

    @property
    def url(self) -> str:
        """Where it is found from this machine."""
        host = HOST if self._host == ANY_HOST else self._host
        return f"http://{host}:{self._server.server.port}"

    @property
    def schema_registry_url(self) -> str:
        """Where its schema registry is found."""
        return f"{self.url}/{SCHEMA_REGISTRY}"

    def _answer(self, request: Request) -> Answer:
        if request.path[:1] == (SCHEMA_REGISTRY,):
            return self.broker.schema_registry.answer(request)
        return table.answer(self, request)

    def number(self) -> int:
        """One that no snapshot and no link has."""
        return next(self._numbers)

    def close(self) -> None:
        self._server.close()

    # -- the console

    def _new_console(self, runtime: Runtime) -> Console:
        from barnabas.console.console import Console  # late: most tests open none

        return Console(runtime, self._shown_node, self._is_own, base=CONSOLE, test_state=self._test_state)

    def _shown_node(self) -> ExtensionHost | None:
        """The node that the console asks: one that serves and does not stand still, if there is one."""
        found = services_of(self.broker.nodes)
        hosts = {node.node_id: node.node.extension_host for node in self.broker.nodes if node.is_ready}
        return hosts.get(found[0].node_id) if found else None

    def _is_own(self, host: str) -> bool:
        return self._server.is_own(host)

    def _test_state(self) -> dict[str, Any]:
        """What the routes of the controls say."""
        requests = self._ask("requests", last=str(REQUESTS_SHOWN))
        for each in requests:
            each.topics = each.topics[:TOPICS_SHOWN]
        return {"nodes": self._ask("status").nodes, "rules": self._ask("rules"), "requests": requests[::-1]}

    def _ask(self, path: str, **query: str) -> Any:
        return table.answer(self, Request("GET", (path,), query, b"")).value
