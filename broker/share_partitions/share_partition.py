"""One share partition: a partition of a topic as a share group reads it. Decisions only; times are given in seconds.

    from         on                                to
    available    acquire                           acquired, delivery count + 1, locked for a time
    acquired     accept                            acknowledged
    acquired     reject, gap                       archived
    acquired     release, lock expiry,             available; archived at the last delivery
                 end of the session
    acquired     renew                             acquired, locked anew

Acknowledged and archived are final. A change by an acknowledgement, or by the end of a session, is a transition: it is persisted
first, and taken back if that fails. An expired lock changes the state at once. The start offset moves over records that are
finished; what lies behind `end_offset` was never acquired. All rules are those of Kafka 4.3 (SharePartition.java).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.broker.share_coordinator.state_batches import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    StateBatch,
    append_joined,
)
from barnabas.broker.share_partitions.acquisition import Acquire, AcquiredRange, Acquisition, Limits
from barnabas.broker.share_partitions.in_flight import NO_MEMBER, TERMINAL, InFlightBatch, Run, Transition
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

# Acknowledge types
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
_STATES: Final = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}
DELIVERY_COUNT_MAX: Final = 0x7FFF  # of a stored state, which any broker may write: no limit is as high
COMPLETE_COUNT_MAX: Final = 0x7FFFFFFF

_first = attrgetter("first")


class Acknowledgement(NamedTuple):
    """`types`: one for all offsets, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class SharePartition:
    """See the module."""

    def __init__(self, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        """`batches`: the stored state, ascending. Of offsets between them nothing is known: they are available."""
        self.start_offset = start_offset
        self.end_offset = start_offset
        self._batches: list[InFlightBatch] = []
        for each in batches:
            first = max(each.first_offset, self.end_offset)
            if first > each.last_offset:
                continue
            if first > self.end_offset:
                gap = Run(self.end_offset, first - 1)
                self._batches.append(InFlightBatch(gap.first, gap.last, [gap], is_gap=True))
            count = min(each.delivery_count, DELIVERY_COUNT_MAX - 1)  # it may rise once more
            run = Run(first, each.last_offset, each.delivery_state, count)
            self._batches.append(InFlightBatch(first, each.last_offset, [run]))
            self.end_offset = each.last_offset + 1
        self._may_have_available = bool(self._batches)
        self._advance()

    # -- what there is

    @property
    def in_flight(self) -> int:
        """How many records count against the limit of locks: all from the start offset to the end."""
        return self.end_offset - self.start_offset if self._batches else 0

    @property
    def delivery_complete_count(self) -> int:
        """How many of the records in flight are finished, or about to be; no more than a request can say."""
        return min(sum(len(run) for run in self.runs() if run.state in TERMINAL), COMPLETE_COUNT_MAX)

    def next_fetch_offset(self) -> int:
        """The first record that can be acquired, or the end offset."""
        if self._may_have_available:
            for run in self.runs():
                if run.is_available:
                    return run.first
            self._may_have_available = False
        return self.end_offset

    def can_acquire(self, limits: Limits) -> bool:
        """Whether a fetch could acquire anything."""
        return self.in_flight < limits.locks or self.next_fetch_offset() < self.end_offset

    def acquirable(self, limits: Limits) -> int:
        """How many records from the next fetch offset on there may be in one acquisition, but for the rest of a batch."""
        return self.end_offset - self.next_fetch_offset() + max(limits.locks - self.in_flight, 0)

    def next_deadline(self) -> float | None:
        """When the next lock expires."""
        return min(
            (run.deadline for run in self.runs() if run.state == ACQUIRED and run.transition is None),
            default=None,
        )

    def runs(self) -> Iterator[Run]:
        """All records in flight, ascending."""
        for batch in self._batches:
            yield from batch.runs

    # -- acquire

    def acquire(
        self,
        request: Acquire,
        limits: Limits,
        fetch_offset: int,
        log_batches: Sequence[tuple[int, int]],
        now: float,
    ) -> list[AcquiredRange]:
        """Acquire records of what was read at `fetch_offset`: `log_batches` are the (first, last) offsets of its batches."""
        if not log_batches or log_batches[-1][1] < self.start_offset or request.records_max <= 0:
            return []
        base, last = log_batches[0][0], log_batches[-1][1]
        if fetch_offset < base:  # compaction has removed what was there
            self._archive_available(fetch_offset, base - 1)
        records_max = min(request.records_max, limits.locks - self.in_flight)
        if records_max <= 0:  # only what is released among the records in flight
            last = min(last, self.end_offset - 1)
            records_max = min(request.records_max, self.end_offset - max(base, fetch_offset))
            if records_max <= 0:
                return []
        acquiring = Acquisition(request, limits, records_max, log_batches, now, self._add, self._carve)
        for batch in self._between(base, last):
            if acquiring.is_full:
                break
            if batch.is_gap:
                acquiring.take_gap(batch, max(base, batch.first), min(last, batch.last))
            else:
                acquiring.take(batch, base, last)
        if not acquiring.is_full:
            first = max(base, self.end_offset)
            if first <= last:
                acquiring.take_new(first, last)
        return acquiring.acquired

    def drop_aborted(
        self, acquired: Sequence[AcquiredRange], aborted: Sequence[tuple[int, int]]
    ) -> list[AcquiredRange]:
        """Archive what was just acquired of aborted transactions, and return the rest. `aborted`: ascending (first, last)."""
        kept: list[AcquiredRange] = []
        place = 0  # the first of `aborted` that does not lie before `each`
        for each in acquired:
            position = each.first
            while place < len(aborted) and aborted[place][1] < position:
                place += 1
            for index in range(place, len(aborted)):
                first, last = aborted[index]
                if first > each.last:
                    break
                low, high = max(first, position), min(last, each.last)
                for batch in self._between(low, high):
                    for run in batch.within(low, high):
                        run.state, run.member_id, run.deadline = ARCHIVED, NO_MEMBER, 0.0
                if low > position:
                    kept.append(AcquiredRange(position, low - 1, each.delivery_count))
                position = high + 1
            if position <= each.last:
                kept.append(AcquiredRange(position, each.last, each.delivery_count))
        self._advance()
        return kept

    def _add(self, batch: InFlightBatch) -> None:
        """Records that are new in flight."""
        if not self._batches:
            self.start_offset = batch.first
        self._batches.insert(bisect_right(self._batches, batch.first, key=_first), batch)
        self.end_offset = max(self.end_offset, batch.last + 1)
        self._may_have_available = self._may_have_available or any(run.is_available for run in batch.runs)

    def _carve(self, gap: InFlightBatch, first: int, last: int) -> None:
        """Take these records out of a gap."""
        index = bisect_left(self._batches, gap.first, key=_first)
        pieces = [list(gap.within(gap.first, first - 1)), list(gap.within(last + 1, gap.last))]
        self._batches[index : index + 1] = [
            InFlightBatch(runs[0].first, runs[-1].last, runs, is_gap=True) for runs in pieces if runs
        ]

    # -- acknowledge

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        limits: Limits,
        now: float,
    ) -> Transition:
        """To be completed when its batches are persisted, at once if there are none. ApiError: nothing is done."""
        transition = Transition()
        renewed: list[Run] = []
        try:
            for each in acknowledgements:
                if each.last < self.start_offset:
                    continue
                for run, kind in self._acknowledged_runs(each):
                    _check_acknowledge(run, member_id)
                    if kind == RENEW:
                        renewed.append(run)
                    else:
                        self._begin(transition, run, _STATES[kind], limits)
        except ApiError:
            self.complete(transition, False, limits, now)
            for batch in self._between(acknowledgements[0].first, acknowledgements[-1].last):
                batch.join()  # what was cut in vain
            raise
        for run in renewed:  # only now, as one that is refused undoes the whole list
            run.deadline = now + limits.lock_s
        return transition

    def _acknowledged_runs(self, acknowledged: Acknowledgement) -> Iterator[tuple[Run, int]]:
        """The runs of the offsets, ascending and cut at the types, with the type of each."""
        batches = self._to_acknowledge(acknowledged)
        place = 0  # the first batch that does not lie before the range
        for first, last, kind in _ranges(acknowledged):
            first = max(first, self.start_offset)
            while place < len(batches) and batches[place].last < first:
                place += 1
            for index in range(place, len(batches)):
                if batches[index].first > last:
                    break
                for run in batches[index].within(first, last):
                    yield run, kind

    def _to_acknowledge(self, acknowledged: Acknowledgement) -> list[InFlightBatch]:
        """The batches of the offsets."""
        index = bisect_right(self._batches, acknowledged.first, key=_first) - 1
        if index < 0 and acknowledged.first < self.start_offset:
            index = bisect_right(self._batches, self.start_offset, key=_first) - 1
        if index < 0:
            raise ApiError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        stop = bisect_right(self._batches, acknowledged.last, key=_first)
        found = self._batches[index:stop]
        for end, which in ((acknowledged.first, "first"), (acknowledged.last, "last")):
            if found[-1].last < end:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Batch record not found. The {which} offset in request is past acquired records.",
                )
        return found

    def _begin(self, transition: Transition, run: Run, state: int, limits: Limits) -> None:
        if state == AVAILABLE and run.delivery_count >= limits.delivery_count:
            state = ARCHIVED
        run.begin(transition, state)
        append_joined(transition.batches, StateBatch(run.first, run.last, state, run.delivery_count))

    def release(self, member_id: str, limits: Limits) -> Transition:
        """The member's session has ended: what it has acquired is released."""
        transition = Transition()
        for run in self.runs():
            if run.state == ACQUIRED and run.transition is None and run.member_id == member_id:
                self._begin(transition, run, AVAILABLE, limits)
        return transition

    def complete(self, transition: Transition, is_persisted: bool, limits: Limits, now: float) -> None:
        """The batches of the transition are persisted, or could not be."""
        if not transition.batches:
            return
        first = min(each.first_offset for each in transition.batches)
        last = max(each.last_offset for each in transition.batches)
        for batch in self._between(first, last):
            for run in batch.runs:
                if run.transition is not transition:
                    continue
                if is_persisted:
                    run.transition = None
                    run.deadline = 0.0
                else:
                    run.roll_back()
                    if run.state == ACQUIRED and run.deadline <= now:
                        _unlock(run, limits)
                self._may_have_available = self._may_have_available or run.is_available
            batch.join()
        self._advance()

    # -- time, and the log

    def expire(self, limits: Limits, now: float) -> list[StateBatch]:
        """Unlock what is locked for too long; returns the new state, to be persisted."""
        changed: list[StateBatch] = []
        for batch in self._batches:
            is_changed = False
            for run in batch.runs:
                if run.state == ACQUIRED and run.transition is None and run.deadline <= now:
                    _unlock(run, limits)
                    append_joined(changed, StateBatch(run.first, run.last, run.state, run.delivery_count))
                    is_changed = True
            if is_changed:
                batch.join()
        if changed:
            self._may_have_available = True
            self._advance()
        return changed

    def log_start_moved(self, offset: int) -> None:
        """Records before this offset are deleted."""
        if offset <= self.start_offset:
            return
        for batch in self._batches:
            if batch.first >= offset:
                break
            batch.cut_below(offset)
        self._batches = [batch for batch in self._batches if batch.runs]
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
        self._advance()

    def _archive_available(self, first: int, last: int) -> None:
        for batch in self._between(first, last):
            for run in batch.within(first, last):
                if run.is_available:
                    run.state = ARCHIVED
        self._advance()

    def _between(self, first: int, last: int) -> list[InFlightBatch]:
        """The batches that have any of these offsets."""
        begin = max(0, bisect_right(self._batches, first, key=_first) - 1)
        stop = bisect_right(self._batches, last, key=_first)
        return [batch for batch in self._batches[begin:stop] if batch.last >= first]

    def _advance(self) -> None:
        """Move the start over records that are finished."""
        done = 0
        for batch in self._batches:
            unfinished = next((run for run in batch.runs if not run.is_finished), None)
            if unfinished is not None:
                if unfinished is not batch.runs[0]:
                    batch.cut_below(unfinished.first)
                self.start_offset = max(self.start_offset, unfinished.first)
                break
            done += 1
        else:
            self.start_offset = self.end_offset
        del self._batches[:done]


def _ranges(acknowledged: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """(first, last, type) for each run of equal types."""
    types = acknowledged.types
    if len(types) == 1:
        yield acknowledged.first, acknowledged.last, types[0]
        return
    begin = 0
    for index in range(1, len(types) + 1):
        if index == len(types) or types[index] != types[begin]:
            yield acknowledged.first + begin, acknowledged.first + index - 1, types[begin]
            begin = index


def _check_acknowledge(run: Run, member_id: str) -> None:
    if run.state != ACQUIRED:  # also while another acknowledgement is being persisted
        message = "The offset cannot be acknowledged. The offset is not acquired."
    elif run.member_id != member_id:
        message = "Member is not the owner of offset"
    else:
        return
    raise ApiError(ErrorCode.INVALID_RECORD_STATE, message)


def _unlock(run: Run, limits: Limits) -> None:
    run.state = ARCHIVED if run.delivery_count >= limits.delivery_count else AVAILABLE
    run.member_id = NO_MEMBER
    run.deadline = 0.0
