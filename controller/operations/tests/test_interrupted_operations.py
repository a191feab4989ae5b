"""Operations in steps of which only the first are committed: what the next election and the next request make of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from barnabas.controller.metadata.decision import Steps
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.controller.operations.brokers import fence, register, unregister
from barnabas.controller.operations.elections import elect_missing_leaders
from barnabas.controller.operations.heartbeats import heartbeat
from barnabas.controller.operations.tests.steps import apply_steps
from barnabas.controller.operations.tests.test_cluster_operations import (
    SETTINGS,
    TOPIC,
    cluster,
    directory,
    registration,
)
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest

Operation = Callable[[MetadataImage], Steps[Any]]


def beat(broker_id: int, **fields: Any) -> Operation:
    request = BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=10 + broker_id, current_metadata_offset=50, **fields
    )
    return lambda image: heartbeat(image, SETTINGS, request)


def start(previous_epoch: int) -> Operation:
    request = registration(broker_id=1, log_dirs=[directory(1)], previous_broker_epoch=previous_epoch)
    return lambda image: register(image, SETTINGS, request, "c", is_alive=False)


OPERATIONS: dict[str, Operation] = {
    "fence": lambda image: fence(image, SETTINGS, 1, 11),
    "unfence": beat(3),
    "leave": beat(1, want_shut_down=True),
    "a directory fails": beat(1, offline_log_dirs=[directory(1)]),
    "register after a clean stop": start(11),
    "register after an unclean stop": start(-1),
    "unregister": lambda image: unregister(image, SETTINGS, 3, dead_epoch=13),
}


def several() -> MetadataImage:
    """Broker 3 is fenced; some partitions wait for it, and it is eligible for others. Broker 1 has an empty directory as well."""
    image = cluster()
    image.brokers[1] = msgspec.structs.replace(image.brokers[1], log_dirs=[directory(1), directory(9)])
    states = [
        ([1, 2], 1, []),
        ([2, 1], 2, []),
        ([3], -1, []),
        ([1], 1, [3]),
        ([2], 2, [1, 3]),
        ([], -1, [3]),
    ]
    for index, (isr, leader, elr) in enumerate(states):
        state = PartitionState(
            replicas=[1, 2, 3],
            isr=list(isr),
            leader=leader,
            leader_epoch=5,
            partition_epoch=7,
            directories=[directory(replica) for replica in (1, 2, 3)],
            eligible_leader_replicas=list(elr),
        )
        image.replay(partition_record(TOPIC, index, state), MetadataDelta())
    return image


def told(image: MetadataImage) -> tuple[object, object]:
    """What is there, without epochs."""
    partitions = [
        (state.leader, state.isr, state.eligible_leader_replicas)
        for state in image.topics["t"].partitions.values()
    ]
    brokers = [
        (each.broker_id, each.incarnation_id, each.fenced, each.in_controlled_shutdown, each.log_dirs)
        for each in image.brokers.values()
    ]
    return partitions, brokers


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_next_request_completes_an_operation_that_was_cut_off(name: str) -> None:
    operation = OPERATIONS[name]
    whole = several()
    count = len(apply_steps(whole, operation(whole)).records)
    assert count >= 2
    for cut in range(count):
        image = several()
        for record in itertools.islice(operation(image), cut):
            image.replay(record, MetadataDelta())
            image.offset += 1
        apply_steps(image, elect_missing_leaders(image, SETTINGS))
        apply_steps(image, operation(image))
        assert told(image) == told(whole), cut


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_size_of_the_steps_changes_nothing(name: str, size: int) -> None:
    image = several()
    records = apply_steps(image, OPERATIONS[name](image), size).records
    again = several()
    assert apply_steps(again, OPERATIONS[name](again)).records == records
    for broker in image.brokers.values():
        if broker.broker_epoch > 50:
            assert broker.broker_epoch == image.offset
