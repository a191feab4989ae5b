"""Records in flight: the batches in which they were acquired, and the runs of equal records in each.

Offsets are ranges with both ends included. A batch is what was acquired at a time, so that it can be acquired again as a whole;
its runs cover it without gaps, except what was cut off at its start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from barnabas.broker.share_coordinator.state_batches import ACKNOWLEDGED, ARCHIVED, AVAILABLE, StateBatch

_first = attrgetter("first")
TERMINAL: Final = frozenset({ACKNOWLEDGED, ARCHIVED})
NO_MEMBER: Final = ""


class Transition:
    """Changes that are being persisted."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: list[StateBatch] = []  # the new state


class Run:
    """Records of one state. `transition`: the change that is being persisted, with what was before it."""

    __slots__ = (
        "deadline", "delivery_count", "first", "last", "member_id", "previous_member", "previous_state", "state", "transition",
    )  # fmt: skip

    def __init__(
        self,
        first: int,
        last: int,
        state: int = AVAILABLE,
        delivery_count: int = 0,
        member_id: str = NO_MEMBER,
        deadline: float = 0.0,
    ) -> None:
        """`deadline`: of the lock, in s on the monotonic clock."""
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = member_id
        self.deadline = deadline
        self.transition: Transition | None = None
        self.previous_state = state
        self.previous_member = member_id

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        return self.state == AVAILABLE and self.transition is None

    @property
    def is_finished(self) -> bool:
        """Whether the records are done with for good."""
        return self.state in TERMINAL and self.transition is None

    def split(self, offset: int) -> Run:
        """Cut it in front of `offset`; returns the second part."""
        second = Run(offset, self.last, self.state, self.delivery_count, self.member_id, self.deadline)
        second.transition = self.transition
        second.previous_state = self.previous_state
        second.previous_member = self.previous_member
        self.last = offset - 1
        return second

    def begin(self, transition: Transition, state: int) -> None:
        self.previous_state, self.previous_member = self.state, self.member_id
        self.transition = transition
        self.state, self.member_id = state, NO_MEMBER

    def roll_back(self) -> None:
        self.state, self.member_id = self.previous_state, self.previous_member
        self.transition = None

    def equals(self, other: Run) -> bool:
        """Whether it can be joined with the next run."""
        return (
            self.transition is other.transition is None
            and self.state == other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.deadline == other.deadline
        )


class InFlightBatch:
    """Records that were acquired together. `is_gap`: records of which the stored state says nothing, and which may not exist."""

    __slots__ = ("first", "is_gap", "last", "runs")

    def __init__(self, first: int, last: int, runs: list[Run], *, is_gap: bool = False) -> None:
        self.first = first
        self.last = last
        self.runs = runs
        self.is_gap = is_gap

    def __len__(self) -> int:
        return self.last - self.first + 1

    def within(self, first: int, last: int) -> Iterator[Run]:
        """The runs between these offsets, cut at them."""
        index = max(0, bisect_right(self.runs, first, key=_first) - 1)
        while index < len(self.runs):
            run = self.runs[index]
            if run.first > last:
                return
            if run.last >= first:
                if run.first < first:
                    index += 1
                    run = run.split(first)
                    self.runs.insert(index, run)
                if run.last > last:
                    self.runs.insert(index + 1, run.split(last + 1))
                yield run
            index += 1

    def join(self) -> None:
        """Join equal runs, so that they do not become as many as the records."""
        joined = self.runs[:1]
        for run in self.runs[1:]:
            if joined[-1].equals(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self.runs = joined

    def cut_below(self, offset: int) -> None:
        """Drop the records before this offset."""
        self.runs = [run for run in self.runs if run.last >= offset]
        if self.runs and self.runs[0].first < offset:
            self.runs[0] = self.runs[0].split(offset)
