"""GET /metrics over HTTP/1.1, one request a connection, on a listener of its own (barnabas.metrics.listener).

It serves one page to scrapers, so this is not an HTTP server: the head of a request is read up to a size and within a time,
its first line is looked at, and the connection is closed behind the answer. Whatever is not a GET of that page gets an
error and is closed as well. Connections are bounded in number: when one more comes, the oldest that has not asked yet is
closed, else the oldest that has not taken its answer, so that a scraper gets in whatever others hold open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config.listeners import format_address
from barnabas.broker.metrics.families import CONTENT_TYPE, Source, exposition
from barnabas.runtime.slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Server, Timer

log = logging.getLogger("barnabas.metrics")

PATH: Final = "/metrics"
HEAD_BYTES_MAX: Final = 8192
CONNECTIONS_MAX: Final = 64
REQUEST_S_MAX: Final = 5.0  # until the head is there
ANSWER_S_MAX: Final = 30.0  # until the reader has taken it
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_PLAIN: Final = "text/plain; charset=utf-8"


class MetricsListener:
    """`page()` makes the text at each request, in pieces, or None while there is nothing to tell yet. OSError when the
    address can't be listened on."""

    def __init__(
        self, runtime: Runtime, host: str, port: int, page: Callable[[], Iterator[bytes] | None]
    ) -> None:
        self.runtime = runtime
        self.page = page
        self.connections: dict[_Request, None] = {}  # in the order in which they came
        self._server: Server = runtime.listen(host, port, partial(_Request, self))
        self.port = self._server.port
        log.info("metrics are at http://%s%s", format_address(host or "0.0.0.0", self.port), PATH)

    def close(self) -> None:
        self._server.close()
        for connection in tuple(self.connections):
            connection.abort()

    def make_room(self) -> bool:
        """Whether there is room for one more connection, now that the oldest idle one has gone."""
        if len(self.connections) < CONNECTIONS_MAX:
            return True
        for is_idle in (_Request.is_silent, _Request.is_unread):
            for connection in self.connections:
                if is_idle(connection):
                    connection.abort()
                    return True
        return False


def make_page(sources: Sequence[Source]) -> Iterator[bytes]:
    """All families of these sources. One that fails is logged and left out: the others are worth having."""
    for source in sources:
        try:
            yield from exposition(source())
        except Exception:
            log.exception("some metrics can't be had")


class _Request:
    """One connection; called by the event loop as asyncio's protocols are."""

    def __init__(self, listener: MetricsListener) -> None:
        self._listener = listener
        self._transport: Any = None
        self._head = b""
        self._timer: Timer | None = None
        self._is_asked = False  # its page is being made
        self._is_answered = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if not self._listener.make_room():
            self._is_answered = True
            transport.abort()
            return
        self._listener.connections[self] = None
        self._timer = self._listener.runtime.call_later(REQUEST_S_MAX, lambda: self._refuse(408))

    def data_received(self, data: bytes) -> None:
        if self._is_answered or self._is_asked:
            return
        self._head += data
        head, end, _ = self._head.replace(b"\r\n", b"\n").partition(b"\n\n")
        if end and len(head) <= HEAD_BYTES_MAX:
            self._answer(head)
        elif len(self._head) > HEAD_BYTES_MAX:
            self._refuse(431)

    def eof_received(self) -> bool:
        return self._is_asked  # the answer may still be on its way

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the loop's shape
        self._is_answered = True
        self._cancel()
        self._listener.connections.pop(self, None)

    def pause_writing(self) -> None:
        """One page is all that is written."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    def is_silent(self) -> bool:
        """Whether the head of its request is still to come."""
        return not self._is_asked and not self._is_answered

    def is_unread(self) -> bool:
        """Whether it has its answer and only has to read it."""
        return self._is_answered

    def abort(self) -> None:
        self._listener.connections.pop(self, None)
        self._transport.abort()

    def _answer(self, head: bytes) -> None:
        try:
            method, target, version = head.partition(b"\n")[0].decode("ascii").split(" ")
        except ValueError:
            self._refuse(400)
            return
        if not version.startswith("HTTP/1."):
            self._refuse(400)
        elif target.partition("?")[0] != PATH:
            self._refuse(404)
        elif method != "GET":
            self._refuse(405)
        else:
            self._page()

    def _page(self) -> None:
        page = self._listener.page()
        if page is None:
            self._refuse(503)
            return
        pieces: list[bytes] = []

        def steps() -> Iterator[None]:
            for piece in page:
                pieces.append(piece)
                yield

        self._is_asked = True
        in_slices(self._listener.runtime, steps(), lambda: self._write(200, CONTENT_TYPE, b"".join(pieces)))

    def _refuse(self, status: int) -> None:
        text = f"{status} {_REASONS[status]}: GET {PATH} is all there is\n"
        self._write(status, _PLAIN, text.encode())

    def _write(self, status: int, content_type: str, body: bytes) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        self._cancel()
        allow = "Allow: GET\r\n" if status == 405 else ""
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n{allow}Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._transport.close()
        self._timer = self._listener.runtime.call_later(ANSWER_S_MAX, self._transport.abort)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
