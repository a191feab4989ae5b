"""A group that consumes, transforms and produces in transactions while its coordinators move.

All brokers stay: librdkafka 2.16 does not look for a group's coordinator that has gone from the metadata until its call times out.
"""

from __future__ import annotations

import pytest

from barnabas.broker.coordinator.topic import partition_for
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory, UniqueName
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.members import await_balance
from compat_tests.harness.transformers import PARTITIONS, ConfluentTransformer, Pipeline

COORDINATORS = 3  # partitions of each internal topic
SETTINGS = {
    "offsets.topic.num.partitions": str(COORDINATORS),
    "transaction.state.log.num.partitions": str(COORDINATORS),
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "group.min.session.timeout.ms": "500",
}


@pytest.mark.timeout(300)
def test_every_record_is_copied_once_while_coordinators_move(
    fresh_cluster: ClusterFactory, unique: UniqueName
) -> None:
    cluster = fresh_cluster(settings=SETTINGS)
    configs = {"min.insync.replicas": "2"}
    source, target = (create_topic(cluster, unique("topic"), PARTITIONS, configs=configs) for _ in range(2))
    pipeline = Pipeline(cluster.bootstrap, unique, source, target)
    cluster.on_close.append(pipeline.abandon)
    pipeline.fill("first")
    members = [pipeline.start(ConfluentTransformer) for _ in range(2)]
    await_balance(members, PARTITIONS)
    groups = (GROUP_METADATA_TOPIC, partition_for(pipeline.group, COORDINATORS))
    ids = [
        (TRANSACTION_STATE_TOPIC, partition_for(member.transactional_id, COORDINATORS)) for member in members
    ]
    for number, moved in enumerate([[groups], ids, [groups, *ids], [groups], [(target, 0), groups]]):
        pipeline.fill(str(number))
        pipeline.await_read(len(pipeline.sent) - 100)
        for topic, partition in moved:
            leader = cluster.leader(topic, partition)
            others = [node for node in sorted(cluster.nodes) if node != leader]
            move_leader(cluster, topic, partition, [*others, leader])
            eventually(lambda: cluster.leader(topic, partition) == others[0])  # noqa: B023 - called at once
    pipeline.check()
    for member in members:
        member.leave()
