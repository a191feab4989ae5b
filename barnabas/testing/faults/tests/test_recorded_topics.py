"""Newer clients name topics by their ids; tests look for them by name, or by an id that is gone."""

from __future__ import annotations

import pytest

from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from barnabas.wire.uuids import uuid_to_string

pytestmark = pytest.mark.sockets


def test_a_topic_is_found_by_its_name_where_its_id_was_asked_for() -> None:
    with Broker() as broker:
        for name in ("orders", "others"):
            broker.create_topic(name)
        client = RawClient(broker.port)
        image = broker.nodes[0].node.services.controller.image
        batch = PartitionProduceData(index=0, records=build_batch([Record(0, 0, None, b"v")]))
        ids = [image.topics["orders"].topic_id, bytes(15) + b"\1"]
        topics = [TopicProduceData(topic_id=each, partition_data=[batch]) for each in ids]
        client.ask(0, 13, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics))
        client.socket.close()
        (recorded,) = broker.requests.of("Produce", topic="orders")
        assert recorded.topics == ["orders"]  # the other one is unknown
        assert "Produce v13 orders ->" in broker.requests.transcript()[-1]
        assert broker.requests.of("Produce", topic="others") == []


@pytest.mark.parametrize("as_text", [True, False])
def test_a_rule_for_the_id_of_a_topic_that_is_gone(as_text: bool) -> None:
    """A client that still has it is told what the rule says; the topic that has the name now is served."""

    def codes(topic_id: bytes) -> list[int]:
        batch = PartitionProduceData(index=0, records=build_batch([Record(0, 0, None, b"v")]))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(topic_id=each, partition_data=[batch]) for each in (gone, topic_id)],
        )
        answer = client.ask(0, 13, request)
        found = {each.topic_id: each.partition_responses[0].error_code for each in answer.responses}
        return [found[gone], found[topic_id]]

    with Broker() as broker:
        ids = []
        for _ in range(2):
            broker.create_topic("orders")
            ids.append(broker.nodes[0].node.services.controller.image.topics["orders"].topic_id)
            if len(ids) == 1:
                broker.delete_topics("orders")
        gone, new = ids
        client = RawClient(broker.port)
        assert codes(new) == [ErrorCode.UNKNOWN_TOPIC_ID, 0]
        with broker.on("Produce", topic_id=uuid_to_string(gone) if as_text else gone).error(
            "KAFKA_STORAGE_ERROR"
        ):
            assert codes(new) == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        with broker.on("Produce", topic_id=new).error("KAFKA_STORAGE_ERROR"):
            assert codes(new) == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.KAFKA_STORAGE_ERROR]
        with broker.on("Metadata", topic_id=new).error("LEADER_NOT_AVAILABLE") as rule:
            topics = [MetadataRequestTopic(name="orders")]  # by its name, but it is that topic
            assert client.ask(3, 9, MetadataRequest(topics=topics)).topics[0].error_code == 5
            assert client.ask(3, 12, MetadataRequest(topics=topics)).topics[0].error_code == 5
            assert rule.hits == 2
        client.socket.close()
        for wrong in ("orders", b"short", "A" * 23):
            with pytest.raises(ValueError, match="16"):
                broker.on("Produce", topic_id=wrong)
        with pytest.raises(ValueError, match="name no topics"):
            broker.on("Heartbeat", topic_id=new)
