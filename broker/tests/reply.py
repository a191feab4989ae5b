"""The double of a connection, as a handler sees it, and requests handed to handlers without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from barnabas.broker.requests.context import Outcome, Peer, RequestContext
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.security.caller import ANONYMOUS, Caller, Principal
from barnabas.broker.services import Services
from barnabas.wire.message_type import MessageType


class Reply:
    """The way back of one request. `answer` is the response once there is one; `outcome` is what the handler says instead.
    `peer_broker_id`: the broker that the connection is authenticated as."""

    def __init__(self, peer_broker_id: int = -1) -> None:
        self.peer = Peer(peer_broker_id)
        self.closed = False
        self.answer: Any = None
        self.outcome: Outcome | None = None
        self.disconnected: Callable[[], object] | None = None  # to be called when the client goes
        self.next_request: Callable[[int], object] | None = None  # to be called when the client sends more
        self.pipelined_produces = False
        self.throttled_s = 0.0

    def complete(self, context: RequestContext[Any], response: Any) -> None:
        assert not self.done, "answered twice"
        if isinstance(response, Outcome):
            self.outcome = response
        else:
            self.answer = response

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        self.disconnected = callback

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        self.next_request = callback

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None:
        self.pipelined_produces = True

    def throttle(self, delay_s: float) -> None:
        self.throttled_s = delay_s

    @property
    def done(self) -> bool:
        return self.answer is not None or self.outcome is not None

    @property
    def responses(self) -> list[Any]:
        """The response, or the outcome; empty until there is one."""
        if not self.done:
            return []
        return [self.answer if self.outcome is None else self.outcome]


def make_context(
    services: Services,
    reply: Reply,
    key: int,
    version: int,
    *,
    client_id: str | None = "client",
    listener: str = "PLAINTEXT",
    principal: Principal = ANONYMOUS,
) -> RequestContext[Any]:
    """What the dispatcher gives the handler of a request."""
    return RequestContext(
        services, reply, key, version, 1, client_id, Caller(principal, listener, "127.0.0.1")
    )


def send(
    services: Services, key: int, version: int, request: Any, reply: Reply | None = None, **fields: Any
) -> Reply:
    """Hand a request to its handler. `fields` are those of `make_context`."""
    reply = reply if reply is not None else Reply()
    context = make_context(services, reply, key, version, **fields)
    answer = REGISTRATIONS[key].handler(context, request)
    if answer is not Outcome.PENDING:
        reply.complete(context, answer)
    return reply


def encoded(kind: MessageType[Any], version: int, message: msgspec.Struct) -> bytes:
    """A message without file regions, as bytes."""
    return b"".join(bytes(part) for part in kind.encode(version, message))  # type: ignore[call-overload]


def as_received(kind: MessageType[Any], version: int, message: msgspec.Struct) -> Any:
    """The message after it has been encoded and decoded in this version."""
    return kind.decode(version, encoded(kind, version, message))[0]
