"""Ranges of offsets with a delivery state, and how an update of them is merged.

Where ranges overlap, the higher delivery count counts at an offset, and with the same count the higher state; so the order in
which updates are merged does not matter. Neighbours that are equal are joined, and what lies below the start offset is dropped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter
from typing import Final

import msgspec

# Delivery states (KIP-932), as they are stored. Acquired (1) is never stored, and 3 is reserved (KIP-1191).
AVAILABLE: Final = 0
ACQUIRED: Final = 1
ACKNOWLEDGED: Final = 2
ARCHIVED: Final = 4
STORED_STATES: Final = frozenset({AVAILABLE, ACKNOWLEDGED, ARCHIVED})

NO_START: Final = -1  # of an update that does not change the start offset, and of a state that has none yet


class StateBatch(msgspec.Struct, frozen=True, gc=False):
    """Offsets `first_offset` to `last_offset`, both included."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


Batches = tuple[StateBatch, ...]  # ascending, without overlaps, and equal neighbours are joined

_first_offset = attrgetter("first_offset")
_last_offset = attrgetter("last_offset")


def update(start_offset: int, kept: Batches, changed: Batches) -> Batches:
    """The kept batches from `start_offset` on (NO_START: all) with the changed ones merged into them. Those that do not touch a
    change stay as they are, so a small one is cheap."""
    begin = bisect_left(kept, start_offset, key=_last_offset)
    if not changed:
        low = high = begin
    else:
        low = bisect_left(kept, changed[0].first_offset - 1, begin, key=_last_offset)
        high = bisect_right(kept, changed[-1].last_offset + 1, low, key=_first_offset)
    if begin < len(kept) and kept[begin].first_offset < start_offset:
        low = begin  # it is cut
        high = max(high, begin + 1)
    return (*kept[begin:low], *merge(start_offset, kept[low:high], changed), *kept[high:])


def merged(start_offset: int, batches: Collection[StateBatch]) -> Batches:
    """As `merge`, of one list, which is nearly always merged already."""
    previous = StateBatch(start_offset - 1, start_offset - 1, -1, -1)
    for each in batches:
        if each.first_offset <= previous.last_offset or (
            each.first_offset == previous.last_offset + 1
            and each.delivery_state == previous.delivery_state
            and each.delivery_count == previous.delivery_count
        ):
            return merge(start_offset, batches)
        previous = each
    return tuple(batches)


def merge(start_offset: int, *lists: Iterable[StateBatch]) -> Batches:
    """All batches merged, from `start_offset` on (NO_START: all)."""
    batches = sorted(
        (each for one in lists for each in one if each.last_offset >= start_offset),
        key=_first_offset,
    )
    borders = sorted(
        {max(each.first_offset, start_offset) for each in batches}
        | {each.last_offset + 1 for each in batches}
    )
    result: list[StateBatch] = []
    # What covers the present border: (-count, -state, last offset), the one that counts first.
    covering: list[tuple[int, int, int]] = []
    place = 0
    for border, next_border in pairwise(borders):
        while place < len(batches) and batches[place].first_offset <= border:
            each = batches[place]
            heappush(covering, (-each.delivery_count, -each.delivery_state, each.last_offset))
            place += 1
        while covering and covering[0][2] < border:
            heappop(covering)
        if covering:
            count, state, _ = covering[0]
            append_joined(result, StateBatch(border, next_border - 1, -state, -count))
    return tuple(result)


def append_joined(batches: list[StateBatch], batch: StateBatch) -> None:
    """Append it, or join it with the last one if they are neighbours and equal."""
    if batches:
        last = batches[-1]
        if (
            last.last_offset + 1 == batch.first_offset
            and last.delivery_state == batch.delivery_state
            and last.delivery_count == batch.delivery_count
        ):
            batches[-1] = StateBatch(
                last.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
            )
            return
    batches.append(batch)
