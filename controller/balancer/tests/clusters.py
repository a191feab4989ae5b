"""Clusters for tests of the balancer: an image, and load reports that fit it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from barnabas.controller.balancer.load_reports import PARTITIONS_MAX, LoadReport, PartitionLoad
from barnabas.controller.balancer.moves import Move, Plan
from barnabas.controller.balancer.planner import plan
from barnabas.controller.metadata.image import (
    NO_LEADER,
    MetadataDelta,
    MetadataImage,
    PartitionState,
    partition_record,
)
from barnabas.controller.operations.placement import place
from barnabas.runtime.slices import run_through
from barnabas.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

DISK_BYTES = 10**13
BROKER_FENCED = 1
Load = tuple[float, float, int]  # bytes per second in and out, size in bytes


class ModelCluster:
    """Brokers and partitions with a load each. `apply` does what the active controller would."""

    def __init__(self, racks: Mapping[int, str | None]) -> None:
        """`racks`: by broker id."""
        self.image = MetadataImage()
        self.loads: dict[tuple[bytes, int], Load] = {}
        self.usable = dict.fromkeys(racks, DISK_BYTES)
        self.gone: set[int] = set()
        for broker_id, rack in racks.items():
            self.register(broker_id, rack)

    def register(self, broker_id: int, rack: str | None = None, *, drained: bool = False) -> None:
        directory = broker_id.to_bytes(16, "big")
        self.usable.setdefault(broker_id, DISK_BYTES)
        self.replay(
            RegisterBrokerRecord(
                broker_id=broker_id,
                broker_epoch=broker_id,
                rack=rack,
                fenced=False,
                log_dirs=[directory],
                cordoned_log_dirs=[directory] if drained else [],
            )
        )

    def replay(self, record: object) -> None:
        self.image.replay(record, MetadataDelta())  # type: ignore[arg-type]

    def topic(self, name: str, replicas: Sequence[Sequence[int]], loads: Sequence[Load]) -> None:
        """A topic whose partitions have these replicas, all in sync; the first leads."""
        topic_id = name.encode().ljust(16, b"-")[:16]
        self.replay(TopicRecord(name=name, topic_id=topic_id))
        for index, (brokers, load) in enumerate(zip(replicas, loads, strict=True)):
            state = PartitionState(list(brokers), list(brokers), brokers[0], 1, 1)
            self.replay(partition_record(topic_id, index, state))
            self.loads[topic_id, index] = load

    def reports(self, partitions_max: int = PARTITIONS_MAX) -> dict[int, LoadReport]:
        led: dict[int, list[PartitionLoad]] = {broker_id: [] for broker_id in self.image.brokers}
        led[NO_LEADER] = []
        for topic in self.image.topics.values():
            for index, state in topic.partitions.items():
                led[state.leader].append(
                    PartitionLoad(topic.topic_id, index, *self.loads[topic.topic_id, index])
                )
        return {
            broker_id: LoadReport(
                sorted(each, key=lambda load: -load.bytes_in - load.bytes_out)[:partitions_max],
                sum(load.bytes_in for load in each),
                sum(load.bytes_out for load in each),
                sum(load.size for load in each),
                self.usable[broker_id],
                DISK_BYTES,
            )
            for broker_id, each in led.items()
            if broker_id != NO_LEADER
        }

    def plan(self, slow: Mapping[int, float] | None = None) -> Plan:
        return run_through(plan(self.image, self.reports(), slow, gone=self.gone))

    def apply(self, moves: Sequence[Move]) -> None:
        for move in moves:
            topic = self.image.topics[move.topic]
            old = topic.partitions[move.partition]
            assert old.replicas == move.current, "the plan was made for other replicas"
            target = move.target
            leader = old.leader if move.copies and old.leader in target else target[0]
            state = PartitionState(list(target), list(target), leader, old.leader_epoch + 1, 1)
            topic.partitions[move.partition] = state

    def settle(self, rounds_max: int, slow: Mapping[int, float] | None = None) -> list[Plan]:
        """Plans and applies until there is nothing to move; the plans."""
        plans: list[Plan] = []
        for _ in range(rounds_max):
            found = self.plan(slow)
            if not found.moves:
                return plans
            self.apply(found.moves)
            plans.append(found)
        raise AssertionError(f"not settled in {rounds_max} rounds: {[len(each.moves) for each in plans]}")

    def drain(self, broker_id: int) -> None:
        """All directories of the broker are cordoned."""
        broker = self.image.brokers[broker_id]
        self.replay(
            BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker.broker_epoch, cordoned_log_dirs=broker.log_dirs
            )
        )

    def lose(self, broker_id: int) -> None:
        """The broker is gone: fenced, in sync with nothing, and leader of nothing."""
        self.gone.add(broker_id)
        broker = self.image.brokers[broker_id]
        self.replay(
            BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker.broker_epoch, fenced=BROKER_FENCED
            )
        )
        for topic in self.image.topics.values():
            for index, old in tuple(topic.partitions.items()):
                isr = [each for each in old.isr if each != broker_id]
                leader = old.leader if old.leader in isr else (isr or [NO_LEADER])[0]
                epoch = old.leader_epoch + 1
                topic.partitions[index] = PartitionState(old.replicas, isr or old.isr, leader, epoch, 1)

    def held(self) -> dict[int, int]:
        """Bytes of each broker's replicas."""
        found = dict.fromkeys(self.image.brokers, 0)
        for topic in self.image.topics.values():
            for index, state in topic.partitions.items():
                for replica in state.replicas:
                    found[replica] += self.loads[topic.topic_id, index][2]
        return found

    def per_broker(self) -> dict[int, list[float]]:
        """Bytes in and out of what each broker leads, and its replicas."""
        found = {broker_id: [0.0, 0.0, 0.0] for broker_id in self.image.brokers}
        for topic in self.image.topics.values():
            for index, state in topic.partitions.items():
                bytes_in, bytes_out, _ = self.loads[topic.topic_id, index]
                if state.leader != NO_LEADER:
                    found[state.leader][0] += bytes_in
                    found[state.leader][1] += bytes_out
                for replica in state.replicas:
                    found[replica][2] += 1
        return found


def large_cluster(
    brokers: int, partitions: int, draw: random.Random, skew: Callable[[], float] | None = None
) -> ModelCluster:
    """Topics of 100 partitions with three replicas in stripes over three racks, whose loads differ as those of real topics do: a few
    are large."""
    cluster = ModelCluster({broker_id: f"rack-{broker_id % 3}" for broker_id in range(1, brokers + 1)})
    skew = skew or (lambda: draw.paretovariate(1.2))
    for number in range(partitions // 100):
        replicas = place(cluster.image, 100, 3, draw.randrange)
        topic_rate = 20_000 * skew()
        loads = []
        for _ in range(100):
            rate = min(topic_rate * draw.uniform(0.5, 1.5), 2_000_000)
            loads.append((rate, rate * draw.choice((1, 1, 2, 3)), int(rate * draw.uniform(1_000, 100_000))))
        cluster.topic(f"t{number:03}", replicas, loads)
    return cluster
