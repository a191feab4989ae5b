"""One connection between two nodes: frames over a transport.

- Frames sent during one turn of the loop are written together at its end. Frames sent while received bytes are handled are
  written directly after that, so an answer takes no further turn.
- While the transport is full (`pause_writing`) frames wait here, up to a bound; then `send` returns False.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from barnabas.controller.link.auth import Seal
from barnabas.controller.link.framing import PAYLOAD_BYTES_MAX, PREFACE, FrameReader, encode_frame
from barnabas.controller.link.messages import MalformedMessage
from barnabas.controller.link.sasl import LinkSasl
from barnabas.controller.link.traffic import LinkTraffic
from barnabas.controller.link.wrong_protocol import KafkaCaller
from barnabas.runtime.interface import Runtime


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All bounds are per node, `queue_bytes_max` and `requests_max` per link."""

    hello_timeout_s: float = 3.0  # from the connection to the open link
    connect_timeout_s: float = 2.0
    ping_s: float = 0.5  # a side that has sent nothing for so long sends a ping
    silence_s: float = 2.5  # without a frame; then the link counts as broken
    probe_s: float = 0.5  # in which a node must answer before another process may take its id
    backoff_first_s: float = 0.02
    backoff_max_s: float = 0.5
    refused_backoff_s: float = 2.0  # after a refusal that an operator has to resolve
    connections_max: int = 1024  # accepted
    handshakes_max: int = 128  # accepted and not yet open
    queue_bytes_max: int = 32 * 1024 * 1024  # for a peer that does not read
    requests_max: int = 10_000  # without an answer


class ConnectionUser(Protocol):
    """The user of a connection: the handshake, then the open link."""

    def made(self) -> None:
        """The connection is made."""

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame was received. MalformedMessage."""

    def malformed(self, error: MalformedMessage) -> None:
        """The peer has sent bytes that are no frame, or a frame that `frame` refuses."""

    def closed(self, error: Exception | None) -> None:
        """The connection is closed: with None by this side, or by the peer without an error. Called once, immediately when this
        side closes."""


class Connection:
    """A protocol in asyncio's sense. `user` may be replaced at any time."""

    def __init__(
        self, runtime: Runtime, queue_bytes_max: int, user: ConnectionUser, traffic: LinkTraffic
    ) -> None:
        self._runtime = runtime
        self.traffic = traffic
        self._queue_bytes_max = queue_bytes_max
        self.user = user
        self.reader = FrameReader()
        self._kafka: KafkaCaller | None = None  # in place of the reader, for a Kafka client
        self.seal: Seal | None = None  # of sent frames
        self.sasl: LinkSasl | None = None  # where the listener asks for a login
        self.peer_host = self.peer_name = "an unknown host"  # until the connection is made
        self.received_at = runtime.monotonic()
        self.sent_at = self.received_at
        self.closed = False
        self._transport: Any = None
        self._queue: list[bytes] = [PREFACE]
        self._queue_bytes = len(PREFACE)
        self._is_paused = False
        self._is_receiving = False
        self._flush_scheduled = False

    # -- the transport's side

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self.closed:
            transport.abort()
            return
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            self.peer_host, self.peer_name = str(name[0]), f"{name[0]}:{name[1]}"
        self.user.made()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.received_at = self._runtime.monotonic()
        self.traffic.incoming_bytes += len(data)
        self._is_receiving = True
        try:
            if self._kafka is not None:
                self._kafka.feed(data)
            else:
                for kind, payload in self.reader.read(data):
                    self.user.frame(kind, payload)
        except MalformedMessage as error:
            self.user.malformed(error)
        finally:
            self._is_receiving = False
        if self._queue:
            self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._closed(error)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    # -- the node's side

    def send(self, kind: int, payload: bytes) -> bool:
        """Whether it will be sent: not when the link is closed, the queue is full, or the payload too large."""
        if (
            self.closed
            or len(payload) > PAYLOAD_BYTES_MAX
            or (self._queue and self._queue_bytes + len(payload) > self._queue_bytes_max)
        ):
            return False
        frame = encode_frame(kind, payload, self.seal)
        self._queue.append(frame)
        self._queue_bytes += len(frame)
        if not (self._is_receiving or self._flush_scheduled or self._is_paused):
            self._flush_scheduled = True
            self._runtime.call_soon(self._flush_now)
        return True

    def answer_kafka(self, received: bytes) -> None:
        """Treat the connection as a Kafka client's from now on."""
        self.reader.stop()
        self._queue.clear()
        self._kafka = KafkaCaller(lambda answer: self._queue.append(answer))
        self._kafka.feed(received)

    def close(self) -> None:
        """Close after all frames that were sent."""
        self._flush()
        transport, self._transport = self._transport, None
        self._closed(None)
        if transport is not None:
            transport.close()

    def abort(self, error: Exception | None) -> None:
        """Close at once; queued frames are lost."""
        transport, self._transport = self._transport, None
        self._closed(error)
        if transport is not None:
            transport.abort()

    def pause_reading(self) -> None:
        """Stop reading. Bytes that are read already are still handled."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    @property
    def is_paused(self) -> bool:
        """Whether the transport is full."""
        return self._is_paused

    def _closed(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.reader.stop()
        if self._kafka is not None:
            self._kafka.stop()
        if self.sasl is not None:
            self.sasl.close()
        self._queue = []
        self._queue_bytes = 0
        self.user.closed(error)

    def _flush_now(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._transport is None or self._is_paused or not self._queue:
            return
        queue, self._queue, self._queue_bytes = self._queue, [], 0
        self.sent_at = self._runtime.monotonic()
        written = queue[0] if len(queue) == 1 else b"".join(queue)
        self.traffic.outgoing_bytes += len(written)
        self._transport.write(written)
