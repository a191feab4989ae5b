"""One TCP connection to another broker: frames out, and answers in, in the order of what was asked.

- The answer to a large fetch is read from the socket into one buffer, which is kept for the next one, and handed over
  there: the records go to the file without a copy. So views of an answer are valid until `done` returns.
- The request bounds the frame of its answer, and the buffer grows no faster than bytes arrive.
- Anything but an answer to the oldest request closes the connection with a line in the log, as does an answer that does not
  come in time.
"""

from __future__ import annotations

import logging
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from barnabas.broker.requests.registry import AUTHENTICATE_BROKER
from barnabas.wire.frame import unpack_size
from barnabas.wire.headers import decode_response_header
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import response_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime
    from barnabas.wire.message_type import MessageType

log = logging.getLogger("barnabas.replication")

BUFFER_BYTES: Final = 128 * 1024
KEPT_ANSWERS: Final = 256  # a buffer that so many answers in a row did not fill to a quarter is given back


# Deals with an answer, the body at frame[start:], without having it decoded; False, and nothing has happened, when it is
# none of those it knows.
RawAnswer: TypeAlias = "Callable[[memoryview, int], bool]"


class Asker(Protocol):
    """The owner of a connection (peer_client.py)."""

    client_id: str

    def made(self, connection: InterBrokerConnection) -> None: ...

    def answered(self) -> None: ...

    def ended(self, connection: InterBrokerConnection, why: str, answered: bool) -> None: ...


class Asked(msgspec.Struct, gc=False):
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

    def __init__(self, client: Asker, runtime: Runtime, timeout_s: float) -> None:
        self.asked: deque[Asked] = deque()
        self._client = client
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._small_answers = 0  # in a row
        self._answered = False
        self._closing = False
        self._watched = False
        self._why = "closed by the other side"

    # -- the client's side

    def send(self, frame: bytes, asked: Asked) -> None:
        self.asked.append(asked)
        self._transport.write(frame)
        if not self._watched:
            self._watched = True
            self._runtime.call_later(self._timeout_s, self._watch)

    def abandon(self) -> None:
        self._closing = True
        self._transport.abort()

    def _watch(self) -> None:
        self._watched = False
        if self._closing or not self.asked:
            return
        left_s = self.asked[0].deadline - self._runtime.monotonic()
        if left_s <= 0:
            self._end(f"no answer for {self._timeout_s:g} s")
        else:
            self._watched = True
            self._runtime.call_later(left_s, self._watch)

    # -- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._client.made(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        if self._closing:
            self._filled = 0
            return
        try:
            self._take_frames()
        except DecodeError as error:
            self._end(f"an answer that cannot be read: {error}")
        except Exception:
            log.exception("%s: an answer could not be dealt with", self._client.client_id)
            self._end("an answer could not be dealt with")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        was_closing, self._closing = self._closing, True
        if not was_closing:
            self._client.ended(self, str(error) if error is not None else self._why, self._answered)

    def pause_writing(self) -> None:
        """Requests are small and few."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    # -- frames

    def _end(self, why: str) -> None:
        if self._closing:
            return
        self._closing = True
        log.warning("%s: closing the connection: %s", self._client.client_id, why)
        self._transport.abort()
        self._client.ended(self, why, answered=False)

    def _take_frames(self) -> None:
        position = 0
        while not self._closing and self._filled - position >= 4:
            (size,) = unpack_size(self._view, position)
            max_bytes = self.asked[0].max_bytes if self.asked else 0
            if not 4 <= size <= max_bytes:
                raise DecodeError(f"a frame of {size} bytes, at most {max_bytes} were asked for")
            start = position + 4
            if self._filled - start < size:
                break
            position = start + size
            self._answer(self.asked.popleft(), start, position)
            self._small_answers = 0 if size * 4 > len(self._buffer) else self._small_answers + 1
        if self._closing:
            return
        if position:
            self._move_rest(position)
        elif self._filled == len(self._buffer):
            self._grow()

    def _answer(self, asked: Asked, start: int, end: int) -> None:
        frame = self._view[start:end]
        correlation_id, body = decode_response_header(asked.api_key, asked.version, frame)
        if correlation_id != asked.correlation_id:
            raise DecodeError(
                f"an answer to request {correlation_id}, to {asked.correlation_id} was expected"
            )
        if asked.fast_path is not None and asked.fast_path(frame, body):
            if asked.api_key != AUTHENTICATE_BROKER:  # that shows nothing of how requests are served
                self._answered = True
                self._client.answered()
            return
        message_type: MessageType[Any] = response_type(asked.api_key)
        response, stop = message_type.readers[asked.version](frame, body, len(frame))
        if stop != len(frame):
            raise DecodeError(f"{len(frame) - stop} bytes behind an answer")
        self._answered = True
        self._client.answered()
        asked.done(response)

    def _move_rest(self, position: int) -> None:
        """What lies behind the last whole frame goes to the front of the buffer."""
        rest = bytes(self._view[position : self._filled])
        if len(self._buffer) > BUFFER_BYTES and self._small_answers > KEPT_ANSWERS:
            self._small_answers = 0
            self._buffer = bytearray(max(BUFFER_BYTES, len(rest) + 4))
            self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest
        self._filled = len(rest)
        if self._filled == len(self._buffer):
            self._grow()

    def _grow(self) -> None:
        """Room for the frame that is arriving, at most twice what has come."""
        (size,) = unpack_size(self._view, 0)
        grown = bytearray(max(self._filled + 1, min(4 + size, 2 * self._filled)))
        grown[: self._filled] = self._view[: self._filled]
        self._buffer = grown
        self._view = memoryview(grown)
