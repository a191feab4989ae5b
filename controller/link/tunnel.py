"""One end of a tunnel: a transport in asyncio's sense whose bytes go over the link with a third node.

Whoever uses it sees a connection as any other: bytes in order, and its end. It ends with the link that carries it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.controller.link import messages
from barnabas.controller.link.messages import MalformedMessage, encode
from barnabas.controller.link.tunnel_messages import (
    CREDIT_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    TunnelClose,
    TunnelCredit,
    encode_data,
)

if TYPE_CHECKING:
    from barnabas.controller.link.connection import Connection
    from barnabas.controller.link.peer import Peer
    from barnabas.runtime.interface import Runtime


class TunnelEnd:
    """`carrier`: the link. `name`: of the other end. `forget` is called once, when it is over."""

    def __init__(
        self,
        runtime: Runtime,
        carrier: Peer,
        number: int,
        name: str,
        protocol: Connection,
        forget: Callable[[], object],
    ) -> None:
        self._runtime = runtime
        self._carrier = carrier
        self._number = number
        self._name = name
        self._protocol = protocol
        self._forget = forget
        self._is_over = False
        self._unsent = bytearray()
        self._may_send = WINDOW_BYTES
        self._is_writing_paused = False
        self._unread = bytearray()  # while reading is paused
        self._may_receive = WINDOW_BYTES
        self._taken = 0  # and not said yet
        self._is_reading_paused = False

    # -- the transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._name if name == "peername" else default

    def is_closing(self) -> bool:
        return self._is_over

    def write(self, data: bytes) -> None:
        if not self._is_over:
            self._unsent += data
            self._send()

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._runtime.call_soon(self._read)

    def close(self) -> None:
        """At once: what the other end has not made room for is lost."""
        if not self._is_over:
            self._tell_close("")
            self.lost(None)

    def abort(self) -> None:
        self.close()

    # -- the link

    def received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._may_receive -= len(data)
        if self._may_receive < 0:
            self._fail(MalformedMessage("a tunnel brings more than it was told to"))
            return
        self._unread += data
        self._read()

    def credited(self, count: int) -> None:
        """The other end has taken so much."""
        self._may_send = min(WINDOW_BYTES, self._may_send + count)
        self._send()

    def lost(self, error: Exception | None) -> None:
        """It is over, and nobody has to be told but the protocol."""
        if self._is_over:
            return
        self._is_over = True
        self._unsent.clear()
        self._unread.clear()
        self._forget()
        self._runtime.call_soon(lambda: self._protocol.connection_lost(error))

    # -- both

    def _fail(self, error: Exception) -> None:
        self._tell_close(str(error))
        self.lost(error)

    def _tell_close(self, reason: str) -> None:
        self._carrier.send(messages.TUNNEL_CLOSE, encode(TunnelClose(self._number, reason)))

    def _send(self) -> None:
        while self._unsent and self._may_send and not self._is_over:
            piece = bytes(self._unsent[: min(PIECE_BYTES, self._may_send)])
            if not self._carrier.send(messages.TUNNEL_DATA, encode_data(self._number, piece)):
                self._fail(BufferError("the link that carries it takes no more"))
                return
            del self._unsent[: len(piece)]
            self._may_send -= len(piece)
        if bool(self._unsent) != self._is_writing_paused and not self._is_over:
            self._is_writing_paused = not self._is_writing_paused
            if self._is_writing_paused:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()

    def _read(self) -> None:
        if self._is_over or self._is_reading_paused or not self._unread:
            return
        data, self._unread = bytes(self._unread), bytearray()
        self._taken += len(data)
        if self._taken >= CREDIT_BYTES:
            count, self._taken = self._taken, 0
            self._may_receive += count
            if not self._carrier.send(messages.TUNNEL_CREDIT, encode(TunnelCredit(self._number, count))):
                self._fail(BufferError("the link that carries it takes no more"))
                return
        self._protocol.data_received(data)
