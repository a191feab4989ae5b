"""The assignors, for any members and topics."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.consumer import assignors
from barnabas.broker.groups.consumer.assignors import Assignment, Subscriber
from barnabas.runtime.slices import run_through

TOPICS = [bytes([number]) * 16 for number in range(1, 5)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), min_size=1)
names = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


def assign_uniform(members: dict[str, Subscriber], sizes: dict[bytes, int]) -> Assignment:
    return run_through(assignors.assign_uniform(members, sizes))


def assign_range(members: dict[str, Subscriber], sizes: dict[bytes, int]) -> Assignment:
    return run_through(assignors.assign_range(members, sizes))


def readers_of_all(ids: list[str], sizes: dict[bytes, int]) -> dict[str, Subscriber]:
    return {each: Subscriber(frozenset(sizes)) for each in ids}


def after(members: dict[str, Subscriber], assignment: Assignment) -> dict[str, Subscriber]:
    """The members that stay, with what they were assigned."""
    return {
        each: Subscriber(member.topics, member.instance_id, assignment.get(each, {}))
        for each, member in members.items()
    }


def pairs(assignment: Assignment) -> Counter[tuple[bytes, int]]:
    return Counter(
        (topic_id, index)
        for partitions in assignment.values()
        for topic_id, indexes in partitions.items()
        for index in indexes
    )


def size(assignment: Assignment, member_id: str) -> int:
    return sum(map(len, assignment[member_id].values()))


def check_whole(assignment: Assignment, members: dict[str, Subscriber], sizes: dict[bytes, int]) -> None:
    """Each partition that a member reads has one owner, who reads it."""
    read = {topic_id for member in members.values() for topic_id in member.topics}
    assert pairs(assignment) == Counter(
        (topic_id, index) for topic_id in read for index in range(sizes[topic_id])
    )
    for member_id, partitions in assignment.items():
        assert partitions.keys() <= members[member_id].topics


@given(counts, names, st.data())
def test_uniform_balances_with_the_fewest_moves(
    sizes: dict[bytes, int], ids: list[str], data: st.DataObject
) -> None:
    before = assign_uniform(readers_of_all(ids, sizes), sizes)
    staying = data.draw(st.lists(st.sampled_from(ids), unique=True))
    new = data.draw(st.lists(st.sampled_from(["x", "y", "z"]), unique=True, min_size=not staying))
    more = {topic_id: count + data.draw(st.integers(0, 2)) for topic_id, count in sizes.items()}
    members = after(readers_of_all(staying, sizes), before) | readers_of_all(new, sizes)
    result = assign_uniform(members, more)
    check_whole(result, members, more)
    found = sorted(size(result, each) for each in members)
    assert found[-1] - found[0] <= 1
    lost = sum(
        len(indexes - result[each].get(topic_id, frozenset()))
        for each, member in members.items()
        for topic_id, indexes in member.before.items()
    )
    had = sorted((sum(map(len, member.before.values())) for member in members.values()), reverse=True)
    least, extra = divmod(sum(more.values()), len(members))
    assert lost == sum(max(0, each - least - (rank < extra)) for rank, each in enumerate(had))


@st.composite
def differing(draw: st.DrawFn) -> tuple[dict[str, Subscriber], dict[bytes, int]]:
    sizes = draw(counts)
    members = {
        each: Subscriber(
            draw(st.frozensets(st.sampled_from(sorted(sizes)))),
            draw(st.sampled_from([None, None, each + "-static"])),
        )
        for each in draw(names)
    }
    return members, sizes


@given(differing())
def test_uniform_of_different_subscriptions_is_balanced_and_stays(
    given_: tuple[dict[str, Subscriber], dict[bytes, int]],
) -> None:
    members, sizes = given_
    result = assign_uniform(members, sizes)
    check_whole(result, members, sizes)
    for giver in members:
        for topic_id in result[giver]:
            for taker, member in members.items():
                if topic_id in member.topics:
                    assert size(result, giver) - size(result, taker) <= 1, "a partition could still move"
    assert assign_uniform(after(members, result), sizes) == result


@given(differing())
def test_range_is_kafkas(given_: tuple[dict[str, Subscriber], dict[bytes, int]]) -> None:
    members, sizes = given_
    static = sorted((m.instance_id, each) for each, m in members.items() if m.instance_id is not None)
    order = [each for _, each in static] + sorted(
        each for each, m in members.items() if m.instance_id is None
    )
    expected: dict[str, dict[bytes, set[int]]] = {each: {} for each in members}
    for topic_id, count in sizes.items():
        readers = [each for each in order if topic_id in members[each].topics]
        if not readers:
            continue
        hands = [count // len(readers) + (rank < count % len(readers)) for rank in range(len(readers))]
        owners = [each for each, hand in zip(readers, hands, strict=True) for _ in range(hand)]
        for index, each in enumerate(owners):
            expected[each].setdefault(topic_id, set()).add(index)
    assert assign_range(members, sizes) == expected


def test_nothing_to_assign() -> None:
    assert assign_uniform({}, {}) == assign_range({}, {}) == {}
    none = {"a": Subscriber(frozenset())}
    assert assign_uniform(none, {}) == assign_range(none, {}) == {"a": {}}
    gone = {"a": Subscriber(frozenset(), None, {TOPICS[0]: frozenset({1})})}
    assert assign_uniform(gone, {}) == {"a": {}}, "the topic was deleted"
