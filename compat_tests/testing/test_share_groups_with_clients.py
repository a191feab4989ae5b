"""Share groups of a test broker, as a test sees and steers them, with librdkafka's share consumer.

The broker runs in this process, whatever `--broker` says.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from barnabas.testing import Broker
from barnabas.testing.contents import InFlight
from barnabas.testing.control import Control
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.steering.groups import UnknownGroup
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.barnabas_only
GROUP = "jobs"
PROPERTIES = {  # the first assignment comes with the second heartbeat
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.assignment.interval.ms": "0",
}
GROUP_RESOURCE, INCREMENTAL_ALTER_CONFIGS = 32, 44


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(properties=PROPERTIES) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Broker:
    shared.reset()
    shared.create_topic("orders", 1)
    shared.seed("orders", [b"1", b"2", b"3"])
    client = RawClient(shared.port)
    earliest = AlterableConfig("share.auto.offset.reset", 0, "earliest")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP_RESOURCE, GROUP, [earliest])])
    assert not client.ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0].error_code
    client.socket.close()
    return shared


class Worker:
    """A member of the group that acknowledges as the test says."""

    def __init__(self, broker: Broker) -> None:
        self.consumer = confluent_kafka.ShareConsumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": GROUP,
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        self.consumer.subscribe(["orders"])

    def receive(self, count: int) -> list[Any]:
        found: list[Any] = []

        def has_all() -> bool:
            found.extend(self.consumer.poll(1))
            return len(found) >= count

        eventually(has_all)
        return found


@pytest.fixture
def worker(broker: Broker) -> Iterator[Worker]:
    worker = Worker(broker)
    yield worker
    worker.consumer.close()


@pytest.fixture
def another(broker: Broker) -> Iterator[Worker]:
    worker = Worker(broker)
    yield worker
    worker.consumer.close()


def in_flight(broker: Broker) -> list[tuple[int, int, str, int]]:
    """(first, last, state, delivery count)"""
    group = broker.group(GROUP)
    assert group is not None
    return [
        (each.first, each.last, each.state, each.delivery_count)
        for each in group.share_partitions["orders", 0].in_flight
    ]


def test_a_share_group_is_shown(broker: Broker, worker: Worker) -> None:
    worker.receive(3)
    group = broker.group(GROUP)
    assert group is not None
    (member,) = group.members
    assert (group.group_type, group.state) == ("share", "Stable")
    assert member.partitions == {("orders", 0)}
    assert member.epoch == group.generation_id
    partition = group.share_partitions["orders", 0]
    assert partition.start_offset == 0
    assert partition.in_flight == (InFlight(0, 2, "acquired", 1, member.member_id),)
    control = Control(broker)
    try:
        with urllib.request.urlopen(f"{control.url}/groups/{GROUP}") as answer:
            shown = json.load(answer)
        request = urllib.request.Request(
            f"{control.url}/groups/{GROUP}/locks/expire", b"{}", {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request).close()
    finally:
        control.close()
    assert shown["assigned"] == [[member.member_id, "orders", 0]]
    assert shown["share_partitions"][0]["in_flight"] == [[0, 2, "acquired", 1, member.member_id]]
    assert in_flight(broker) == [(0, 2, "available", 1)]


def test_locks_expire(broker: Broker, worker: Worker, another: Worker) -> None:
    worker.receive(3)
    broker.expire_locks(GROUP, "another")
    assert in_flight(broker) == [(0, 2, "acquired", 1)]
    broker.expire_locks(GROUP, "orders", 0)
    another.receive(3)
    assert in_flight(broker) == [(0, 2, "acquired", 2)]
    with pytest.raises(UnknownGroup):
        broker.expire_locks("absent")


def test_locks_expire_by_the_clock(broker: Broker, worker: Worker, another: Worker) -> None:
    worker.receive(3)
    broker.clock.advance(31)
    another.receive(3)
    assert in_flight(broker) == [(0, 2, "acquired", 2)]


def test_a_member_expires_and_joins_again(broker: Broker, worker: Worker) -> None:
    for message in worker.receive(3):
        worker.consumer.acknowledge(message)
    before = broker.group(GROUP)
    assert before is not None
    broker.expire_member(GROUP, before.members[0].member_id)

    def has_joined() -> bool:
        worker.consumer.poll(0.1)
        after = broker.group(GROUP)
        return after is not None and bool(after.members) and after.generation_id > before.generation_id

    eventually(has_joined)


def test_a_rebalance_is_forced(broker: Broker, worker: Worker) -> None:
    worker.receive(3)
    before = broker.group(GROUP)
    assert before is not None
    broker.force_rebalance(GROUP)
    after = broker.group(GROUP)
    assert after is not None
    assert after.generation_id == before.generation_id + 1


def test_what_is_stored_is_shown_when_no_member_has_fetched(broker: Broker) -> None:
    worker = Worker(broker)
    for message in worker.receive(3)[:2]:
        worker.consumer.acknowledge(message)
    worker.consumer.close()
    eventually(lambda: in_flight(broker) == [(2, 2, "available", 1)])
    broker.bump_epoch("orders", 0)
    assert in_flight(broker) == [(2, 2, "available", 1)]
    group = broker.group(GROUP)
    assert group is not None
    assert group.share_partitions["orders", 0].start_offset == 2
