"""A standby: a follower's state of a core binding's partition, so that it could lead without a message missing.

A follower in sync receives the messages as the leader does, and matches them with the records that replication brings
(ingress/tail_matcher.py). When it becomes the leader it appends those that are left: messages that the old leader had not
appended, or had appended where no other broker has them. Records whose messages are received later are not appended twice.
The old leader keeps its matcher, too: records that are truncated from its log are messages that it has received and no longer
has. So moved and failed leaders are one case, and brokers need not communicate at that moment. A standby without a `lapse`
has every message, here or in its copy of the log; with one it may lack those of that time, and a leader with a lapse records a
gap (ingress/gap_tracker.py).

A standby has every message that the leader has once three things have happened in this order:

1. The server has the follower's subscriptions: what is published from then on is received.
2. A mark that the follower has published after them has reached the leader, which has appended all that it received before
   the mark and answers with the end of its log; and the mark has reached the follower itself (ingress/standbys.py).
3. The follower's log has reached that end.

A message that is published at the very moment of the mark may come after it to the leader and before it to the follower, so
there is a second mark half a second later, and more until two agree on the number of equal messages. From then on the
standby lacks nothing, whichever broker leads, as long as its subscriptions are not interrupted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.nats.ingress.log_tails import count_latest_tails, read_log_tails, tails_of_batches
from barnabas.nats.ingress.tail_matcher import TailMatcher

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.ingress.special_messages import Special
    from barnabas.storage.log.log import Log

log = logging.getLogger("barnabas.nats")

LATEST_MS: Final = 5_000
MARK_EVERY_S: Final = 2.0
FIRST_MARKS_EVERY_S: Final = 0.5  # until MARKS of them; more than RACE_S
MARKS: Final = 2  # matching counts from then on
UNEVEN_S: Final = 1.0  # a standby with something left over for so long publishes another mark
RACE_S: Final = 0.3  # a message reaches two brokers within less
SILENT_S: Final = 3.0  # a leader that answers no mark for so long receives no messages
KEPT_S: Final = 10.0  # deliveries and replication differ by less, or one of them has failed
EXPIRE_EVERY_S: Final = 1.0
LOG_AGAIN_S: Final = 60.0


class Lapse(NamedTuple):
    """A time whose messages a standby may lack. `until_ms` is 0 while it lasts; with `is_older` it may have begun before
    `since_ms`, with the last message in the log."""

    since_ms: int
    until_ms: int
    cause: str
    is_older: bool = False


class Resync:
    """A matcher that begins at a mark's place among the messages and in the leader's log."""

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
        self.matcher: TailMatcher[Special | None] = TailMatcher()
        self.has_mark = False  # the mark was received among the messages
        self.marked_at_s = 0.0  # and when
        self.start_offset = -1  # the mark's place in the leader's log, once the leader has answered
        self.records: list[tuple[int, bytes]] = []  # replicated before the answer, with their offsets
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

    def begin_at(self, offset: int, now_s: float) -> None:
        self.start_offset = offset
        records, self.records = self.records, []
        self._records_size = 0
        for at, tail in records:
            self.stored(at, tail, now_s)


class Standby:
    """One partition's standby, while this broker is in sync or leads. `tick` sets `now_s`."""

    __slots__ = (
        "_bytes_max",
        "_doubts",
        "_even_at_s",
        "_expires_at_s",
        "_has_had_marks",
        "_is_mark_requested",
        "_lacked_absence",
        "_log_again_s",
        "_mark_sent_s",
        "_marks",
        "_resync",
        "_silence",
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
        self.matcher: TailMatcher[Special | None] = TailMatcher()
        self.now_s = now_s
        self.reported_at_s = 0.0  # when the last report said that there is no lapse
        self._bytes_max = bytes_max
        self._is_mark_requested = False  # by the leader
        self._lacked_absence = (
            -1,
            0,
        )  # leader epoch and number of an absence whose messages are not here either
        # The leader epoch in which marks are not answered, and since when.
        self._silence: tuple[int, float] | None = None
        self._resync: Resync | None = None
        # Marks that have begun a matcher. A matcher as old as the binding is as good as one that a mark has begun.
        self._marks = 1 if lapse is not None and not lapse.is_older else 0
        self._doubts: dict[bytes, int] = {}  # tails that the last mark found more of, or fewer
        self._has_had_marks = False
        self._even_at_s = now_s
        self._mark_sent_s = now_s - MARK_EVERY_S
        self._expires_at_s = now_s + EXPIRE_EVERY_S
        self._log_again_s = now_s
        partition.observer = self
        # The latest messages in the log may still be received, where the subscription was there before and this broker
        # is behind with reading. Of messages that are all alike it is not known which are still to come.
        for tail, count in count_latest_tails(partition.log, now_ms - LATEST_MS).items():
            if count == 1:
                self.matcher.stored(tail, now_s)

    def close(self) -> None:
        if self.partition.observer is self:
            self.partition.observer = None

    def receive(self, tail: bytes, special: Special | None = None) -> None:
        self.matcher.received(tail, self.now_s, special)
        resync = self._resync
        if resync is not None and resync.has_mark:
            resync.matcher.received(tail, self.now_s, special)

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        if now_s < self._expires_at_s:
            return
        self._expires_at_s = now_s + EXPIRE_EVERY_S
        matcher, resync = self.matcher, self._resync
        matcher.ahead.expire(now_s - KEPT_S)
        if (
            not self._has_had_marks
        ):  # else the leader's answers show what it has dealt with, and a stalled one gives none
            matcher.pending.expire(now_s - KEPT_S)
        if resync is not None and (now_s - self._mark_sent_s > KEPT_S or resync.size > self._bytes_max):
            self._resync = None  # no answer comes; the next mark may get one
        if matcher.ahead.size > self._bytes_max:
            matcher.ahead.clear()
            log.warning(
                "%s: records whose messages have not been received are more than nats.buffer.bytes; if the leader fails now, "
                "some messages may be stored twice",
                self.partition.log.name,
            )
        if matcher.pending.size > self._bytes_max:
            matcher.pending.clear()
            self._overflow("more messages waited for the leader's log than nats.buffer.bytes holds")

    def restart(self) -> None:
        """The subscription is a new one: messages whose records are in the log and that were not received never will be."""
        self.matcher.ahead.clear()
        self._resync = None
        self._marks = 0
        self._doubts = {}

    def resume(self) -> None:
        """This broker was the leader until now. Its matcher is as good as one that a mark has begun: what it received is in the
        log, or waits."""
        self._resync = None
        self._marks = 1 if self.lapse is None else 0
        self._doubts = {}

    # -- what it lacks

    def begin_lapse(self, since_ms: int, cause: str) -> None:
        """Messages may be missed from then on."""
        self._resync = None
        self._marks = 0
        self._silence = None
        before = self.lapse
        if before is None:
            self.lapse = Lapse(since_ms, 0, cause)
        elif before.until_ms:
            self.lapse = Lapse(before.since_ms, 0, f"{before.cause}; then {cause}", before.is_older)

    def end_lapse(self, now_ms: int) -> None:
        """All that is published from now on is received; what was published in the lapse may still be missing."""
        if self.lapse is not None and not self.lapse.until_ms:
            self.lapse = self.lapse._replace(until_ms=now_ms)

    def extend_lapse(self, until_ms: int) -> None:
        """A mark was received: until another one agrees, messages of its moment may be missing or stored twice."""
        if self.lapse is not None and self.lapse.until_ms:
            self.lapse = self.lapse._replace(until_ms=max(self.lapse.until_ms, until_ms))

    def clear_lapse(self) -> None:
        """Nothing is missing, or a gap is recorded."""
        self.lapse = None

    def _overflow(self, cause: str) -> None:
        """Messages were dropped before they were in the log."""
        log.warning("%s: %s; if the leader fails now, that is a gap", self.partition.log.name, cause)
        self._marks = 0
        self.lapse = Lapse(0, 0, cause, is_older=True)

    def reported(self, now_s: float) -> None:
        """The leader was told that there is no lapse."""
        self.reported_at_s = now_s

    # -- what the leader lacks

    def leader_answered(self) -> None:
        self._silence = None

    def may_have(self, absence: int) -> bool:
        """Whether the messages that the leader has missed in this absence have come here: not if matching began after it."""
        this = self.partition.leader_epoch, absence
        if self.lapse is not None:
            self._lacked_absence = this
        return self._lacked_absence != this

    def leader_is_silent(self) -> bool:
        """Whether messages wait here for a leader that has not answered marks for SILENT_S."""
        silence = self._silence
        return (
            silence is not None
            and silence[0] == self.partition.leader_epoch
            and self.now_s - silence[1] >= SILENT_S
            and self.lapse is None
            and bool(self.matcher.pending)
        )

    # -- where matching begins

    def request_mark(self) -> None:
        """The leader asks for a mark at once."""
        self._is_mark_requested = True

    def wants_mark(self) -> bool:
        """Whether it is not known where matching begins, or something is left over: the mark was imprecise then, or the
        leader has refused a message."""
        if not self.matcher.pending and not self.matcher.ahead:
            self._even_at_s = self.now_s
        resync = self._resync
        if resync is not None and resync.leader_epoch != self.partition.leader_epoch:
            self._resync = None  # the position of the mark is unknown
        elif resync is not None and resync.start_offset >= 0:
            return False  # the log has to reach it first
        if self._is_mark_requested:
            return True
        pause_s = FIRST_MARKS_EVERY_S if self._marks < MARKS else MARK_EVERY_S
        if self.now_s - self._mark_sent_s < pause_s:
            return False
        return self._marks < MARKS or self.now_s - self._even_at_s > UNEVEN_S

    def mark_sent(self, number: int) -> None:
        self._mark_sent_s = self.now_s
        self._is_mark_requested = False
        self._resync = Resync(number, self.partition.leader_epoch)

    def mark_received(self, number: int) -> None:
        """The mark was received among the messages."""
        self._has_had_marks = True
        if self._silence is None or self._silence[0] != self.partition.leader_epoch:
            self._silence = self.partition.leader_epoch, self.now_s
        if self._resync is not None and self._resync.number == number:
            self._resync.has_mark = True
            self._resync.marked_at_s = self.now_s
            self._begin()

    def mark_found(self, number: int, leader_epoch: int, offset: int) -> None:
        """The leader of that epoch has received the mark when its log ended at `offset`."""
        resync = self._resync
        if (
            resync is not None
            and resync.number == number
            and resync.leader_epoch == leader_epoch == self.partition.leader_epoch
        ):
            resync.begin_at(offset, self.now_s)
            self._begin()

    def _begin(self) -> None:
        """Matching begins anew once the mark is known on both sides and the log has reached it: until then the matcher
        before knows which of the leader's records are not here yet."""
        resync, partition = self._resync, self.partition
        if (
            resync is None
            or not resync.has_mark
            or not 0 <= resync.start_offset <= partition.log.log_end_offset
            or partition.leader_epoch != resync.leader_epoch
        ):
            return
        self._doubts = self._correct(resync) if self._marks else {}
        self.matcher = resync.matcher
        self._resync = None
        if not self._doubts:
            self._marks = min(self._marks + 1, MARKS)
        if self._marks == MARKS:
            self.lapse = None

    def _correct(self, resync: Resync) -> dict[bytes, int]:
        """Corrects the new matcher by the one before, and returns what remains in doubt. Messages that are published at the very
        moment of the mark may come before it to one of the brokers and after it to the other. Of a message that occurs once
        the matcher before is right: its own mark, and its moment, are past. Of equal messages either may be right, so the
        new number counts when a second mark in a row has found it."""
        before, begun = self.matcher, resync.matcher
        since_s = resync.marked_at_s - RACE_S
        differing = before.differing(begun, since_s)
        if not differing:
            return {}
        counts = count_latest_tails(self.partition.log, 0)
        equal = {
            tail: difference
            for tail, difference in differing.items()
            if counts[tail] + before.pending.count(tail) > 1
        }
        doubts = {
            tail: difference for tail, difference in equal.items() if self._doubts.get(tail) != difference
        }
        begun.correct((differing.keys() - equal.keys()) | doubts.keys(), before, since_s)
        return doubts

    # -- the partition's log (ReplicaObserver)

    def replicated(self, batches: memoryview) -> None:
        try:
            self._match_replicated(bytes(batches))
        except Exception:  # noqa: BLE001 - replication continues without its observer
            self._log_failure()

    def cutting(self, log: Log, offset: int) -> None:
        try:
            self._match_cut(log, offset)
        except Exception:  # noqa: BLE001 - as above
            self._log_failure()

    def _log_failure(self) -> None:
        if self.now_s >= self._log_again_s:
            self._log_again_s = self.now_s + LOG_AGAIN_S
            name = self.partition.log.name
            log.exception("%s: its records can't be compared with the messages received from NATS", name)

    def _match_replicated(self, batches: bytes) -> None:
        matcher, now_s, resync = self.matcher, self.now_s, self._resync
        for offset, tail in tails_of_batches(self.partition.log, batches)[0]:
            matcher.stored(tail, now_s)
            if resync is not None:
                resync.stored(offset, tail, now_s)
        if resync is not None:
            self._begin()

    def _match_cut(self, log: Log, offset: int) -> None:
        """The records from `offset` on are truncated; `_bytes_max` of them are remembered."""
        self._resync = None
        cut: list[bytes] = []
        for tails in read_log_tails(log, max(offset, log.log_start_offset), self._bytes_max):
            if tails is None:
                self._overflow("the log was cut back by more than nats.buffer.bytes holds")
                break
            cut += tails
        self.matcher.cut(cut, self.now_s, None)
