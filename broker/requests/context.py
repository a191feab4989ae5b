"""What a handler is told about the request it serves, and the way back for an answer that comes later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.cluster.inter_broker_authentication import Handshake
    from barnabas.broker.requests.registry import Outcome
    from barnabas.broker.requests.services import Services


class Reply(Protocol):
    """The connection's side of a request: takes the response when it is ready."""

    peer_broker_id: (
        int  # of the broker that it is authenticated as (inter_broker_authentication.py); -1: of none
    )
    peer_handshake: Handshake | None

    def complete(self, context: RequestContext, response: msgspec.Struct | Outcome) -> None: ...

    @property
    def closed(self) -> bool: ...

    def when_abandoned(self, callback: Callable[[], object]) -> None: ...

    def when_overtaken(self, callback: Callable[[int], object]) -> None: ...

    def let_produces_on(self, context: RequestContext) -> None: ...


class Requester(Reply, Protocol):
    """A connection, as far as the request it has sent is told of it."""

    listener: str
    client_host: str


class RequestContext(msgspec.Struct, gc=False):
    """One request in flight. Made for every request, so it holds references only."""

    services: Services
    reply: Reply
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    listener: str  # name of the listener the request came in on
    client_host: str  # peer address, such as "127.0.0.1"

    def complete(self, response: msgspec.Struct | Outcome) -> None:
        """Send the response of a request whose handler returned PENDING, or do what the outcome says. Once; a connection that has gone
        in the meantime swallows it."""
        self.reply.complete(self, response)

    @property
    def closed(self) -> bool:
        """Whether the client has gone, so that nobody waits for the answer."""
        return self.reply.closed

    def when_abandoned(self, callback: Callable[[], object]) -> None:
        """Call back should the client go before this request is answered; at most once."""
        self.reply.when_abandoned(callback)

    def when_overtaken(self, callback: Callable[[int], object]) -> None:
        """Call back should the client send another request before this one is answered, at most once, with the API key of
        the other; the callback must not answer in the same turn."""
        self.reply.when_overtaken(callback)

    def let_produces_on(self) -> None:
        """Have produces behind this request served before it is answered; theirs go out after its answer. To be called
        by a handler that is about to return PENDING."""
        self.reply.let_produces_on(self)
