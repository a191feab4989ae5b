"""A client that is connected over the virtual network."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from barnabas.broker.tests.leader import TOPIC_ID, Leader, batch
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.registry import request_type, response_type

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
VERSIONS = {PRODUCE: 12, FETCH: 17, LIST_OFFSETS: 10, API_VERSIONS: 3}
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

    def produce(
        self, *values: str, acks: int = -1, index: int = 0, timeout_ms: int = 30_000, topic: str = "t"
    ) -> bytes:
        data = PartitionProduceData(index, memoryview(batch(*values)))
        return self.frame(
            PRODUCE, ProduceRequest(None, acks, timeout_ms, [TopicProduceData(topic, TOPIC_ID, [data])])
        )

    def fetch(self, offset: int = 0, *, session_id: int = 0, epoch: int = -1, max_wait_ms: int = 0) -> bytes:
        wanted = FetchTopic("", TOPIC_ID, [FetchPartition(0, fetch_offset=offset, partition_max_bytes=5000)])
        return self.frame(
            FETCH,
            FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                session_id=session_id,
                session_epoch=epoch,
                topics=[wanted],
            ),
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

    def disconnect(self) -> None:
        self._transport.close()
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
