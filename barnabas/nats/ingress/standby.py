"""Standbys: followers of a core binding's partitions that could lead them without a message missing.

A follower in sync receives the messages as the leader does, and compares them with the records that replication brings
(ingress/tail_matcher.py). When it becomes the leader it appends those that are not there: messages that the old leader had not
appended, or had appended where no other broker has them. Records whose messages are received later are not appended twice.
The old leader keeps its matcher, too: records that are truncated from its log it has received and does not have any more. So
moved and crashed leaders are one case, and brokers need not talk to each other at that moment. A standby without a `lapse`
has every message, here or in its copy of the log; with one it may lack those of that time, and a leader with a lapse notes a
gap (ingress/gap_tracker.py).

A standby has every message that the leader has once three things have happened in this order:

1. The server has the follower's subscriptions: what is published from then on is received.
2. A mark that the follower has published after them has reached the leader, which has appended all that it received before
   the mark and answers with the end of its log; and the mark has reached the follower itself (ingress/barrier.py).
3. The follower's log has reached that end.

A message that is published in the very moment of the mark may be behind it at the leader and before it at the follower, so
there is a second mark half a second later.

From then on it lacks nothing, whichever broker leads, as long as its subscriptions are not interrupted. It reports this to
the leader (`StandbyReports`), which lets it into the ISR (IsrRules.may_take_over): so a clean election finds such a replica,
and a reassignment completes when the new replica is one.

A follower that gets no further (its account may not publish marks, it finds no server) is let in after WAIT_S all the same,
because the topic's Kafka clients need its copy. So is one that comes while the leader has no connection itself. Whether
messages are missing does not depend on the leader's word but on what the follower knows of itself: one that becomes the
leader without the three, or after an interruption, notes a gap.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from barnabas.nats.client.headers import Pairs
from barnabas.nats.ingress.tail_matcher import TailMatcher
from barnabas.nats.records.parts import SUBJECT_HEADER
from barnabas.nats.records.tails import read_tails
from barnabas.storage.errors import StorageError
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, InvalidBatch, RecordBatchError, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.log import Log

log = logging.getLogger("barnabas.nats")

WAIT_S: Final = 10.0
REPORT_EVERY_S: Final = 0.5  # by a follower that is not in the ISR yet
VALID_S: Final = 3.0  # what it has told


class StandbyReport(msgspec.Struct):
    """A follower's report to leaders: it could lead these partitions. With the number of an absence (ingress/gap_tracker.py):
    it lacks nothing of that time; with a negative number: it was absent itself."""

    broker: int
    broker_epoch: int
    partitions: list[int]
    absence: int = 0


class StandbyReports:
    """Reports of the followers of one binding, at the leader. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, topic: str) -> None:
        self._runtime = runtime
        self._topic = topic
        self._ready: dict[tuple[int, int], tuple[int, float]] = {}  # (partition, broker): broker epoch, when
        self._waiting: dict[tuple[int, int], tuple[int | None, float]] = {}  # likewise, since when

    def received(self, report: StandbyReport, partition: int) -> None:
        """A follower reports that it could lead the partition."""
        self._ready[partition, report.broker] = report.broker_epoch, self._runtime.monotonic()

    def may_take_over(self, partition: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower that has reached the end of the leader's log may join the ISR."""
        key = partition, broker
        now_s = self._runtime.monotonic()
        told = self._ready.get(key)
        is_ready = told is not None and broker_epoch in (-1, told[0]) and now_s - told[1] <= VALID_S
        if not is_ready:
            waiting_epoch, since_s = self._waiting.get(key, (None, now_s))
            if (
                waiting_epoch != broker_epoch or now_s - since_s > 2 * WAIT_S
            ):  # another run of it, or another time
                since_s = now_s
            self._waiting[key] = broker_epoch, since_s
            if now_s - since_s < WAIT_S:
                return False
            log.warning(
                "%s-%d: broker %d joins the ISR, and may have missed messages from NATS that came to this broker alone; "
                "if it leads before it has caught up with them, that is a gap",
                self._topic,
                partition,
                broker,
            )
        self._ready.pop(key, None)
        self._waiting.pop(key, None)
        return True


LATEST_MS: Final = 5_000
LATEST_RECORDS: Final = (20_000, 2_000, 200)  # the most that are not larger together than
LATEST_BYTES_MAX: Final = 8 << 20
ASK_AGAIN_S: Final = 2.0
ASK_SOON_S: Final = 0.5  # as long as it does not count; more than RACE_S
MARKS: Final = 2  # until it counts
UNEVEN_S: Final = 1.0  # nothing is under way for so long, or much is all the time
RACE_S: Final = 0.3  # by less the moments differ in which what is published at once comes to two brokers
SILENT_S: Final = 3.0  # a leader that answers no mark for so long receives none
KEPT_S: Final = 10.0  # deliveries and replication differ by less, or one of them has failed
READ_BYTES: Final = 1 << 20
LOG_AGAIN_S: Final = 60.0

# Reply subject, header block and special headers of a message that asks for something; None of any other.
Asked: TypeAlias = tuple[bytes, bytes, Pairs]


class Lapse(NamedTuple):
    """A time whose messages a standby may lack. `until_ms` is 0 while it lasts; with `is_older` it may have begun before
    `since_ms`, with the last message in the log."""

    since_ms: int
    until_ms: int
    cause: str
    is_older: bool = False


class Resync:
    """A matcher that begins where a mark stood among the messages, and in the leader's log."""

    __slots__ = (
        "_records_size",
        "has_mark",
        "leader_epoch",
        "marked_at_s",
        "matcher",
        "number",
        "records",
        "start_offset",
    )  # fmt: skip

    def __init__(self, number: int, leader_epoch: int) -> None:
        self.number = number
        self.leader_epoch = leader_epoch
        self.matcher: TailMatcher[Asked | None] = TailMatcher()
        self.has_mark = False  # it has come by among the messages
        self.marked_at_s = 0.0  # and when
        self.start_offset = -1  # where it was in the leader's log, once that has told
        self.records: list[tuple[int, bytes]] = []  # that came meanwhile, with their offsets
        self._records_size = 0

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        return self._records_size + self.matcher.pending.size + self.matcher.ahead.size

    def stored(self, offset: int, tail: bytes, now_s: float) -> None:
        if self.start_offset < 0:
            self.records.append((offset, tail))
            self._records_size += len(tail)
        elif offset >= self.start_offset:
            self.matcher.stored(tail, now_s)

    def begins_at(self, offset: int, now_s: float) -> None:
        self.start_offset = offset
        records, self.records = self.records, []
        self._records_size = 0
        for at, tail in records:
            self.stored(at, tail, now_s)


class Standby:
    """One partition's standby, as long as this broker is in sync or leads. `tick` sets `now_s`."""

    __slots__ = (
        "_absence",
        "_asked_at_s",
        "_bytes_max",
        "_even_at_s",
        "_expires_at_s",
        "_has_had_marks",
        "_log_again_s",
        "_marks",
        "_resync",
        "_silence",
        "is_called",
        "lapse",
        "matcher",
        "now_s",
        "partition",
        "reported_at_s",
    )  # fmt: skip

    def __init__(
        self, partition: Partition, now_s: float, now_ms: int, bytes_max: int, lapse: Lapse | None = None
    ) -> None:
        self.partition = partition
        self.lapse = lapse
        self.is_called = False  # the leader wants a mark at once
        self._absence = (-1, 0)  # leader epoch and number of one whose messages are not here either
        self._silence: tuple[int, float] | None = (
            None  # in which leader epoch marks are not answered, and since when
        )
        self.reported_at_s = 0.0  # when the leader was last told that there is no lapse
        self.matcher: TailMatcher[Asked | None] = TailMatcher()
        self.now_s = now_s
        self._bytes_max = bytes_max
        self._resync: Resync | None = None
        # That have begun a matcher. One that is as old as the binding is as good as one that a mark has begun.
        self._marks = 1 if lapse is not None and not lapse.is_older else 0
        self._has_had_marks = False
        self._even_at_s = now_s
        self._asked_at_s = now_s - ASK_AGAIN_S
        self._expires_at_s = now_s + 1
        self._log_again_s = now_s
        partition.observer = self
        self._remember_latest(now_ms - LATEST_MS)

    def close(self) -> None:
        if self.partition.observer is self:
            self.partition.observer = None

    def receive(self, tail: bytes) -> None:
        """A message that asks for nothing."""
        self.matcher.received(tail, self.now_s, None)
        resync = self._resync
        if resync is not None and resync.has_mark:
            resync.matcher.received(tail, self.now_s, None)

    def receive_asking(self, tail: bytes, asked: Asked) -> None:
        self.matcher.received(tail, self.now_s, asked)
        resync = self._resync
        if resync is not None and resync.has_mark:
            resync.matcher.received(tail, self.now_s, asked)

    def tick(self, now_s: float) -> None:
        """Time goes on."""
        self.now_s = now_s
        if now_s >= self._expires_at_s:
            self._expires_at_s = now_s + 1
            self.matcher.ahead.expire(now_s - KEPT_S)
            if (
                not self._has_had_marks
            ):  # else the leader tells what it has dealt with, and one that stands still does not
                self.matcher.pending.expire(now_s - KEPT_S)
            resync = self._resync
            if resync is not None and (now_s - self._asked_at_s > KEPT_S or resync.size > self._bytes_max):
                self._resync = None  # no answer comes; the next mark may get one
            if self.matcher.ahead.size > self._bytes_max:
                self.matcher.ahead.clear()
                log.warning(
                    "%s: more records have not been received than nats.buffer.bytes holds; if the leader fails now, some may "
                    "be there twice",
                    self.partition.log.name,
                )
            if self.matcher.pending.size > self._bytes_max:
                self.matcher.pending.clear()
                self._overflows("more messages waited for the leader's log than nats.buffer.bytes holds")

    def restart(self) -> None:
        """The subscription is a new one, or this broker was the leader until now: what is in the log and was not
        received never will be."""
        self.matcher.ahead.clear()
        self._resync = None
        self._marks = 0

    # -- what it lacks

    def lapses(self, since_ms: int, cause: str) -> None:
        """Messages may not be received from then on."""
        self._resync = None
        self._marks = 0
        self._silence = None
        before = self.lapse
        if before is None:
            self.lapse = Lapse(since_ms, 0, cause)
        elif before.until_ms:
            self.lapse = Lapse(before.since_ms, 0, f"{before.cause}; then {cause}", before.is_older)

    def listens(self, now_ms: int) -> None:
        """All that is published from now on is received."""
        if self.lapse is not None and not self.lapse.until_ms:
            self.lapse = self.lapse._replace(until_ms=now_ms)

    def _overflows(self, cause: str) -> None:
        """What was received has been forgotten before it was in the log."""
        log.warning("%s: %s; if the leader fails now, that is a gap", self.partition.log.name, cause)
        self._marks = 0
        self.lapse = Lapse(0, 0, cause, is_older=True)

    # -- what the leader lacks

    def leader_answered(self) -> None:
        self._silence = None

    def may_have(self, absence: int) -> bool:
        """Whether what the leader has missed in this absence has come here: not if counting began behind it."""
        this = self.partition.leader_epoch, absence
        if self.lapse is not None:
            self._absence = this
        return self._absence != this

    def leader_is_silent(self) -> bool:
        """Whether messages wait here for a leader that has not answered marks for a while."""
        silence = self._silence
        return (
            silence is not None
            and silence[0] == self.partition.leader_epoch
            and self.now_s - silence[1] >= SILENT_S
            and self.lapse is None
            and bool(self.matcher.pending)
        )

    def asks_to_lead(self) -> None:
        """It takes a moment until it does; then it may ask again."""
        self._silence = None

    # -- where counting begins

    def wants_mark(self) -> bool:
        """Whether it is not known from where on to count, or something has been left over: the mark was not quite right
        then, or the leader has refused a message."""
        if not self.matcher.pending and not self.matcher.ahead:
            self._even_at_s = self.now_s
        resync = self._resync
        if resync is not None and resync.leader_epoch != self.partition.leader_epoch:
            self._resync = None  # the position of the mark is unknown
        elif resync is not None and resync.start_offset >= 0:
            return False  # the log has to come so far
        if self.is_called:
            return True
        if self.now_s - self._asked_at_s < (ASK_SOON_S if self._marks < MARKS else ASK_AGAIN_S):
            return False
        return self._marks < MARKS or self.now_s - self._even_at_s > UNEVEN_S

    def mark_sent(self, number: int) -> None:
        self._asked_at_s = self.now_s
        self.is_called = False
        self._resync = Resync(number, self.partition.leader_epoch)

    def mark_received(self, number: int) -> None:
        """It has come by among the messages."""
        self._has_had_marks = True
        if self._silence is None or self._silence[0] != self.partition.leader_epoch:
            self._silence = self.partition.leader_epoch, self.now_s
        if self._resync is not None and self._resync.number == number:
            self._resync.has_mark = True
            self._resync.marked_at_s = self.now_s
            self._begin()

    def mark_found(self, number: int, leader_epoch: int, offset: int) -> None:
        """The leader of that epoch has received it with its log ending at `offset`."""
        resync = self._resync
        if (
            resync is not None
            and resync.number == number
            and resync.leader_epoch == leader_epoch == self.partition.leader_epoch
        ):
            resync.begins_at(offset, self.now_s)
            self._begin()

    def _begin(self) -> None:
        resync = self._resync
        if resync is None or not resync.has_mark or resync.start_offset < 0:
            return
        # What the leader had appended before the mark must be here: until then it is the old matcher that knows of it.
        partition = self.partition
        if (
            partition.log.log_end_offset >= resync.start_offset
            and partition.leader_epoch == resync.leader_epoch
        ):
            if self._marks:
                self._correct(resync)
            self.matcher = resync.matcher
            self._resync = None
            self._marks = min(self._marks + 1, MARKS)
            if self._marks == MARKS:
                self.lapse = None

    def _correct(self, resync: Resync) -> None:
        """What is published in the very moment of the mark may come before it here and behind it to the leader, or the other
        way round. Of a message that occurs once the matcher before knows better; only those that are all alike need the mark.
        It does not know of its own mark's moment, which is over by now."""
        before, begun = self.matcher, resync.matcher
        since_s = resync.marked_at_s - RACE_S
        differing = before.differing(begun, since_s)
        if any(before.pending.count(tail) <= begun.pending.count(tail) for tail in differing):
            counts = self._counts_of_latest(0)
            differing = {tail for tail in differing if counts[tail] + before.pending.count(tail) <= 1}
        begun.correct(differing, before, since_s)

    # -- the partition's log (ReplicaObserver)

    def replicated(self, batches: memoryview) -> None:
        try:
            self._note_replicated(bytes(batches))
        except Exception:  # noqa: BLE001 - replication does not end because of what stands beside it
            self._has_failed()

    def cutting(self, log: Log, offset: int) -> None:
        try:
            self._note_cut(log, offset)
        except Exception:  # noqa: BLE001 - as above
            self._has_failed()

    def _has_failed(self) -> None:
        if self.now_s >= self._log_again_s:
            self._log_again_s = self.now_s + LOG_AGAIN_S
            name = self.partition.log.name
            log.exception("%s: what it holds can't be compared with what came from NATS", name)

    def _note_replicated(self, batches: bytes) -> None:
        matcher, now_s, resync = self.matcher, self.now_s, self._resync
        for offset, tail in self._tails(batches)[0]:
            matcher.stored(tail, now_s)
            if resync is not None:
                resync.stored(offset, tail, now_s)
        if resync is not None:
            self._begin()

    def _note_cut(self, log: Log, offset: int) -> None:
        """What is taken out of the log at `offset` and behind, as far as there is room for it."""
        self._resync = None
        cut: list[bytes] = []
        for tails in self._read(log, max(offset, log.log_start_offset), self._bytes_max):
            if tails is None:
                self._overflows("the log was cut back by more than nats.buffer.bytes holds")
                break
            cut += tails
        self.matcher.cut(cut, self.now_s, None)

    def _remember_latest(self, from_ms: int) -> None:
        """What has just come into the log may be received yet, where the subscription was there before: this broker may
        have had more to do than read it. Not of messages that are all alike: which of them are still to come, nobody
        knows. Of large ones fewer are looked at: others wait for this."""
        for tail, count in self._counts_of_latest(from_ms).items():
            if count == 1:
                self.matcher.stored(tail, self.now_s)

    def _counts_of_latest(self, from_ms: int) -> Counter[bytes]:
        """How often each of the latest messages is in the log, of batches that are not older than that."""
        log = self.partition.log
        counts: Counter[bytes] = Counter()
        for records in LATEST_RECORDS:
            counts.clear()
            start = max(log.log_start_offset, log.log_end_offset - records)
            for tails in self._read(log, start, LATEST_BYTES_MAX, from_ms):
                if tails is None:
                    break
                counts.update(tails)
            else:
                break
        return counts

    def _read(self, log: Log, start: int, bytes_max: int, from_ms: int = 0) -> Iterator[list[bytes] | None]:
        """What `_tails` finds in a log from `start` on, piece by piece; None as the last, if it would be more than so many
        bytes of the log."""
        size = 0
        try:
            while start < log.log_end_offset:
                if size >= bytes_max:
                    yield None
                    return
                found = log.read(start, READ_BYTES)
                data = b"".join(region.read() for region in found.regions)
                size += len(data)
                tails, next_offset = self._tails(data, from_ms)
                if next_offset <= start:
                    return
                start = next_offset
                yield [tail for _, tail in tails]
        except (OSError, StorageError) as error:
            _complain(log.name, error)

    def _tails(self, data: bytes, from_ms: int = 0) -> tuple[list[tuple[int, bytes]], int]:
        """Those of the records that were messages, with their offsets, of batches that are not older than that; and the
        offset behind the last batch that is whole, or -1."""
        found: list[tuple[int, bytes]] = []
        position, next_offset = 0, -1
        try:
            while position + HEADER_SIZE <= len(data):
                batch = memoryview(data)[position:]
                header = read_header(batch)
                if header.size > len(batch):
                    break
                if header.max_timestamp >= from_ms:
                    found += self._tails_of(batch[: header.size], header)
                position += header.size
                next_offset = header.next_offset
        except RecordBatchError as error:
            _complain(self.partition.log.name, error)
        return found, next_offset

    def _tails_of(self, batch: memoryview, header: BatchHeader) -> list[tuple[int, bytes]]:
        """Of one batch. What clients write may be larger or unreadable, and then none of it was a message: messages take
        `max.message.bytes` together before the broker compresses them."""
        bytes_max = self.partition.log.config.max_message_bytes
        if header.record_count * len(SUBJECT_HEADER) > max(bytes_max, header.size):
            return []
        try:
            tails = read_tails(batch, bytes_max)
        except InvalidBatch as error:
            _complain(self.partition.log.name, error)
            return []
        return [
            (offset, tail) for offset, tail in enumerate(tails, header.base_offset) if SUBJECT_HEADER in tail
        ]


def _complain(name: str, error: Exception) -> None:
    log.warning("%s: what it holds can't be compared with what came from NATS: %s", name, error)
