"""Produces behind a produce that waits for replicas are served; every answer goes out in the order of the requests."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.tests.leader import TOPIC_ID, Leader, batch
from barnabas.storage.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.registry import request_type, response_type

PRODUCE, LIST_OFFSETS = 0, 2
VERSIONS = {PRODUCE: 12, LIST_OFFSETS: 10, API_VERSIONS: 3}
LATEST = -1


class Client:
    """A connection over the virtual network. `answers`: (correlation id, response), as they come."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._asked: dict[int, int] = {}
        self._received = bytearray()
        self._transport: Any = None
        self.answers: list[tuple[int, Any]] = []
        self.is_closed = False
        port = leader.node.endpoints[0].port
        leader.runtime.connect("127.0.0.1", port, lambda: self, lambda error: pytest.fail(str(error)))
        leader.runtime.advance(0.01)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            number = int.from_bytes(frame[:4], "big")
            key = self._asked[number]
            kind = response_type(key)
            version = VERSIONS[key]
            start = 5 if kind.flexible(version) and key != API_VERSIONS else 4
            self.answers.append((number, kind.decode(version, frame, start)[0]))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """What is sent waits."""

    def resume_writing(self) -> None:
        """And goes on."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True

    def frame(self, key: int, message: Any) -> bytes:
        number = len(self._asked) + 1
        self._asked[number] = key
        kind, version = request_type(key), VERSIONS[key]
        body = b"".join(bytes(part) for part in kind.encode(version, message))  # type: ignore[call-overload]
        header = struct.pack(">hhih", key, version, number, 1) + b"c"
        header += b"\0" if kind.flexible(version) else b""
        return struct.pack(">i", len(header) + len(body)) + header + body

    def produce(self, *values: str, acks: int = -1, index: int = 0, timeout_ms: int = 30_000) -> bytes:
        data = PartitionProduceData(index, memoryview(batch(*values)))
        return self.frame(
            PRODUCE, ProduceRequest(None, acks, timeout_ms, [TopicProduceData("t", TOPIC_ID, [data])])
        )

    def latest(self) -> bytes:
        wanted = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, LATEST)])
        return self.frame(LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=[wanted]))

    def versions(self) -> bytes:
        return self.frame(
            API_VERSIONS, ApiVersionsRequest(client_software_name="c", client_software_version="1")
        )

    def send(self, data: bytes) -> None:
        self._transport.write(data)
        self._leader.runtime.advance(0.01)

    @property
    def order(self) -> list[int]:
        return [number for number, _ in self.answers]

    def errors(self) -> list[int]:
        return [
            answer.responses[0].partition_responses[0].error_code
            for number, answer in self.answers
            if self._asked[number] == PRODUCE
        ]


@pytest.fixture
def leader() -> Leader:
    made = Leader("/d", MemoryDisk())
    made.register(2)
    made.create(replicas=[1, 2], partitions=2)
    for index in range(2):
        made.follower(2).fetch(0, index=index)
    return made


def fetch(leader: Leader, offset: int, index: int = 0) -> None:
    leader.follower(2).fetch(offset, index=index)
    leader.runtime.advance(0.01)


def test_what_waits_for_replicas_keeps_no_produce_from_being_served(leader: Leader) -> None:
    client = Client(leader)
    client.send(b"".join(client.produce(str(number)) for number in range(5)))
    assert leader.partition().log.log_end_offset == 5
    assert client.answers == []
    fetch(leader, 2)
    assert client.order == [1, 2]
    fetch(leader, 5)
    assert client.order == [1, 2, 3, 4, 5]
    assert client.errors() == [0] * 5


def test_what_is_committed_first_is_answered_in_turn(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.produce("b", index=1) + client.produce("c", acks=1))
    fetch(leader, 1, index=1)
    assert client.order == [], "the first one waits"
    fetch(leader, 2)
    assert client.order == [1, 2, 3]


def test_another_request_waits_until_all_is_answered(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.latest() + client.produce("b"))
    assert leader.partition().log.log_end_offset == 1
    fetch(leader, 1)
    assert client.order == [1, 2]
    assert client.answers[1][1].topics[0].partitions[0].offset == 1
    assert leader.partition().log.log_end_offset == 2
    fetch(leader, 2)
    assert client.order == [1, 2, 3]


def test_the_time_of_each_is_its_own(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a", timeout_ms=5000) + client.produce("b", timeout_ms=1000))
    leader.runtime.advance(2)
    assert client.answers == []
    leader.runtime.advance(4)
    assert client.order == [1, 2]
    assert client.errors() == [E.REQUEST_TIMED_OUT] * 2


def test_leadership_goes_while_many_wait(leader: Leader) -> None:
    client = Client(leader)
    client.send(b"".join(client.produce(str(number)) for number in range(3)))
    leader.change(leader=2)
    leader.runtime.advance(0.01)
    assert client.errors() == [E.NOT_LEADER_OR_FOLLOWER] * 3


def test_a_failure_without_acknowledgement_closes_when_its_turn_comes(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.produce("b", index=9, acks=0) + client.produce("c"))
    assert not client.is_closed
    assert leader.partition().log.log_end_offset == 1, "nothing behind it is served"
    fetch(leader, 1)
    assert client.order == [1]
    assert client.is_closed


def test_a_client_goes_while_its_produces_wait(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.produce("b"))
    client._transport.abort()
    leader.runtime.advance(0.01)
    fetch(leader, 2)
    assert leader.partition().high_watermark == 2


def test_large_batches_arrive_while_others_wait(leader: Leader) -> None:
    client = Client(leader)
    large = "x" * 900_000
    client.send(b"".join(client.produce(large) for _ in range(6)))
    leader.runtime.advance(1)
    assert leader.partition().log.log_end_offset == 6
    fetch(leader, 6)
    assert client.order == [1, 2, 3, 4, 5, 6]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(0, 1), st.sampled_from([-1, -1, 1, 0])),
        st.just(("latest",)),
        st.just(("versions",)),
        st.tuples(st.just("cut"), st.integers(1, 200)),
        st.tuples(st.just("fetch"), st.integers(0, 1)),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(steps=steps)
def test_whatever_comes_is_answered_once_and_in_order(steps: list[tuple[Any, ...]]) -> None:
    """Requests arrive in pieces while followers fetch at any time; in the end everything is answered."""
    leader = Leader("/d", MemoryDisk())
    leader.register(2)
    leader.create(replicas=[1, 2], partitions=2)
    client = Client(leader)
    unsent = b""
    due: list[int] = []
    sent = [0, 0]
    for step in steps:
        match step:
            case ("produce", index, acks):
                unsent += client.produce("v", index=index, acks=acks)
                sent[index] += 1
                if acks:
                    due.append(len(client._asked))
            case ("latest",):
                unsent += client.latest()
                due.append(len(client._asked))
            case ("versions",):
                unsent += client.versions()
                due.append(len(client._asked))
            case ("cut", size):
                client.send(unsent[:size])
                unsent = unsent[size:]
            case ("fetch", index):
                fetch(leader, leader.partition(index).log.log_end_offset, index)
        assert client.order == due[: len(client.order)]
    client.send(unsent)
    for _ in range(len(steps) + 1):
        for index in range(2):
            fetch(leader, leader.partition(index).log.log_end_offset, index)
    assert client.order == due
    assert client.errors() == [0] * len(client.errors())
    assert [leader.partition(index).log.log_end_offset for index in range(2)] == sent
    leader.node.stop()
