"""A request in flight: its context, the way back for its answer, and what a handler returns instead of a response."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

log = logging.getLogger("barnabas.controller")


class Outcome(enum.Enum):
    """What a handler returns when it has no response yet, or none at all."""

    PENDING = enum.auto()
    NO_RESPONSE = enum.auto()
    CLOSE = enum.auto()
    # To a request of another node (cluster/controller_server.py): this controller has lost its term, and whether the change
    # is committed is not known. The node sends the request again.
    NOT_CONTROLLER = enum.auto()


PENDING: Final = Outcome.PENDING
NO_RESPONSE: Final = Outcome.NO_RESPONSE
CLOSE_CONNECTION: Final = Outcome.CLOSE


class RawResponse(msgspec.Struct, frozen=True):
    """A response that is encoded already."""

    body: bytes


class Reply(Protocol):
    """The connection's side of a request: takes the response when it is ready."""

    peer_broker_id: int  # the broker that the connection is authenticated as; -1: none
    peer_handshake: object | None  # of an authentication that has begun (inter_broker_authentication.py)

    def complete(self, context: RequestContext[Any], response: msgspec.Struct | Outcome) -> None: ...

    @property
    def closed(self) -> bool: ...

    def on_disconnect(self, callback: Callable[[], object]) -> None: ...

    def on_next_request(self, callback: Callable[[int], object]) -> None: ...

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None: ...


class Requester(Reply, Protocol):
    """A connection, as the dispatcher sees it."""

    listener: str
    client_host: str


S = TypeVar("S", covariant=True)


class RequestContext(msgspec.Struct, Generic[S], gc=False):
    """One request in flight. Made for every request, so it holds references only.

    `S` is what the code that gets the context may use of the broker: handlers all of it (`HandlerContext`, services.py), the
    rooms below them what they name in a protocol, or nothing (`object`).
    """

    services: S
    reply: Reply
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    listener: str  # name of the listener the request came in on
    client_host: str  # peer address, such as "127.0.0.1"

    def complete(self, response: msgspec.Struct | Outcome) -> None:
        """Send the response of a request whose handler returned PENDING, or do what the outcome says. Once; the response is
        dropped when the connection has ended in the meantime."""
        self.reply.complete(self, response)

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, so that the response would be dropped."""
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


# Makes the context of a request without a connection: (reply, API key, API version, client id, listener, client host).
NewContext = Callable[[Reply, int, int, str | None, str, str], RequestContext[Any]]


class LocalReply:
    """The way back for a request that came over no connection of a client."""

    peer_broker_id = -1
    peer_handshake: object | None = None

    def __init__(
        self,
        done: Callable[[msgspec.Struct], object],
        failed: Callable[[], object],
        lost: Callable[[], object] | None = None,
        request_id: bytes = b"",
    ) -> None:
        """Exactly one of them is called, once. `failed()`: there is no response, where a connection would be closed;
        `lost()`: the controller has lost its term, and the request may be sent again under its id."""
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
        """Never: no connection can end."""

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None:
        """Without effect: nothing comes behind the request."""

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        """Never: nothing comes behind the request."""
