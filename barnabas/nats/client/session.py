"""The session of one connection to a nats-server: its states, the server's first line, and signs of life.

It does no I/O. `connection.py` reports what happens, and does what the state asks for.

- The server speaks first, with one INFO line. The session reads it, not the parser: bytes that an attacker puts behind it,
  before TLS begins, are never parsed as messages.
- CONNECT, all subscriptions and a PING are sent together. When the PONG arrives, the subscriptions are in force.
- The server answers PINGs in order, and behind all messages that it took before.
- Any bytes are a sign of life. After two pings without any the connection is stale, unless reading is paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.errors import NatsError, NatsSettingsError
from barnabas.nats.client.protocol import LINE_BYTES_MAX, NatsProtocolError, ServerInfo, read_info

if TYPE_CHECKING:
    from barnabas.nats.client.errors import Cause

PINGS_MAX: Final = 2  # without any sign of life

Done = Callable[["NatsError | None"], object]


class State(Enum):
    NEW = auto()  # without a transport
    TLS_FIRST = auto()  # the TLS handshake comes before INFO
    WAITING = auto()  # for the INFO line
    UPGRADING = auto()  # the TLS handshake that follows INFO
    SECURE = auto()  # and that has ended
    GREETED = auto()  # CONNECT, the subscriptions and a PING are sent
    READY = auto()  # and the PING is answered
    CLOSING = auto()  # closed during a TLS handshake, which has to end before the transport can be aborted
    CLOSED = auto()


class Event(Enum):
    OPEN = auto()  # there is a transport
    START_TLS = auto()
    END_TLS = auto()  # the TLS handshake has ended, with success or without
    GREET = auto()
    ANSWER = auto()  # the PONG to the greeting
    CLOSE = auto()


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.NEW, Event.OPEN): State.WAITING,
    (State.NEW, Event.START_TLS): State.TLS_FIRST,
    (State.TLS_FIRST, Event.END_TLS): State.WAITING,
    (State.WAITING, Event.START_TLS): State.UPGRADING,
    (State.WAITING, Event.GREET): State.GREETED,
    (State.UPGRADING, Event.END_TLS): State.SECURE,
    (State.SECURE, Event.GREET): State.GREETED,
    (State.GREETED, Event.ANSWER): State.READY,
    (State.TLS_FIRST, Event.CLOSE): State.CLOSING,
    (State.UPGRADING, Event.CLOSE): State.CLOSING,
    (State.CLOSING, Event.END_TLS): State.CLOSED,
    **{
        (state, Event.CLOSE): State.CLOSED
        for state in (State.NEW, State.WAITING, State.SECURE, State.GREETED, State.READY)
    },
}
READY: Final = State.READY
_IN_TLS_HANDSHAKE: Final = (State.TLS_FIRST, State.UPGRADING, State.CLOSING)
_GREETED: Final = (State.READY, State.GREETED)
_CLOSED: Final = (State.CLOSED, State.CLOSING)


class Session:
    """`server` is how errors name the server."""

    def __init__(self, server: str) -> None:
        self.state = State.NEW
        self.info = ServerInfo()  # the newest
        # What the end of the connection means, when that is known before
        self.expected_end: Cause | None = None
        self.has_heard = False  # since the last check; set with each read
        self._server = server
        self._first_line = bytearray()  # as far as it has arrived
        self._pings: deque[Done | None] = deque()  # not answered yet
        self._silent_pings = 0

    def apply(self, event: Event) -> None:
        """RuntimeError when the event can't occur in this state."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise RuntimeError(f"{event.name} does not occur while a connection is {self.state.name}")
        self.state = following

    @property
    def is_greeted(self) -> bool:
        """Whether the server knows the subscriptions."""
        return self.state in _GREETED

    @property
    def is_closed(self) -> bool:
        return self.state in _CLOSED

    @property
    def is_in_tls_handshake(self) -> bool:
        """Whether the transport must not be touched."""
        return self.state in _IN_TLS_HANDSHAKE

    def receive_info(self, data: bytes | memoryview) -> bytes | None:
        """Reads the INFO line: what has arrived behind it, or None while it is incomplete. NatsProtocolError and
        NatsSettingsError end the connection."""
        if self.state is State.TLS_FIRST:
            raise NatsSettingsError(
                f"{self._server} speaks before TLS begins: set handshake_first in the tls section of its configuration, or "
                "nats.tls.handshake.first=false here"
            )
        if self.state is not State.WAITING:
            raise NatsProtocolError("bytes arrived between INFO and the beginning of TLS")
        self._first_line += data
        line, end, rest = bytes(self._first_line).partition(b"\r\n")
        if len(line) > LINE_BYTES_MAX:
            raise NatsProtocolError("a first line without end")
        if not end:
            return None
        self.info = read_info(line)
        self._first_line = bytearray()
        return rest

    def take_info(self, info: ServerInfo, lame_duck: Cause) -> bool:
        """Takes a later INFO. Whether it says for the first time that the server shuts down (lame duck mode), which then is
        the cause of the connection's end."""
        self.info = info
        if not info.ldm or self.expected_end is not None:
            return False
        self.expected_end = lame_duck
        return True

    def start_tls(self, rest: bytes = b"") -> None:
        """A TLS handshake begins, before INFO or behind it; `rest` is what has arrived behind INFO."""
        if rest:
            raise NatsProtocolError("bytes arrived between INFO and the beginning of TLS")
        self.apply(Event.START_TLS)

    def add_ping(self, done: Done | None) -> None:
        """A PING is sent: `done(None)` with its PONG."""
        self._pings.append(done)

    def answer_ping(self) -> None:
        """A PONG has arrived. One that answers no PING has no effect."""
        done = self._pings.popleft() if self._pings else None
        if done is not None:
            done(None)

    def is_stale(self, *, is_paused: bool) -> bool:
        """Whether the server counts as gone, as of this check; otherwise it is to be sent a PING."""
        if self.has_heard or is_paused:
            self._silent_pings = 0
        elif self._silent_pings >= PINGS_MAX:
            return True
        self.has_heard = False
        self._silent_pings += 1
        return False

    def close(self) -> list[Done]:
        """Ends the session. Returns what is to be called with an error: the PINGs that get no answer."""
        self.apply(Event.CLOSE)
        unanswered = [done for done in self._pings if done is not None]
        self._pings.clear()
        return unanswered
