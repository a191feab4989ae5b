"""A TCP connection to another broker: sends requests, and receives responses in the order of the requests.

- The response to a large fetch is received into one buffer, which is kept for the next one, and passed on as a view of it: the
  records are written to the file without a copy. So views of a response are valid until `done` returns.
- The request bounds the frame of its response, and the buffer grows no faster than bytes arrive.
- Anything but a response to the oldest request closes the connection with a line in the log, as does a response that is late.
"""

from __future__ import annotations

import logging
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from barnabas.broker.requests.registry import AUTHENTICATE_BROKER, SASL_AUTHENTICATE, SASL_HANDSHAKE
from barnabas.wire.frame import SIZE_BYTES, FrameBuffer, unpack_size
from barnabas.wire.headers import decode_response_header
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import response_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime
    from barnabas.wire.message_type import MessageType

log = logging.getLogger("barnabas.replication")

BUFFER_BYTES: Final = 128 * 1024
KEPT_ANSWERS: Final = (
    256  # a large buffer is released after so many answers in a row that fill less than a quarter
)


_OF_AUTHENTICATION: Final = (AUTHENTICATE_BROKER, SASL_HANDSHAKE, SASL_AUTHENTICATE)

# Takes an answer whose body is at frame[start:] without decoding all of it; False, and no effect, when the answer is of another
# form than it handles.
RawAnswer: TypeAlias = "Callable[[memoryview, int], bool]"


class PendingRequest(msgspec.Struct):
    """A request that waits for its answer."""

    correlation_id: int
    api_key: int
    version: int
    max_bytes: int
    deadline: float
    done: Any
    fast_path: RawAnswer | None = None


class InterBrokerConnection(BufferedProtocol):
    """One TCP connection. Called by the event loop."""

    def __init__(
        self,
        client_id: str,
        runtime: Runtime,
        timeout_s: float,
        *,
        on_made: Callable[[InterBrokerConnection], object],
        on_answer: Callable[[], object],
        on_end: Callable[[InterBrokerConnection, str, bool], object],
    ) -> None:
        """`on_made(connection)`: it can be used. `on_answer()`: a request has been answered. `on_end(connection, why, answered)`: it
        has ended, and has answered requests or not."""
        self.pending: deque[PendingRequest] = deque()
        self._client_id = client_id
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._on_made = on_made
        self._on_answer = on_answer
        self._on_end = on_end
        self._received = FrameBuffer(memoryview(b""))
        self._received.reserve(BUFFER_BYTES)
        self._small_answers = 0  # in a row
        self._answered = False
        self._closing = False
        self._watched = False
        self._why = "closed by the other side"

    # -- the client's side

    def send(self, frame: bytes, request: PendingRequest) -> None:
        self.pending.append(request)
        self._transport.write(frame)
        if not self._watched:
            self._watched = True
            self._runtime.call_later(self._timeout_s, self._watch)

    def abandon(self) -> None:
        """Close without any callback."""
        self._closing = True
        self._transport.abort()

    def _watch(self) -> None:
        self._watched = False
        if self._closing or not self.pending:
            return
        left_s = self.pending[0].deadline - self._runtime.monotonic()
        if left_s <= 0:
            self._end(f"no answer for {self._timeout_s:g} s")
        else:
            self._watched = True
            self._runtime.call_later(left_s, self._watch)

    # -- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._on_made(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._received.room()

    def buffer_updated(self, count: int) -> None:
        if self._closing:
            return
        self._received.filled += count
        try:
            self._take_frames()
        except DecodeError as error:
            self._end(f"an answer that cannot be read: {error}")
        except Exception:
            log.exception("%s: an answer could not be processed", self._client_id)
            self._end("an answer could not be processed")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        was_closing, self._closing = self._closing, True
        if not was_closing:
            self._on_end(self, str(error) if error is not None else self._why, self._answered)

    def pause_writing(self) -> None:
        """Requests are small and few."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    # -- frames

    def _end(self, why: str) -> None:
        if self._closing:
            return
        self._closing = True
        log.warning("%s: closing the connection: %s", self._client_id, why)
        self._transport.abort()
        self._on_end(self, why, False)

    def _take_frames(self) -> None:
        received, position = self._received, 0
        data, filled = received.data, received.filled
        while filled - position >= SIZE_BYTES:
            (size,) = unpack_size(data, position)
            max_bytes = self.pending[0].max_bytes if self.pending else 0
            if not 4 <= size <= max_bytes:
                raise DecodeError(f"a frame of {size} bytes; the limit is {max_bytes}")
            start = position + SIZE_BYTES
            if filled - start < size:
                break
            position = start + size
            self._answer(self.pending.popleft(), data[start:position])
            if self._closing:
                return
            self._small_answers = 0 if size * 4 > len(data) else self._small_answers + 1
        received.consume(position)
        if len(data) > BUFFER_BYTES and self._small_answers > KEPT_ANSWERS:
            self._small_answers = 0
            self._received = FrameBuffer(data[: received.filled])
            self._received.reserve(BUFFER_BYTES)
        self._received.make_room()

    def _answer(self, request: PendingRequest, frame: memoryview) -> None:
        correlation_id, body = decode_response_header(request.api_key, request.version, frame)
        if correlation_id != request.correlation_id:
            raise DecodeError(f"an answer to request {correlation_id} instead of {request.correlation_id}")
        if request.fast_path is not None and request.fast_path(frame, body):
            if request.api_key not in _OF_AUTHENTICATION:  # the broker may still refuse other requests
                self._answered = True
                self._on_answer()
            return
        message_type: MessageType[Any] = response_type(request.api_key)
        response, stop = message_type.readers[request.version](frame, body, len(frame))
        if stop != len(frame):
            raise DecodeError(f"{len(frame) - stop} bytes behind an answer")
        self._answered = True
        self._on_answer()
        request.done(response)
