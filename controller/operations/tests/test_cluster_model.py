"""Random lives of a cluster against what the brokers' logs really hold.

The model is obvious and slow: every broker is a process that is up or down, and every replica a log that is a number
of records long. A write is committed when all of the ISR have it and there are min.insync.replicas of them. A broker
that is killed may lose any end of its logs. Then, whatever happens in whatever order: who leads has every committed
record, as long as fewer than min.insync.replicas of those who had it were killed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.decision import Decision, Steps
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState
from barnabas.controller.metadata.records import decode_record, encode_record
from barnabas.controller.operations.alter_partition import alter_partition
from barnabas.controller.operations.brokers import fence, register, unregister
from barnabas.controller.operations.elections import balance_leaders, elect_leaders, elect_missing_leaders
from barnabas.controller.operations.features import ELR_VERSION
from barnabas.controller.operations.heartbeats import heartbeat
from barnabas.controller.operations.reassignments import alter_reassignments
from barnabas.controller.operations.tests.steps import take
from barnabas.controller.operations.topics import NewTopic, create_topics
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest, Feature
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest
from barnabas.wire.messages.metadata_records import FeatureLevelRecord

BROKERS = (1, 2, 3, 4)
PARTITIONS = (0, 1)
TOPIC = b"t" * 16


class Settings:
    """The controller's configuration."""

    tables = ConfigTables()
    node_id = 100
    num_partitions = len(PARTITIONS)
    default_replication_factor = 3

    def __init__(self, min_isr: int, *, unclean: bool) -> None:
        self.min_isr, self.unclean = min_isr, unclean

    def value(self, name: str) -> str | None:
        return {
            "min.insync.replicas": str(self.min_isr),
            "unclean.leader.election.enable": str(self.unclean).lower(),
        }.get(name)

    def topic_defaults(self) -> dict[str, str]:
        return {}


class Broker:
    """A process. `epoch` as it knows it; `remembered` is what its last clean stop left on its disk."""

    def __init__(self) -> None:
        self.is_up = False
        self.epoch = -1
        self.remembered = -1
        self.incarnation = 0


class World:
    """The metadata, and what is really so."""

    def __init__(self, min_isr: int, *, with_elr: bool, unclean: bool) -> None:
        self.settings = Settings(min_isr, unclean=unclean)
        self.is_trusted = with_elr  # without, a broker that was killed may go on as the last one in sync
        self.image, self.follower = MetadataImage(), MetadataImage()
        self.brokers = {broker_id: Broker() for broker_id in BROKERS}
        self.length = {(broker_id, index): 0 for broker_id in BROKERS for index in PARTITIONS}
        self.committed = dict.fromkeys(PARTITIONS, 0)
        self.lost_after: int | None = None  # steps of the next operation in steps
        self.proposed: list[int] = []  # the ISR that a leader asks for
        self.unclean_shutdown: set[int] = set()  # who registers at the moment and may have lost records
        self.replay([FeatureLevelRecord(name="metadata.version", feature_level=30)])
        for broker_id in BROKERS[:3]:
            self.start(broker_id)
            self.beat(broker_id)
        if not with_elr:
            self.replay([FeatureLevelRecord(name=ELR_VERSION, feature_level=0)])
        self.decide(create_topics(self.image, [NewTopic("t")], self.settings, lambda _: TOPIC))

    # -- the controller

    def decide(self, decision: Decision[Any]) -> Any:
        self.replay(decision.records)
        return decision.response

    def take(self, operation: Callable[[], Steps[Any]]) -> Any:
        """All of its steps; or, when the controller is lost after some of them, those, and what the next one does by itself. Brokers
        ask again then, which is a later operation."""
        steps = operation()
        if self.lost_after is None:
            return take(steps, lambda record: self.replay([record])).response
        for record in itertools.islice(steps, self.lost_after):
            self.replay([record])
        self.lost_after = None
        self.take(lambda: elect_missing_leaders(self.image, self.settings))
        return None

    def replay(self, records: Sequence[msgspec.Struct]) -> None:
        before = dict(self.partitions())
        for record in records:
            self.image.replay(record, MetadataDelta())
            self.follower.replay(decode_record(encode_record(record)), MetadataDelta())
        self.image.offset += len(records)
        for index, state in self.partitions().items():
            self.check(index, before.get(index), state)

    def partitions(self) -> dict[int, PartitionState]:
        topic = self.image.topics.get("t")
        return {} if topic is None else topic.partitions

    @property
    def with_elr(self) -> bool:
        return self.image.features.get(ELR_VERSION, 0) > 0

    def may_lead(self, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    def check(self, index: int, before: PartitionState | None, state: PartitionState) -> None:
        """What must be so after every decision."""
        elr, min_isr = state.eligible_leader_replicas, min(self.settings.min_isr, len(state.replicas))
        assert len(set(state.replicas)) == len(state.replicas) > 0
        assert set(state.isr) <= set(state.replicas)
        assert len(set(state.isr)) == len(state.isr)
        assert set(elr) <= set(state.replicas) - set(state.isr)
        assert not elr or (self.with_elr and len(state.isr) < min_isr)
        assert len(state.directories) == len(state.replicas)
        if state.leader >= 0:
            assert state.leader in state.isr
            assert self.may_lead(state.leader)
        if not self.with_elr:
            assert state.isr
        if before is None or before == state:
            return
        assert state.partition_epoch > before.partition_epoch
        assert state.leader_epoch >= before.leader_epoch
        if state.leader != before.leader:
            assert state.leader_epoch > before.leader_epoch
        eligible = {*before.isr, *before.eligible_leader_replicas, *self.proposed}
        if state.leader >= 0 and state.leader not in eligible:
            self.elected_unclean(index, before, state)

    def check_logs(self) -> None:
        """Who leads and lives has what was committed. (A leader that has died is known to have only later.)"""
        for index, state in self.partitions().items():
            if self.is_trusted and self.lives(state.leader):
                assert self.length[state.leader, index] >= self.committed[index]

    def lives(self, broker_id: int) -> bool:
        """Whether the process runs that is registered."""
        registered = self.image.brokers.get(broker_id)
        broker = self.brokers.get(broker_id)
        return (
            registered is not None
            and broker is not None
            and broker.is_up
            and broker.epoch == registered.broker_epoch
        )

    def elected_unclean(self, index: int, before: PartitionState, state: PartitionState) -> None:
        """Allowed where it is configured, and for the last known leader when no replica is left that is known to have all
        records. The last such replica may lose that standing in the same decision, by registering after a kill."""
        is_last = self.with_elr and before.last_known_elr == [state.leader]
        remaining = {*before.isr, *before.eligible_leader_replicas} - self.unclean_shutdown
        assert self.settings.unclean or (is_last and not remaining)
        assert state.isr == [state.leader]
        assert state.leader_recovery_state == 1
        self.committed[index] = min(self.committed[index], self.length[state.leader, index])

    # -- brokers

    def start(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.is_up:
            return
        broker.is_up = True
        broker.incarnation += 1
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id="c",
            incarnation_id=bytes([broker_id, broker.incarnation]) * 8,
            log_dirs=[bytes([broker_id + 100]) * 16],
            features=[
                Feature(name="metadata.version", min_supported_version=7, max_supported_version=30),
                Feature(name="eligible.leader.replicas.version", max_supported_version=1),
            ],
            previous_broker_epoch=broker.remembered,
        )
        registered = self.image.brokers.get(broker_id)
        if registered is not None and broker.remembered != registered.broker_epoch:
            self.unclean_shutdown = {broker_id}
        epoch = None
        while epoch is None:
            epoch = self.take(lambda: register(self.image, self.settings, request, "c", is_alive=False))
        broker.epoch = epoch
        self.unclean_shutdown = set()
        assert broker.epoch == self.image.brokers[broker_id].broker_epoch <= self.image.offset
        broker.remembered = -1

    def beat(self, broker_id: int, *, leaving: bool = False) -> bool:
        """Whether it may go."""
        broker = self.brokers[broker_id]
        if not broker.is_up:
            return False
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=self.image.offset,
            want_shut_down=leaving,
        )
        response = self.take(lambda: heartbeat(self.image, self.settings, request, may_shut_down=True))
        return response is not None and bool(response.should_shut_down)

    def stop(self, broker_id: int) -> None:
        """A clean stop: with leave, or without when it takes too long."""
        broker = self.brokers[broker_id]
        if broker.is_up:
            self.beat(broker_id, leaving=True)
            self.beat(broker_id, leaving=True)
            broker.is_up = False
            broker.remembered = broker.epoch

    def kill(self, broker_id: int, keeps: int) -> None:
        broker = self.brokers[broker_id]
        if broker.is_up:
            broker.is_up = False
            for index in PARTITIONS:
                self.length[broker_id, index] = min(keeps, self.length[broker_id, index])

    def restart(self, broker_id: int) -> None:
        """Killed, and back before its session has ended."""
        if self.brokers[broker_id].is_up:
            self.kill(broker_id, 0)
            self.start(broker_id)
            self.beat(broker_id)

    def fence(self, broker_id: int) -> None:
        """The session ends: rightly, or not."""
        registered = self.image.brokers.get(broker_id)
        if registered is not None:
            self.take(lambda: fence(self.image, self.settings, broker_id, registered.broker_epoch))

    def unregister(self, broker_id: int) -> None:
        if not self.brokers[broker_id].is_up:
            known = self.image.brokers.get(broker_id)
            dead_epoch = -1 if known is None else known.broker_epoch
            self.take(lambda: unregister(self.image, self.settings, broker_id, dead_epoch=dead_epoch))

    # -- partitions

    def write(self, index: int) -> None:
        state = self.partitions()[index]
        min_isr = min(self.settings.min_isr, len(state.replicas))
        if state.leader < 0 or len(state.isr) < min_isr:
            return
        if all(self.lives(replica) for replica in state.isr):
            for replica in state.isr:
                self.length[replica, index] = self.length[state.leader, index]
                self.length[replica, index] += 1
            self.committed[index] = self.length[state.leader, index]

    def alter(self, index: int, members: Sequence[int], *, stale: bool) -> None:
        """The leader lets replicas catch up, and asks for an ISR of itself and those; `stale` with the broker epochs
        from before they were killed."""
        state = self.partitions()[index]
        leader = self.brokers.get(state.leader)
        if leader is None or not leader.is_up:
            return
        isr = [state.leader, *(each for each in members if each in state.replicas and each != state.leader)]
        epochs = {each: self.brokers[each].epoch for each in isr}
        for each in isr:
            if self.brokers[each].is_up:
                self.length[each, index] = self.length[state.leader, index]
        if stale and len(isr) > 1:
            self.restart(isr[1])
            state = self.partitions()[index]
            if state.leader != isr[0]:
                return
        isr = [each for each in isr if each in state.isr or self.brokers[each].is_up]
        request = AlterPartitionRequest(
            broker_id=isr[0],
            broker_epoch=leader.epoch,
            topics=[
                TopicData(
                    topic_id=TOPIC,
                    partitions=[
                        PartitionData(
                            partition_index=index,
                            leader_epoch=state.leader_epoch,
                            partition_epoch=state.partition_epoch,
                            new_isr_with_epochs=[
                                BrokerState(broker_id=each, broker_epoch=epochs[each]) for each in isr
                            ],
                        )
                    ],
                )
            ],
        )
        self.proposed = isr
        self.decide(alter_partition(self.image, self.settings, request))
        self.proposed = []

    def reassign(self, index: int, replicas: list[int] | None) -> None:
        former = set(self.partitions()[index].replicas)
        wanted = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=[wanted])]
        )
        self.decide(alter_reassignments(self.image, self.settings, request))
        for gone in former.difference(self.partitions()[index].replicas):
            self.length[gone, index] = 0

    def elect(self, kind: int) -> None:
        if kind == 0:
            request = ElectLeadersRequest(topic_partitions=None)
            self.take(lambda: elect_leaders(self.image, self.settings, request))
        elif kind == 1:
            self.decide(balance_leaders(self.image, self.settings))
        else:
            self.take(lambda: elect_missing_leaders(self.image, self.settings))

    def lose(self, steps: int) -> None:
        """The controller is lost within the next operation."""
        self.lost_after = steps


broker_ids = st.sampled_from(BROKERS)
indexes = st.sampled_from(PARTITIONS)
subsets = st.lists(broker_ids, unique=True, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), broker_ids),
        st.tuples(st.just("beat"), broker_ids),
        st.tuples(st.just("stop"), broker_ids),
        st.tuples(st.just("kill"), broker_ids, st.integers(0, 2)),
        st.tuples(st.just("restart"), broker_ids),
        st.tuples(st.just("fence"), broker_ids),
        st.tuples(st.just("unregister"), broker_ids),
        st.tuples(st.just("write"), indexes),
        st.tuples(st.just("alter"), indexes, subsets, st.booleans()),
        st.tuples(st.just("reassign"), indexes, st.one_of(st.none(), subsets)),
        st.tuples(st.just("elect"), st.integers(0, 2)),
        st.tuples(st.just("lose"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 3), st.booleans(), st.booleans())
@example([("stop", 2), ("fence", 3), ("restart", 1), ("restart", 3)], 2, True, False)
def test_leaders_have_all_committed_records(
    made: list[tuple[Any, ...]], min_isr: int, with_elr: bool, unclean: bool
) -> None:
    world = World(min_isr, with_elr=with_elr, unclean=unclean)
    for name, *arguments in made:
        if name == "alter":
            world.alter(arguments[0], arguments[1], stale=arguments[2])
        else:
            getattr(world, name)(*arguments)
        world.check_logs()
    assert list(world.image.records()) == list(world.follower.records())
    again = MetadataImage()
    for record in world.image.records():
        again.replay(record, MetadataDelta())
    assert list(again.records()) == list(world.image.records())
