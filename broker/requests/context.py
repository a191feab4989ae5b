"""A request in flight: its context, the reply that takes its response, and the outcomes that a handler may return instead."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from barnabas.broker.security.caller import Caller, Principal

log = logging.getLogger("barnabas.controller")


class Outcome(enum.Enum):
    """Returned by a handler that has no response yet, or none at all."""

    PENDING = enum.auto()
    NO_RESPONSE = enum.auto()
    CLOSE = enum.auto()
    # To a request of another node (cluster/controller_server.py): this controller has lost its leadership, and it is not known
    # whether the change is committed. The node sends the request again.
    NOT_CONTROLLER = enum.auto()


PENDING: Final = Outcome.PENDING
NO_RESPONSE: Final = Outcome.NO_RESPONSE
CLOSE_CONNECTION: Final = Outcome.CLOSE
UNKNOWN_SOFTWARE: Final = "unknown"


class RawResponse(msgspec.Struct, frozen=True):
    """An encoded response."""

    body: bytes


class Peer:
    """The other end of a connection: the software that it says it is, the broker that it has been authenticated as
    (inter_broker_authentication.py), and when it has sent what is being served."""

    __slots__ = (
        "_on_close", "broker_id", "handshake", "port", "received_at", "software_name", "software_version",
    )  # fmt: skip

    def __init__(self, broker_id: int = -1) -> None:
        self.broker_id = broker_id  # -1: not authenticated as any broker
        self.handshake: object | None = None  # an authentication that has begun
        self.port = 0
        self.received_at = 0.0  # on the monotonic clock: when the turn began in which its requests are served
        self.software_name = UNKNOWN_SOFTWARE  # of its last ApiVersions request (KIP-511)
        self.software_version = UNKNOWN_SOFTWARE
        self._on_close: dict[str, Callable[[], object]] | None = None

    def when_closed(self, owner: str, callback: Callable[[], object] | None) -> None:
        """Call back once the connection has ended; each owner has one callback, None for none."""
        if self._on_close is None:
            self._on_close = {}
        if callback is None:
            self._on_close.pop(owner, None)
        else:
            self._on_close[owner] = callback

    def closed(self) -> None:
        """The connection has ended."""
        callbacks, self._on_close = self._on_close, None
        for callback in () if callbacks is None else callbacks.values():
            callback()


class Reply(Protocol):
    """The connection's side of a request: takes the response when it is ready."""

    @property
    def peer(self) -> Peer: ...

    def complete(self, context: RequestContext[Any], response: msgspec.Struct | Outcome) -> None: ...

    @property
    def closed(self) -> bool: ...

    def on_disconnect(self, callback: Callable[[], object]) -> None: ...

    def on_next_request(self, callback: Callable[[int], object]) -> None: ...

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None: ...

    def throttle(self, delay_s: float) -> None:
        """Serve nothing more for this long, once the current request is answered."""
        ...


class Requester(Reply, Protocol):
    """A connection, as the dispatcher sees it."""

    caller: Caller


S = TypeVar("S", covariant=True)


class RequestContext(msgspec.Struct, Generic[S]):
    """One request in flight. Made for every request, so it holds references only.

    `S` is the type of `services`: handlers see the whole broker (`HandlerContext`, services.py), the rooms below them what they
    name in a protocol, or nothing (`object`).
    """

    services: S
    reply: Reply
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    caller: Caller
    # On the monotonic clock: when its turn began, and when its handler has returned PENDING. None before that
    waits_since: tuple[float, float] | None = None

    @property
    def principal(self) -> Principal:
        return self.caller.principal

    @property
    def listener(self) -> str:
        """The name of the listener that the request came in on."""
        return self.caller.listener

    @property
    def client_host(self) -> str:
        """The peer's address, such as "127.0.0.1"."""
        return self.caller.client_host

    def complete(self, response: msgspec.Struct | Outcome) -> None:
        """Send the response of a request whose handler returned PENDING, or act on the outcome. To be called once; without effect
        when the connection has ended."""
        self.reply.complete(self, response)

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.reply.closed

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call back if the connection ends before this request is answered; at most once."""
        self.reply.on_disconnect(callback)

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        """Call back if the client sends another request before this one is answered, at most once, with the API key of
        the other; the callback must not answer in the same turn."""
        self.reply.on_next_request(callback)

    def allow_pipelined_produces(self) -> None:
        """Serve produces behind this request before it is answered; their answers leave after its answer. To be called
        by a handler that is about to return PENDING."""
        self.reply.allow_pipelined_produces(self)


# Makes the context of a request without a connection: (reply, API key, API version, client id, caller).
NewContext = Callable[[Reply, int, int, str | None, Caller], RequestContext[Any]]


class LocalReply:
    """The reply of a request that came over no client connection."""

    peer: Final = Peer()

    def __init__(
        self,
        done: Callable[[msgspec.Struct], object],
        failed: Callable[[], object],
        lost: Callable[[], object] | None = None,
        request_id: bytes = b"",
    ) -> None:
        """Exactly one of the callbacks is called, once. `failed()`: there is no response, where a connection would be closed;
        `lost()`: the controller has lost its leadership, and the request may be sent again under its id."""
        self.request_id = request_id
        self._done = done
        self._failed = failed
        self._lost = lost
        self._is_answered = False

    def complete(self, context: RequestContext[Any], response: msgspec.Struct | Outcome) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        if response is Outcome.NOT_CONTROLLER and self._lost is not None:
            self._lost()
        elif isinstance(response, Outcome):
            log.warning("API %d of %s has no answer: %s", context.api_key, context.client_host, response.name)
            self._failed()
        else:
            self._done(response)

    @property
    def closed(self) -> bool:
        return False

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Never called back: there is no connection."""

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None:
        """Without effect: no request follows."""

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        """Never called back: no request follows."""

    def throttle(self, delay_s: float) -> None:
        """Without effect: no request follows."""
