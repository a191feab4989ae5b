"""The acknowledgements that one partition owes, each sent when its record is as safe as the message asked for.

When which is sent:
- `leader`: after the append, and after the sync when flush.messages makes the append await one.
- `all`: when the high watermark is behind the record.
- A duplicate's: when the first one's would be, with its offset. It promises the same.
- With a disk that is behind, no sooner than what it has to write is less: this slows down whoever waits for answers.
- The error NOT_ENOUGH_REPLICAS, before anything is appended, to what asks for `all` while the ISR is below
  min.insync.replicas (`refuses_all`); messages beside it that ask for less are appended. The error
  NOT_ENOUGH_REPLICAS_AFTER_APPEND, as Kafka's, when the record is committed by too few: publishing it again is answered as
  a duplicate when it has a Nats-Msg-Id, and makes a second record when not.
- Nothing, when this broker ceases to lead first. It can't know whether the record will survive: an acknowledgement may
  be false, and so may an error, which would reach the publisher before the answer of the successor, who has the record
  or takes the message anew. So the successor answers, or nobody does and the publisher tries again after its timeout; with
  a Nats-Msg-Id that finds the record if it is there.

Replicas that don't follow hold acknowledgements back, which takes memory: beyond WAITING_MAX of a partition no more are
noted. Their publishers time out, which is what they would have done anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.errors import NatsError
from barnabas.nats.ingest.acks import ACK_ALL, NO_ACK, PubAckBytes
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.ingest.expectations import Refusal
    from barnabas.storage.log.log import AppendResult

log = logging.getLogger("barnabas.nats")

Send = Callable[
    [bytes, int], object
]  # (so many messages, encoded, how many); NatsError when it can't send any
# (place of its record in the batch, reply subject, ACK_LEADER or ACK_ALL, whether it is a duplicate of what is there)
Owed = tuple[int, bytes, int, bool]

WAITING_MAX: Final = 500_000
SENT_TOGETHER: Final = 512
LOG_EVERY_S: Final = 60.0


@dataclass(slots=True)
class AckStats:
    """Counters of one binding, since it was started here."""

    sent: int = 0  # of records; duplicates' among them
    duplicates: int = 0
    refused: int = 0  # errors sent
    refused_untold: int = 0  # of messages that can't be answered
    withheld: int = 0  # the leadership went first
    unsent: int = 0  # there was no connection, or too many were waiting
    latency_s: float = 0.0  # of the newest, from the receipt of the first message of its batch
    latency_sum_s: float = 0.0  # of all that were sent


class PartitionAcks:
    """See the module. All calls on the loop's thread."""

    __slots__ = ("_bytes", "_log_again_s", "_now", "_partition", "_send_encoded", "_waiting", "stats")

    def __init__(self, partition: Partition, send: Send, stats: AckStats, now: Callable[[], float]) -> None:
        """`now` in seconds, as that of `received_s`."""
        self._partition = partition
        self._send_encoded = send
        self._now = now
        self._bytes = PubAckBytes(partition.topic, partition.partition)
        self._waiting = 0
        self._log_again_s = 0.0
        self.stats = stats

    @property
    def waiting(self) -> int:
        """How many are owed and not due."""
        return self._waiting

    def refuses_all(self) -> bool:
        """Whether a message that asks for `all` is not to be appended now: refuse it with NOT_ENOUGH_REPLICAS."""
        leadership = self._partition.leadership
        return leadership is not None and leadership.is_under_min_isr

    def refuse_for_replicas(self, reply: bytes) -> None:
        """Tell the publisher of such a message."""
        self.fail(reply, ErrorCode.NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than min.insync.replicas")

    def appended(self, result: AppendResult, owed: Sequence[Owed], received_s: float) -> None:
        """A batch is in the log; `owed` says who waits for which of its records, `received_s` since when."""
        for_all = [each for each in owed if each[2] == ACK_ALL]
        at_once = [each for each in owed if each[2] != ACK_ALL] if len(for_all) < len(owed) else []
        base_offset = result.base_offset
        if at_once:
            self._when_appended(result, at_once, received_s)
        if for_all and self._wait(len(for_all)):
            self._partition.when_committed(
                max(for_all)[0] + base_offset + 1,
                partial(self._committed, result, for_all, received_s),
            )

    def _when_appended(self, result: AppendResult, owed: list[Owed], received_s: float) -> None:
        if not self._wait(len(owed)):
            return
        due = partial(self._synced, result.base_offset, owed, received_s)
        if result.awaits_sync:
            self._partition.log.when_synced(result.last_offset + 1, due)
        elif result.awaits_write_back:
            self._partition.log.when_written_back(due)
        else:
            due(None)

    def repeated(self, offset: int, reply: bytes, level: int) -> None:
        """A message is a duplicate of the record at `offset`, whose batch is in the log; `level` is what it asks for."""
        if level == NO_ACK or not self._wait(1):
            return
        owed = [(0, reply, level, True)]
        received_s = self._now()
        if level == ACK_ALL:
            self._partition.when_committed(offset + 1, partial(self._settled, offset, owed, received_s))
        elif self._partition.log.awaits_sync(offset):
            self._partition.log.when_synced(offset + 1, partial(self._synced, offset, owed, received_s))
        else:
            self._synced(offset, owed, received_s, None)

    def fail(self, reply: bytes, error: ErrorCode, message: str = "") -> None:
        """A message was not appended, for a reason of Kafka's. Says so when it has a reply subject that is to be
        answered: b"" has none."""
        if reply:
            self._tell(reply, self._bytes.failed(error, message))

    def fail_all(self, owed: Sequence[Owed], error: ErrorCode, message: str = "") -> None:
        """A batch was not appended. A leader that is one no more says nothing: see the module."""
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.stats.withheld += len(owed)
            return
        answer = self._bytes.failed(error, message)
        for _, reply, _, _ in owed:
            self._tell(reply, answer)

    def refuse(self, reply: bytes, refusal: Refusal) -> None:
        """A message was not appended, for a reason of JetStream's. Where there is nobody to tell, the log does, now and
        then."""
        if reply:
            self._tell(reply, self._bytes.refused(*refusal))
            return
        self.stats.refused_untold += 1
        now_s = self._now()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_EVERY_S
            log.warning(
                "%s-%d: a message without a reply subject was not stored: %s (%d such messages of this topic so far)",
                self._partition.topic,
                self._partition.partition,
                refusal.description,
                self.stats.refused_untold,
            )

    # -- when it is time

    def _wait(self, count: int) -> bool:
        if self._waiting + count > WAITING_MAX:
            if not self.stats.unsent:
                log.warning(
                    "%s-%d: %d acknowledgements wait for replicas or the disk; more are not noted, and publishers time out",
                    self._partition.topic,
                    self._partition.partition,
                    self._waiting,
                )
            self.stats.unsent += count
            return False
        self._waiting += count
        return True

    def _committed(self, result: AppendResult, owed: list[Owed], received_s: float, error: ErrorCode) -> None:
        if error == ErrorCode.NONE and result.awaits_write_back:
            self._partition.log.when_written_back(partial(self._synced, result.base_offset, owed, received_s))
        else:
            self._settled(result.base_offset, owed, received_s, error)

    def _synced(self, base_offset: int, owed: list[Owed], received_s: float, failure: str | None) -> None:
        error = ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR
        self._settled(base_offset, owed, received_s, error, failure or "")

    def _settled(
        self,
        base_offset: int,
        owed: list[Owed],
        received_s: float,
        error: ErrorCode,
        message: str = "",
    ) -> None:
        """What was waited for has come, or will not."""
        self._waiting -= len(owed)
        if error != ErrorCode.NONE:
            self.fail_all(owed, error, message)
            return
        stats = self.stats
        prefix = self._bytes.prefix
        first = base_offset + 1
        frames = []
        for place, reply, _, is_duplicate in owed:
            if is_duplicate:
                answer = b'%b%d,"duplicate":true}' % (prefix, first + place)
                stats.duplicates += 1
            else:
                answer = b"%b%d}" % (prefix, first + place)
            # As lines.pub, without its checks: the reply is a word of the server's.
            frames.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(answer), answer))
        for start in range(0, len(frames), SENT_TOGETHER):
            together = frames[start : start + SENT_TOGETHER]
            if self._send(b"".join(together), len(together)):
                stats.sent += len(together)
        stats.latency_s = self._now() - received_s
        stats.latency_sum_s += stats.latency_s * len(owed)

    def _tell(self, reply: bytes, answer: bytes) -> None:
        """Send an error."""
        if self._send(b"PUB %b %d\r\n%b\r\n" % (reply, len(answer), answer), 1):
            self.stats.refused += 1

    def _send(self, data: bytes, count: int) -> bool:
        try:
            self._send_encoded(data, count)
        except NatsError:
            self.stats.unsent += count
            return False
        return True
