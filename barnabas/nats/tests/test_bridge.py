"""The bridge among the metadata of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.extension import host_of
from barnabas.broker.tests.replicas import DIRECTORY, Replicas
from barnabas.controller.metadata.image import TOPIC_RESOURCE, PartitionState, partition_record
from barnabas.nats.bridge import NatsBridge
from barnabas.nats.carrier_factory import CarrierFactory
from barnabas.nats.client.errors import Cause
from barnabas.nats.ingress.backpressure import OTHERS_WAIT_S
from barnabas.nats.ingress.gap_checkpoint import GapCheckpoint
from barnabas.nats.tests.client_world import settings
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord

OTHER_ID = b"other".ljust(16)


def bound(topic: str, name: str = "nats.subjects", value: str = "a.>") -> ConfigRecord:
    return ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)


def test_a_binding_that_can_not_start_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replicas = Replicas(ids=(1,))
    replica = replicas[1]
    bridge = NatsBridge(
        host_of(replica.node.services, MemoryDisk(), "/"),
        {"": settings("nats://nobody:4222")},
        GapCheckpoint(replica.disk, "/data/attendance", replica.runtime),
    )
    bridge.start()

    make_core = CarrierFactory.core

    def fails(factory: CarrierFactory, binding: Any, *others: Any) -> Any:
        if binding.topic == "other":
            raise ZeroDivisionError
        return make_core(factory, binding, *others)

    monkeypatch.setattr(CarrierFactory, "core", fails)
    state = PartitionState(
        replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0, directories=[DIRECTORY]
    )
    replicas.commit(
        TopicRecord(name="other", topic_id=OTHER_ID),
        partition_record(OTHER_ID, 0, state),
        bound("other"),
        bound("t"),
    )
    replicas.run()
    assert bridge.topics["t"].core is not None
    assert "ZeroDivisionError" in caplog.text
    replicas.commit(bound("other", "nats.mode", "telepathy"))
    replicas.run()
    assert "nats.mode" in bridge._stored.refused["other"]
    replicas.commit(RemoveTopicRecord(topic_id=OTHER_ID))
    replicas.commit(bound("t", value="b.>"))
    replicas.run()
    assert not bridge._stored.refused
    bridge.stop()


def test_stored_configs_without_effect_are_logged_and_bind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas = Replicas(ids=(1,))
    replica = replicas[1]
    bridge = NatsBridge(
        host_of(replica.node.services, MemoryDisk(), "/"),
        {"": settings("nats://nobody:4222")},
        GapCheckpoint(replica.disk, "/data/attendance", replica.runtime),
    )
    replicas.commit(bound("t"), bound("t", "nats.publish.jetstream", "true"))
    replicas.run()
    bridge.start()
    assert bridge.topics["t"].core is not None
    assert (
        caplog.text.count("topic t: nats.publish.jetstream has an effect only with nats.publish.subject") == 1
    )
    replicas.commit(bound("t", "nats.key", "none"))
    replicas.run()
    assert caplog.text.count("has an effect") == 1
    replicas.commit(bound("t", "nats.subjects", "or*ders,a.*.>,x.b>"))
    replicas.run()
    assert "or*ders, x.b> matches nothing but itself: * and > stand for whole tokens" in caplog.text
    bridge.stop()


@pytest.mark.parametrize("is_unsubscribed", [True, False])
def test_a_member_that_leaves_does_not_come_back(is_unsubscribed: bool) -> None:
    """Though its log takes messages again while it leaves, its connection ends, and its configs change."""
    replicas = Replicas(ids=(1,))
    replica = replicas[1]
    bridge = NatsBridge(
        host_of(replica.node.services, MemoryDisk(), "/"),
        {"": settings("nats://nobody:4222")},
        GapCheckpoint(replica.disk, "/data/attendance", replica.runtime),
    )
    replicas.commit(bound("t"), bound("t", "nats.queue.group", "g"))
    replicas.run()
    bridge.start()
    core = bridge.topics["t"].core
    assert core is not None
    left: list[bool] = []
    core._intake.closers.append(lambda: None)  # another topic is on the connection
    core._full(True)
    assert b"SUB a.> g " in core._intake.client._subscriptions.lines()
    if is_unsubscribed:
        replicas.run(OTHERS_WAIT_S + 1)
        assert core.state.startswith("waiting")
    core.leave_group(lambda: left.append(True))
    core._full(False)
    replicas.run()
    core.disconnected(Cause("closed", ""))
    replicas.commit(bound("t", value="b.>"))
    replicas.run()
    assert left
    assert not core._intake._holding
    assert b" g " not in core._intake.client._subscriptions.lines()
    bridge.stop()
