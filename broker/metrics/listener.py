"""GET /metrics over HTTP/1.1, one request a connection, on a listener of its own (barnabas.metrics.listener).

The head of a request is read up to a size and within a time, and the connection is closed behind the answer; anything but
a GET of the page is answered by an error. Connections are bounded in number: for one more, the oldest without a request is
closed, else the oldest that has not read its answer, so that a scraper gets in whatever others hold open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config.listeners import format_address
from barnabas.broker.metrics.families import CONTENT_TYPE, Source, exposition
from barnabas.runtime.slices import in_slices
from barnabas.wire.http import Head, HttpError, RequestParser, encode_response, reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Server, Timer

log = logging.getLogger("barnabas.metrics")

PATH: Final = "/metrics"
HEAD_BYTES_MAX: Final = 8192
CONNECTIONS_MAX: Final = 64
REQUEST_S_MAX: Final = 5.0  # until the head is there
ANSWER_S_MAX: Final = 30.0  # until the reader has taken it
_PLAIN: Final = "text/plain; charset=utf-8"


class MetricsListener:
    """Serves what `page()` returns at each request: the text in pieces, or None before there is any. OSError when the
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
        self._parser = RequestParser(HEAD_BYTES_MAX)
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
        try:
            if self._parser.feed(data) and self._parser.head is not None:
                self._answer(self._parser.head)
        except HttpError as error:
            self._refuse(error.status)

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

    def _answer(self, head: Head) -> None:
        if head.target.partition("?")[0] != PATH:
            self._refuse(404)
        elif head.method != "GET":
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
        text = f"{status} {reason(status)}: GET {PATH} is all there is\n"
        self._write(status, _PLAIN, text.encode())

    def _write(self, status: int, content_type: str, body: bytes) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        self._cancel()
        allow = "Allow: GET\r\n" if status == 405 else ""
        self._transport.write(encode_response(status, content_type, body, allow))
        self._transport.close()
        self._timer = self._listener.runtime.call_later(ANSWER_S_MAX, self._transport.abort)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
