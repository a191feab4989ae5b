"""An open link to one node, with its requests in both directions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from barnabas.controller.link import messages
from barnabas.controller.link.framing import PAYLOAD_BYTES_MAX
from barnabas.controller.link.messages import LinkRefused, MalformedMessage, Refused, decode

if TYPE_CHECKING:
    from barnabas.controller.link.connection import Connection
    from barnabas.controller.link.messages import Identity

Done = Callable[[bytes | None], object]
Serve = Callable[[int, bytes, Done], object]  # serve(node id, request, reply)
Handler = Callable[["Peer", bytes], object]

_ID_BYTES = 8

log = logging.getLogger("barnabas.link")


class Peer:
    """A linked node. `number` grows with every link that this node opens. `dialed`: this node has made the connection.
    `version`: of the protocol, common to both. A handler that raises closes the link, nothing else."""

    def __init__(
        self,
        identity: Identity,
        connection: Connection,
        number: int,
        handlers: Mapping[int, Handler],
        on_closed: Callable[[Peer, Exception | None], object],
        *,
        dialed: bool,
        requests_max: int,
        version: int,
    ) -> None:
        """`handlers`: by kind of frame; others are malformed."""
        self.node_id = identity.node_id
        self.identity = identity
        self.connection = connection
        self.number = number
        self.dialed = dialed
        self.version = version
        self._requests_max = requests_max
        self._pending: dict[int, Done] = {}
        self._next_request = 0
        self._answering = 0  # requests of the peer without an answer
        self._handlers = handlers
        self._on_closed = on_closed

    @property
    def is_open(self) -> bool:
        return not self.connection.closed

    def send(self, kind: int, payload: bytes) -> bool:
        """Whether it will be sent."""
        return self.connection.send(kind, payload)

    # The connection's user

    def made(self) -> None:
        """Not called: the connection was made before the handshake."""

    def frame(self, kind: int, payload: bytes) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise MalformedMessage(f"a frame of kind {kind} on an open link")
        try:
            handler(self, payload)
        except MalformedMessage:
            raise
        except Exception:
            log.exception("a message of node %d could not be handled; the link is closed", self.node_id)
            self.connection.abort(RuntimeError("its message could not be handled"))

    def malformed(self, error: MalformedMessage) -> None:
        self.connection.abort(error)

    def closed(self, error: Exception | None) -> None:
        self._on_closed(self, error)

    # Frames

    def take_ping(self, payload: bytes) -> None:
        if payload:
            self.send(messages.PONG, payload)

    def take_sasl(self, payload: bytes) -> None:
        """Another login, before the session ends."""
        if self.connection.sasl is None:
            raise MalformedMessage("a login by SASL on a listener without")
        self.connection.sasl.received(payload)

    def take_refusal(self, payload: bytes) -> None:
        self.connection.abort(LinkRefused.from_peer(decode(payload, Refused)))

    def request(self, payload: bytes, done: Done) -> None:
        """`done(answer)`, once; None when the link closes, or, before this returns, when its queue is full."""
        self._next_request += 1
        number = self._next_request
        if len(self._pending) >= self._requests_max or not self.send(
            messages.REQUEST, number.to_bytes(_ID_BYTES, "big") + payload
        ):
            done(None)
            return
        self._pending[number] = done
        self.connection.traffic.requests += 1

    def take_response(self, payload: bytes) -> None:
        self._answered(payload, payload[_ID_BYTES:])

    def take_no_response(self, payload: bytes) -> None:
        self._answered(payload, None)

    def _answered(self, payload: bytes, answer: bytes | None) -> None:
        done = self._pending.pop(_number(payload), None)
        if done is not None:  # else no such request was sent
            self.connection.traffic.responses += 1
            done(answer)

    def take_request(self, payload: bytes, serve: Serve) -> None:
        """Serve a request; its answer goes over this link only."""
        number = _number(payload)
        if self._answering >= self._requests_max:
            self.send(messages.NO_RESPONSE, number.to_bytes(_ID_BYTES, "big"))
            return
        self._answering += 1
        replied = False

        def reply(answer: bytes | None) -> None:
            nonlocal replied
            if replied:
                return
            replied = True
            self._answering -= 1
            head = number.to_bytes(_ID_BYTES, "big")
            if answer is None or len(answer) > PAYLOAD_BYTES_MAX - _ID_BYTES:
                self.send(messages.NO_RESPONSE, head)
            elif not self.send(messages.RESPONSE, head + answer):
                # It sends requests and does not read: closing the link is better than dropping answers.
                self.connection.abort(BufferError("it does not read its answers"))

        serve(self.node_id, payload[_ID_BYTES:], reply)

    def fail_requests(self) -> None:
        """The link is closed: every request without an answer fails."""
        asked, self._pending = self._pending, {}
        for done in asked.values():
            done(None)


def _number(payload: bytes) -> int:
    if len(payload) < _ID_BYTES:
        raise MalformedMessage("a request or an answer without a number")
    return int.from_bytes(payload[:_ID_BYTES], "big")
