"""The metrics listener: GET /metrics over HTTP/1.1 (barnabas.metrics.listener).

Other requests are answered with an error. A new connection is accepted however many others are open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.broker.config.listeners import format_address
from barnabas.broker.metrics.event_loop_lag import EventLoopLag
from barnabas.broker.metrics.families import CONTENT_TYPE, Source, exposition
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.http import Head, HttpError, reason
from barnabas.runtime.http_server import Bounds, HttpRequest, HttpServer
from barnabas.runtime.slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.metrics")

PATH: Final = "/metrics"
BOUNDS: Final = Bounds(
    connections=64, unfinished=64, head_bytes=8192, request_s=5.0, idle_s=5.0, answer_s=30.0
)
_PLAIN: Final = "text/plain; charset=utf-8"


class MetricsListener:
    """Serves what `page()` returns at each request: the text in pieces, or None before there is any. OSError when the
    address can't be listened on."""

    def __init__(
        self, runtime: Runtime, host: str, port: int, page: Callable[[], Iterator[bytes] | None]
    ) -> None:
        self._runtime = runtime
        self._page = page
        self.server = HttpServer(runtime, host, port, self, BOUNDS)
        log.info("metrics are at http://%s%s", format_address(host or "0.0.0.0", self.server.port), PATH)

    @property
    def port(self) -> int:
        return self.server.port

    def close(self) -> None:
        self.server.close()

    def check(self, head: Head) -> None:
        if head.target.partition("?")[0] != PATH:
            raise HttpError(404, "another page")
        if head.method != "GET":
            raise HttpError(405, "another method")

    def serve(self, request: HttpRequest) -> None:
        page = self._page()
        if page is None:
            raise HttpError(503, "no page yet")
        pieces: list[bytes] = []

        def steps() -> Iterator[None]:
            for piece in page:
                pieces.append(piece)
                yield

        in_slices(self._runtime, steps(), lambda: request.respond(200, CONTENT_TYPE, b"".join(pieces)))

    def refuse(self, request: HttpRequest, error: HttpError) -> None:
        text = f"{error.status} {reason(error.status)}: GET {PATH} is all there is\n"
        request.respond(error.status, _PLAIN, text.encode(), "Allow: GET\r\n" if error.status == 405 else "")


class NodeMetrics:
    """The metrics listener of a node, and the lag of its event loop, which is measured only where metrics are served."""

    def __init__(
        self,
        runtime: Runtime,
        host: str,
        port: int,
        sources: Callable[[EventLoopLag], Sequence[Source] | None],
    ) -> None:
        """`sources(lag)`: None before there are any. ConfigError when the address cannot be listened on."""
        self._sources = sources
        self._lag = EventLoopLag(runtime)
        try:
            self._listener = MetricsListener(runtime, host, port, self._page)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {format_address(host, port)}: {error.strerror or error}; free it or choose another in "
                f"barnabas.metrics.listener"
            ) from error
        self._lag.start()

    def close(self) -> None:
        self._listener.close()
        self._lag.stop()

    def _page(self) -> Iterator[bytes] | None:
        sources = self._sources(self._lag)
        return None if sources is None else make_page(sources)


def make_page(sources: Sequence[Source]) -> Iterator[bytes]:
    """All families of these sources. One that fails is logged and left out, the others are served."""
    for source in sources:
        try:
            yield from exposition(source())
        except Exception:
            log.exception("a source of metrics has failed")
