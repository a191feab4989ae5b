"""Connections over real sockets, against a whole node, on both event loops. test_connection.py needs neither."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.controller.link.framing import PREFACE, FrameReader, encode_frame
from barnabas.controller.link.messages import HELLO, REFUSED, Hello, Refused, decode, encode
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.runtime.repeated_warnings import REASONS_MAX
from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.eventually import eventually
from compat_tests.harness.threaded_node import ThreadedNode

pytestmark = pytest.mark.sockets

PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS, CREATE_TOPICS = 0, 1, 2, 18, 19
TOPIC = "connections"


Connect = Callable[[], RawClient]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the broker behind `connect` keeps its logs."""
    return tmp_path / "logs"


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest, directory: Path) -> Iterator[ThreadedNode]:
    node = ThreadedNode(
        directory,
        {"socket.request.max.bytes": "5000000"},
        prefer_uvloop=request.param == "uvloop",
    )
    answer = node.client().ask(
        CREATE_TOPICS,
        5,
        CreateTopicsRequest(
            topics=[CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)], timeout_ms=5000
        ),
    )
    assert answer.topics[0].error_code == 0
    yield node
    node.stop()


@pytest.fixture
def connect(server: ThreadedNode) -> Connect:
    return server.client


def waiting_fetches(server: ThreadedNode) -> int:
    return server.node.services.purgatory.waiting


def unserved_bytes(server: ThreadedNode) -> int:
    """Received by the server, of requests that are not served yet."""
    held = [connection._received for connection in tuple(server.node._connections.open)]
    return sum(each.filled for each in held if each is not None)


def holds(server: ThreadedNode, count: int) -> bool:
    return unserved_bytes(server) == count


def is_blocked(server: ThreadedNode) -> bool:
    """Whether a client does not take its answers."""
    return any(connection._writer.waiting for connection in tuple(server.node._connections.open))


def batch(value: bytes = b"value") -> bytes:
    return build_batch(
        [Record(offset=0, timestamp=time.time_ns() // 10**6, key=None, value=value, headers=[])]
    )


def produce_request(records: bytes, acks: int = 1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])
        ],
    )


def fetch_request(offset: int, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 24,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
    )


def end_request() -> ListOffsetsRequest:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])


def fetched(answer: Any) -> bytes:
    return bytes(answer.responses[0].partitions[0].records)


def offset_of(answer: Any) -> int:
    result = answer.responses[0].partition_responses[0]
    assert result.error_code == 0
    return int(result.base_offset)


def test_pipelined_requests_are_answered_in_order(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(b"".join(client.frame(PRODUCE, 9, produce_request(batch())) for _ in range(500)))
    answers = [client.receive(PRODUCE, 9) for _ in range(500)]
    assert [correlation_id for correlation_id, _ in answers] == list(range(1, 501))
    assert [offset_of(answer) for _, answer in answers] == list(range(500))


def test_a_request_may_arrive_byte_by_byte(connect: Connect) -> None:
    client = connect()
    for byte in client.frame(PRODUCE, 9, produce_request(batch())):
        client.socket.sendall(bytes([byte]))
    assert offset_of(client.receive(PRODUCE, 9)[1]) == 0


@pytest.mark.parametrize("size", [1000, 127 * 1024, 128 * 1024, 900_000])
def test_frames_of_any_size_come_back_as_they_were(connect: Connect, size: int) -> None:
    client = connect()
    sent = [batch(bytes([65 + index]) * size) for index in range(6)]
    client.socket.sendall(b"".join(client.frame(PRODUCE, 9, produce_request(each)) for each in sent))
    assert [offset_of(client.receive(PRODUCE, 9)[1]) for _ in sent] == list(range(6))
    for index, records in enumerate(sent):
        assert fetched(client.ask(FETCH, 12, fetch_request(index)))[61 : len(records)] == records[61:]


def test_requests_behind_a_waiting_fetch_are_answered_after_it(
    server: ThreadedNode, connect: Connect
) -> None:
    client, other = connect(), connect()
    client.socket.sendall(
        client.frame(FETCH, 12, fetch_request(0, max_wait_ms=20_000))
        + b"".join(client.frame(PRODUCE, 9, produce_request(batch())) for _ in range(300))
    )
    eventually(lambda: waiting_fetches(server))
    assert offset_of(other.ask(PRODUCE, 9, produce_request(batch(b"wakes")))) == 0
    correlation_id, answer = client.receive(FETCH, 12)
    assert correlation_id == 1
    assert b"wakes" in fetched(answer)
    assert [offset_of(client.receive(PRODUCE, 9)[1]) for _ in range(300)] == list(range(1, 301))


@pytest.mark.parametrize(
    "cut",
    [-10, 0, 3, 5, 10_000],
    ids=["cut in the fetch", "behind it", "in the next size", "in the next key", "in one piece"],
)
def test_a_client_that_asks_for_offsets_waits_no_longer_for_records(
    server: ThreadedNode, connect: Connect, cut: int
) -> None:
    client = connect()
    client.socket.settimeout(60)
    assert offset_of(client.ask(PRODUCE, 9, produce_request(batch()))) == 0
    for _ in range(3):
        fetch = client.frame(FETCH, 12, fetch_request(1, max_wait_ms=3_600_000))
        sent = fetch + client.frame(LIST_OFFSETS, 7, end_request())
        client.socket.sendall(sent[: len(fetch) + cut])
        if cut < 0:
            eventually(partial(holds, server, len(fetch) + cut))
        elif cut < 6:
            eventually(lambda: waiting_fetches(server))
            eventually(partial(holds, server, cut))
        client.socket.sendall(sent[len(fetch) + cut :])
        assert fetched(client.receive(FETCH, 12)[1]) == b""
        assert client.receive(LIST_OFFSETS, 7)[1].topics[0].partitions[0].offset == 1


def test_a_client_that_asks_for_offsets_before_its_fetch_begins_to_wait() -> None:
    """A fetch that goes to the disk first begins to wait late; here a delay does as much."""
    with Broker() as broker:
        broker.produce(TOPIC, b"value")
        rule = broker.on("Fetch").hold()
        client = RawClient(broker.port)
        with closing(client.socket):
            client.socket.sendall(
                client.frame(FETCH, 12, fetch_request(1, max_wait_ms=3_600_000))
                + client.frame(LIST_OFFSETS, 7, end_request())
            )
            rule.wait_held()
            rule.release()
            assert fetched(client.receive(FETCH, 12)[1]) == b""
            assert client.receive(LIST_OFFSETS, 7)[1].topics[0].partitions[0].offset == 1


def test_a_fetch_waits_whatever_else_is_asked_behind_it(connect: Connect) -> None:
    client, other = connect(), connect()
    client.socket.settimeout(60)
    client.socket.sendall(client.frame(FETCH, 12, fetch_request(0, max_wait_ms=3_600_000)))
    client.socket.sendall(client.frame(FETCH, 12, fetch_request(0)))
    client.socket.sendall(client.frame(LIST_OFFSETS, 7, end_request()))  # is not next
    for _ in range(20):
        other.ask(LIST_OFFSETS, 7, end_request())
    assert offset_of(other.ask(PRODUCE, 9, produce_request(batch(b"wakes")))) == 0
    assert b"wakes" in fetched(client.receive(FETCH, 12)[1])
    assert b"wakes" in fetched(client.receive(FETCH, 12)[1])
    assert client.receive(LIST_OFFSETS, 7)[1].topics[0].partitions[0].offset == 1


def test_a_fetch_waits_for_min_bytes_or_max_wait(connect: Connect) -> None:
    client, other = connect(), connect()
    begin = time.monotonic()
    assert fetched(client.ask(FETCH, 12, fetch_request(0, max_wait_ms=200))) == b""
    assert time.monotonic() - begin >= 0.19
    client.socket.sendall(client.frame(FETCH, 12, fetch_request(0, max_wait_ms=20_000, min_bytes=500)))
    for _ in range(3):
        other.ask(PRODUCE, 9, produce_request(batch(b"x" * 150)))
    assert len(fetched(client.receive(FETCH, 12)[1])) >= 500


def test_a_client_that_never_reads_does_not_disturb_the_others(connect: Connect) -> None:
    greedy, other = connect(), connect()
    for _ in range(3):
        other.ask(PRODUCE, 9, produce_request(batch(b"x" * 900_000)))
    greedy.socket.settimeout(1)
    frame = greedy.frame(FETCH, 12, fetch_request(0))
    sent = 0
    try:
        while sent < 50_000_000:  # the broker must stop reading long before
            sent += greedy.socket.send(frame * 100)
    except TimeoutError:
        pass
    assert sent < 50_000_000
    assert offset_of(other.ask(PRODUCE, 9, produce_request(batch()))) == 3
    greedy.socket.settimeout(60)
    for _ in range(20):
        assert len(fetched(greedy.receive(FETCH, 12)[1])) > 900_000


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 5_000_001),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, PRODUCE, 99, 1, -1),
        struct.pack(">ihhih", 10, PRODUCE, 2, 1, -1),
        struct.pack(">ihhih", 10, PRODUCE, 9, 1, 30000),
        struct.pack(">ihhih", 11, FETCH, 12, 1, -1) + b"\xff",
        struct.pack(">ihhih", 12, FETCH, 12, 1, -1) + b"\x01\x05",
        struct.pack(">ihhih", 13, FETCH, 12, 1, -1) + b"\x01\x05\x09",
    ],
    ids=[
        "negative",
        "oversized",
        "no header",
        "unknown api",
        "future version",
        "produce 2",
        "client id",
        "the count of tags ends early",
        "a tag without its size",
        "a tag longer than the frame",
    ],
)
def test_what_is_no_request_closes_its_connection_and_no_other(
    connect: Connect, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = connect(), connect()
    client.socket.sendall(frame)
    assert client.is_closed()
    assert offset_of(other.ask(PRODUCE, 9, produce_request(batch()))) == 0
    (said,) = [record for record in caplog.records if record.name == "barnabas.connection"]
    assert said.exc_info is None, "a line, and no traceback"


def test_garbage_costs_a_few_lines_of_the_log(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        client = connect()
        client.socket.sendall(struct.pack(">ihhih", 10, 5000 + number, 0, 1, -1))
        assert client.is_closed()
    said = [record.getMessage() for record in caplog.records if record.name == "barnabas.connection"]
    assert len(said) == REASONS_MAX + 1
    assert said[0].startswith("closing connection of 127.0.0.1:")
    assert said[0].endswith("API key 5000 is not served")


def refusal_in(received: bytes) -> Refused:
    """What a node is answered, which is one frame."""
    ((kind, payload),) = FrameReader().read(received)
    assert kind == REFUSED
    return decode(payload, Refused)


def test_a_node_that_takes_the_port_for_a_controllers_is_refused(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        client = connect()
        client.socket.sendall(PREFACE + encode_frame(HELLO, encode(Hello(1, 1, "none", bytes(16))), None))
        received = b""
        while data := client.socket.recv(4096):
            received += data
        refused = refusal_in(received)
        assert not refused.passing
        assert "PLAINTEXT is a listener for clients" in refused.reason
        assert "controller.quorum.voters" in refused.reason
    (said,) = [record.getMessage() for record in caplog.records if "node of a cluster" in record.getMessage()]
    assert said.startswith("127.0.0.1: ")
    assert not any("frame of" in record.getMessage() for record in caplog.records)


def test_tls_on_a_plain_listener_is_named_once(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        client = connect()
        client.socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
        assert client.is_closed()
    (said,) = [record.getMessage() for record in caplog.records if "TLS" in record.getMessage()]
    assert said.startswith("127.0.0.1: a TLS handshake on the listener PLAINTEXT")
    assert not any("frame of" in record.getMessage() for record in caplog.records)


def test_acks_0_gets_no_answer_and_a_failure_closes(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(client.frame(PRODUCE, 9, produce_request(batch(), acks=0)))
    assert offset_of(client.ask(PRODUCE, 9, produce_request(batch()))) == 1
    client.socket.sendall(client.frame(PRODUCE, 9, produce_request(b"\0" * 80, acks=0)))
    assert client.is_closed()


def test_an_unknown_api_versions_version_is_answered_in_version_0(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(struct.pack(">ihhih", 10, API_VERSIONS, 99, 7, -1))
    correlation_id, answer = client.receive(API_VERSIONS, 0)
    assert (correlation_id, answer.error_code) == (7, 35)
    assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == [(18, 0, 4)]


def test_a_client_that_leaves_while_its_fetch_waits_is_forgotten(
    server: ThreadedNode, connect: Connect
) -> None:
    leaver, other = connect(), connect()
    leaver.socket.sendall(leaver.frame(FETCH, 12, fetch_request(0, max_wait_ms=3_600_000)))
    eventually(lambda: waiting_fetches(server))
    leaver.socket.close()
    eventually(lambda: not waiting_fetches(server))
    assert offset_of(other.ask(PRODUCE, 9, produce_request(batch()))) == 0
    assert offset_of(other.ask(PRODUCE, 9, produce_request(batch()))) == 1


def test_nothing_is_served_while_the_client_does_not_take_its_answers(
    server: ThreadedNode, connect: Connect
) -> None:
    greedy, other = connect(), connect()
    for _ in range(8):
        other.ask(PRODUCE, 9, produce_request(batch(b"x" * 900_000)))
    everything = fetch_request(0)
    everything.topics[0].partitions[0].partition_max_bytes = 1 << 24
    greedy.socket.sendall(greedy.frame(FETCH, 12, everything) * 3)
    eventually(lambda: is_blocked(server))
    for _ in range(10):  # each in a read of its own
        before = unserved_bytes(server)
        greedy.socket.sendall(greedy.frame(PRODUCE, 9, produce_request(batch())))
        eventually(lambda before=before: unserved_bytes(server) > before)
    assert offset_of(other.ask(PRODUCE, 9, produce_request(batch()))) == 8
    for _ in range(3):
        greedy.receive(FETCH, 12)
    assert [offset_of(greedy.receive(PRODUCE, 9)[1]) for _ in range(10)] == list(range(9, 19))


@pytest.mark.parametrize("size", [20_000, 65_000, 150_000])
def test_answers_reach_a_slow_reader_whole(connect: Connect, size: int) -> None:
    reader, other = connect(), connect()
    batches = [batch(bytes([65 + number]) * size) for number in range(7)]
    for made in batches:
        other.ask(PRODUCE, 9, produce_request(made))
    count = 20_000_000 // size  # more than the sockets hold
    for number in range(count):
        request = fetch_request(number % 7)
        request.topics[0].partitions[0].partition_max_bytes = 1
        request.session_epoch = -1
        reader.socket.sendall(reader.frame(FETCH, 12, request))
    for number in range(count):
        correlation_id, answer = reader.receive(FETCH, 12)
        assert correlation_id == number + 1
        records = fetched(answer)
        assert len(records) == len(batches[number % 7])
        assert records[61:] == batches[number % 7][61:]


def test_what_came_before_a_bad_frame_is_answered(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(client.frame(PRODUCE, 9, produce_request(batch())) + struct.pack(">i", -1))
    assert offset_of(client.receive(PRODUCE, 9)[1]) == 0
    assert client.is_closed()
    client = connect()
    client.socket.sendall(client.frame(PRODUCE, 9, produce_request(batch())) + struct.pack(">i", 3) + b"abc")
    assert offset_of(client.receive(PRODUCE, 9)[1]) == 1
    assert client.is_closed()


def test_an_answer_whose_file_has_shrunk_closes_its_connection(
    server: ThreadedNode, connect: Connect, directory: Path
) -> None:
    client, other = connect(), connect()
    for _ in range(8):
        other.ask(PRODUCE, 9, produce_request(batch(b"x" * 900_000)))
    request = fetch_request(0)
    request.topics[0].partitions[0].partition_max_bytes = 1 << 24
    client.socket.sendall(client.frame(FETCH, 12, request))
    eventually(lambda: is_blocked(server))
    os.truncate(directory / f"{TOPIC}-0" / f"{0:020d}.log", 100)
    client.socket.settimeout(60)
    with pytest.raises((EOFError, ConnectionResetError)):
        client.receive_bytes(7_200_000)


def test_a_connection_takes_one_descriptor_and_gives_it_back(connect: Connect) -> None:
    connect().ask(API_VERSIONS, 3, ApiVersionsRequest())

    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))

    before, clients = descriptors(), 50
    opened = [connect() for _ in range(clients)]
    for each in opened:
        each.ask(API_VERSIONS, 3, ApiVersionsRequest())
    assert descriptors() - before < 2.5 * clients  # with the clients' own
    for each in opened:
        each.socket.close()
    eventually(lambda: descriptors() - before < clients / 2)


def test_a_broker_that_never_closes_idle_connections_stops(tmp_path: Path) -> None:
    properties = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    runtime = AsyncioRuntime()
    node = Node(BrokerConfig.from_properties({**properties, "connections.max.idle.ms": "-1"}), runtime)
    node.start()
    node.stop()
    runtime.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
