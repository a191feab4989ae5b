"""The console as an extension of a broker (broker/extension.py): its property, and its listener where that is set.

Without `barnabas.console.listener` only this module is loaded.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from barnabas.broker.config.listeners import format_address, parse_address
from barnabas.controller.config.config_def import ConfigDef
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barnabas.broker.extension import ExtensionHost, Report
    from barnabas.broker.metrics.families import Family
    from barnabas.broker.partitions.replica import LocalReplica, RemoteReplica
    from barnabas.console.console import Console
    from barnabas.controller.config.config_def import ConfigKey
    from barnabas.controller.extension import NodeValues
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.http_server import HttpServer

log = logging.getLogger("barnabas.console")

LISTENER: Final = "barnabas.console.listener"
LOOPBACK: Final = "127.0.0.1"  # where the property names no host
_DOC: Final = (
    "Where a read-only web console of the cluster is served, HOST:PORT, as http://HOST:PORT/; without a host on this machine alone, "
    "port 0 picks one. It asks for no login and shows everything. Empty: nowhere."
)


class ConsoleExtension:
    """The Extension and its TopicChecks: topics have no configs of the console."""

    topic_configs: Final = ConfigDef()
    broker_configs: Final = ConfigDef(f'{LISTENER} string "" * low')

    def broker_key(self, name: str) -> ConfigKey | None:  # noqa: ARG002
        return None

    def documentation(self, resource_type: int, name: str) -> str | None:  # noqa: ARG002
        return _DOC if name == LISTENER else None

    def shown(self, name: str, text: str | None) -> str | None:  # noqa: ARG002
        return text

    def check_broker(self, given: Mapping[str, str]) -> None:
        _address(given)

    def topic_checks(self, image: MetadataImage, node: NodeValues) -> ConsoleExtension:  # noqa: ARG002
        return self

    def check(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None: ...

    def accept(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None: ...

    def start(self, host: ExtensionHost) -> RunningConsole | None:
        address = _address(host.config.given)
        if address is None:
            return None
        from barnabas.console.console import BOUNDS, Console  # late: where it is served
        from barnabas.runtime.http import is_loopback
        from barnabas.runtime.http_server import HttpServer

        console = Console(host.runtime, lambda: host, address[0].lower().__eq__)
        try:
            server = HttpServer(host.runtime, *address, console, BOUNDS)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {format_address(*address)}: {error.strerror or error}; free it or choose another in {LISTENER}"
            ) from error
        shown = format_address(address[0], server.port)
        log.info("the console is at http://%s/", shown)
        if not is_loopback(address[0]):
            log.warning("who reaches %s reads all topics and groups in the console: it has no login", shown)
        return RunningConsole(console, server)


def _address(given: Mapping[str, str]) -> tuple[str, int] | None:
    text = given.get(LISTENER)
    if not text:
        return None
    host, port = parse_address(LISTENER, text)
    return host or LOOPBACK, port


class RunningConsole:
    """The RunningExtension."""

    def __init__(self, console: Console, server: HttpServer) -> None:
        self.console = console
        self.port = server.port
        self._server = server

    def stop(self) -> None:
        self._server.close()
        self.console.close()

    # -- what it has nothing to add to

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:  # noqa: ARG002
        return True

    def when_settled(self, done: Callable[[], object]) -> None:
        done()

    def leave(self, done: Callable[[], object]) -> None:
        done()

    def metrics(self) -> Iterable[Family]:
        return ()

    def report(self) -> Report | None:
        return None
