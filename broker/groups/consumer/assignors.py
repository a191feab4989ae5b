"""The assignors of consumer groups: which member shall have which partitions.

Each is a function of the members and of the partitions that there are, and works in steps. `uniform` balances numbers, and of the assignments that are
balanced it takes one with the fewest moves. `range` gives each member of a topic a contiguous range, the same one of topics with equal
partitions, whatever it had before; its results are Kafka's. Source: KIP-848; UniformAssignor, RangeAssignor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, TypeAlias

import msgspec

from barnabas.broker.groups.consumer.values import share_sets
from barnabas.broker.groups.modern.values import Partitions
from barnabas.runtime.slices import Steps

ROUNDS_MAX: Final = 16  # of moves between members whose subscriptions differ


class Subscriber(msgspec.Struct, frozen=True):
    """A member. `topics`: ids of those that it reads; `before`: its partitions in the target assignment so far."""

    topics: frozenset[bytes]
    instance_id: str | None = None
    before: Partitions = {}


Subscribers: TypeAlias = "Mapping[str, Subscriber]"  # by member id
Counts: TypeAlias = "Mapping[bytes, int]"  # topic id -> number of partitions
Assignment: TypeAlias = "dict[str, Partitions]"  # by member id
_Sets: TypeAlias = "dict[bytes, set[int]]"


def assign_uniform(members: Subscribers, counts: Counts) -> Steps[Assignment]:
    """Balanced: where all read the same topics the numbers of partitions differ by one at most."""
    if len({member.topics for member in members.values()}) <= 1:
        return (yield from _assign_same(members, counts))
    return (yield from _Balancer(members, counts).assign())


def _assign_same(members: Subscribers, counts: Counts) -> Steps[Assignment]:
    """Members that have more than others get the partitions that are left over, so that they give up as few as possible."""
    if not members:
        return {}
    topics = sorted(next(iter(members.values())).topics)
    kept = yield from _kept(members, counts)
    sizes = {member_id: sum(map(len, sets.values())) for member_id, sets in kept.items()}
    least, extra = divmod(sum(counts[topic_id] for topic_id in topics), len(members))
    for number, member_id in enumerate(sorted(members, key=lambda each: (-sizes[each], each))):
        quota = least + (number < extra)
        _shrink(kept[member_id], sizes[member_id] - quota)
        sizes[member_id] = quota - min(sizes[member_id], quota)  # from now on: how many it lacks
        yield None
    free = yield from _free(topics, counts, kept)
    for member_id in sorted(members):
        for _ in range(sizes[member_id]):
            topic_id, index = free.pop()
            kept[member_id].setdefault(topic_id, set()).add(index)
        yield None
    return (yield from _frozen(kept))


def _kept(members: Subscribers, counts: Counts) -> Steps[dict[str, _Sets]]:
    """What each member had, of the partitions that it reads and that exist."""
    kept: dict[str, _Sets] = {}
    for member_id, member in members.items():
        found = kept[member_id] = {}
        for topic_id, indexes in member.before.items():
            count = counts.get(topic_id, 0)
            if topic_id in member.topics and (still := {index for index in indexes if index < count}):
                found[topic_id] = still
            yield None
        yield None
    return kept


def _shrink(sets: _Sets, by: int) -> None:
    """Give up so many, the last ones."""
    for topic_id in sorted(sets, reverse=True) if by > 0 else ():
        if by <= 0:
            return
        given_up = sorted(sets[topic_id])[-by:]
        by -= len(given_up)
        sets[topic_id].difference_update(given_up)
        if not sets[topic_id]:
            del sets[topic_id]


def _free(topics: list[bytes], counts: Counts, kept: Mapping[str, _Sets]) -> Steps[list[tuple[bytes, int]]]:
    """The partitions that no member has, the first one last."""
    taken: dict[bytes, set[int]] = {}
    for sets in kept.values():
        for topic_id, indexes in sets.items():
            taken.setdefault(topic_id, set()).update(indexes)
            yield None
    free: list[tuple[bytes, int]] = []
    for topic_id in reversed(topics):
        of_topic = taken.get(topic_id, ())
        free += [(topic_id, index) for index in reversed(range(counts[topic_id])) if index not in of_topic]
        yield None
    return free


class _Balancer:
    """Members whose subscriptions differ."""

    def __init__(self, members: Subscribers, counts: Counts) -> None:
        self._members = members
        self._counts = counts
        self._kept: dict[str, _Sets] = {}
        self._sizes: dict[str, int] = {}
        self._readers: dict[bytes, list[str]] = {}  # of each topic
        self._topics: list[bytes] = []

    def assign(self) -> Steps[Assignment]:
        yield from self._prepare()
        free: dict[bytes, list[int]] = {}
        for topic_id, index in reversed((yield from _free(self._topics, self._counts, self._kept))):
            free.setdefault(topic_id, []).append(index)
        for topic_id, indexes in free.items():
            least = self._least_loaded(topic_id)
            for index in indexes:
                member_id = least[0][1]
                self._give(member_id, topic_id, index)
                heapreplace(least, (self._sizes[member_id], member_id))
            yield None
        for _ in range(ROUNDS_MAX):
            has_moved = False
            for topic_id in self._topics:
                has_moved |= self._balance(topic_id)
                yield None
            if not has_moved:
                break
        return (yield from _frozen(self._kept))

    def _prepare(self) -> Steps[None]:
        members, counts = self._members, self._counts
        self._kept = yield from _kept(members, counts)
        self._sizes = {member_id: sum(map(len, sets.values())) for member_id, sets in self._kept.items()}
        self._readers = readers = yield from _readers(members, sorted(members))
        # The topics with most partitions for a member first: what comes last can even out most.
        self._topics = sorted(
            readers, key=lambda each: (-counts[each] / len(readers[each]), len(readers[each]), each)
        )

    def _least_loaded(self, topic_id: bytes) -> list[tuple[int, str]]:
        heap = [(self._sizes[member_id], member_id) for member_id in self._readers[topic_id]]
        heapify(heap)
        return heap

    def _give(self, member_id: str, topic_id: bytes, index: int) -> None:
        self._kept[member_id].setdefault(topic_id, set()).add(index)
        self._sizes[member_id] += 1

    def _balance(self, topic_id: bytes) -> bool:
        """Move partitions of the topic from the members with most to those with least. Whether any moved."""
        least = self._least_loaded(topic_id)
        most = [(-size, member_id) for size, member_id in least if topic_id in self._kept[member_id]]
        heapify(most)
        has_moved = False
        while most and -most[0][0] - least[0][0] > 1:
            size, giver = heappop(most)
            _, taker = least[0]
            of_giver = self._kept[giver][topic_id]
            index = max(of_giver)
            of_giver.discard(index)
            self._sizes[giver] -= 1
            self._give(taker, topic_id, index)
            heapreplace(least, (self._sizes[taker], taker))
            if of_giver:
                heappush(most, (size + 1, giver))
            else:
                del self._kept[giver][topic_id]
            has_moved = True
        return has_moved


def assign_range(members: Subscribers, counts: Counts) -> Steps[Assignment]:
    """Static members first, by instance id, then the others by member id; of n partitions and m members the first n mod m get one
    more."""
    readers = yield from _readers(
        members, sorted(members, key=lambda each: _range_order(each, members[each]))
    )
    assignment: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, of_topic in readers.items():
        least, extra = divmod(counts[topic_id], len(of_topic))
        start = 0
        for number, member_id in enumerate(of_topic[: counts[topic_id]]):  # the others get none
            end = start + least + (number < extra)
            assignment[member_id][topic_id] = frozenset(range(start, end))
            start = end
        yield None
    return (yield from _shared(assignment))


def _range_order(member_id: str, member: Subscriber) -> tuple[bool, str]:
    return member.instance_id is None, member_id if member.instance_id is None else member.instance_id


def _readers(members: Subscribers, order: list[str]) -> Steps[dict[bytes, list[str]]]:
    """The members that read each topic, in this order."""
    readers: dict[bytes, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topics:
            readers.setdefault(topic_id, []).append(member_id)
        yield None
    return readers


def _frozen(kept: Mapping[str, _Sets]) -> Steps[Assignment]:
    assignment: dict[str, dict[bytes, frozenset[int]]] = {}
    for member_id, sets in kept.items():
        found = assignment[member_id] = {}
        for topic_id, indexes in sets.items():
            found[topic_id] = frozenset(indexes)
            yield None
    return (yield from _shared(assignment))


def _shared(assignment: dict[str, dict[bytes, frozenset[int]]]) -> Steps[Assignment]:
    known: dict[frozenset[int], frozenset[int]] = {}
    for partitions in assignment.values():
        share_sets(partitions, known)
        yield None
    return dict(assignment)


ASSIGNORS: Final[Mapping[str, Callable[[Subscribers, Counts], Steps[Assignment]]]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
