"""An open link to one node, with its requests in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.controller.link import messages
from barnabas.controller.link.framing import PAYLOAD_BYTES_MAX
from barnabas.controller.link.messages import MalformedMessage

if TYPE_CHECKING:
    from barnabas.controller.link.connection import Connection
    from barnabas.controller.link.messages import Identity

Done = Callable[[bytes | None], object]

_ID_BYTES = 8


class Peer:
    """A linked node. `number` grows with every link that this node opens. `dialed`: this node has called. `version`: of the
    protocol, common to both."""

    def __init__(
        self,
        identity: Identity,
        connection: Connection,
        number: int,
        *,
        dialed: bool,
        requests_max: int,
        version: int,
    ) -> None:
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
        self.on_pong: Callable[[bytes], object] | None = None

    @property
    def is_open(self) -> bool:
        return not self.connection.closed

    def send(self, kind: int, payload: bytes) -> bool:
        """Whether it will be sent."""
        return self.connection.send(kind, payload)

    def request(self, payload: bytes, done: Done) -> None:
        """`done(answer)`, once; None when the link closes, or its queue is full: then before this returns."""
        self._next_request += 1
        number = self._next_request
        if len(self._pending) >= self._requests_max or not self.send(
            messages.REQUEST, number.to_bytes(_ID_BYTES, "big") + payload
        ):
            done(None)
            return
        self._pending[number] = done

    def take_response(self, payload: bytes, *, has_answer: bool) -> None:
        done = self._pending.pop(_number(payload), None)
        if done is not None:  # else no such request was sent
            done(payload[_ID_BYTES:] if has_answer else None)

    def take_request(
        self, payload: bytes, serve: Callable[[int, bytes, Callable[[bytes | None], object]], object]
    ) -> None:
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
                # It does not read, and has sent many requests: no link is better than missing answers.
                self.connection.abort(BufferError("it does not read its answers"))

        serve(self.node_id, payload[_ID_BYTES:], reply)

    def closed(self) -> None:
        """The link is closed: every pending request fails."""
        asked, self._pending = self._pending, {}
        for done in asked.values():
            done(None)


def _number(payload: bytes) -> int:
    if len(payload) < _ID_BYTES:
        raise MalformedMessage("a request or an answer without a number")
    return int.from_bytes(payload[:_ID_BYTES], "big")
