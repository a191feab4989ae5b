"""Acknowledgements of messages that became records of a partition.

`AckSender` sends them: a queue group's lane calls it when the partition's leader, perhaps another broker, has committed the
records. `PendingAcks` is for a partition that is led here: it holds each acknowledgement until its record is as safe as the
message asked for:

- `leader`: after the append, and after the sync when flush.messages makes the append await one.
- `all`: when the high watermark has passed the record.
- A duplicate: when the first message's acknowledgement would be sent, with its offset. It promises the same.
- While the disk is behind, not before its write-back backlog is smaller: this slows down publishers that wait for
  answers.
- The error NOT_ENOUGH_REPLICAS, before anything is appended, to messages that ask for `all` while the ISR is below
  min.insync.replicas (`refuses_all`); messages beside them that ask for less are appended. The error
  NOT_ENOUGH_REPLICAS_AFTER_APPEND, as Kafka's, when too few replicas have the record: a publisher that repeats the message
  gets a duplicate's answer when it has a Nats-Msg-Id, and makes a second record when not.
- None when this broker loses the leadership first. It is unknown whether the record survives: an acknowledgement may be
  false, and so may an error, which would reach the publisher before the answer of the new leader. So either the new leader
  answers, or the publisher tries again after its timeout; with a Nats-Msg-Id that finds the record if it is there.

Replicas that lag behind delay acknowledgements, which takes memory: a partition holds at most WAITING_MAX. The publishers of
further messages time out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.errors import NatsError
from barnabas.nats.pub_ack import ACK_ALL, NO_ACK, PubAckBytes
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.ingress.expectations import Refusal
    from barnabas.storage.log.log import AppendResult

log = logging.getLogger("barnabas.nats")

# (encoded messages, how many they are); NatsError when it can't send them
Send = Callable[[bytes, int], object]
# (index of its record in the batch, reply subject, ACK_LEADER or ACK_ALL, whether it is a duplicate of that record)
Owed = tuple[int, bytes, int, bool]


def owed_of(owed: Sequence[Owed], first: int, count: int) -> list[Owed]:
    """The acknowledgements of `count` records from `first` on, by their places among these."""
    end = first + count
    return [
        (place - first, reply, level, is_duplicate)
        for place, reply, level, is_duplicate in owed
        if first <= place < end
    ]


WAITING_MAX: Final = 500_000
SENT_TOGETHER: Final = 512
LOG_EVERY_S: Final = 60.0


@dataclass(slots=True)
class AckStats:
    """Counters of one binding since it was started on this broker."""

    sent: int = 0  # of records, those of duplicates included
    duplicates: int = 0
    refused: int = 0  # errors sent
    refused_unanswered: int = 0  # refused messages without a reply subject to answer
    withheld: int = 0  # not sent because the leadership was lost
    unsent: int = 0  # not sent because there was no connection, or too many were waiting
    latency_s: float = 0.0  # of the newest, from the receipt of the first message of its batch
    latency_sum_s: float = 0.0  # of all that were sent

    @property
    def not_sent(self) -> int:
        """Acknowledgements owed that were not sent."""
        return self.withheld + self.unsent


class AckSender:
    """Sends the acknowledgements and errors of one partition's messages. All calls on the loop's thread."""

    __slots__ = ("_bytes", "_log_again_s", "_name", "_now", "_send_encoded", "stats")

    def __init__(
        self, topic: str, partition: int, send: Send, stats: AckStats, now: Callable[[], float]
    ) -> None:
        """`now` in seconds, of the same clock as `received_s`."""
        self._send_encoded = send
        self._now = now
        self._bytes = PubAckBytes(topic, partition)
        self._name = f"{topic}-{partition}"
        self._log_again_s = 0.0
        self.stats = stats

    def stored(self, base_offset: int, owed: Sequence[Owed], received_s: float) -> None:
        """Acknowledges records of the batch at `base_offset`."""
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
            # As lines.pub, without its checks: the server has accepted the reply subject.
            frames.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(answer), answer))
        for start in range(0, len(frames), SENT_TOGETHER):
            together = frames[start : start + SENT_TOGETHER]
            if self._send(b"".join(together), len(together)):
                stats.sent += len(together)
        stats.latency_s = self._now() - received_s
        stats.latency_sum_s += stats.latency_s * len(owed)

    def fail(self, reply: bytes, error: ErrorCode, message: str = "") -> None:
        """Answers a message that was not stored with an error of Kafka's; b"" is no reply subject."""
        if reply:
            self._send_error(reply, self._bytes.failed(error, message))

    def fail_all(self, owed: Sequence[Owed], error: ErrorCode, message: str = "") -> None:
        """As `fail`, for messages of a batch. A broker that is no longer the leader sends nothing: see the module."""
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.stats.withheld += len(owed)
            return
        answer = self._bytes.failed(error, message)
        for _, reply, _, _ in owed:
            self._send_error(reply, answer)

    def refuse(self, reply: bytes, refusal: Refusal) -> None:
        """Answers a message that was not stored with an error of JetStream's. Without a reply subject it is logged, at
        most once per LOG_EVERY_S."""
        if reply:
            self._send_error(reply, self._bytes.refused(*refusal))
            return
        self.stats.refused_unanswered += 1
        now_s = self._now()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_EVERY_S
            log.warning(
                "%s: a message without a reply subject was not stored: %s (%d such messages of this topic so far)",
                self._name,
                refusal.description,
                self.stats.refused_unanswered,
            )

    def _send_error(self, reply: bytes, answer: bytes) -> None:
        if self._send(b"PUB %b %d\r\n%b\r\n" % (reply, len(answer), answer), 1):
            self.stats.refused += 1

    def _send(self, data: bytes, count: int) -> bool:
        try:
            self._send_encoded(data, count)
        except NatsError:
            self.stats.unsent += count
            return False
        return True


class PendingAcks(AckSender):
    """Holds the acknowledgements of a partition that is led here until they are due: see the module."""

    __slots__ = ("_partition", "_waiting")

    def __init__(self, partition: Partition, send: Send, stats: AckStats, now: Callable[[], float]) -> None:
        super().__init__(partition.topic, partition.partition, send, stats, now)
        self._partition = partition
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many are held."""
        return self._waiting

    def refuses_all(self) -> bool:
        """Whether the ISR is too small for messages that ask for `all`: refuse them with `refuse_for_replicas`."""
        leadership = self._partition.leadership
        return leadership is not None and leadership.is_under_min_isr

    def refuse_for_replicas(self, reply: bytes) -> None:
        self.fail(reply, ErrorCode.NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than min.insync.replicas")

    def appended(self, result: AppendResult, owed: Sequence[Owed], received_s: float) -> None:
        """A batch is in the log; `owed` are the acknowledgements of its records, `received_s` is when it was received."""
        for_all = [each for each in owed if each[2] == ACK_ALL]
        at_once = [each for each in owed if each[2] != ACK_ALL] if len(for_all) < len(owed) else []
        base_offset = result.base_offset
        if at_once:
            self._when_appended(result, at_once, received_s)
        if for_all and self._hold(len(for_all)):
            self._partition.when_committed(
                max(for_all)[0] + base_offset + 1,
                partial(self._committed, result, for_all, received_s),
            )

    def repeated(self, offset: int, reply: bytes, level: int) -> None:
        """A message that asks for `level` is a duplicate of the record at `offset`, whose batch is in the log."""
        if level == NO_ACK or not self._hold(1):
            return
        owed = [(0, reply, level, True)]
        received_s = self._now()
        if level == ACK_ALL:
            self._partition.when_committed(offset + 1, partial(self._settled, offset, owed, received_s))
        elif self._partition.log.flusher.awaits_sync(offset):
            self._partition.log.flusher.when_synced(
                offset + 1, partial(self._synced, offset, owed, received_s)
            )
        else:
            self._synced(offset, owed, received_s, None)

    def _when_appended(self, result: AppendResult, owed: list[Owed], received_s: float) -> None:
        if not self._hold(len(owed)):
            return
        due = partial(self._synced, result.base_offset, owed, received_s)
        if result.awaits_sync:
            self._partition.log.flusher.when_synced(result.last_offset + 1, due)
        elif result.awaits_write_back:
            self._partition.log.when_written_back(due)
        else:
            due(None)

    def _hold(self, count: int) -> bool:
        if self._waiting + count > WAITING_MAX:
            if not self.stats.unsent:
                log.warning(
                    "%s: %d acknowledgements wait for replicas or the disk; further messages get none, and publishers time out",
                    self._name,
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
        self._waiting -= len(owed)
        if error == ErrorCode.NONE:
            self.stored(base_offset, owed, received_s)
        else:
            self.fail_all(owed, error, message)
