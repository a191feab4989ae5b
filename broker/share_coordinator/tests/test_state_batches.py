"""Merged state batches against a map of single offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.share_coordinator.state_batches import NO_START, StateBatch, merge, merged, update

OFFSETS_MAX = 30


@st.composite
def batches(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, OFFSETS_MAX))
    last = draw(st.integers(first, OFFSETS_MAX))
    return StateBatch(first, last, draw(st.sampled_from((0, 2, 4))), draw(st.integers(0, 3)))


def by_offset(start: int, given_batches: list[StateBatch]) -> dict[int, tuple[int, int]]:
    """Offset -> (count, state)."""
    found: dict[int, tuple[int, int]] = {}
    for each in given_batches:
        for offset in range(max(each.first_offset, start), each.last_offset + 1):
            value = each.delivery_count, each.delivery_state
            found[offset] = max(found.get(offset, value), value)
    return found


@given(st.lists(batches(), max_size=12), st.lists(batches(), max_size=6), st.integers(-1, OFFSETS_MAX + 2))
def test_each_offset_has_its_highest_count_and_state(
    old: list[StateBatch], new: list[StateBatch], start: int
) -> None:
    merged = merge(start, old, new)
    assert by_offset(NO_START, list(merged)) == by_offset(start, [*old, *new])
    for one, following in pairwise(merged):
        assert one.last_offset < following.first_offset
        equal = (one.delivery_state, one.delivery_count) == (
            following.delivery_state,
            following.delivery_count,
        )
        assert not (equal and one.last_offset + 1 == following.first_offset), "neighbours are joined"


@given(st.lists(batches(), max_size=6), st.lists(batches(), max_size=6), st.lists(batches(), max_size=6))
def test_the_order_of_updates_does_not_matter(
    one: list[StateBatch], two: list[StateBatch], three: list[StateBatch]
) -> None:
    assert merge(0, merge(0, one, two), three) == merge(0, one, merge(0, three, two))


@given(st.lists(batches(), max_size=12), st.lists(batches(), max_size=6), st.integers(-1, OFFSETS_MAX + 2))
def test_an_update_is_a_merge(old: list[StateBatch], new: list[StateBatch], start: int) -> None:
    kept, changed = merge(NO_START, old), merge(NO_START, new)
    assert update(start, kept, changed) == merge(start, old, new)
    assert merged(start, old) == merge(start, old)
    assert merged(start, kept) == merge(start, old)


def test_what_an_update_does_not_touch_stays() -> None:
    kept = tuple(StateBatch(offset, offset, 0, 1) for offset in range(0, 100, 2))
    after = update(10, kept, (StateBatch(51, 51, 0, 1),))
    assert after == (*kept[5:25], StateBatch(50, 52, 0, 1), *kept[27:])
    assert after[0] is kept[5]
    assert after[-1] is kept[-1]


def test_ranges_are_split_at_borders() -> None:
    merged = merge(5, [StateBatch(0, 19, 0, 1)], [StateBatch(10, 12, 2, 1)])
    assert merged == (StateBatch(5, 9, 0, 1), StateBatch(10, 12, 2, 1), StateBatch(13, 19, 0, 1))
