"""Plans moves that balance a cluster: a function of the metadata, the load reports and what must stay where it is.

Goals, in Cruise Control's order. Hard ones first: replicas on brokers that are gone are replaced, so that no copy is missing; replicas
leave brokers that are drained, slow or full; leaders leave slow brokers; the replicas of a partition spread over racks. Then three that
each keep every broker within a tenth of the average: the bytes that its leaders take in, those that they give out, and the number of
replicas.

For each of these a change of leaders, which copies nothing, is tried before a replica is moved, and small partitions are moved before
large ones. Where no move helps with bytes, two partitions are swapped, which moves the difference of their loads, if that is a twentieth
of what a broker has too much or too little. A move or swap
- never puts two replicas on one broker, replicas closer together in racks, or more on a disk than it can hold,
- makes the larger of the two brokers' loads smaller, by a fifth of what it moves at least,
- leaves both brokers in the range of each goal that comes earlier, or closer together than before.
So a plan ends, and the plan of a balanced cluster is empty. A partition is moved once in a plan. A replica that is replaced goes to the
rack with the fewest of its partition that are left: a copy counts for more than racks, over which it is spread later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.controller.balancer.moves import GOALS, GONE, Group, Key, Move, Plan
from barnabas.controller.config.topic_configs import observers_of
from barnabas.controller.metadata.image import (
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    TopicImage,
)
from barnabas.controller.operations.placement import takes_replicas

if TYPE_CHECKING:
    from barnabas.controller.balancer.load_reports import LoadReport, PartitionLoad
    from barnabas.runtime.slices import Steps

BYTES_IN: Final = 0
BYTES_OUT: Final = 1
REPLICAS: Final = 2
Loads: TypeAlias = tuple[float, float, float]  # by goal

RANGE: Final = 0.1  # of the average, by which brokers may differ from it
RANGE_MIN: Final = (100_000.0, 100_000.0, 1.0)  # bytes per second, and replicas: less is not worth a move
GAIN_MIN: Final = 0.2  # of what a move moves
DISK_USED_MAX: Final = 0.9
SLOW_REPLICAS_S: Final = 900.0  # for so long a broker is slow before its replicas leave
RELEASED_AT_ONCE: Final = 200
MOVES_MAX: Final = 1000  # in one plan; a swap counts as one
TARGETS_MAX: Final = 10  # brokers tried for one replica
CANDIDATES_MAX: Final = 50  # replicas of one broker tried for a goal: the cheapest
SWAP_BROKERS_MAX: Final = 15  # with which one broker may swap partitions
SWAP_CANDIDATES_MAX: Final = 30  # partitions of either broker
SWAP_PART_MIN: Final = 0.05  # of what a broker has too much or too little: less is not worth a swap


class _Broker:
    """A broker as it will be when the moves planned so far are done. `loads`: by goal."""

    __slots__ = (
        "broker_id", "free", "holds", "is_counted", "is_drained", "is_gone", "is_slow", "leads", "leads_bytes", "leaving", "loads",
        "may_lead", "rack", "takes_replicas", "total",
    )  # fmt: skip

    def __init__(
        self, broker: BrokerRegistration, slow_s: float | None, report: LoadReport | None, is_gone: bool
    ) -> None:
        self.broker_id = broker.broker_id
        self.is_gone = is_gone
        self.rack = broker.rack or ""
        self.is_slow = slow_s is not None
        self.is_drained = not broker.in_controlled_shutdown and not takes_replicas(broker)
        self.may_lead = broker.is_active and not self.is_slow
        self.takes_replicas = broker.is_active and takes_replicas(broker) and not self.is_slow
        if slow_s is not None and slow_s >= SLOW_REPLICAS_S:
            self.is_drained = True
        self.is_counted = self.takes_replicas  # in the averages
        self.loads = [0.0, 0.0, 0.0]
        self.leads: dict[_Partition, None] = {}
        self.leads_bytes = 0.0  # of those that are reported one by one
        self.holds: dict[_Partition, None] = {}
        self.leaving = 0  # bytes that the moves take away: they are free only when the moves are done
        self.free, self.total = (0, 0) if report is None else (report.usable_bytes, report.total_bytes)

    @property
    def is_full(self) -> bool:
        return self.free + self.leaving < (1 - DISK_USED_MAX) * self.total

    def has_room(self, size: float) -> bool:
        return not self.total or self.free - size >= (1 - DISK_USED_MAX) * self.total


class _Partition:
    """A partition as it will be. `is_fixed`: it is not moved, or has been."""

    __slots__ = (
        "index", "is_fixed", "isr", "lagging", "leader", "loads", "observers", "racks", "replicas", "size", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self, topic: TopicImage, index: int, state: PartitionState, observers: frozenset[int]
    ) -> None:
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.index = index
        self.observers = observers
        self.replicas = state.replicas  # without observers, and as they are when a reassignment is done
        if observers or state.removing_replicas:
            gone = observers.union(state.removing_replicas)
            self.replicas = [replica for replica in state.replicas if replica not in gone]
        self.racks: tuple[str, ...] = ()  # of the replicas, as long as none has moved
        self.isr = state.isr
        self.lagging: Sequence[int] = ()  # replicas that are not in sync
        if len(state.isr) < len(self.replicas):
            self.lagging = [replica for replica in self.replicas if replica not in state.isr]
        self.leader = state.leader
        if state.leader in state.removing_replicas and self.replicas:
            self.leader = self.replicas[0]
        self.loads = (0.0, 0.0, 1.0)  # what its leader's broker has of it, by goal
        self.size = 0.0
        self.is_fixed = False


def plan(
    image: MetadataImage,
    reports: Mapping[int, LoadReport],
    slow: Mapping[int, float] | None = None,
    fixed: Collection[Key] = (),
    earlier: Collection[LoadReport] = (),
    gone: Collection[int] = (),
) -> Steps[Plan]:
    """The plan, in steps (barnabas/runtime/slices.py). `slow`: broker id -> for how many seconds it has been slow. `fixed`: partitions
    that stay as they are, beside those that are being reassigned, have no leader, or whose replicas are not all in sync. `earlier`:
    reports from before `reports`, for partitions that have another leader since, and that no report names. `gone`: brokers that will
    not be back soon, registered or not."""
    planner = _Planner(image, reports, slow or {}, earlier, gone)
    yield from planner.read(fixed)
    return (yield from planner.plan())


class _Planner:
    """See the module. The image may change between two steps, as states are never changed in place; moves are checked again when
    they are made."""

    def __init__(
        self,
        image: MetadataImage,
        reports: Mapping[int, LoadReport],
        slow: Mapping[int, float],
        earlier: Collection[LoadReport],
        gone: Collection[int],
    ) -> None:
        self._image = image
        self._reports = reports
        self._earlier = earlier
        # Where half of the brokers look slow or are away, it is not the brokers.
        slow = {each: slow_s for each, slow_s in slow.items() if each in image.brokers}
        slow = slow if len(slow) * 2 < len(image.brokers) else {}
        away = {broker.broker_id for broker in image.brokers.values() if not broker.is_active} | {*gone}
        self._gone = gone if len(away) * 2 < len(image.brokers.keys() | gone) else ()
        self._brokers = {
            broker_id: _Broker(broker, slow.get(broker_id), reports.get(broker_id), broker_id in self._gone)
            for broker_id, broker in image.brokers.items()
        }
        self._unregistered: set[int] = set()  # brokers with replicas
        self._counted = [broker for broker in self._brokers.values() if broker.is_counted]
        self._racks = {broker.rack for broker in self._counted}
        self._has_racks = len({broker.rack for broker in self._brokers.values()}) > 1
        self._partitions: list[_Partition] = []
        self._crowded: list[_Partition] = []  # two of their replicas share a rack
        # By goal: the lowest load of the range, those between which a broker is once it was outside, and the highest. So a load that
        # changes a little begins no move.
        self._bounds: list[tuple[float, float, float, float]] = []
        self._averages = (0.0, 0.0, 0.0)
        self._ordered: dict[tuple[int, int], list[_Partition]] = {}  # by goal and broker, what may leave it
        self._surplus: dict[tuple[int, int], list[_Partition]] = {}  # by goal and broker, what it leads
        self._urgent: list[Group] = []
        self._groups: list[Group] = []

    # -- the cluster as it is

    def read(self, fixed: Collection[Key]) -> Steps[None]:
        known = yield from self._known_loads()
        brokers, rack_count = self._brokers, len(self._racks)
        unreported: dict[int, list[_Partition]] = {}
        for topic in tuple(self._image.topics.values()):
            observers = observers_of(self._image.topic_configs(topic.name))
            for index, state in tuple(topic.partitions.items()):
                yield None
                partition = _Partition(topic, index, state, observers)
                key = (topic.topic_id, index)
                leader = brokers.get(partition.leader)
                if (
                    leader is None
                    or state.adding_replicas
                    or state.removing_replicas
                    or key in fixed
                    or partition.leader not in partition.replicas
                ):
                    partition.is_fixed = True
                self._partitions.append(partition)
                held_by = [brokers.get(each) or self._unknown(each) for each in partition.replicas]
                partition.racks = racks = tuple([broker.rack for broker in held_by])
                if rack_count > 1 and len(set(racks)) < len(racks):
                    self._crowded.append(partition)
                for broker in held_by:
                    broker.holds[partition] = None
                    broker.loads[REPLICAS] += 1
                if leader is None:
                    continue
                leader.leads[partition] = None
                load = known.get(key)
                if load is None:
                    unreported.setdefault(partition.leader, []).append(partition)
                    continue
                partition.loads = (load.bytes_in, load.bytes_out, 1.0)
                partition.size = load.size
                leader.loads[BYTES_IN] += load.bytes_in
                leader.loads[BYTES_OUT] += load.bytes_out
                leader.leads_bytes += load.size
        yield from self._spread(unreported)

    def _unknown(self, broker_id: int) -> _Broker:
        """A broker that has replicas, but is not registered."""
        self._unregistered.add(broker_id)
        registration = BrokerRegistration(broker_id, -1, b"", [], {}, None, fenced=True)
        broker = _Broker(registration, None, None, broker_id in self._gone)
        self._brokers[broker_id] = broker
        return broker

    def _known_loads(self) -> Steps[dict[Key, PartitionLoad]]:
        """By partition; the leader's report rather than that of a broker that was the leader before."""
        known: dict[Key, PartitionLoad] = {}
        for broker_id, report in tuple(self._reports.items()):
            for load in report.partitions:
                key = (load.topic_id, load.partition)
                if key in known:
                    topic = self._image.topic_by_id(load.topic_id)
                    state = None if topic is None else topic.partitions.get(load.partition)
                    if state is None or state.leader != broker_id:
                        continue
                known[key] = load
            yield None
        for report in self._earlier:
            for load in report.partitions:
                known.setdefault((load.topic_id, load.partition), load)
            yield None
        return known

    def _spread(self, unreported: Mapping[int, list[_Partition]]) -> Steps[None]:
        """The rest of a leader's load is that of its partitions that are not among the busiest, in equal parts."""
        for broker_id, partitions in unreported.items():
            report = self._reports.get(broker_id)
            if report is None:
                continue
            broker, count = self._brokers[broker_id], len(partitions)
            bytes_in = max(report.bytes_in - broker.loads[BYTES_IN], 0.0) / count
            bytes_out = max(report.bytes_out - broker.loads[BYTES_OUT], 0.0) / count
            size = max(report.size - broker.leads_bytes, 0.0) / count
            for partition in partitions:
                yield None
                partition.loads, partition.size = (bytes_in, bytes_out, 1.0), size
            broker.loads[BYTES_IN] += bytes_in * count
            broker.loads[BYTES_OUT] += bytes_out * count

    # -- the moves

    def plan(self) -> Steps[Plan]:
        if not self._counted:
            return Plan([])
        self._set_bounds()
        before = self._imbalance()
        yield from self._lead_elsewhere()  # first, as it copies nothing
        yield from self._replace_gone()
        yield from self._leave(
            "drain", [each for each in self._brokers.values() if each.is_drained], lambda _: True
        )
        yield from self._spread_over_racks()
        yield from self._leave(
            "disk", [each for each in self._counted if each.is_full], lambda broker: broker.is_full
        )
        self._urgent, self._groups = self._groups, []
        for goal in (BYTES_IN, BYTES_OUT):
            yield from self._move_leaders(goal)
            yield from self._move_replicas(goal)
            yield from self._swap(goal)
        yield from self._move_replicas(REPLICAS)
        groups = [*self._urgent, *sorted(self._groups, key=_size_of)]
        after = self._imbalance()
        yield from self._release()
        return Plan(groups, before, after, frozenset(self._unregistered))

    def _release(self) -> Steps[None]:
        """Free the model in steps: of 10,000 partitions at once it would take 10 ms."""
        self._crowded.clear()
        self._ordered.clear()
        self._surplus.clear()
        for broker in self._brokers.values():
            broker.leads.clear()
            broker.holds.clear()
            yield None
        while self._partitions:
            del self._partitions[-RELEASED_AT_ONCE:]
            yield None

    def _set_bounds(self) -> None:
        averages = []
        for goal, least in enumerate(RANGE_MIN):
            average = sum(broker.loads[goal] for broker in self._brokers.values()) / len(self._counted)
            averages.append(average)
            width = max(average * RANGE, least)
            self._bounds.append((average - width, average - width / 2, average + width / 2, average + width))
        self._averages = averages[0], averages[1], averages[2]

    def _imbalance(self) -> tuple[float, float, float]:
        found = [
            max(abs(broker.loads[goal] - average) for broker in self._counted) / average if average else 0.0
            for goal, average in enumerate(self._averages)
        ]
        return found[0], found[1], found[2]

    def _is_done(self) -> bool:
        return len(self._groups) + len(self._urgent) >= MOVES_MAX

    def _replace_gone(self) -> Steps[None]:
        """Replicas on brokers that are gone become replicas on others, small ones first."""
        for source in tuple(self._brokers.values()):
            if not source.is_gone:
                continue
            for partition in sorted(source.holds, key=lambda each: each.size):
                if self._is_done():
                    return
                targets = self._replacements(partition)
                if targets:
                    self._plan(self._replace(partition, targets, GONE))
                yield None

    def _replacements(self, partition: _Partition) -> dict[int, _Broker]:
        """For each replica of the partition that is gone the broker that gets it; empty where one has none, where a replica that is
        gone still leads, or where one that is not gone lags: the move would wait for it."""
        gone = [each for each in partition.replicas if self._brokers[each].is_gone]
        found: dict[int, _Broker] = {}
        if (
            partition.is_fixed
            or partition.leader in gone  # its controlled shutdown has not ended
            or any(each not in gone for each in partition.lagging)
        ):
            return found
        racks = [self._brokers[each].rack for each in partition.replicas if each not in gone]
        for replica in gone:
            taken = found.values()
            places = [
                each for each in self._counted if each not in taken and self._has_place(partition, each)
            ]
            if not places:
                return {}
            found[replica] = min(places, key=lambda each: (racks.count(each.rack), each.loads[REPLICAS]))
            racks.append(found[replica].rack)
        return found

    def _leave(
        self, reason: str, brokers: list[_Broker], must_leave: Callable[[_Broker], bool]
    ) -> Steps[None]:
        """Replicas leave these brokers, small ones first, while they must."""
        for source in brokers:
            for partition in sorted(source.holds, key=lambda each: each.size):
                if self._is_done() or not must_leave(source):
                    break
                if self._is_movable(partition, source):
                    goal = BYTES_IN if partition.leader == source.broker_id else REPLICAS
                    for target in self._by_load(goal):
                        if self._may_hold(partition, source, target):
                            self._plan(self._move_replica(partition, source, target, reason))
                            break
                yield None

    def _lead_elsewhere(self) -> Steps[None]:
        """Leaders leave slow brokers."""
        for source in self._brokers.values():
            if not source.is_slow:
                continue
            for partition in tuple(source.leads):
                if self._is_done():
                    break
                targets = self._other_leaders(partition, BYTES_IN)
                if targets and not partition.is_fixed:
                    self._plan(self._move_leader(partition, source, targets[0], "slow"))
                yield None

    def _spread_over_racks(self) -> Steps[None]:
        for partition in self._crowded:
            yield None
            if partition.is_fixed or self._is_done():
                continue
            racks = partition.racks
            fewest = min(map(racks.count, self._racks))
            replicas = [self._brokers[each] for each in reversed(partition.replicas)]
            sources = [each for each in replicas if racks.count(each.rack) > fewest + 1]
            for source in sorted(sources, key=lambda each: -racks.count(each.rack)):
                targets = [
                    target
                    for target in self._by_load(REPLICAS)
                    if racks.count(target.rack) + 1 < racks.count(source.rack)
                    and self._may_hold(partition, source, target)
                ]
                if targets and self._is_movable(partition, source):
                    self._plan(self._move_replica(partition, source, targets[0], "racks"))
                    break

    def _move_leaders(self, goal: int) -> Steps[None]:
        """From brokers above the range to other replicas, then to brokers below it from others; the busiest partitions first."""
        lowest, enough, most, highest = self._bounds[goal]
        for source in sorted(self._counted, key=lambda each: -each.loads[goal]):
            if source.loads[goal] <= highest or self._is_done():
                break
            for partition in sorted(source.leads, key=lambda each: -each.loads[goal]):
                if source.loads[goal] <= most or self._is_done():
                    break
                for target in self._other_leaders(partition, goal):
                    if self._is_better(goal, partition.loads, source, target):
                        self._plan(self._move_leader(partition, source, target, GOALS[goal]))
                        break
                yield None
        for target in sorted(self._counted, key=lambda each: each.loads[goal]):
            if target.loads[goal] >= lowest or self._is_done():
                break
            for partition in sorted(target.holds, key=lambda each: -each.loads[goal]):
                if target.loads[goal] >= enough or self._is_done():
                    break
                source = self._brokers.get(partition.leader, target)
                if (
                    source is not target
                    and not partition.is_fixed
                    and target.broker_id in partition.isr
                    and self._is_better(goal, partition.loads, source, target)
                ):
                    self._plan(self._move_leader(partition, source, target, GOALS[goal]))
                yield None

    def _other_leaders(self, partition: _Partition, goal: int) -> list[_Broker]:
        """Brokers that may lead it instead, the least loaded first."""
        if partition.is_fixed:
            return []
        found = [
            self._brokers[replica]
            for replica in partition.replicas
            if replica != partition.leader and replica in partition.isr and self._brokers[replica].may_lead
        ]
        return sorted(found, key=lambda each: each.loads[goal])

    def _move_replicas(self, goal: int) -> Steps[None]:
        """From brokers above the range to the least loaded, then to brokers below it from the most loaded."""
        lowest, enough, most, highest = self._bounds[goal]
        for source in sorted(self._counted, key=lambda each: -each.loads[goal]):
            if source.loads[goal] <= highest or self._is_done():
                break
            targets = self._by_load(goal)[:TARGETS_MAX]
            for partition in self._cheapest(goal, source):
                if source.loads[goal] <= most or self._is_done():
                    break
                if any(self._try_replica(goal, partition, source, target) for target in targets):
                    targets = self._by_load(goal)[:TARGETS_MAX]
                yield None
        for target in sorted(self._counted, key=lambda each: each.loads[goal]):
            if target.loads[goal] >= lowest or self._is_done():
                break
            candidates: dict[int, Iterator[_Partition]] = {}
            sources = [each for each in self._counted if each.loads[goal] > enough]
            while sources and target.loads[goal] < enough and not self._is_done():
                source = max(sources, key=lambda each: each.loads[goal])
                if source.broker_id not in candidates:
                    candidates[source.broker_id] = iter(self._cheapest(goal, source))
                for partition in candidates[source.broker_id]:
                    yield None
                    if self._try_replica(goal, partition, source, target):
                        break
                else:
                    sources.remove(source)

    def _cheapest(self, goal: int, source: _Broker) -> list[_Partition]:
        """What may leave a broker for a goal: for bytes its leaders, of which those come first that have the least data for their
        rate; for replicas all, followers first and small ones first."""
        ordered = self._ordered.get((goal, source.broker_id))
        if ordered is None:  # what the broker gets later is not moved again
            if goal == REPLICAS:
                leader = source.broker_id
                ordered = sorted(source.holds, key=lambda each: (each.leader == leader, each.size))
            else:
                ordered = [each for each in source.leads if each.loads[goal] > 0]
                ordered.sort(key=lambda each: each.size / each.loads[goal])
            self._ordered[goal, source.broker_id] = ordered
        return list(islice((each for each in ordered if self._is_movable(each, source)), CANDIDATES_MAX))

    def _try_replica(self, goal: int, partition: _Partition, source: _Broker, target: _Broker) -> bool:
        moved = partition.loads if partition.leader == source.broker_id else (0.0, 0.0, 1.0)
        if not self._may_hold(partition, source, target) or not self._is_better(goal, moved, source, target):
            return False
        self._plan(self._move_replica(partition, source, target, GOALS[goal]))
        return True

    def _swap(self, goal: int) -> Steps[None]:
        """Brokers outside the range exchange leaders with the least loaded ones, those below it with the most loaded ones."""
        lowest, enough, most, highest = self._bounds[goal]
        for broker in sorted(self._counted, key=lambda each: -abs(each.loads[goal] - self._averages[goal])):
            if lowest <= broker.loads[goal] <= highest:
                continue
            is_above = broker.loads[goal] > highest
            others = sorted(self._counted, key=lambda each: each.loads[goal], reverse=not is_above)
            for other in others[:SWAP_BROKERS_MAX]:
                wanted = max(broker.loads[goal] - most, enough - broker.loads[goal])
                if wanted <= 0 or self._is_done():
                    break
                source, target = (broker, other) if is_above else (other, broker)
                pair = self._best_pair(goal, source, target, wanted)
                if pair is not None:
                    self._plan(
                        self._move_lead(pair[0], source, target, GOALS[goal]),
                        self._move_lead(pair[1], target, source, GOALS[goal]),
                    )
                yield None

    def _best_pair(
        self, goal: int, source: _Broker, target: _Broker, wanted: float
    ) -> tuple[_Partition, _Partition] | None:
        """A leader of `source` and one of `target` that change places with the least to copy for the load that it moves. It moves
        `wanted`, or a part of it that is worth a swap."""
        least = wanted * SWAP_PART_MIN
        most = (source.loads[goal] - target.loads[goal]) / (1 + GAIN_MIN)
        if most < least:
            return None
        earlier_least, earlier_most = -inf, inf
        if goal != BYTES_IN:
            earlier_least = -self._harmless_max(BYTES_IN, target, source)
            earlier_most = self._harmless_max(BYTES_IN, source, target)
        leaving = [
            each
            for each in self._by_surplus(goal, source)
            if each.loads[goal] >= least and self._may_lead_on(each, source, target)
        ]
        if not leaving:
            return None
        coming = [
            each
            for each in reversed(self._by_surplus(goal, target))
            if self._may_lead_on(each, target, source)
        ]
        found, found_cost = None, inf
        for one in leaving[:SWAP_CANDIDATES_MAX]:
            load, bytes_in = one.loads[goal], one.loads[BYTES_IN]
            for other in coming[:SWAP_CANDIDATES_MAX]:
                moved = load - other.loads[goal]
                if (
                    least <= moved <= most
                    and moved >= load * GAIN_MIN
                    and earlier_least <= bytes_in - other.loads[BYTES_IN] <= earlier_most
                ):
                    cost = (_to_copy(one, target) + _to_copy(other, source)) / min(moved, wanted)
                    if cost < found_cost:
                        found, found_cost = (one, other), cost
        return found

    def _by_surplus(self, goal: int, broker: _Broker) -> list[_Partition]:
        """What a broker leads, in the order of the load; for bytes out, of what is more than usual for the bytes in."""
        ordered = self._surplus.get((goal, broker.broker_id))
        if ordered is None:  # what the broker gets later is not moved again
            usual = 0.0
            if goal == BYTES_OUT and self._averages[BYTES_IN]:
                usual = self._averages[BYTES_OUT] / self._averages[BYTES_IN]
            ordered = sorted(broker.leads, key=lambda each: usual * each.loads[BYTES_IN] - each.loads[goal])
            self._surplus[goal, broker.broker_id] = ordered
        return ordered

    # -- what a move may do

    def _is_movable(self, partition: _Partition, source: _Broker) -> bool:
        """Whether the broker's replica may leave: the others are in sync, so that the move ends."""
        if partition.is_fixed or source.broker_id not in partition.replicas:
            return False
        lagging = partition.lagging
        return not lagging or (source.is_slow and lagging == [source.broker_id])

    def _may_hold(self, partition: _Partition, source: _Broker, target: _Broker) -> bool:
        """Whether `target` may have the replica of `source`: the hard goals."""
        racks = partition.racks
        if (
            source.rack != target.rack
            and self._has_racks
            and racks.count(target.rack) >= racks.count(source.rack)
        ):
            return False
        return self._has_place(partition, target)

    def _has_place(self, partition: _Partition, target: _Broker) -> bool:
        broker_id = target.broker_id
        if broker_id in partition.replicas or broker_id in partition.observers:
            return False
        return target.takes_replicas and target.has_room(partition.size)

    def _may_lead_on(self, partition: _Partition, source: _Broker, target: _Broker) -> bool:
        """Whether the leader may move there, alone or with its replica."""
        if not self._is_movable(partition, source):
            return False
        return target.broker_id in partition.isr or self._may_hold(partition, source, target)

    def _is_better(self, goal: int, moved: Loads, source: _Broker, target: _Broker) -> bool:
        """Whether moving this load is worth it for the goal, and harmless for those before it."""
        load = moved[goal]
        if load <= 0 or source.loads[goal] - target.loads[goal] - load < load * GAIN_MIN:
            return False
        return goal == BYTES_IN or all(
            moved[earlier] <= self._harmless_max(earlier, source, target) for earlier in range(goal)
        )

    def _harmless_max(self, goal: int, source: _Broker, target: _Broker) -> float:
        """How much load may move so that both brokers are in the goal's range afterwards, or closer together than before. So the
        squares of what is outside the range become no more, and moves for one goal never undo those for another."""
        before, after = source.loads[goal], target.loads[goal]
        lowest, _, _, highest = self._bounds[goal]
        return max(before - after, min(before - lowest, highest - after), 0.0)

    def _by_load(self, goal: int) -> list[_Broker]:
        return sorted(self._counted, key=lambda each: each.loads[goal])

    # -- doing it

    def _plan(self, *moves: Move) -> None:
        """Moves that begin together."""
        self._groups.append(moves)

    def _move_lead(self, partition: _Partition, source: _Broker, target: _Broker, reason: str) -> Move:
        if target.broker_id in partition.isr:
            return self._move_leader(partition, source, target, reason)
        return self._move_replica(partition, source, target, reason)

    def _move_leader(self, partition: _Partition, source: _Broker, target: _Broker, reason: str) -> Move:
        others = [replica for replica in partition.replicas if replica != target.broker_id]
        move = _move(partition, [target.broker_id, *others], 0, reason)
        self._hand_over(partition, source, target)
        return move

    def _move_replica(self, partition: _Partition, source: _Broker, target: _Broker, reason: str) -> Move:
        if partition.leader != source.broker_id:
            return self._replace(partition, {source.broker_id: target}, reason)
        others = [replica for replica in partition.replicas if replica != source.broker_id]
        move = _move(partition, [target.broker_id, *others], int(partition.size), reason)
        self._hold(partition, source, target)
        self._hand_over(partition, source, target)
        return move

    def _replace(self, partition: _Partition, targets: Mapping[int, _Broker], reason: str) -> Move:
        """Move these replicas, none of which leads."""
        replicas = [targets[each].broker_id if each in targets else each for each in partition.replicas]
        move = _move(partition, replicas, int(partition.size) * len(targets), reason)
        for replica, target in targets.items():
            self._hold(partition, self._brokers[replica], target)
        return move

    def _hold(self, partition: _Partition, source: _Broker, target: _Broker) -> None:
        del source.holds[partition]
        target.holds[partition] = None
        source.loads[REPLICAS] -= 1
        target.loads[REPLICAS] += 1
        source.leaving += int(partition.size)
        target.free -= int(partition.size)

    def _hand_over(self, partition: _Partition, source: _Broker, target: _Broker) -> None:
        partition.leader = target.broker_id
        del source.leads[partition]
        target.leads[partition] = None
        for goal in (BYTES_IN, BYTES_OUT):
            source.loads[goal] -= partition.loads[goal]
            target.loads[goal] += partition.loads[goal]


def _move(partition: _Partition, target: list[int], size: int, reason: str) -> Move:
    """The move of the partition, which stays from then on."""
    move = Move(
        partition.topic,
        partition.topic_id,
        partition.index,
        partition.replicas,
        target,
        partition.leader,
        size,
        reason,
    )
    partition.is_fixed = True
    partition.replicas = target
    return move


def _size_of(group: Group) -> int:
    return sum(move.size for move in group)


def _to_copy(partition: _Partition, target: _Broker) -> float:
    """Bytes to copy so that this broker leads the partition."""
    return 0.0 if target.broker_id in partition.isr else partition.size
