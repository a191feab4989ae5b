"""Elections that the active controller starts by itself."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from barnabas.controller.metadata.controller import STEP_RECORDS, Controller
from barnabas.controller.metadata.decision import Decision, Steps
from barnabas.controller.metadata.image import MetadataImage, PartitionState, partition_record
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.operations.brokers import UNFENCE
from barnabas.controller.sessions.leader_balancer import PAUSED_RETRY_S, LeaderBalancer
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC = b"t" * 16


class Settings:
    """The controller's configuration."""

    node_id = 1

    def __init__(self, *, balances: bool) -> None:
        self._balances = balances

    def value(self, name: str) -> str | None:
        return {
            "auto.leader.rebalance.enable": str(self._balances).lower(),
            "leader.imbalance.check.interval.seconds": "300",
            "min.insync.replicas": "1",
            "unclean.leader.election.enable": "false",
        }.get(name)


class Cluster:
    """Brokers 1 and 2; t-0 led by 2 although 1 is preferred, t-1 without a leader, as 3, which was in sync, is down."""

    def __init__(self, *, balances: bool = True) -> None:
        self.runtime = VirtualRuntime(1)
        self.disk = MemoryDisk()
        self.controller = Controller(LocalMetadataLog(self.disk, "/m", self.runtime))
        self.controller.open()
        self.controller.serve()
        brokers = [
            RegisterBrokerRecord(broker_id=each, broker_epoch=each, fenced=each == 3) for each in (1, 2, 3)
        ]
        partitions = [
            PartitionState([1, 2], [1, 2], leader=2, leader_epoch=1, partition_epoch=1),
            PartitionState([3, 2], [3], leader=-1, leader_epoch=1, partition_epoch=1),
        ]
        records = [
            *brokers,
            TopicRecord(name="t", topic_id=TOPIC),
            *(partition_record(TOPIC, index, state) for index, state in enumerate(partitions)),
        ]
        self.controller.run(lambda _: Decision(records, None), lambda _: None)
        self.runtime.run_until_idle()
        self.upkeep = LeaderBalancer(self.controller, Settings(balances=balances), self.runtime)
        self.upkeep.start()

    @property
    def leaders(self) -> list[int]:
        return [state.leader for state in self.controller.image.topics["t"].partitions.values()]

    def configure(self, name: str, value: str) -> None:
        record = ConfigRecord(resource_type=2, resource_name="t", name=name, value=value)
        self.controller.run(lambda _: Decision([record], None), lambda _: None)
        self.runtime.advance(0.1)


def test_preferred_replicas_lead_again_periodically() -> None:
    cluster = Cluster()
    cluster.runtime.advance(299)
    assert cluster.leaders == [2, -1]
    cluster.runtime.advance(2)
    assert cluster.leaders == [1, -1]


def test_a_controller_that_paused_balances_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't decide until a majority confirms it, and remains the active one."""
    cluster = Cluster()
    cluster.runtime.advance(299)
    monkeypatch.setattr(LocalMetadataLog, "is_leader", False)
    cluster.runtime.advance(2)
    monkeypatch.undo()
    assert cluster.leaders == [2, -1]
    cluster.runtime.advance(2)
    assert cluster.leaders == [1, -1]


def test_no_balance_when_disabled_or_not_active() -> None:
    cluster = Cluster(balances=False)
    cluster.runtime.advance(1000)
    assert cluster.leaders == [2, -1]
    cluster = Cluster()
    cluster.upkeep.close()
    cluster.runtime.advance(1000)
    assert cluster.leaders == [2, -1]


def test_a_partition_without_a_leader_gets_one_when_unclean_elections_are_allowed() -> None:
    cluster = Cluster()
    cluster.configure("retention.ms", "1")
    assert cluster.leaders == [2, -1]
    cluster.configure("unclean.leader.election.enable", "true")
    assert cluster.leaders == [2, 2]
    assert cluster.controller.image.topics["t"].partitions[1].isr == [2]


def test_a_new_active_controller_elects_the_leaders_that_the_one_before_it_has_not() -> None:
    """It was lost between two steps of unfencing broker 3."""
    cluster = Cluster()
    cluster.upkeep.close()
    unfenced = BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, fenced=UNFENCE)
    cluster.controller.run(lambda _: Decision([unfenced], None), lambda _: None)
    cluster.runtime.advance(1)
    assert cluster.leaders == [2, -1]
    cluster.upkeep.start()
    cluster.runtime.advance(0.1)
    assert cluster.leaders == [2, 3]


def test_leaders_are_elected_where_an_operation_in_steps_fails() -> None:
    """Broker 3 is unfenced by the first step; the second, with the leader of t-1, can't be written."""
    cluster = Cluster()
    cluster.runtime.advance(1)
    changes = [BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, fenced=UNFENCE)] * STEP_RECORDS
    failures: list[ErrorCode] = []

    def unfence(_image: MetadataImage) -> Steps[None]:
        yield from changes
        cluster.disk.fault = lambda operation, _: errno.ENOSPC if operation == "write" else None
        yield changes[0]

    cluster.controller.run(unfence, lambda _: None, lambda error, _: failures.append(error))
    cluster.runtime.advance(0.1)
    assert (failures, cluster.leaders) == ([ErrorCode.KAFKA_STORAGE_ERROR], [2, -1])
    cluster.disk.fault = None
    cluster.runtime.advance(PAUSED_RETRY_S)
    assert cluster.leaders == [2, 3]


class SlowController:
    """Operations wait for a commit until `commit`."""

    is_active = True

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.config_changed: Any = None

    def on_activity(self, _listener: Any) -> None: ...
    def on_interruption(self, _listener: Any) -> None: ...
    def add_config_listener(self, listener: Any) -> None:
        self.config_changed = listener

    def run(self, _operation: Any, done: Any, _failed: Any) -> None:
        self.waiting.append(done)

    def commit(self) -> int:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(0)
        return len(waiting)


def test_changes_of_configs_leave_one_periodic_election() -> None:
    runtime, controller = VirtualRuntime(), SlowController()
    settings = Settings(balances=False)
    LeaderBalancer(controller, settings, runtime).start()  # type: ignore[arg-type]  # what it uses of one
    runtime.advance(0)
    for _ in range(
        50
    ):  # each is committed while the election that the one before has begun waits for its turn
        controller.config_changed()
        runtime.advance(0)
    controller.commit()
    runtime.advance(300.1)
    assert controller.commit() == 1
