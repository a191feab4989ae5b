"""The simple assignor: what its docstring says, of any members and topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.modern.values import Partitions
from barnabas.broker.groups.share.assignor import Partition, Subscriber, assign
from barnabas.runtime.slices import run_through

IDS = [bytes([number]) * 16 for number in range(1, 5)]
MEMBERS = st.sets(st.sampled_from([f"m{number}" for number in range(12)]), min_size=1)
INDEXES = st.frozensets(st.integers(0, 9), min_size=1)
TOPICS = st.dictionaries(st.sampled_from(IDS), INDEXES, min_size=1)


def run(
    readers: Mapping[str, frozenset[bytes]],
    topics: Partitions,
    before: Mapping[str, Partitions] | None = None,
) -> dict[str, Partitions]:
    had = before or {}
    members = {member_id: Subscriber(names, had.get(member_id, {})) for member_id, names in readers.items()}
    return run_through(assign(members, topics))


def flat(partitions: Partitions) -> set[Partition]:
    return {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}


@st.composite
def different_readers(draw: st.DrawFn) -> dict[str, frozenset[bytes]]:
    return {member_id: draw(st.frozensets(st.sampled_from(IDS))) for member_id in sorted(draw(MEMBERS))}


@st.composite
def any_target(draw: st.DrawFn) -> dict[str, Partitions]:
    """As an earlier assignment may have left it, or a record that can't be trusted."""
    return {
        member_id: draw(st.dictionaries(st.sampled_from(IDS), INDEXES)) for member_id in sorted(draw(MEMBERS))
    }


@pytest.mark.slow
@given(MEMBERS, TOPICS, any_target())
def test_members_that_read_the_same(
    members: set[str], topics: dict[bytes, frozenset[int]], before: dict[str, Partitions]
) -> None:
    readers = {member_id: frozenset(topics) for member_id in members}
    found = {member_id: flat(each) for member_id, each in run(readers, topics, before).items()}
    partitions = flat(topics)
    sharing = -(-len(members) // len(partitions))
    owners = Counter(partition for each in found.values() for partition in each)
    counts = [len(each) for each in found.values()]
    assert found.keys() == members
    assert owners.keys() == partitions
    assert all(count <= sharing for count in owners.values())
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1


@given(MEMBERS, TOPICS)
def test_each_partition_is_shared_equally(members: set[str], topics: dict[bytes, frozenset[int]]) -> None:
    """Without an earlier assignment the numbers are exact."""
    readers = {member_id: frozenset(topics) for member_id in members}
    owners = Counter(partition for each in run(readers, topics).values() for partition in flat(each))
    sharing = -(-len(members) // len(flat(topics)))
    assert owners == dict.fromkeys(flat(topics), sharing)


@pytest.mark.slow
@given(different_readers(), TOPICS, any_target())
def test_members_that_read_different_topics(
    readers: dict[str, frozenset[bytes]], topics: dict[bytes, frozenset[int]], before: dict[str, Partitions]
) -> None:
    found = run(readers, topics, before)
    for member_id, names in readers.items():
        assert found[member_id].keys() <= names & topics.keys(), "what it does not read"
    for topic_id, indexes in topics.items():
        reading = [member_id for member_id, names in readers.items() if topic_id in names]
        owners = Counter(index for member_id in reading for index in found[member_id].get(topic_id, ()))
        assert owners.keys() == (indexes if reading else set())


@pytest.mark.slow
@given(different_readers(), TOPICS, any_target())
def test_nothing_moves_when_it_is_repeated(
    readers: dict[str, frozenset[bytes]], topics: dict[bytes, frozenset[int]], before: dict[str, Partitions]
) -> None:
    once = run(readers, topics, before)
    assert run(readers, topics, once) == once


@given(MEMBERS, TOPICS)
def test_a_member_that_leaves_moves_only_what_it_had(
    members: set[str], topics: dict[bytes, frozenset[int]]
) -> None:
    """With as many partitions as members each is at one member: the others keep what they have."""
    if len(flat(topics)) < len(members) or len(members) < 2:
        return
    readers = {member_id: frozenset(topics) for member_id in members}
    before = run(readers, topics)
    del readers[min(members)]
    after = run(readers, topics, before)
    for member_id in readers:
        assert flat(before[member_id]) <= flat(after[member_id])
