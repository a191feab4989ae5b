"""Large requests: decoded in a thread, one at a time, up to a bound."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from barnabas.broker.api import produce as produce_api
from barnabas.broker.cluster.controller_server import ControllerAnswer, ControllerRequest, ControllerRequests
from barnabas.broker.requests.context import Reply, RequestContext
from barnabas.broker.requests.large_requests import BODY_BYTES_MAX, LARGE_BODY_BYTES, LargeRequests
from barnabas.broker.requests.repetitions import PARTITIONS_NAMED_MAX, TOO_MANY_PARTITIONS
from barnabas.broker.security.caller import own_caller
from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.virtual_client import Client
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.threaded_node import ThreadedNode
from compat_tests.virtual.runtime import VirtualRuntime

PRODUCE, DESCRIBE_GROUPS, CREATE_TOPICS = 0, 15, 19


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadedNode]:
    node = ThreadedNode(tmp_path / "logs", {})
    yield node
    node.stop()


def frame(api_key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, version, 1, -1) + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


@pytest.mark.sockets
def test_a_large_request_is_answered_as_any(node: ThreadedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    large: list[int] = []
    serve = LargeRequests.serve

    def counted(self: LargeRequests, context: Any, read: Any, handler: Any, body: bytes) -> None:
        large.append(len(body))
        serve(self, context, read, handler, body)

    monkeypatch.setattr(LargeRequests, "serve", counted)
    client = node.client()
    names = [f"group {number}" for number in range(10_000)]
    behind = client.frame(DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=["behind"]))
    client.socket.sendall(client.frame(DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=names)) + behind)
    _, answer = client.receive(DESCRIBE_GROUPS, 6)
    assert [group.group_id for group in answer.groups] == names
    _, answer = client.receive(DESCRIBE_GROUPS, 6)
    assert [group.group_id for group in answer.groups] == ["behind"]
    (size,) = large
    assert size > LARGE_BODY_BYTES


@pytest.mark.sockets
def test_a_large_request_that_cannot_be_read_closes_its_connection(
    node: ThreadedNode, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = node.client(), node.client()
    client.socket.sendall(frame(DESCRIBE_GROUPS, 6, b"\xff\xff\x03" + bytes(2 * LARGE_BODY_BYTES)))
    assert client.is_closed()
    assert other.ask(DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=["g"])).groups
    (said,) = [record for record in caplog.records if "cannot be read" in record.getMessage()]
    assert said.exc_info is None
    assert "DescribeGroups" in said.getMessage()


@pytest.mark.sockets
def test_a_request_without_records_has_its_bound_and_one_with_records_has_not(node: ThreadedNode) -> None:
    client, producer = node.client(), node.client()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    assert client.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic])).topics[0].error_code == 0
    data = [PartitionProduceData(0, bytes(BODY_BYTES_MAX + 1))]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData("t", partition_data=data)])
    (topic_answer,) = producer.ask(PRODUCE, 9, request).responses
    assert topic_answer.partition_responses[0].error_code != ErrorCode.NONE, "refused for what it holds"
    client.socket.sendall(frame(DESCRIBE_GROUPS, 6, bytes(BODY_BYTES_MAX + 1)))
    assert client.is_closed()


def test_one_is_decoded_at_a_time() -> None:
    runtime = VirtualRuntime()
    requests = LargeRequests(runtime)
    decoding, most = 0, 0

    def read(body: Any, _start: int, _end: int) -> tuple[bytes, int]:
        nonlocal decoding, most
        decoding += 1
        most = max(most, decoding)
        return body, len(body)

    def done(request: Any, error: BaseException | None) -> None:
        nonlocal decoding
        assert (request, error) == (b"body", None)
        decoding -= 1

    for _ in range(10):
        requests.decode(read, b"body", done)
    runtime.run_until_idle()
    assert most == 1


def test_a_large_request_of_another_node_is_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.cluster.controller_server.LARGE_BODY_BYTES", 3)
    runtime = VirtualRuntime()
    controller: Any = SimpleNamespace(is_active=True, image=SimpleNamespace(offset=1))

    def new_context(reply: Reply, key: int, version: int, *rest: Any) -> RequestContext[Any]:
        return RequestContext(None, reply, key, version, 0, *rest)

    replies: list[bytes] = []
    asked = ControllerRequest(CREATE_TOPICS, 7, None, own_caller(2), b"\xff\xff\x03 ", for_client=True)
    ControllerRequests(controller, LargeRequests(runtime), new_context).serve(
        2, msgspec.msgpack.encode(asked), replies.append
    )
    assert replies == []
    runtime.run_until_idle()
    (reply,) = replies
    assert msgspec.msgpack.decode(reply, type=ControllerAnswer).error == ErrorCode.INVALID_REQUEST


def produce_request(topic: str, count: int, size: int = 100) -> ProduceRequest:
    """`count` batches for partition 0, of `size` bytes and more."""
    records = build_batch([Record(0, 1_700_000_000_000, None, bytes(size))])
    data = [PartitionProduceData(0, records) for _ in range(count)]
    return ProduceRequest(None, 1, 30_000, [TopicProduceData(topic, b"", data)])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the bodies that threads decode."""
    sizes: list[int] = []
    decode = LargeRequests.decode

    def counted(self: LargeRequests, read: Any, body: Any, done: Any) -> None:
        sizes.append(len(body))
        decode(self, read, body, done)

    monkeypatch.setattr(LargeRequests, "decode", counted)
    return sizes


@pytest.mark.sockets
def test_a_produce_of_many_topics_is_answered_as_any(node: ThreadedNode, decoded: list[int]) -> None:
    client = node.client()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    assert client.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic])).topics[0].error_code == 0
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"value")])
    unknown = [
        TopicProduceData(f"unknown-{number}", partition_data=[PartitionProduceData(0, batch)])
        for number in range(1500)
    ]
    known = TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[*unknown, known])
    behind = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[known])
    client.socket.sendall(client.frame(PRODUCE, 9, request) + client.frame(PRODUCE, 9, behind))
    answers = [client.receive(PRODUCE, 9)[1].responses for _ in range(2)]
    assert len(decoded) == 1
    assert {topic.partition_responses[0].error_code for topic in answers[0][:-1]} == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    offsets = [topics[-1].partition_responses[0].base_offset for topics in answers]
    assert offsets == [0, 1]
    request.acks = 0
    request.topic_data = [known] * 1500
    client.socket.sendall(client.frame(PRODUCE, 9, request))
    assert client.ask(PRODUCE, 9, behind).responses[0].partition_responses[0].base_offset > 1
    assert len(decoded) == 2


@pytest.fixture
def leader() -> Leader:
    made = Leader("/d", MemoryDisk())
    made.create(replicas=[1])
    return made


def test_a_produce_of_many_partitions_is_decoded_in_a_thread_and_keeps_its_place(
    leader: Leader, decoded: list[int]
) -> None:
    client = Client(leader)
    before = client.produce("before")
    many = client.frame(PRODUCE, produce_request("t", 2000))
    client.send(before + many + client.produce("behind"))
    leader.runtime.run_until_idle()
    assert client.order == [1, 2, 3]
    _, answer = client.answers[1]
    (topic,) = answer.responses
    assert [one.base_offset for one in topic.partition_responses] == list(range(1, 2001))
    assert client.answers[2][1].responses[0].partition_responses[0].base_offset == 2001
    assert leader.partition().log.log_end_offset == 2002
    assert leader.node.services.waiting_produce_bytes == 0
    assert len(decoded) == 1


def test_a_produce_of_few_partitions_is_decoded_where_it_stands(leader: Leader, decoded: list[int]) -> None:
    client = Client(leader)
    client.send(client.frame(PRODUCE, produce_request("t", 1, 500_000)))
    client.send(client.frame(PRODUCE, produce_request("t", 200, 1000)))
    leader.runtime.run_until_idle()
    assert client.order == [1, 2]
    assert decoded == []


def test_a_produce_of_more_partitions_than_there_are_is_not_decoded(
    leader: Leader, decoded: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(leader)
    topics = [TopicProduceData("t", partition_data=[]) for _ in range(2 * PARTITIONS_NAMED_MAX + 1)]
    client.send(client.frame(PRODUCE, ProduceRequest(None, 1, 30_000, topics)))
    leader.runtime.run_until_idle()
    assert client.is_closed
    assert len(decoded) == 1
    assert TOO_MANY_PARTITIONS in caplog.text
    assert leader.node.services.waiting_produce_bytes == 0


def test_produces_that_wait_to_be_decoded_are_bounded(
    leader: Leader, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [Client(leader) for _ in range(4)]
    frames = [client.frame(PRODUCE, produce_request("t", 1001)) for client in clients]
    monkeypatch.setattr(produce_api, "WAITING_BYTES_MAX", len(frames[0]))
    monkeypatch.setattr(leader.runtime, "run_in_thread", lambda *_, **__: None)  # busy with another one
    for client, frame in zip(clients, frames, strict=True):
        client.send(frame)
    assert [client.is_closed for client in clients] == [False, False, True, True]
    assert len(decoded) == 2
