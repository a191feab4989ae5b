"""Plans moves that balance a cluster: a function of the metadata, the load reports and what must stay where it is.

Goals, in Cruise Control's order. Hard ones first: replicas leave brokers that are drained, slow or full; leaders leave slow brokers; the
replicas of a partition spread over racks. Then three that each keep every broker within a tenth of the average: the bytes that its
leaders take in, those that they give out, and the number of replicas.

For each of these a change of leaders, which copies nothing, is tried before a replica is moved, and small partitions are moved before
large ones. A move
- never puts two replicas on one broker, replicas closer together in racks, or more on a disk than it can hold,
- makes the larger of the two brokers' loads smaller, by a fifth of what it moves at least,
- takes no broker out of the range of a goal that comes earlier, nor further out of it.
So a plan ends, and the plan of a balanced cluster is empty. A partition is moved once in a plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

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

Key = tuple[bytes, int]  # a partition: topic id, index

BYTES_IN: Final = 0
BYTES_OUT: Final = 1
REPLICAS: Final = 2
GOALS: Final = ("bytes_in", "bytes_out", "replicas")

RANGE: Final = 0.1  # of the average, by which brokers may differ from it
RANGE_MIN: Final = (100_000.0, 100_000.0, 1.0)  # bytes per second, and replicas: less is not worth a move
GAIN_MIN: Final = 0.2  # of what a move moves
DISK_USED_MAX: Final = 0.9
SLOW_REPLICAS_S: Final = 900.0  # for so long a broker is slow before its replicas leave
RELEASED_AT_ONCE: Final = 200
MOVES_MAX: Final = 1000  # in one plan
TARGETS_MAX: Final = 10  # brokers tried for one replica
CANDIDATES_MAX: Final = 50  # replicas of one broker tried for a goal: the cheapest


class Move(msgspec.Struct, frozen=True):
    """A partition's replicas, in order of preference and without observers, before and after. `leader`: before. `size`: bytes to copy,
    0 where only the leader changes, to the first replica. `reason`: the goal, or drain, slow, racks or disk."""

    topic: str
    topic_id: bytes
    partition: int
    current: list[int]
    target: list[int]
    leader: int
    size: int
    reason: str

    @property
    def key(self) -> Key:
        return self.topic_id, self.partition

    @property
    def copies(self) -> bool:
        """Whether a replica moves, and not only the leader."""
        return set(self.current) != set(self.target)


class Plan(msgspec.Struct, frozen=True):
    """Moves in the order in which they are made. `imbalance`, `imbalance_after`: for each of GOALS the largest difference of a broker
    from the average, as a part of it: 0.1 is a tenth."""

    moves: list[Move]
    imbalance: tuple[float, float, float] = (0.0, 0.0, 0.0)
    imbalance_after: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def size(self) -> int:
        """Bytes to copy."""
        return sum(move.size for move in self.moves)

    def reassignment(self) -> str:
        """The JSON that kafka-reassign-partitions.sh --execute reads."""
        partitions = [
            {"topic": move.topic, "partition": move.partition, "replicas": move.target} for move in self.moves
        ]
        return json.dumps({"version": 1, "partitions": partitions})

    def table(self) -> str:
        """The moves and what they change, for the log."""
        rows = [("partition", "replicas", "become", "bytes to copy", "for")]
        rows += [
            (
                f"{each.topic}-{each.partition}",
                str(each.current),
                str(each.target),
                str(each.size),
                each.reason,
            )
            for each in self.moves
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        goals = zip(GOALS, self.imbalance, self.imbalance_after, strict=True)
        lines += [f"{name}: {before:.1%} from the average, then {after:.1%}" for name, before, after in goals]
        return "\n".join(lines)


class _Broker:
    """A broker as it will be when the moves planned so far are done. `loads`: by goal."""

    __slots__ = (
        "broker_id", "free", "holds", "is_counted", "is_drained", "is_slow", "leads", "leaving", "loads", "may_lead", "rack",
        "takes_replicas", "total",
    )  # fmt: skip

    def __init__(self, broker: BrokerRegistration, slow_s: float | None, report: LoadReport | None) -> None:
        self.broker_id = broker.broker_id
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
        "index", "is_fixed", "isr", "lagging", "leader", "loads", "observers", "replicas", "size", "topic", "topic_id",
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
        self.isr = state.isr
        self.lagging: list[int] = []  # replicas that are not in sync
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
) -> Steps[Plan]:
    """The plan, in steps (barnabas/runtime/slices.py). `slow`: broker id -> for how many seconds it has been slow. `fixed`: partitions
    that stay as they are, beside those that are being reassigned, have no leader, or whose replicas are not all in sync. `earlier`:
    reports from before `reports`, for partitions that have another leader since, and that no report names."""
    planner = _Planner(image, reports, slow or {}, earlier)
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
    ) -> None:
        self._image = image
        self._reports = reports
        self._earlier = earlier
        # Where half of the brokers look slow, it is not the brokers.
        slow = {each: slow_s for each, slow_s in slow.items() if each in image.brokers}
        slow = slow if len(slow) * 2 < len(image.brokers) else {}
        self._brokers = {
            broker_id: _Broker(broker, slow.get(broker_id), reports.get(broker_id))
            for broker_id, broker in image.brokers.items()
        }
        self._counted = [broker for broker in self._brokers.values() if broker.is_counted]
        self._racks = {broker.rack for broker in self._counted}
        self._has_racks = len({broker.rack for broker in self._brokers.values()}) > 1
        self._partitions: list[_Partition] = []
        # By goal: the lowest load of the range, those between which a broker is once it was outside, and the highest. So a load that
        # changes a little begins no move.
        self._bounds: list[tuple[float, float, float, float]] = []
        self._averages = (0.0, 0.0, 0.0)
        self._urgent: list[Move] = []
        self._moves: list[Move] = []

    # -- the cluster as it is

    def read(self, fixed: Collection[Key]) -> Steps[None]:
        known = yield from self._known_loads()
        unreported: dict[int, list[_Partition]] = {}
        reported: dict[int, list[float]] = {}  # sums of bytes in and out and size, by leader
        for topic in tuple(self._image.topics.values()):
            observers = observers_of(self._image.topic_configs(topic.name))
            for index, state in tuple(topic.partitions.items()):
                yield None
                partition = _Partition(topic, index, state, observers)
                replicas = partition.replicas
                key = (topic.topic_id, index)
                leader = self._brokers.get(partition.leader)
                partition.is_fixed = bool(
                    leader is None
                    or state.adding_replicas
                    or state.removing_replicas
                    or key in fixed
                    or partition.leader not in replicas
                    or any(replica not in self._brokers for replica in replicas)
                )
                self._partitions.append(partition)
                for replica in replicas:
                    if (broker := self._brokers.get(replica)) is not None:
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
                sums = reported.setdefault(partition.leader, [0.0, 0.0, 0.0])
                sums[0] += load.bytes_in
                sums[1] += load.bytes_out
                sums[2] += load.size
                leader.loads[BYTES_IN] += load.bytes_in
                leader.loads[BYTES_OUT] += load.bytes_out
        yield from self._spread(unreported, reported)

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

    def _spread(
        self, unreported: Mapping[int, list[_Partition]], reported: Mapping[int, list[float]]
    ) -> Steps[None]:
        """The rest of a leader's load is that of its partitions that are not among the busiest, in equal parts."""
        for broker_id, partitions in unreported.items():
            report = self._reports.get(broker_id)
            if report is None:
                continue
            sums = reported.get(broker_id, [0.0, 0.0, 0.0])
            rates = [
                max(total - part, 0.0) / len(partitions)
                for total, part in zip((report.bytes_in, report.bytes_out, report.size), sums, strict=True)
            ]
            for partition in partitions:
                yield None
                partition.loads, partition.size = (rates[0], rates[1], 1.0), rates[2]
            self._brokers[broker_id].loads[BYTES_IN] += rates[0] * len(partitions)
            self._brokers[broker_id].loads[BYTES_OUT] += rates[1] * len(partitions)

    # -- the moves

    def plan(self) -> Steps[Plan]:
        if not self._counted:
            return Plan([])
        self._set_bounds()
        before = self._imbalance()
        yield from self._leave(
            "drain", [each for each in self._brokers.values() if each.is_drained], lambda _: True
        )
        yield from self._lead_elsewhere()
        yield from self._spread_over_racks()
        yield from self._leave(
            "disk", [each for each in self._counted if each.is_full], lambda broker: broker.is_full
        )
        self._urgent, self._moves = self._moves, []
        for goal in (BYTES_IN, BYTES_OUT, REPLICAS):
            if goal != REPLICAS:
                yield from self._move_leaders(goal)
            yield from self._move_replicas(goal)
        moves = [*self._urgent, *sorted(self._moves, key=lambda move: move.size)]
        after = self._imbalance()
        yield from self._release()
        return Plan(moves, before, after)

    def _release(self) -> Steps[None]:
        """Free the model in steps: of 10,000 partitions at once it would take 10 ms."""
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
        return len(self._moves) + len(self._urgent) >= MOVES_MAX

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
                            self._move_replica(partition, source, target, reason)
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
                    self._move_leader(partition, source, targets[0], "slow")
                yield None

    def _spread_over_racks(self) -> Steps[None]:
        if len(self._racks) < 2:
            return
        for partition in self._partitions:
            yield None
            if partition.is_fixed or self._is_done():
                continue
            racks = [self._brokers[replica].rack for replica in partition.replicas]
            if len(set(racks)) == min(len(racks), len(self._racks)) and len(racks) <= len(self._racks):
                continue
            sources = [self._brokers[each] for each in reversed(partition.replicas)]
            for source in sorted(sources, key=lambda each: -racks.count(each.rack)):
                targets = [
                    target
                    for target in self._by_load(REPLICAS)
                    if racks.count(target.rack) + 1 < racks.count(source.rack)
                    and self._may_hold(partition, source, target)
                ]
                if targets and self._is_movable(partition, source):
                    self._move_replica(partition, source, targets[0], "racks")
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
                        self._move_leader(partition, source, target, GOALS[goal])
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
                    self._move_leader(partition, source, target, GOALS[goal])
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
            for partition in self._cheapest(goal, source):
                if source.loads[goal] <= most or self._is_done():
                    break
                for target in self._by_load(goal)[:TARGETS_MAX]:
                    if self._try_replica(goal, partition, source, target):
                        break
                yield None
        for target in sorted(self._counted, key=lambda each: each.loads[goal]):
            if target.loads[goal] >= lowest or self._is_done():
                break
            candidates: dict[int, Iterator[_Partition]] = {}
            sources = [each for each in self._counted if each.loads[goal] > self._averages[goal]]
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
        if goal == REPLICAS:
            leader = source.broker_id
            found = [each for each in source.holds if self._is_movable(each, source)]
            found.sort(key=lambda each: (each.leader == leader, each.size))
        else:
            found = [each for each in source.leads if each.loads[goal] > 0 and self._is_movable(each, source)]
            found.sort(key=lambda each: each.size / each.loads[goal])
        return found[:CANDIDATES_MAX]

    def _try_replica(self, goal: int, partition: _Partition, source: _Broker, target: _Broker) -> bool:
        moved = partition.loads if partition.leader == source.broker_id else (0.0, 0.0, 1.0)
        if not self._is_better(goal, moved, source, target) or not self._may_hold(partition, source, target):
            return False
        self._move_replica(partition, source, target, GOALS[goal])
        return True

    # -- what a move may do

    def _is_movable(self, partition: _Partition, source: _Broker) -> bool:
        """Whether the broker's replica may leave: the others are in sync, so that the move ends."""
        if partition.is_fixed or source.broker_id not in partition.replicas:
            return False
        lagging = partition.lagging
        return not lagging or (source.is_slow and lagging == [source.broker_id])

    def _may_hold(self, partition: _Partition, source: _Broker, target: _Broker) -> bool:
        """Whether `target` may have the replica of `source`: the hard goals."""
        if not target.takes_replicas or target.broker_id in partition.replicas:
            return False
        if target.broker_id in partition.observers or not target.has_room(partition.size):
            return False
        if source.rack == target.rack or not self._has_racks:
            return True
        racks = [self._brokers[replica].rack for replica in partition.replicas]
        return racks.count(target.rack) < racks.count(source.rack)

    def _is_better(
        self, goal: int, moved: tuple[float, float, float], source: _Broker, target: _Broker
    ) -> bool:
        """Whether moving this load is worth it for the goal, and harmless for those before it."""
        load = moved[goal]
        before, after = source.loads[goal], target.loads[goal] + load
        if load <= 0 or before - after < load * GAIN_MIN:
            return False
        return all(self._is_harmless(each, moved[each], source, target) for each in range(goal))

    def _is_harmless(self, goal: int, load: float, source: _Broker, target: _Broker) -> bool:
        """Whether both brokers are in the goal's range after a move, or closer together than before. So the squares of what is outside
        the range become no more, and moves for one goal never undo those for another."""
        before, after = source.loads[goal], target.loads[goal]
        lowest, _, _, highest = self._bounds[goal]
        return load <= max(before - after, 0.0) or (before - load >= lowest and after + load <= highest)

    def _by_load(self, goal: int) -> list[_Broker]:
        return sorted(self._counted, key=lambda each: each.loads[goal])

    # -- doing it

    def _move_leader(self, partition: _Partition, source: _Broker, target: _Broker, reason: str) -> None:
        others = [replica for replica in partition.replicas if replica != target.broker_id]
        self._note(partition, [target.broker_id, *others], 0, reason)
        self._hand_over(partition, source, target)

    def _move_replica(self, partition: _Partition, source: _Broker, target: _Broker, reason: str) -> None:
        is_leader = partition.leader == source.broker_id
        if is_leader:
            others = [replica for replica in partition.replicas if replica != source.broker_id]
            replicas = [target.broker_id, *others]
        else:
            replicas = [
                target.broker_id if replica == source.broker_id else replica for replica in partition.replicas
            ]
        self._note(partition, replicas, int(partition.size), reason)
        partition.replicas = replicas
        del source.holds[partition]
        target.holds[partition] = None
        source.loads[REPLICAS] -= 1
        target.loads[REPLICAS] += 1
        source.leaving += int(partition.size)
        target.free -= int(partition.size)
        if is_leader:
            self._hand_over(partition, source, target)

    def _hand_over(self, partition: _Partition, source: _Broker, target: _Broker) -> None:
        partition.leader = target.broker_id
        del source.leads[partition]
        target.leads[partition] = None
        for goal in (BYTES_IN, BYTES_OUT):
            source.loads[goal] -= partition.loads[goal]
            target.loads[goal] += partition.loads[goal]

    def _note(self, partition: _Partition, target: list[int], size: int, reason: str) -> None:
        partition.is_fixed = True
        self._moves.append(
            Move(
                partition.topic,
                partition.topic_id,
                partition.index,
                list(partition.replicas),
                target,
                partition.leader,
                size,
                reason,
            )
        )
