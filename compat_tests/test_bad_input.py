"""Invalid requests: the broker answers Kafka's error or closes the connection, and keeps serving.

After each test the shared broker must still serve and hold what it acknowledged before.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import BrokerFactory, TopicFactory, UniqueName
from compat_tests.harness.raw import RawConnection, batch, good_batch, record, request, string
from compat_tests.harness.topics import create_topic

NONE, OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION = 0, 1, 2, 3
MESSAGE_TOO_LARGE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 10, 22, 25
UNSUPPORTED_VERSION, UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD = 35, 43, 87

PRODUCE, METADATA, OFFSET_COMMIT, FIND_COORDINATOR = 0, 3, 8, 10
HEARTBEAT, API_VERSIONS, CREATE_TOPICS = 12, 18, 19
NOT_YET = (struct.pack(">h", 14), struct.pack(">h", 16))  # loading, or no coordinator


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest, broker: Broker, topic: TopicFactory) -> Iterator[None]:
    """The shared broker keeps serving, and keeps a record acknowledged before the test."""
    name = topic(prefix="before")
    with RawConnection(broker.bootstrap) as connection:
        assert raw.produce(connection, name, good_batch(b"acknowledged")) == (NONE, 0)
    yield
    with RawConnection(broker.bootstrap) as connection:
        assert raw.api_versions_v0(connection) == NONE
        assert raw.produce(connection, name, good_batch(b"after")) == (NONE, 1)
        error, high_watermark, records = raw.fetch(connection, name, 0)
        assert (error, high_watermark) == (NONE, 2)
        assert b"acknowledged" in records


CLOSED = {
    "negative frame length": b"\xff\xff\xff\xff",
    "most negative frame length": b"\x80\x00\x00\x00",
    "oversized frame": struct.pack(">i", 104857601) + b"\x00\x12\x00\x00",
    "largest frame": b"\x7f\xff\xff\xff",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}

CLOSED_REQUESTS = {
    "empty request": b"",
    "three bytes": b"\x00\x12\x00",
    "header cut in the client id": struct.pack(">hhih", METADATA, 1, 1, 100) + b"abc",
    "client id of length -2": struct.pack(">hhih", METADATA, 1, 1, -2),
    "unknown api key": request(999, 0, b""),
    "negative api key": request(-1, 0, b""),
    "metadata version too high": request(METADATA, 99, b"\xff\xff\xff\xff"),
    "negative version": request(METADATA, -1, b"\xff\xff\xff\xff"),
    "produce below the lowest served": request(PRODUCE, 2, struct.pack(">hii", -1, 100, 0)),
    "fetch below the lowest served": request(1, 3, b"\x00" * 16),
    "controller's api": request(52, 0, b"\x00" * 8, flexible=True),
    "null topic name": request(CREATE_TOPICS, 2, struct.pack(">i", 1) + string(None) + b"\x00" * 30),
    "array of 2^31-1": request(METADATA, 1, b"\x7f\xff\xff\xff"),
    "array of 2^31-1 partitions": request(
        PRODUCE, 7, string(None) + struct.pack(">hii", -1, 1000, 1) + string("t") + b"\x7f\xff\xff\xff"
    ),
    "negative array": request(CREATE_TOPICS, 2, b"\xff\xff\xff\xfe"),
    "compact length that overflows": request(METADATA, 9, b"\xff\xff\xff\xff\xff\xff\x01", flexible=True),
    "compact array of 2^31-1": request(METADATA, 9, b"\xff\xff\xff\xff\x0f", flexible=True),
    "tagged fields of 2^31-1": struct.pack(">hhi", METADATA, 9, 1) + string("raw") + b"\xff\xff\xff\xff\x0f",
    "records longer than the request": request(
        PRODUCE,
        7,
        string(None) + struct.pack(">hii", -1, 1000, 1) + string("t") + struct.pack(">iii", 1, 0, 1 << 30),
    ),
    "body cut short": request(HEARTBEAT, 0, string("group")),
    "invalid utf-8 is cut": request(METADATA, 1, struct.pack(">ih", 1, 50) + b"\xff\xfe"),
}


@pytest.mark.parametrize("data", CLOSED.values(), ids=CLOSED.keys())
def test_frames_that_close_the_connection(broker: Broker, data: bytes) -> None:
    with RawConnection(broker.bootstrap) as connection:
        connection.socket.sendall(data)
        assert connection.is_closed()


@pytest.mark.parametrize("payload", CLOSED_REQUESTS.values(), ids=CLOSED_REQUESTS.keys())
def test_requests_that_close_the_connection(broker: Broker, payload: bytes) -> None:
    with RawConnection(broker.bootstrap) as connection:
        connection.send(payload)
        assert connection.is_closed()


@pytest.mark.barnabas_only
def test_a_refused_request_is_logged_in_one_line(fresh_broker: BrokerFactory) -> None:
    own = fresh_broker()
    for payload in (CLOSED_REQUESTS["unknown api key"], CLOSED_REQUESTS["array of 2^31-1"]):
        before = own.log_text()
        with RawConnection(own.bootstrap) as connection:
            connection.send(payload)
            assert connection.is_closed()
        eventually(lambda before=before: own.log_text() != before)
        stays(lambda before=before: len(own.log_text()[len(before) :].strip().splitlines()) == 1, 0.1)
        assert "127.0.0.1" in own.log_text()[len(before) :]


def test_a_truncated_frame_is_dropped(broker: Broker) -> None:
    with RawConnection(broker.bootstrap) as connection:
        connection.socket.sendall(struct.pack(">i", 100) + b"\x00\x12\x00\x00")
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.is_closed()


def test_frames_in_tiny_pieces(broker: Broker) -> None:
    payload = request(API_VERSIONS, 0, b"")
    with RawConnection(broker.bootstrap) as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in struct.pack(">i", len(payload)) + payload:
            connection.socket.sendall(bytes([byte]))
            time.sleep(0.002)  # the broker reads each byte separately
        assert connection.receive()[:6] == struct.pack(">ih", 7, NONE)


def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    with RawConnection(broker.bootstrap) as connection:
        frames = b""
        for correlation in range(200):
            payload = request(API_VERSIONS, 0, b"", correlation)
            frames += struct.pack(">i", len(payload)) + payload
        connection.socket.sendall(frames)
        answers = [struct.unpack(">i", connection.receive()[:4])[0] for _ in range(200)]
    assert answers == list(range(200))


def test_api_versions_at_an_unknown_version(broker: Broker) -> None:
    with RawConnection(broker.bootstrap) as connection:
        answer = connection.ask(request(API_VERSIONS, 99, b"\x00", flexible=True))
    error, count = struct.unpack_from(">hi", answer)
    assert (error, count) == (UNSUPPORTED_VERSION, 1)
    assert struct.unpack_from(">hhh", answer, 6) == (API_VERSIONS, 0, 4)


def _flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


BAD_BATCHES = {
    "bad crc": (batch(record(b"v"), crc=12345), CORRUPT_MESSAGE),
    "a flipped bit in the value": (_flip(good_batch(b"value"), -3), CORRUPT_MESSAGE),
    "count above the offset delta": (batch(record(b"v"), count=2, last_offset_delta=0), INVALID_RECORD),
    "offset delta above the count": (batch(record(b"v"), count=1, last_offset_delta=5), INVALID_RECORD),
    "negative offset delta": (batch(record(b"v"), count=1, last_offset_delta=-2), INVALID_RECORD),
    "count of zero": (batch(b"", count=0, last_offset_delta=0), INVALID_RECORD),
    "count of zero, delta -1": (batch(b"", count=0, last_offset_delta=-1), INVALID_RECORD),
    "negative count": (batch(record(b"v"), count=-1, last_offset_delta=0), INVALID_RECORD),
    "magic 1": (batch(record(b"v"), magic=1), INVALID_RECORD),
    "magic 3": (batch(record(b"v"), magic=3), CORRUPT_MESSAGE),
    "a control batch": (batch(record(b"v"), attributes=0x20), INVALID_RECORD),
    "two batches": (good_batch(b"a") + good_batch(b"b"), INVALID_RECORD),
    "a batch cut short": (good_batch(b"value")[:-2], INVALID_RECORD),
    "a header cut short": (good_batch(b"value")[:40], INVALID_RECORD),
    "batch length below a header": (struct.pack(">qi", 0, 10) + b"\x00" * 49, CORRUPT_MESSAGE),
    "negative batch length": (struct.pack(">qi", 0, -1) + b"\x00" * 49, CORRUPT_MESSAGE),
}


@pytest.mark.parametrize(("data", "error"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_batches_that_are_refused(broker: Broker, topic: TopicFactory, data: bytes, error: int) -> None:
    """Nothing of the batch is appended; another partition of the request takes its records.

    Kafka gives the whole request the error when it cannot separate the batches.
    """
    name = topic(partitions=2)
    with RawConnection(broker.bootstrap) as connection:
        found = raw.produce_many(connection, name, {0: data, 1: good_batch(b"beside")})
        assert found[0][0] == error
        assert found[1] in ((NONE, 0), (error, -1))
        assert raw.produce(connection, name, good_batch(b"good")) == (NONE, 0), "nothing was appended"


def test_unknown_topic_and_partition(broker: Broker, topic: TopicFactory) -> None:
    name = topic()
    with RawConnection(broker.bootstrap) as connection:
        assert raw.produce(connection, name, good_batch(b"v"), partition=9)[0] == UNKNOWN_TOPIC_OR_PARTITION
        assert raw.produce(connection, name, good_batch(b"v"), partition=-1)[0] == UNKNOWN_TOPIC_OR_PARTITION
        assert raw.produce(connection, "no-such-topic", good_batch(b"v"))[0] == UNKNOWN_TOPIC_OR_PARTITION
        assert raw.fetch(connection, name, 0, partition=9)[0] == UNKNOWN_TOPIC_OR_PARTITION
        assert raw.fetch(connection, "no-such-topic", 0)[0] == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("offset", [-1, 4, 2**62])
def test_fetch_out_of_range(broker: Broker, topic: TopicFactory, offset: int) -> None:
    name = topic()
    with RawConnection(broker.bootstrap) as connection:
        assert raw.produce(connection, name, good_batch(b"a", b"b", b"c")) == (NONE, 0)
        assert raw.fetch(connection, name, offset)[0] == OFFSET_OUT_OF_RANGE
        assert raw.fetch(connection, name, 3) == (NONE, 3, b""), "the end is in range"


def test_unknown_member_and_stale_generation(broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
    name, group = topic(), unique("group")
    with RawConnection(broker.bootstrap) as connection:
        # FindCoordinator creates the offsets topic; until the topic is loaded there is no coordinator
        eventually(lambda: connection.ask(request(FIND_COORDINATOR, 0, string(group)))[:2] == b"\x00\x00")
        heartbeat = request(HEARTBEAT, 0, string(group) + struct.pack(">i", 1) + string("nobody"))
        eventually(lambda: connection.ask(heartbeat) not in NOT_YET)
        assert connection.ask(heartbeat) == struct.pack(">h", UNKNOWN_MEMBER_ID)

        joined = connection.ask(request(11, 1, _join(group)))
        error, generation = struct.unpack_from(">hi", joined)
        assert error == NONE
        member = _member_id(joined)
        for stale, expected in ((generation + 1, ILLEGAL_GENERATION), (generation - 1, ILLEGAL_GENERATION)):
            body = string(group) + struct.pack(">i", stale) + string(member)
            assert connection.ask(request(HEARTBEAT, 0, body)) == struct.pack(">h", expected)
            assert _commit(connection, group, stale, member, name) == expected
        assert _commit(connection, group, generation, "nobody", name) == UNKNOWN_MEMBER_ID


def _join(group: str) -> bytes:
    protocols = raw.array([string("range") + struct.pack(">i", 4) + b"abcd"])
    return string(group) + struct.pack(">ii", 6000, 6000) + string("") + string("consumer") + protocols


def _member_id(joined: bytes) -> str:
    position = 6
    for _ in range(2):  # protocol and leader come first
        (length,) = struct.unpack_from(">h", joined, position)
        position += 2 + length
    (length,) = struct.unpack_from(">h", joined, position)
    return joined[position + 2 : position + 2 + length].decode()


def _commit(connection: RawConnection, group: str, generation: int, member: str, topic: str) -> int:
    partitions = raw.array([struct.pack(">iq", 0, 5) + string("")])
    body = string(group) + struct.pack(">i", generation) + string(member) + struct.pack(">q", -1)
    answer = connection.ask(request(OFFSET_COMMIT, 2, body + raw.array([string(topic) + partitions])))
    return int(struct.unpack(">h", answer[-2:])[0])


def test_a_client_that_sends_and_never_reads(broker: Broker, topic: TopicFactory) -> None:
    """The broker stops reading from that client instead of buffering answers; others are served meanwhile."""
    name = topic()
    with RawConnection(broker.bootstrap) as connection:
        raw.produce(connection, name, good_batch(b"x" * 500_000))
    partitions = raw.array([struct.pack(">iqi", 0, 0, 1 << 20)])
    body = struct.pack(">iiiib", -1, 0, 1, 50 << 20, 0) + raw.array([string(name) + partitions])
    payload = request(1, 4, body)
    frame = struct.pack(">i", len(payload)) + payload
    before = broker.resident_bytes() if broker.process is not None else 0
    with RawConnection(broker.bootstrap, timeout=1) as greedy:
        greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sent = 0
        try:
            while sent < 20_000 * len(frame):  # answers to all of them would take 10 GB
                sent += greedy.socket.send(frame * 100)
        except TimeoutError:
            pass
        with RawConnection(broker.bootstrap) as other:
            assert raw.api_versions_v0(other) == NONE
        if broker.process is not None:
            assert broker.resident_bytes() - before < 200 << 20


def test_a_client_that_connects_and_never_sends(fresh_broker: BrokerFactory) -> None:
    own = fresh_broker({"connections.max.idle.ms": "3000"})
    with RawConnection(own.bootstrap) as idle, RawConnection(own.bootstrap) as busy:
        while not idle.is_closed(0.25):
            assert raw.api_versions_v0(busy) == NONE, "a connection in use stays"
        assert raw.api_versions_v0(busy) == NONE, "a connection in use stays"


def test_ten_thousand_connections(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({"socket.listen.backlog.size": "1000"})
    descriptors = len(list(_descriptors(broker)))
    for number in range(10_000):
        connection = socket.create_connection((broker.host, broker.port), timeout=30)
        if number % 3 == 1:
            connection.sendall(b"\x00\x00\x00\x50half a frame")
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
    with RawConnection(broker.bootstrap) as survivor:
        assert raw.api_versions_v0(survivor) == NONE
    if descriptors:
        eventually(lambda: len(list(_descriptors(broker))) < descriptors + 50)


def _descriptors(broker: Broker) -> Iterator[str]:
    from pathlib import Path

    folder = Path(f"/proc/{broker.pid}/fd") if broker.process is not None else Path("/nonexistent")
    if folder.is_dir():
        yield from (one.name for one in folder.iterdir())


INVALID = {
    "a record says it is longer than the batch": batch(raw.zigzag(10_000) + b"\x00" * 20),
    "a record of negative length": batch(raw.zigzag(-5) + b"\x00" * 20),
    "bytes that are not records": batch(b"\xff" * 40, count=3),
    "fewer records than the header says": batch(record(b"only one"), count=3),
    "bytes behind the last record": batch(record(b"one") + b"garbage"),
    "offset deltas that jump": batch(record(b"a", 0) + record(b"b", 7), count=2),
    "compressed rubbish": batch(b"this is not gzip at all", attributes=1),
}
ACCEPTED_BY_KAFKA = ("offset deltas that jump",)


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID.keys())
@pytest.mark.barnabas_only
def test_invalid_records_are_stored_unread_and_affect_nothing_else(
    broker: Broker, topic: TopicFactory, invalid: bytes
) -> None:
    """Kafka decodes records and answers INVALID_RECORD; this broker appends whole batches without decoding them."""
    name = topic(partitions=2)
    (count,) = struct.unpack_from(">i", invalid, 57)
    with RawConnection(broker.bootstrap) as connection:
        found = raw.produce_many(connection, name, {0: invalid, 1: good_batch(b"beside")})
        assert found == {0: (NONE, 0), 1: (NONE, 0)}
        assert raw.produce(connection, name, good_batch(b"behind")) == (NONE, count)
        error, high_watermark, records = raw.fetch(connection, name, 0)
        assert (error, high_watermark) == (NONE, count + 1)
        assert invalid[61:] in records, "the consumer gets the batch unchanged"
        assert b"behind" in raw.fetch(connection, name, count)[2]
        assert b"beside" in raw.fetch(connection, name, 0, partition=1)[2]
        # a timestamp lookup that decodes the invalid batch is answered, for the other partition as well
        body = struct.pack(">i", -1) + raw.array(
            [string(name) + raw.array([struct.pack(">iq", one, 1_600_000_000_000) for one in (0, 1)])]
        )
        answer = connection.ask(request(2, 1, body))
        assert struct.unpack_from(">i", answer, 4 + 2 + len(name)) == (2,)
        by_partition = {}
        for position in range(4 + 2 + len(name) + 4, len(answer), 4 + 2 + 8 + 8):
            partition, code, _, offset = struct.unpack_from(">ihqq", answer, position)
            by_partition[partition] = (code, offset)
        assert by_partition[1] == (NONE, 0)


@pytest.mark.barnabas_only
def test_a_log_with_invalid_records_is_recovered(fresh_broker: BrokerFactory) -> None:
    own = fresh_broker()
    name = create_topic(own.bootstrap, "invalid", configs={"retention.ms": "-1"})
    with RawConnection(own.bootstrap) as connection:
        for invalid in INVALID.values():
            assert raw.produce(connection, name, invalid)[0] == NONE
        _, end = raw.produce(connection, name, good_batch(b"truth"))
    own.restart(kill=True)
    with RawConnection(own.bootstrap) as connection:
        eventually(lambda: raw.fetch(connection, name, end)[0] == NONE)
        assert b"truth" in raw.fetch(connection, name, end)[2]
        assert raw.produce(connection, name, good_batch(b"more")) == (NONE, end + 1)


@pytest.mark.barnabas_only
def test_invalid_records_are_refused_when_validation_is_on(fresh_broker: BrokerFactory) -> None:
    own = fresh_broker({"barnabas.validate.records": "true"})
    name = create_topic(own.bootstrap, "invalid", partitions=2)
    with RawConnection(own.bootstrap) as connection:
        for what, invalid in INVALID.items():
            found = raw.produce_many(connection, name, {0: invalid, 1: good_batch(b"v")})
            if what not in ACCEPTED_BY_KAFKA:
                assert found[0][0] in (INVALID_RECORD, CORRUPT_MESSAGE), what
            assert found[1][0] == NONE
        assert raw.produce(connection, name, good_batch(b"good"))[0] == NONE


def test_kafka_refuses_invalid_records(broker: Broker, broker_kind: str, topic: TopicFactory) -> None:
    """Kafka's behaviour, from which this broker differs."""
    if broker_kind == "barnabas":
        pytest.skip("asserts the behaviour of Apache Kafka")
    name = topic()
    with RawConnection(broker.bootstrap) as connection:
        for what, invalid in INVALID.items():
            error, _ = raw.produce(connection, name, invalid)
            assert (error != NONE) == (what not in ACCEPTED_BY_KAFKA), what
