"""A client connection to another broker's inter-broker listener: requests out, answers in, in their order.

- The answer to a large fetch is read from the socket into one buffer, which is kept for the next one, and handed over
  where it lies: the records go from there to the file, uncopied. So views of an answer die when `done` returns.
- A frame is bounded by what was asked for, and the buffer grows no faster than bytes arrive.
- Only an answer to the oldest request that waits is understood; anything else closes the connection with a line in the
  log. So does an answer that does not come in time.
- After a connection has ended the next one is tried at once, and then later and later, at random moments, so that a
  broker that comes back is not met by everybody at the same time.
"""

from __future__ import annotations

import logging
import struct
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
from barnabas.wire.headers import RequestHeader, decode_response_header, encode_request_header
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import request_type, response_type

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from barnabas.storage.runtime import Connecting, Runtime, Timer
    from barnabas.wire.message_type import MessageType

log = logging.getLogger("barnabas.replication")

BUFFER_BYTES: Final = 128 * 1024
KEPT_ANSWERS: Final = 256  # a buffer that so many answers in a row did not fill to a quarter is given back
SMALL_ANSWER_BYTES: Final = 1024 * 1024  # more than any answer without records should have
FIRST_BACKOFF_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0
_unpack_size = struct.Struct(">i").unpack_from
_pack_size = struct.Struct(">i").pack


class _Asked(msgspec.Struct, gc=False):
    """A request that waits for its answer."""

    correlation_id: int
    api_key: int
    version: int
    max_bytes: int
    deadline: float
    done: Any


class InterBrokerClient:
    """The connection to one broker. `open` has it made, and made again whenever it ends, until `close`.

    `connected()` is called each time that it is there; `lost(error)` when it has ended: what was asked on it gets no
    answer. All calls on the loop's thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        client_id: str,
        endpoint: Callable[[], tuple[str, int] | None],
        connected: Callable[[], object],
        lost: Callable[[str], object],
        *,
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`endpoint()` says where the broker listens now; None when nobody knows."""
        self.client_id = client_id
        self._runtime = runtime
        self._endpoint = endpoint
        self._connected = connected
        self._lost = lost
        self._timeout_s = timeout_s
        self._tls = tls
        self._connecting: Connecting | None = None
        self._connection: _Connection | None = None
        self._timer: Timer | None = None  # until the next attempt
        self._attempts = 0  # that have failed, or led to a connection on which nothing was answered
        self._is_open = False
        self._correlation_id = 0
        self._heads: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def waiting(self) -> int:
        """How many requests have no answer yet."""
        return len(self._connection.asked) if self._connection is not None else 0

    def open(self) -> None:
        """Have it made, unless it is there or on its way."""
        if not self._is_open:
            self._is_open = True
            self._attempt()

    def close(self) -> None:
        """End it; nobody is called any more, and what is asked gets no answer."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def hurry(self) -> None:
        """There is news of the broker: try at once instead of later."""
        if self._timer is not None:
            self._timer.cancel()
            self._attempts = 0
            self._attempt()

    def send(
        self,
        api_key: int,
        version: int,
        request: msgspec.Struct,
        done: Callable[[Any], object],
        *,
        answer_max_bytes: int = SMALL_ANSWER_BYTES,
    ) -> None:
        """Send a request; `done(response)` when its answer is there, never when the connection ends before. Only
        while it is connected."""
        connection = self._connection
        assert connection is not None, "not connected"
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = self._heads.get((api_key, version))
        if head is None:
            header = encode_request_header(RequestHeader(api_key, version, 0, self.client_id))
            head = self._heads[api_key, version] = header[:4], header[8:]
        parts: list[Any] = [b"", head[0], _pack_size(correlation_id), head[1]]
        message_type: MessageType[Any] = request_type(api_key)
        message_type.writers[version](request, parts.append)
        parts[0] = _pack_size(sum(map(len, parts)))
        deadline = self._runtime.monotonic() + self._timeout_s
        connection.send(
            b"".join(parts),
            _Asked(correlation_id, api_key, version, answer_max_bytes, deadline, done),
        )

    # -- making it

    def _attempt(self) -> None:
        self._timer = None
        found = self._endpoint()
        if found is None:
            self._again("nobody knows where it listens")
            return

        def failed(error: OSError) -> None:
            self._connecting = None
            self._again(str(error))

        self._connecting = self._runtime.connect(
            *found, lambda: _Connection(self, self._runtime, self._timeout_s), failed, tls=self._tls
        )

    def _again(self, why: str) -> None:
        """Try later."""
        if not self._is_open:
            return
        longest = min(FIRST_BACKOFF_S * 2 ** min(self._attempts, 10), BACKOFF_MAX_S)
        if self._attempts == 0 or longest < BACKOFF_MAX_S:
            log.info("%s: no connection: %s", self.client_id, why)
        self._attempts += 1
        self._timer = self._runtime.call_later(longest * self._runtime.random.uniform(0.5, 1), self._attempt)

    def made(self, connection: _Connection) -> None:
        """Called by the connection."""
        self._connecting = None
        if not self._is_open:
            connection.abandon()
            return
        self._connection = connection
        self._connected()

    def answered(self) -> None:
        """Called by the connection: the other side is well."""
        self._attempts = 0

    def ended(self, connection: _Connection, why: str, answered: bool) -> None:
        """Called by the connection."""
        if self._connection is not connection:
            return
        self._connection = None
        log.info("%s: the connection has ended: %s", self.client_id, why)
        if answered:
            self._attempts = 0
            self._timer = self._runtime.call_later(0, self._attempt)
        else:
            self._again(why)
        self._lost(why)


class _Connection(BufferedProtocol):
    """One TCP connection. Called by the event loop."""

    def __init__(self, client: InterBrokerClient, runtime: Runtime, timeout_s: float) -> None:
        self.asked: deque[_Asked] = deque()
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

    def send(self, frame: bytes, asked: _Asked) -> None:
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
            (size,) = _unpack_size(self._view, position)
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

    def _answer(self, asked: _Asked, start: int, end: int) -> None:
        frame = self._view[start:end]
        correlation_id, body = decode_response_header(asked.api_key, asked.version, frame)
        if correlation_id != asked.correlation_id:
            raise DecodeError(
                f"an answer to request {correlation_id}, to {asked.correlation_id} was expected"
            )
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
        (size,) = _unpack_size(self._view, 0)
        grown = bytearray(max(self._filled + 1, min(4 + size, 2 * self._filled)))
        grown[: self._filled] = self._view[: self._filled]
        self._buffer = grown
        self._view = memoryview(grown)
