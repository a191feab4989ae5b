"""The acknowledgements of one partition's messages that a member of a queue group owes: each is sent when the partition's
leader, which may be another broker, has said that the record is committed. See ingest/pending_acks.py for what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from barnabas.nats.client.errors import NatsError
from barnabas.nats.client.lines import pub
from barnabas.nats.ingest.acks import PubAckBytes
from barnabas.nats.ingest.pending_acks import SENT_TOGETHER

if TYPE_CHECKING:
    from barnabas.nats.ingest.expectations import Refusal
    from barnabas.nats.ingest.pending_acks import AckStats, Owed, Send
    from barnabas.wire.errors import ErrorCode


class GroupAcks:
    """All calls on the loop's thread."""

    __slots__ = ("_bytes", "_now", "_send_encoded", "_stats")

    def __init__(
        self, topic: str, partition: int, send: Send, stats: AckStats, now: Callable[[], float]
    ) -> None:
        self._bytes = PubAckBytes(topic, partition)
        self._send_encoded = send
        self._stats = stats
        self._now = now

    def stored(self, base_offset: int, owed: Sequence[Owed], received_s: float) -> None:
        """The batch that begins at `base_offset` is committed."""
        stats = self._stats
        for start in range(0, len(owed), SENT_TOGETHER):
            together = owed[start : start + SENT_TOGETHER]
            frames = [
                pub(
                    reply,
                    self._bytes.duplicate(base_offset + place)
                    if is_duplicate
                    else self._bytes.stored(base_offset + place),
                )
                for place, reply, _, is_duplicate in together
            ]
            if self._send(b"".join(frames), len(frames)):
                stats.sent += len(frames)
        stats.latency_s = self._now() - received_s
        stats.latency_sum_s += stats.latency_s * len(owed)

    def fail_all(self, owed: Sequence[Owed], error: ErrorCode, message: str = "") -> None:
        """These have not been stored, or not as safely as they ought to be."""
        for _, reply, _, _ in owed:
            self.fail(reply, error, message)

    def fail(self, reply: bytes, error: ErrorCode, message: str = "") -> None:
        """b"" is nobody to tell."""
        if reply:
            self._tell(reply, self._bytes.failed(error, message))

    def refuse(self, reply: bytes, refusal: Refusal) -> None:
        """As `fail`, for a reason of JetStream's."""
        if reply:
            self._tell(reply, self._bytes.refused(*refusal))
        else:
            self._stats.refused_untold += 1

    def _tell(self, reply: bytes, answer: bytes) -> None:
        if self._send(pub(reply, answer), 1):
            self._stats.refused += 1

    def _send(self, data: bytes, count: int) -> bool:
        try:
            self._send_encoded(data, count)
        except NatsError:
            self._stats.unsent += count
            return False
        return True
