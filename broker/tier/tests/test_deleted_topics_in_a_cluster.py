"""A tiered topic whose only replica is down when it is deleted leaves the store all the same."""

from __future__ import annotations

import pytest

from barnabas.broker.tests.virtual_cluster import NODE_IDS, VirtualCluster
from barnabas.storage.tier import deleted_topics
from barnabas.storage.tier.keys import ClusterKeys, PartitionKeys
from barnabas.storage.tier.store_config import open_store
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.uuids import uuid_to_string

CREATE_TOPICS, DELETE_TOPICS = 19, 20
URL = "memory://deleted-topics-in-a-cluster"


@pytest.mark.slow
def test_the_replica_of_a_deleted_topic_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_topics, "GRACE_MS", 60_000)
    monkeypatch.setattr(deleted_topics, "INTERVAL_S", 20.0)
    cluster = VirtualCluster("remote.log.storage.system.enable=true", f"rsm.config.url={URL}")
    cluster.run_until(lambda: all(said == ["ready"] for said in cluster.said.values()))
    active = cluster.active()
    replica = next(node_id for node_id in NODE_IDS if node_id != active)
    kept = [
        CreatableTopic(
            name,
            -1,
            -1,
            assignments=[CreatableReplicaAssignment(0, [replica])],
            configs=[CreatableTopicConfig("remote.storage.enable", "true")],
        )
        for name in ("gone", "kept")
    ]
    created = cluster.ask(active, CREATE_TOPICS, 7, CreateTopicsRequest(kept, 10_000)).topics
    gone, other = (
        uuid_to_string(bytes(topic.topic_id)) for topic in sorted(created, key=lambda topic: topic.name)
    )
    store = open_store({"rsm.config.url": URL}, lambda: 0)
    keys = ClusterKeys(cluster.nodes[active].cluster_id)
    cluster.run_until(lambda: len(list(store.list(keys.descriptions))) == 2)
    for topic_id in (gone, other):
        store.put(PartitionKeys(keys.cluster_id, topic_id, 0).log("x"), [b""])
    cluster.runtimes[replica].end()
    cluster.advance(15)
    request = DeleteTopicsRequest(topics=[DeleteTopicState("gone")], timeout_ms=10_000)
    (deleted,) = cluster.ask(active, DELETE_TOPICS, 6, request).responses
    assert not deleted.error_code
    cluster.run_until(lambda: [each.key for each in store.list(keys.tombstones)] == [keys.tombstone(gone)])
    cluster.advance(30)
    assert list(store.list(keys.topic(gone)))
    cluster.advance(60)
    assert not list(store.list(keys.topic(gone)))
    assert [each.key for each in store.list(keys.descriptions)] == [keys.description(other)]
    assert list(store.list(keys.topic(other)))
