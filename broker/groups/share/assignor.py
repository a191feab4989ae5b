"""The "simple" assignor (KIP-932): each partition goes to as few members as it takes for all members to have some.

With n members and p partitions each partition is shared by ceil(n / p) members, and members get equal numbers of partitions, give or
take one. Members keep what they have, up to their number. Where members read different topics each topic is assigned alone. Source:
SimpleAssignor of Kafka's group coordinator. Kafka walks hash maps, so only the numbers can be compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from barnabas.broker.groups.modern.values import Partitions

Partition: TypeAlias = tuple[bytes, int]  # topic id, index
_NONE: Final[frozenset[int]] = frozenset()


class Subscriber(msgspec.Struct, frozen=True):
    """A member. `topics`: ids of the topics that it reads; `target`: what it was to have until now."""

    topics: frozenset[bytes]
    target: Partitions


def assign(
    members: Mapping[str, Subscriber], assignable: Partitions
) -> Generator[None, None, dict[str, Partitions]]:
    """The partitions of each member, of those that are `assignable`. It yields after each topic, or once for all where members read the
    same."""
    order = sorted(members)
    if len({member.topics for member in members.values()}) == 1:
        topics = sorted(members[order[0]].topics & assignable.keys())
        partitions = [(topic_id, index) for topic_id in topics for index in sorted(assignable[topic_id])]
        held = {
            member_id: {
                (topic_id, index)
                for topic_id in topics
                for index in members[member_id].target.get(topic_id, _NONE) & assignable[topic_id]
            }
            for member_id in order
        }
        yield
        _spread(order, partitions, held)
        yield
        return {member_id: _by_topic(found) for member_id, found in held.items()}
    readers: dict[bytes, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topics & assignable.keys():
            readers.setdefault(topic_id, []).append(member_id)
        yield
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in order}
    for topic_id in sorted(readers):
        reading, indexes = readers[topic_id], assignable[topic_id]
        held = {
            member_id: {
                (topic_id, index) for index in members[member_id].target.get(topic_id, _NONE) & indexes
            }
            for member_id in reading
        }
        _spread(reading, [(topic_id, index) for index in sorted(indexes)], held)
        for member_id, found in held.items():
            if found:
                assigned[member_id][topic_id] = frozenset(index for _, index in found)
        yield
    return {**assigned}


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
    """Give the partition to as many members as it misses. Where all that want more have it already, one of them takes another partition
    from a member, which gets this one (in Kafka as few have it as do)."""
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
    while missing and unfilled and _exchange(partition, unfilled[0], held):
        missing -= 1
        if len(held[unfilled[0]]) == wanted[unfilled[0]]:
            unfilled.popleft()


def _exchange(partition: Partition, taker_id: str, held: Mapping[str, set[Partition]]) -> bool:
    """Have a member without the partition get it for another one that the taker gets. Returns whether there was one."""
    for having in held.values():
        others = having - held[taker_id]
        if partition not in having and others:
            taken = min(others)
            having.discard(taken)
            having.add(partition)
            held[taker_id].add(taken)
            return True
    return False


def _by_topic(partitions: set[Partition]) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}
