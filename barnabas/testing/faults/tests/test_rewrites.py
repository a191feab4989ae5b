"""What other test doubles have a function for, by way of `rewrite`: leaders and addresses that only Metadata tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.faults.call import Call
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.sockets

METADATA = 3


def led_by(leader: int, epoch: int) -> Callable[[Call, Any], Any]:
    def rewrite(_: Call, answer: MetadataResponse) -> MetadataResponse:
        for partition in answer.topics[0].partitions:
            partition.leader_id, partition.leader_epoch = leader, epoch
        return answer

    return rewrite


def test_leaders_that_are_told_in_turn() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        for leader, epoch in ((2, 7), (3, 8)):
            broker.on("Metadata", times=1).rewrite(led_by(leader, epoch))
        client = RawClient(broker.port)
        told = []
        for _ in range(3):
            partition = client.ask(METADATA, 12, MetadataRequest(topics=None)).topics[0].partitions[0]
            told.append((partition.leader_id, partition.leader_epoch))
        client.socket.close()
        true = broker.partition("t")
        assert told == [(2, 7), (3, 8), (true.leader, true.leader_epoch)]


def test_an_address_that_only_metadata_has() -> None:
    def elsewhere(_: Call, answer: MetadataResponse) -> MetadataResponse:
        answer.brokers[0].host, answer.brokers[0].port = "elsewhere", 9
        return answer

    with Broker() as broker:
        client = RawClient(broker.port)
        with broker.on("Metadata").rewrite(elsewhere):
            (told,) = client.ask(METADATA, 12, MetadataRequest()).brokers
        (true,) = client.ask(METADATA, 12, MetadataRequest()).brokers
        client.socket.close()
        assert (told.host, told.port) == ("elsewhere", 9)
        assert (told.node_id, true.port) == (true.node_id, broker.port)
