"""The short way of Fetch against the general one: whatever bytes come, both answer the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.api.fetch import fetch
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.fastpath.fetch import fast_fetch
from barnabas.broker.node import Node
from barnabas.broker.requests.context import Outcome, RequestContext
from barnabas.broker.tests.reply import Reply, make_context, send
from barnabas.storage.disk.disk import FileRegion
from barnabas.wire.messages import create_topics as ct
from barnabas.wire.messages.fetch import (
    FETCH_REQUEST,
    FETCH_RESPONSE,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from barnabas.wire.primitives import DecodeError
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

VERSIONS = range(12, 19)
LONG_NAME = "n" * 140
BATCHES = 12
FETCH_MAX_BYTES = 20_000


class Side:
    """A node with some records, asked in either way."""

    def __init__(self, directory: Path) -> None:
        self.runtime = VirtualRuntime()
        self.node = Node(
            BrokerConfig.from_properties(
                {
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "log.dirs": str(directory),
                    "fetch.max.bytes": str(FETCH_MAX_BYTES),
                }
            ),
            self.runtime,
        )
        self.node.start()
        self.topics: dict[str, bytes] = {}
        for name in ("small", "large", "empty", "cut", LONG_NAME):
            self.topics[name] = self._create(name)
        for name, size in (("small", 50), ("large", 9000), ("cut", 50), (LONG_NAME, 50)):
            for number in range(BATCHES):
                records = [Record(at, 1_700_000_000_000, b"k", b"%d" % number * size) for at in range(2)]
                self.partition(name).append(build_batch(records))
        self.partition("cut").log.increment_log_start_offset(8)
        self.partition("small").log.roll()

    def partition(self, name: str, index: int = 0) -> Any:
        return self.node.services.partitions.get(name, index)

    def _create(self, name: str) -> bytes:
        topic = ct.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
        reply = send(self.node.services, 19, 7, ct.CreateTopicsRequest(topics=[topic]))
        self.runtime.run_until_idle()
        answer = reply.answer
        assert answer.topics[0].error_code == 0
        return bytes(answer.topics[0].topic_id)

    def context(self, version: int) -> RequestContext[Any]:
        return make_context(self.node.services, Reply(), 1, version)

    def short(self, version: int, body: bytes) -> bytes | None:
        # As it lies in the receive buffer: others' bytes before and behind.
        buffer = memoryview(bytearray(b"\2\2\2\2" + body + b"\2\0\0\0\0\0\0\0\2"))
        answer = fast_fetch(self.context(version), buffer, 4, 4 + len(body))
        assert not isinstance(answer, Outcome), "this is no follower"
        return joined(answer) if isinstance(answer, list) else answer

    def general(self, version: int, body: bytes) -> Any:
        try:
            request, _ = FETCH_REQUEST.readers[version](memoryview(body), 0, len(body))
        except DecodeError:
            return DecodeError
        response: Any = fetch(self.context(version), request)
        if response is Outcome.PENDING:
            return response
        return joined(FETCH_RESPONSE.encode(version, response))

    def body(self, version: int, topic: str, **fields: Any) -> bytes:
        of_partition = {
            name: fields.pop(name) for name in tuple(fields) if name in FetchPartition.__struct_fields__
        }
        wanted = FetchPartition(
            **{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, **of_partition}
        )
        named = FetchTopic(topic=topic, topic_id=self.topics.get(topic, b"?" * 16), partitions=[wanted])
        usual = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 24, "session_epoch": -1}
        request = FetchRequest(**{**usual, "topics": [named], **fields})
        return joined(FETCH_REQUEST.encode(version, request))


def joined(parts: Any) -> bytes:
    return b"".join(part.read() if isinstance(part, FileRegion) else bytes(part) for part in parts)


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    made = Side(tmp_path_factory.mktemp("usual"))
    yield made
    made.node.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_usual_request_takes_the_fast_path(side: Side, version: int) -> None:
    for topic, fields in (
        ("small", {}),
        ("small", {"fetch_offset": 5, "partition_max_bytes": 150}),
        ("large", {}),
        ("large", {"fetch_offset": 21, "min_bytes": 15_000}),
        ("large", {"min_bytes": 1 << 20}),  # more than fetch.max.bytes is not waited for
        ("large", {"fetch_offset": 20, "min_bytes": 1 << 20, "max_wait_ms": 0}),
        ("cut", {"fetch_offset": 9, "current_leader_epoch": 0}),
    ):
        body = side.body(version, topic, **fields)
        answer = side.short(version, body)
        assert answer is not None
        assert answer == side.general(version, body)


@pytest.mark.parametrize("version", VERSIONS)
def test_anything_else_goes_the_general_way(side: Side, version: int) -> None:
    def two(name: str, *indexes: int) -> FetchTopic:
        wanted = [FetchPartition(partition=at, fetch_offset=0, partition_max_bytes=100) for at in indexes]
        return FetchTopic(topic=name, topic_id=side.topics[name], partitions=wanted)

    gone = ForgottenTopic(topic="small", topic_id=side.topics["small"], partitions=[0])
    for topic, fields in (
        ("small", {"session_epoch": 0}),
        ("small", {"session_id": 5}),
        ("small", {"session_id": 5, "session_epoch": 3}),
        ("small", {"isolation_level": 1}),
        ("small", {"rack_id": "here"}),
        ("small", {"cluster_id": "cluster"}),
        ("small", {"forgotten_topics_data": [gone]}),
        ("small", {"topics": []}),
        ("small", {"topics": [two("small", 0, 1)]}),
        ("small", {"topics": [two("small", 0), two("large", 0)]}),
        ("small", {"last_fetched_epoch": 0}),
        ("small", {"current_leader_epoch": 7}),
        ("small", {"fetch_offset": 2 * BATCHES}),
        ("small", {"fetch_offset": 2 * BATCHES + 1}),
        ("small", {"fetch_offset": 2 * BATCHES - 1, "min_bytes": 1000}),  # to wait for
        ("small", {"partition": 1}),
        ("small", {"partition": 2}),
        ("cut", {"fetch_offset": 7}),
        ("empty", {}),
        ("absent", {}),
        (LONG_NAME, {"partition": 1}),
        ("small", {"replica_id": 2, "replica_state": ReplicaState(replica_id=2, replica_epoch=1)}),
    ):
        assert side.short(version, side.body(version, topic, **fields)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_cut_off_goes_the_general_way(side: Side, version: int) -> None:
    body = side.body(version, "small")
    for length in range(len(body)):
        assert side.short(version, body[:length]) is None


offsets = st.one_of(st.integers(-1, 2 * BATCHES + 1), st.sampled_from([0, 1, 8, 9]))
limits = st.one_of(st.sampled_from([-1, 0, 1, 100, 300, 9000, 19_000, 1 << 20]), st.integers(0, 60_000))


@given(data=st.data())
def test_whatever_comes_both_ways_answer_the_same(side: Side, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS), label="version")
    fields: dict[str, Any] = {
        "partition": data.draw(st.sampled_from([0, 0, 0, 1, 2, -1]), label="partition"),
        "fetch_offset": data.draw(offsets, label="offset"),
        "partition_max_bytes": data.draw(limits, label="partition max bytes"),
        "max_bytes": data.draw(limits, label="max bytes"),
        "min_bytes": data.draw(limits, label="min bytes"),
        "max_wait_ms": data.draw(st.sampled_from([500, 0, -1]), label="wait"),
        "current_leader_epoch": data.draw(st.sampled_from([-1, -1, 0, 1, -2]), label="leader epoch"),
        "last_fetched_epoch": data.draw(st.sampled_from([-1, -1, -1, 0, -2]), label="fetched epoch"),
        "isolation_level": data.draw(st.sampled_from([0, 0, 0, 1, 2]), label="isolation"),
        "session_epoch": data.draw(st.sampled_from([-1, -1, -1, 4]), label="session epoch"),
    }
    topic = data.draw(st.sampled_from([*side.topics, "absent", ""]), label="topic")
    body = bytearray(side.body(version, topic, **fields))
    change = data.draw(st.sampled_from(["none", "none", "front", "end", "longer", "shorter"]), label="change")
    if change == "front":
        body[data.draw(st.integers(0, min(len(body) - 1, 60)))] = data.draw(st.integers(0, 255))
    elif change == "end":
        body[-data.draw(st.integers(1, 6))] = data.draw(st.integers(0, 255))
    elif change == "longer":
        body += data.draw(st.binary(min_size=1, max_size=3))
    elif change == "shorter":
        del body[-data.draw(st.integers(1, 5)) :]
    answer = side.short(version, bytes(body))
    if answer is not None:
        assert answer == side.general(version, bytes(body))


class Pair:
    """Two nodes alike, one asked the short way first."""

    def __init__(self, directory: Path) -> None:
        self.short = Side(directory / "short")
        self.general = Side(directory / "general")
        assert self.short.topics == self.general.topics
        self.short_answers = 0

    def append(self, topic: str, index: int) -> None:
        for side in (self.short, self.general):
            side.partition(topic, index).append(build_batch([Record(0, 1_700_000_000_000, None, b"more")]))

    def ask(self, version: int, **fields: Any) -> Any:
        """What both answer; afterwards both remember the same."""
        body = self.short.body(version, fields.pop("topic", "small"), **fields)
        answer = self.short.short(version, body)
        if answer is not None:
            self.short_answers += 1
        else:
            answer = self.short.general(version, body)
        assert answer == self.general.general(version, body)
        return FETCH_RESPONSE.decode(version, answer)[0]

    def check(self, session_id: int) -> None:
        one, other = (remembered(side, session_id) for side in (self.short, self.general))
        assert one == other


def remembered(side: Side, session_id: int) -> Any:
    session = side.node.services.fetch_sessions.get(session_id)
    if session is None:
        return None
    return (
        session.epoch,
        session.committed,
        session.evictable_key,
        sorted(one.wanted.partition for one in session.active),
        [
            (key, one.topic, one.turn, one.wanted, one.high_watermark, one.log_start_offset)
            for key, one in session.partitions.items()
        ],
        [
            one.partition is not None and session in one.partition.fetch_waiters
            for one in session.partitions.values()
        ],
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("sessions"))
    yield made
    made.short.node.stop()
    made.general.node.stop()


def named(side: Side, topic: str, *wanted: FetchPartition) -> FetchTopic:
    return FetchTopic(topic=topic, topic_id=side.topics[topic], partitions=list(wanted))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_consumer_with_a_session_takes_the_short_way(pair: Pair, version: int) -> None:
    session_id = pair.ask(version, topic="large", session_epoch=0, partition_max_bytes=1).session_id
    before = pair.short_answers
    for offset in range(2, 8, 2):
        fields = {"session_id": session_id, "session_epoch": offset // 2, "fetch_offset": offset}
        answer = pair.ask(version, topic="large", partition_max_bytes=1, **fields)
        assert (answer.session_id, answer.error_code) == (session_id, 0)
        pair.check(session_id)
    assert pair.short_answers == before + 3


@given(data=st.data())
def test_sessions_are_the_same_in_both_ways(pair: Pair, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([12, 13, 18]), label="version")
    places = [("small", 0), ("small", 1), ("large", 0), ("empty", 0)]

    def wanted(place: tuple[str, int]) -> FetchTopic:
        offset = data.draw(st.sampled_from([0, 2, 5, 23, 24, 25, 60]), label="offset")
        limit = data.draw(st.sampled_from([1, 200, 1 << 20]), label="limit")
        return named(
            pair.short,
            place[0],
            FetchPartition(partition=place[1], fetch_offset=offset, partition_max_bytes=limit),
        )

    of_session = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique=True))
    session_id = pair.ask(
        version, session_epoch=0, max_wait_ms=0, topics=[wanted(place) for place in of_session]
    ).session_id
    assert session_id
    epoch = 1
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans(), label="append"):
            pair.append(*data.draw(st.sampled_from(places)))
        asked = data.draw(st.lists(st.sampled_from([*of_session, *of_session, *places]), max_size=2))
        answer = pair.ask(
            version,
            session_id=session_id,
            session_epoch=data.draw(st.sampled_from([epoch] * 8 + [epoch + 1, -1])),
            max_wait_ms=0,
            isolation_level=data.draw(st.sampled_from([0, 0, 0, 1])),
            topics=[wanted(place) for place in asked],
        )
        pair.check(session_id)
        if answer.session_id:
            epoch += 1
