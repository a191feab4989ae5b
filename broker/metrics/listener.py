"""The HTTP listener of a node (barnabas.metrics.listener): its metrics and its health, with GET over HTTP/1.1.

    /metrics                    Prometheus's text format, or OpenMetrics where the request accepts it; gzip likewise
    /livez                      200 as long as the event loop runs
    /startupz                   200 once the node has its metadata and its logs, 503 before
    /readyz, /v1/status/ready   200 while the node serves clients, 503 with the reasons otherwise; the second is Redpanda's

Other requests are answered with an error. A new connection is accepted however many others are open.
"""

from __future__ import annotations

import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.config.listeners import format_address
from barnabas.broker.metrics.families import CONTENT_TYPE, OPENMETRICS
from barnabas.runtime.http import Head, HttpError, reason
from barnabas.runtime.http_server import Bounds, HttpRequest, HttpServer
from barnabas.runtime.slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.metrics.health import Health
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.metrics")

METRICS: Final = "/metrics"
LIVE: Final = "/livez"
STARTED: Final = "/startupz"
READY: Final = "/readyz"
REDPANDA_READY: Final = "/v1/status/ready"
PATHS: Final = (METRICS, LIVE, STARTED, READY, REDPANDA_READY)
BOUNDS: Final = Bounds(
    connections=64, unfinished=64, head_bytes=8192, request_s=5.0, idle_s=5.0, answer_s=30.0
)
_PLAIN: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_GZIP_HEADER: Final = 16 + zlib.MAX_WBITS  # zlib.compressobj makes gzip
_GZIP_LEVEL: Final = 1


class PagesListener(ABC):
    """An HTTP listener for PATHS, which `serve` answers. OSError when the address can't be listened on."""

    def __init__(self, runtime: Runtime, host: str, port: int) -> None:
        self._runtime = runtime
        self.server = HttpServer(runtime, host, port, self, BOUNDS)
        log.info("metrics are at http://%s%s", format_address(host or "0.0.0.0", self.server.port), METRICS)

    @property
    def port(self) -> int:
        return self.server.port

    def close(self) -> None:
        self.server.close()

    def check(self, head: Head) -> None:
        if path_of(head) not in PATHS:
            raise HttpError(404, "another page")
        if head.method != "GET":
            raise HttpError(405, "another method")

    @abstractmethod
    def serve(self, request: HttpRequest) -> None:
        """Respond, now or later. HttpError."""

    def refuse(self, request: HttpRequest, error: HttpError) -> None:
        text = f"{error.status} {reason(error.status)}: GET {', '.join(PATHS)} is all there is\n"
        request.respond(error.status, _PLAIN, text.encode(), "Allow: GET\r\n" if error.status == 405 else "")


class MetricsListener(PagesListener):
    """Serves what `page(openmetrics)` and `health()` return at each request; the page in pieces, None before there is any.
    OSError when the address can't be listened on."""

    def __init__(
        self,
        runtime: Runtime,
        host: str,
        port: int,
        page: Callable[[bool], Iterator[bytes] | None],
        health: Callable[[], Health],
    ) -> None:
        self._page = page
        self._health = health
        super().__init__(runtime, host, port)

    def serve(self, request: HttpRequest) -> None:
        path = path_of(request.head)
        if path == METRICS:
            self._serve_metrics(request)
        elif path == LIVE:
            request.respond(200, _JSON, b'{"status":"ok"}\n')
        else:
            health = self._health()
            is_good = health.has_started if path == STARTED else health.is_ready
            if path == REDPANDA_READY:
                answer: dict[str, object] = {"status": "ready" if is_good else "booting"}
            else:
                answer = {"status": "ok" if is_good else "unavailable", "reasons": health.reasons}
            request.respond(200 if is_good else 503, _JSON, msgspec.json.encode(answer) + b"\n")

    def _serve_metrics(self, request: HttpRequest) -> None:
        headers = request.head.headers
        is_openmetrics = "application/openmetrics-text" in headers.get("accept", "")
        page = self._page(is_openmetrics)
        if page is None:
            raise HttpError(503, "no page yet")
        zipped = (
            zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_HEADER)
            if "gzip" in headers.get("accept-encoding", "")
            else None
        )
        pieces: list[bytes] = []

        def steps() -> Iterator[None]:
            for piece in page:
                pieces.append(piece if zipped is None else zipped.compress(piece))
                yield

        def respond() -> None:
            more = "Vary: Accept, Accept-Encoding\r\n"
            if zipped is not None:
                pieces.append(zipped.flush())
                more += "Content-Encoding: gzip\r\n"
            content_type = OPENMETRICS if is_openmetrics else CONTENT_TYPE
            request.respond(200, content_type, b"".join(pieces), more)

        in_slices(self._runtime, steps(), respond)


def path_of(head: Head) -> str:
    """Without the query."""
    return head.target.partition("?")[0]
