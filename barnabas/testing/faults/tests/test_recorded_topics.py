"""Newer clients name topics by their ids; tests look for them by name."""

from __future__ import annotations

from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import Record, build_batch

from barnabas.testing import Broker
from barnabas.testing.raw_client import RawClient


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
        assert recorded.topics == ["orders"]  # nobody knows the other one
        assert "Produce v13 orders ->" in broker.requests.transcript()[-1]
        assert broker.requests.of("Produce", topic="others") == []
