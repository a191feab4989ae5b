"""Answers that are given as JSON: fetches with records, and topics by name in every version."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer

from barnabas.testing import Broker
from barnabas.testing.control.json_answers import answering
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch, iterate_records
from barnabas.wire.registry import API_NAMES

pytestmark = pytest.mark.sockets

PRODUCE, FETCH, METADATA, OFFSET_FETCH = 0, 1, 3, 9


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t", 2)
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    client = RawClient(broker.port)
    yield client
    broker.faults.reset()
    client.socket.close()


def topic_id(client: RawClient) -> bytes:
    found: bytes = client.ask(METADATA, 13, MetadataRequest(topics=None)).topics[0].topic_id
    return found


def fetch(client: RawClient, version: int, *, session_epoch: int = -1) -> list[tuple[Any, ...]]:
    """(topic or id, partition, error, high watermark, [(offset, value)])"""
    by_id = version >= 13
    topic = FetchTopic(
        topic="" if by_id else "t",
        topic_id=topic_id(client) if by_id else bytes(16),
        partitions=[FetchPartition(partition=index, fetch_offset=7) for index in (0, 1)],
    )
    answer = client.ask(FETCH, version, FetchRequest(session_epoch=session_epoch, topics=[topic]))
    return [
        (
            topic.topic or topic.topic_id,
            each.partition_index,
            each.error_code,
            each.high_watermark,
            [(record.offset, record.value) for record in iterate_records(bytes(each.records))]
            if each.records
            else [],
        )
        for topic in answer.responses
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_in_every_version(broker: Broker, client: RawClient, version: int) -> None:
    records = [{"value": "a", "offset": 7}, {"value": {"n": 1}, "key": "k"}]
    partition = {"partition_index": 1, "records": records}
    fields = {"responses": [{"topic": "t", "partitions": [partition]}]}
    broker.on("Fetch").answer(answering(FETCH, fields))
    name = topic_id(client) if version >= 13 else "t"
    assert sorted(fetch(client, version)) == [
        (name, 0, 0, 7, []),  # not named, so nothing new
        (name, 1, 0, 9, [(7, b"a"), (8, b'{"n":1}')]),
    ]


def test_batches_and_errors_of_partitions(broker: Broker, client: RawClient) -> None:
    batch = build_batch([Record(7, 1, None, b"v")], base_offset=7)
    partitions = [
        {"partition_index": 0, "records": base64.b64encode(batch).decode()},
        {"partition_index": 1, "error_code": 1, "records": []},
    ]
    fields = {"responses": [{"topic": "t", "partitions": partitions}]}
    broker.on("Fetch").answer(answering(FETCH, fields))
    assert fetch(client, 12) == [("t", 0, 0, 8, [(7, b"v")]), ("t", 1, 1, 0, [])]


def test_what_a_session_does_not_ask_for_is_not_added(broker: Broker, client: RawClient) -> None:
    broker.on("Fetch").answer(answering(FETCH, {"error_code": 70}))
    assert fetch(client, 12, session_epoch=5) == []


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_in_every_version(broker: Broker, client: RawClient, version: int) -> None:
    fields = {"responses": [{"name": "t", "partition_responses": [{"index": 0, "base_offset": 77}]}]}
    broker.on("Produce").answer(answering(PRODUCE, fields))
    by_id = version >= 13
    topic = TopicProduceData(
        name="" if by_id else "t",
        topic_id=topic_id(client) if by_id else bytes(16),
        partition_data=[PartitionProduceData(index=0, records=build_batch([Record(0, 0, None, b"v")]))],
    )
    answer = client.ask(PRODUCE, version, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))
    assert answer.responses[0].partition_responses[0].base_offset == 77
    assert (answer.responses[0].name, answer.responses[0].topic_id) == (topic.name, topic.topic_id)


def test_topics_deep_in_an_answer_and_with_name_and_id(broker: Broker, client: RawClient) -> None:
    partition = {"partition_index": 0, "committed_offset": 5}
    groups = [{"group_id": "g", "topics": [{"name": "t", "partitions": [partition]}]}]
    broker.on("OffsetFetch").answer(answering(OFFSET_FETCH, {"groups": groups}))
    broker.on("Metadata", topic="t").answer(answering(METADATA, {"topics": [{"name": "t", "error_code": 5}]}))
    known = topic_id(client)
    broker.faults.rules[1].remove()
    for version in (9, 10):
        asked = OffsetFetchRequestTopics(
            name="t" if version == 9 else "",
            topic_id=bytes(16) if version == 9 else known,
            partition_indexes=[0],
        )
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[asked])])
        (topic,) = client.ask(OFFSET_FETCH, version, request).groups[0].topics
        assert (topic.name, topic.topic_id) == (asked.name, asked.topic_id)
        assert topic.partitions[0].committed_offset == 5
    broker.on("Metadata").answer(answering(METADATA, {"topics": [{"name": "t", "error_code": 5}]}))
    topics = [MetadataRequestTopic(name="t")]
    for version in (9, 12):
        (topic,) = client.ask(METADATA, version, MetadataRequest(topics=topics)).topics
        assert (topic.name, topic.error_code) == ("t", 5)
        assert topic.topic_id == (known if version == 12 else bytes(16))


@pytest.mark.parametrize("api_key", sorted(API_NAMES))
def test_every_api_can_be_answered(api_key: int) -> None:
    answering(api_key, {})


def test_a_consumer_reads_what_a_rule_answers(broker: Broker) -> None:
    partition = {"partition_index": 0, "records": [{"value": "one"}, {"value": "two"}]}
    fields = {"responses": [{"topic": "t", "partitions": [partition]}]}
    with broker.on("Fetch", topic="t", partition=0).answer(answering(FETCH, fields)):
        consumer = KafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", group_id=None
        )
        try:
            found: list[Any] = []
            for _ in range(100):
                if len(found) >= 2:
                    break
                for records in consumer.poll(timeout_ms=1_000).values():
                    found += [(each.offset, each.value) for each in records]
        finally:
            consumer.close()
    assert found == [(0, b"one"), (1, b"two")]
    broker.faults.reset()
