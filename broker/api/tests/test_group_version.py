"""The switches of consumer groups: group.version, and group.coordinator.rebalance.protocols. Answers are Apache Kafka 4.3.1's."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.tests.one_node import OneNode
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

JOIN = ConsumerGroupHeartbeatRequest(
    group_id="g",
    member_id="m",
    rebalance_timeout_ms=1000,
    subscribed_topic_names=["t"],
    topic_partitions=[],
)
DESCRIBE = ConsumerGroupDescribeRequest(group_ids=["g", "h"])
OFF = [E.UNSUPPORTED_VERSION] * 3


def errors(node: OneNode) -> list[E]:
    answers = [node.ask(JOIN), *node.ask(DESCRIBE).groups]
    assert all(answer.error_message is None for answer in answers if answer.error_code in OFF)
    return [E(answer.error_code) for answer in answers]


def set_level(node: OneNode, level: int, upgrade_type: int) -> None:
    update = FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=upgrade_type)
    assert node.ask(UpdateFeaturesRequest(feature_updates=[update])).error_code == 0


def test_group_version(tmp_path: Path) -> None:
    node = OneNode(f"log.dirs={tmp_path}")
    assert E.UNSUPPORTED_VERSION not in errors(node)
    set_level(node, 0, 2)
    assert errors(node) == OFF
    set_level(node, 1, 1)
    assert E.UNSUPPORTED_VERSION not in errors(node)
    node.node.stop()


@pytest.mark.parametrize(("protocols", "is_on"), [("classic", False), ("classic,consumer", True)])
def test_rebalance_protocols(tmp_path: Path, protocols: str, is_on: bool) -> None:
    node = OneNode(f"log.dirs={tmp_path}", f"group.coordinator.rebalance.protocols={protocols}")
    assert (errors(node) != OFF) == is_on
    node.node.stop()
