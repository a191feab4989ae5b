"""What one broker tells of a cluster of several: metadata of other brokers put into a real node's log as records.

Every request and response passes through its wire form. What the answers should be follows Kafka's KRaftMetadataCache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.tests.one_of_several import View, state
from barnabas.controller.metadata.image import partition_record
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from barnabas.wire.messages.metadata_records import BrokerRegistrationChangeRecord, UnregisterBrokerRecord


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    view = View(tmp_path)
    yield view
    view.node.stop()


def test_metadata_lists_the_brokers_that_are_alive_and_have_the_listener(view: View) -> None:
    view.register(3, rack="r3")
    view.register(2)
    view.register(4, fenced=True)
    view.register(5, listener="OTHER")
    view.partitions(state(2, [2, 3]))
    response = view.metadata()
    own = view.node.services.advertised("PLAINTEXT")
    assert [(each.node_id, each.host, each.port, each.rack) for each in response.brokers] == [
        (1, *own, "r1"),
        (2, "h2", 9002, None),
        (3, "h3", 9003, "r3"),
    ]


def test_the_controller_is_any_broker_that_is_alive(view: View) -> None:
    view.register(2)
    view.register(3, fenced=True)
    seen = {view.metadata().controller_id for _ in range(40)}
    seen |= {view.ask(60, DescribeClusterRequest(), 2).controller_id for _ in range(40)}
    assert seen == {1, 2}
    own = view.node.services.controller.image.brokers[1]
    view.commit(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=own.broker_epoch, fenced=1))
    view.commit(UnregisterBrokerRecord(broker_id=2, broker_epoch=102))
    response = view.metadata()
    assert (response.controller_id, response.brokers) == (-1, [])


def test_a_leader_that_is_not_alive(view: View) -> None:
    view.register(2, listener="OTHER")
    view.register(3)
    view.partitions(state(2, [2, 3]), state(-1, [3], [9]))
    (topic,) = view.metadata(6).topics
    reached, nobody = topic.partitions
    assert (E(reached.error_code), reached.leader_id) == (E.LISTENER_NOT_FOUND, -1)
    assert (reached.replica_nodes, reached.isr_nodes, reached.offline_replicas) == ([2, 3], [2, 3], [2])
    assert (E(nobody.error_code), nobody.leader_id) == (E.LEADER_NOT_AVAILABLE, -1)
    assert E(view.partition(5).error_code) == E.LEADER_NOT_AVAILABLE
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    (described,) = view.ask(75, request, 0).topics
    assert [(each.error_code, each.leader_id, each.leader_epoch) for each in described.partitions] == [
        (0, -1, 7)
    ] * 2


def test_version_0_leaves_out_replicas_that_are_not_alive(view: View) -> None:
    view.register(2)
    view.register(3, fenced=True)
    view.partitions(state(2, [3, 2, 9], [2]))
    old, new = view.partition(0), view.partition(1)
    assert (E(old.error_code), old.leader_id, old.replica_nodes, old.isr_nodes) == (
        E.REPLICA_NOT_AVAILABLE,
        2,
        [2],
        [2],
    )
    assert (new.error_code, new.leader_id, new.replica_nodes, new.isr_nodes) == (0, 2, [3, 2, 9], [2])
    assert view.partition(13).offline_replicas == [3, 9]
    view.commit(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=103, fenced=-1))
    assert view.partition(13).offline_replicas == [9]


def test_a_replica_in_a_failed_directory_is_offline(view: View) -> None:
    view.register(2)
    view.register(3)
    view.partitions(state(3, [2, 3]))
    assert view.partition().offline_replicas == []
    other = BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=102, log_dirs=[b"other".ljust(16)])
    view.commit(other)
    assert view.partition().offline_replicas == [2]


def test_eligible_leaders_are_listed(view: View) -> None:
    view.register(2)
    view.register(3)
    view.partitions(state(2, [2, 3], [2], eligible_leader_replicas=[3], last_known_elr=[9]))
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    (topic,) = view.ask(75, request, 0).topics
    (partition,) = topic.partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([3], [9])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_cluster_lists_fenced_brokers_when_asked(view: View, version: int) -> None:
    view.register(2, rack="r2")
    view.register(3, fenced=True)
    request = DescribeClusterRequest(include_fenced_brokers=version >= 2)
    brokers = view.ask(60, request, version).brokers
    told = [(each.broker_id, each.rack, each.is_fenced) for each in brokers]
    assert told == [(1, "r1", False), (2, "r2", False)] + ([(3, None, True)] if version == 2 else [])


def test_the_coordinator_is_the_leader_as_the_listener_reaches_it(view: View) -> None:
    assert (view.find().node_id, view.find().error_code) == (1, 0)
    topic = view.node.services.controller.image.topics["__consumer_offsets"]
    for broker_id, listener, fenced in ((2, "PLAINTEXT", False), (3, "OTHER", False), (4, "PLAINTEXT", True)):
        view.register(broker_id, listener=listener, fenced=fenced)
        led = state(broker_id, [1, broker_id])
        view.commit(partition_record(topic.topic_id, 0, led))
        found = view.find()
        if broker_id == 2:
            assert (found.node_id, found.host, found.port, found.error_code) == (2, "h2", 9002, 0)
        else:
            assert (found.node_id, E(found.error_code)) == (-1, E.COORDINATOR_NOT_AVAILABLE)
    view.commit(partition_record(topic.topic_id, 0, state(-1, [1, 2], [2])))
    assert E(view.find().error_code) == E.COORDINATOR_NOT_AVAILABLE


def test_offsets_replication_counts_fenced_brokers_but_not_missing_ones(view: View) -> None:
    view.node.services.config.offsets_topic_replication_factor = 3
    view.register(2)
    assert E(view.find().error_code) == E.COORDINATOR_NOT_AVAILABLE
    assert "__consumer_offsets" not in view.node.services.controller.image.topics
    view.register(3, fenced=True)
    assert view.find().error_code == 0
    created = view.node.services.controller.image.topics["__consumer_offsets"].partitions[0]
    assert (sorted(created.replicas), sorted(created.isr)) == ([1, 2, 3], [1, 2])
