"""A thread looks for times, and the partition changes meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.config import BrokerConfig
from barnabas.broker.context import RequestContext
from barnabas.broker.node import Node
from barnabas.broker.registry import REGISTRATIONS, Outcome
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.record_batch import Record, build_batch

from barnabas.testing.virtual_runtime import VirtualRuntime

LIST_OFFSETS, CREATE_TOPICS = 2, 19
MAX_TIMESTAMP = -3


class Client:
    """Asks handlers without a socket; `answers` come when they come."""

    closed = False
    peer_broker_id = -1
    peer_handshake: Any = None

    def __init__(self, node: Node) -> None:
        self._node = node
        self.answers: list[Any] = []

    def complete(self, context: RequestContext, response: Any) -> None:
        self.answers.append(response)

    def when_abandoned(self, callback: Any) -> None:
        """Nobody goes."""

    def when_overtaken(self, callback: Any) -> None:
        """Nobody sends more meanwhile."""

    def let_produces_on(self, context: RequestContext) -> None:
        """There are none."""

    def ask(self, key: int, version: int, request: Any) -> None:
        context = RequestContext(self._node.services, self, key, version, 0, None, "PLAINTEXT", "127.0.0.1")
        answer = REGISTRATIONS[key].handler(context, request)
        if not isinstance(answer, Outcome):
            self.answers.append(answer)


@pytest.mark.parametrize(("timestamp", "expected"), [(2000, 2), (MAX_TIMESTAMP, -1)])
def test_records_deleted_while_a_thread_looks_are_not_named(
    tmp_path: Path, timestamp: int, expected: int
) -> None:
    runtime = VirtualRuntime()
    config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    node = Node(BrokerConfig.from_properties(config), runtime)
    node.start()
    client = Client(node)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    runtime.run_until_idle()
    partition = node.services.partitions.get("t", 0)
    assert partition is not None
    for time in (1000, 9000, 3000, 5000):
        partition.append(build_batch([Record(0, time, None, b"v")]))
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    client.answers.clear()
    client.ask(
        LIST_OFFSETS,
        7,
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]),
    )
    assert client.answers == []
    partition.log.increment_log_start_offset(2)
    runtime.run_until_idle()
    ((found,),) = ([part.offset for part in one.partitions] for one in client.answers[0].topics)
    node.stop()
    assert found == expected
