"""The "simple" assignor (KIP-932): each partition goes to as few members as it takes for all members to have some.

With n members and p partitions each partition is shared by ceil(n / p) members, and members get equal numbers of partitions, give or
take one. Members keep what they have, up to their number. Where members read different topics each topic is assigned alone. Source:
SimpleAssignor of Kafka's group coordinator. Kafka walks hash maps, so only the numbers can be compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from barnabas.broker.groups.modern.values import Partitions

Partition: TypeAlias = tuple[bytes, int]  # topic id, index


class Subscriber(msgspec.Struct, frozen=True):
    """A member. `topics`: ids of the topics that it reads; `target`: what it was to have until now."""

    topics: frozenset[bytes]
    target: Partitions


def assign(members: Mapping[str, Subscriber], assignable: Partitions) -> dict[str, Partitions]:
    """The partitions of each member, of those that are `assignable`."""
    order = sorted(members)
    topics = {topic_id for member in members.values() for topic_id in member.topics if topic_id in assignable}
    held = {member_id: _held(members[member_id], assignable) for member_id in order}
    if len({member.topics for member in members.values()}) == 1:
        partitions = [
            (topic_id, index) for topic_id in sorted(topics) for index in sorted(assignable[topic_id])
        ]
        _spread(order, partitions, held)
    else:
        readers: dict[bytes, list[str]] = {topic_id: [] for topic_id in sorted(topics)}
        for member_id in order:
            for topic_id in members[member_id].topics & topics:
                readers[topic_id].append(member_id)
        for topic_id, reading in readers.items():
            _spread_topic(topic_id, reading, sorted(assignable[topic_id]), held)
    return {member_id: _by_topic(found) for member_id, found in held.items()}


def _held(member: Subscriber, assignable: Partitions) -> set[Partition]:
    """What the member may keep."""
    return {
        (topic_id, index)
        for topic_id, indexes in member.target.items()
        if topic_id in member.topics
        for index in indexes & assignable.get(topic_id, frozenset())
    }


def _spread_topic(
    topic_id: bytes, readers: Sequence[str], indexes: Sequence[int], held: Mapping[str, set[Partition]]
) -> None:
    of_topic = {
        member_id: {partition for partition in held[member_id] if partition[0] == topic_id}
        for member_id in readers
    }
    for member_id, found in of_topic.items():
        held[member_id].difference_update(found)
    _spread(readers, [(topic_id, index) for index in indexes], of_topic)
    for member_id, found in of_topic.items():
        held[member_id].update(found)


def _spread(
    members: Sequence[str], partitions: Sequence[Partition], held: Mapping[str, set[Partition]]
) -> None:
    """Change `held`, which has only `partitions`, into the assignment."""
    if not members or not partitions:
        return
    sharing = -(-len(members) // len(partitions))
    least, more = divmod(sharing * len(partitions), len(members))
    wanted = {}  # one more for those that have most
    for place, member_id in enumerate(sorted(members, key=lambda each: -len(held[each]))):
        wanted[member_id] = least + (place < more)
    owners: dict[Partition, list[str]] = {partition: [] for partition in partitions}
    for member_id in members:
        for partition in sorted(held[member_id])[wanted[member_id] :]:
            held[member_id].discard(partition)
        for partition in held[member_id]:
            owners[partition].append(member_id)
    for partition, having in owners.items():
        for member_id in having[sharing:]:
            held[member_id].discard(partition)
        del having[sharing:]
    unfilled = deque(member_id for member_id in members if len(held[member_id]) < wanted[member_id])
    for partition, having in owners.items():
        _fill(partition, sharing - len(having), unfilled, wanted, held)


def _fill(
    partition: Partition,
    missing: int,
    unfilled: deque[str],
    wanted: Mapping[str, int],
    held: Mapping[str, set[Partition]],
) -> None:
    """Give the partition to as many members as it misses. Where all that want more have it already, as few have it as do: rarely, and
    as in Kafka."""
    passed = 0
    while missing and passed < len(unfilled):
        member_id = unfilled.popleft()
        if partition in held[member_id]:
            unfilled.append(member_id)
            passed += 1
            continue
        held[member_id].add(partition)
        missing -= 1
        passed = 0
        if len(held[member_id]) < wanted[member_id]:
            unfilled.append(member_id)


def _by_topic(partitions: set[Partition]) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}
