"""The counters of topics: a client's requests change them, whichever way they are served."""

from __future__ import annotations

from pathlib import Path

from barnabas.broker.partitions.topic_stats import BrokerTopicStats
from barnabas.broker.tests.leader import TOPIC_ID, Leader, batch
from barnabas.broker.tests.virtual_client import Client
from barnabas.wire.messages.metadata_records import RemoveTopicRecord


def test_what_clients_send_and_read(tmp_path: Path) -> None:
    leader = Leader(tmp_path, message_max_bytes="300")
    leader.create(replicas=[1], partitions=2)
    stats = leader.node.services.partitions.topic_stats.of("t")
    client = Client(leader)
    client.send(client.produce("a", "b", acks=1))  # the fast path
    client.send(client.produce("c", acks=1, index=1))
    size = len(batch("a", "b"))
    assert (stats.messages_in, stats.bytes_in) == (3, size + len(batch("c")))
    assert (stats.produce_requests, stats.failed_produce_requests) == (2, 0)
    client.send(client.produce("x" * 400))
    assert (stats.produce_requests, stats.messages_in) == (3, 3)
    assert stats.bytes_rejected == len(batch("x" * 400))
    assert stats.failed_produce_requests == 0, "the client's, as in Kafka"

    client.send(client.fetch())
    assert (stats.fetch_requests, stats.bytes_out) == (1, size)
    client.send(client.fetch(epoch=0))  # with a session, the general way
    assert (stats.fetch_requests, stats.bytes_out) == (2, 2 * size)
    client.send(client.fetch(offset=2))
    assert stats.bytes_out == 2 * size
    client.send(client.fetch(offset=99))
    assert stats.failed_fetch_requests == 0


def test_a_follower_counts_for_replication(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.register(2)
    leader.create(replicas=[1, 2])
    stats = leader.node.services.partitions.topic_stats.of("t")
    leader.produce("a", acks=1)
    leader.follower(2).fetch(0)
    assert (stats.replication_bytes_out, stats.bytes_out) == (len(batch("a")), 0)


def test_a_deleted_topic_leaves_its_counts_to_the_total(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    topic_stats = leader.node.services.partitions.topic_stats
    client = Client(leader)
    client.send(client.produce("a", acks=1))
    leader.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert [name for name, _ in topic_stats.topics()] == []
    assert (topic_stats.of_gone().messages_in, topic_stats.of("t").messages_in) == (1, 0)


def test_totals() -> None:
    all_stats = BrokerTopicStats()
    all_stats.of("a").bytes_in = 1
    all_stats.of("b").bytes_in = 2
    all_stats.left("a")
    all_stats.left("a")
    all_stats.of("a").bytes_in += 4
    assert all_stats.of_gone().bytes_in + sum(stats.bytes_in for _, stats in all_stats.topics()) == 7
    assert [(name, stats.bytes_in) for name, stats in all_stats.topics()] == [("a", 4), ("b", 2)]
