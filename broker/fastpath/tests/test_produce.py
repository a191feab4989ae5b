"""The short way of Produce against the general one: on two nodes alike, whatever bytes come, both do the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.api.produce import produce
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.fastpath.produce import fast_produce
from barnabas.broker.node import Node
from barnabas.broker.requests.context import Outcome
from barnabas.broker.tests.reply import Reply, make_context, send
from barnabas.wire.messages import create_topics as ct
from barnabas.wire.messages import delete_topics as dt
from barnabas.wire.messages import find_coordinator as fc
from barnabas.wire.messages.produce import (
    PRODUCE_REQUEST,
    PRODUCE_RESPONSE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.wire.primitives import DecodeError
from barnabas.wire.record_batch import HEADER_SIZE, assemble_batch, read_header
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

NOW = 1_700_000_000_000
VERSIONS = range(9, 14)
LONG_NAME = "n" * 140


class Side:
    """A node, asked in one of the two ways."""

    def __init__(self, directory: Path, *, fast: bool) -> None:
        self.runtime = VirtualRuntime()
        self.node = Node(
            BrokerConfig.from_properties(
                {
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "log.dirs": str(directory),
                    "message.max.bytes": "2000",
                    "offsets.topic.num.partitions": "2",
                }
            ),
            self.runtime,
        )
        self.node.start()
        self.fast = fast
        self.short_answers = 0

    def create(self, name: str, **configs: str) -> bytes:
        topic = ct.CreatableTopic(
            name=name,
            num_partitions=2,
            replication_factor=1,
            configs=[
                ct.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        answer = self._ask(19, 7, ct.CreateTopicsRequest(topics=[topic])).topics[0]
        assert answer.error_code == 0
        return bytes(answer.topic_id)

    def create_internal(self) -> bytes:
        """__consumer_offsets, as the first group makes it."""
        request = fc.FindCoordinatorRequest(key="group", coordinator_keys=["group"])
        assert self._ask(10, 4, request).coordinators[0].error_code == 0
        return self.node.services.controller.image.topics["__consumer_offsets"].topic_id

    def delete(self, name: str) -> None:
        assert self._ask(20, 3, dt.DeleteTopicsRequest(topic_names=[name])).responses[0].error_code == 0

    def _ask(self, key: int, version: int, request: msgspec.Struct) -> Any:
        reply = send(self.node.services, key, version, request)
        self.runtime.run_until_idle()
        return reply.answer

    def produce(self, version: int, body: bytes) -> Any:
        """The body of the answer, or what came instead."""
        reply = Reply()
        context = make_context(self.node.services, reply, 0, version)
        # As it lies in the receive buffer: others' bytes before and behind.
        buffer = memoryview(bytearray(b"\2\2\2\2" + body + b"\2\0\0\0\0\0\0\0\2"))
        response: Any = None
        if self.fast:
            response = fast_produce(context, buffer, 4, 4 + len(body))
            if isinstance(response, bytes):
                self.short_answers += 1
                return response
        if response is None:
            try:
                request, _ = PRODUCE_REQUEST.readers[version](buffer, 4, 4 + len(body))
            except DecodeError:
                return DecodeError
            response = produce(context, request)
        if response is Outcome.PENDING:
            self.runtime.run_until_idle()
            response = reply.answer
        if isinstance(response, Outcome):
            return response
        return b"".join(bytes(part) for part in PRODUCE_RESPONSE.encode(version, response))  # type: ignore[call-overload]

    def ends(self) -> list[int]:
        return sorted(partition.log.log_end_offset for partition in self.node.services.partitions.all())


class Sides:
    """Two nodes that must behave alike."""

    def __init__(self, directory: Path) -> None:
        self.short = Side(directory / "short", fast=True)
        self.general = Side(directory / "general", fast=False)
        self.topics: dict[str, tuple[bytes, bytes]] = {}
        self.create("user")
        self.create("synced", flush_messages="1")
        self.create("stamped", message_timestamp_type="LogAppendTime")
        self.create("compacted", cleanup_policy="compact")
        self.create(LONG_NAME)
        self.topics["__consumer_offsets"] = self.short.create_internal(), self.general.create_internal()

    def create(self, name: str, **configs: str) -> None:
        self.topics[name] = self.short.create(name, **configs), self.general.create(name, **configs)

    def produce(self, version: int, body: bytes) -> Any:
        """What both answer to a body that has the short one's topic ids."""
        answer = self.short.produce(version, body)
        expected = self.general.produce(version, self._renamed(body))
        if isinstance(answer, bytes):
            answer = self._renamed(answer)
        assert answer == expected
        assert self.short.ends() == self.general.ends()
        return expected

    def _renamed(self, data: bytes) -> bytes:
        for own, other in self.topics.values():
            data = data.replace(own, other)
        return data

    def body(
        self, version: int, topic: str, records: bytes | None, *, index: int = 0, **fields: Any
    ) -> bytes:
        data = TopicProduceData(
            name=topic,
            topic_id=self.topics.get(topic, (b"?" * 16,))[0],
            partition_data=[PartitionProduceData(index=index, records=records)],
        )
        request = ProduceRequest(topic_data=[data], **{"acks": 1, "timeout_ms": 1000, **fields})
        return encoded(version, request)


def encoded(version: int, request: ProduceRequest) -> bytes:
    return b"".join(bytes(part) for part in PRODUCE_REQUEST.encode(version, request))  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    made = Sides(tmp_path_factory.mktemp("usual"))
    yield made
    made.short.node.stop()
    made.general.node.stop()


def batch(count: int = 1, size: int = 20, timestamp: int = NOW, **fields: int) -> bytes:
    """`fields` are written into the header, the CRC fits."""
    made = build_batch([Record(at, timestamp, b"k", b"v" * size) for at in range(count)])
    header = read_header(made)
    for name, value in fields.items():
        setattr(header, name, value)
    return assemble_batch(header, made[HEADER_SIZE:])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_usual_request_takes_the_fast_path(sides: Sides, version: int) -> None:
    before = sides.short.short_answers
    for acks in (1, -1):
        for index in (0, 1):
            sides.produce(version, sides.body(version, "user", batch(3), index=index, acks=acks))
    sides.produce(version, sides.body(version, "stamped", batch(3)))
    sides.produce(version, sides.body(version, "user", batch(size=300)))  # a length of two bytes
    assert sides.short.short_answers == before + 6


def test_a_partition_is_not_remembered_beyond_its_end(sides: Sides) -> None:
    sides.create("passing")
    body = sides.body(12, "passing", batch())
    sides.produce(12, body)
    first_id = sides.topics["passing"]
    by_id = sides.body(13, "passing", batch())
    sides.produce(13, by_id)
    for side in (sides.short, sides.general):
        side.delete("passing")
    sides.produce(12, body)
    sides.produce(13, by_id)
    sides.create("passing")
    answer = PRODUCE_RESPONSE.decode(12, sides.produce(12, body))[0].responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert sides.topics["passing"] != first_id


batches = st.one_of(
    st.none(),
    st.just(b""),
    st.builds(
        batch,
        count=st.integers(1, 3),
        size=st.sampled_from([0, 20, 200, 3000]),
        timestamp=st.sampled_from([NOW, NOW + 10**9, -1]),
    ),
    st.builds(batch, attributes=st.integers(0, 0x7F)),
    st.builds(batch, producer_id=st.just(7), producer_epoch=st.just(0), base_sequence=st.integers(-1, 3)),
    st.builds(batch, base_offset=st.just(5)),
    st.builds(batch, record_count=st.integers(-1, 3), last_offset_delta=st.integers(-1, 3)),
    st.builds(batch, magic=st.integers(0, 3)),
    st.tuples(st.builds(batch), st.builds(batch)).map(b"".join),
    st.builds(batch).map(lambda made: made[:-1]),
    st.builds(batch).map(lambda made: made[:8] + struct.pack(">i", 10) + made[12:]),
    st.builds(batch).map(lambda made: made[:-1] + bytes([made[-1] ^ 1])),
    st.binary(max_size=80),
)


@given(data=st.data())
def test_whatever_comes_both_ways_do_the_same(sides: Sides, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS), label="version")
    body = bytearray(
        sides.body(
            version,
            data.draw(st.sampled_from([*sides.topics, "absent", ""]), label="topic"),
            data.draw(batches, label="records"),
            index=data.draw(st.sampled_from([0, 0, 0, 1, 2, -1]), label="index"),
            acks=data.draw(st.sampled_from([1, 1, -1, 0, 2]), label="acks"),
            transactional_id=data.draw(
                st.sampled_from([None, None, None, "", "t"]), label="transactional id"
            ),
        )
    )
    # A byte changed, in front or at the end, where the layout is; or one too many, or too few.
    change = data.draw(st.sampled_from(["none", "none", "front", "end", "longer", "shorter"]), label="change")
    if change == "front":
        body[data.draw(st.integers(0, min(len(body) - 1, 40)))] = data.draw(st.integers(0, 255))
    elif change == "end":
        body[-data.draw(st.integers(1, min(len(body), 4)))] = data.draw(st.integers(0, 255))
    elif change == "longer":
        body += data.draw(st.binary(min_size=1, max_size=3))
    elif change == "shorter":
        del body[-data.draw(st.integers(1, min(len(body), 5))) :]
    sides.produce(version, bytes(body))


@pytest.mark.parametrize("version", VERSIONS)
def test_several_partitions_and_topics_go_the_general_way(sides: Sides, version: int) -> None:
    def data(topic: str, *indexes: int) -> TopicProduceData:
        parts = [PartitionProduceData(index=index, records=batch()) for index in indexes]
        return TopicProduceData(name=topic, topic_id=sides.topics[topic][0], partition_data=parts)

    before = sides.short.short_answers
    for topics in ([data("user", 0, 1)], [data("user", 0), data("synced", 1)], [data("user")], []):
        sides.produce(version, encoded(version, ProduceRequest(acks=1, topic_data=topics)))
    assert sides.short.short_answers == before
