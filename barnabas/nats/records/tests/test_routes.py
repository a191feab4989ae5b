"""The encoder against a slow model: which message becomes which record of which partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.nats.client.headers import (
    MalformedHeaders,
    Pairs,
    parse_headers,
    read_status,
)
from barnabas.nats.egress.message import MessageHeaders
from barnabas.nats.records import parts as record_parts
from barnabas.nats.records import routes
from barnabas.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.keys import compile_key
from barnabas.nats.records.partitioners import BadPartition, compile_partitioner
from barnabas.nats.records.parts import header_parts, sized
from barnabas.nats.records.routes import KeyRoutes
from barnabas.nats.tests.header_blocks import format_headers, stream_parts
from barnabas.wire.records import Record, iterate_records

COUNT = 3
NOW_MS = 1_700_000_000_123
SPECIAL = (b"Nats-Msg-Id", b"Kafka-Ack")

Message = tuple[bytes, bytes, bytes, bytes]
Told = tuple[int, bytes, bytes, Pairs]


class Intake:
    """An encoder and all that came out of it."""

    def __init__(
        self,
        key: str = "subject",
        partitioner: str = "murmur2",
        *,
        served: Sequence[int] = range(COUNT),
        wanted: Callable[[bytes], bool] | None = None,
        reply_is_special: bool = False,
    ) -> None:
        self.key_of = compile_key(key)
        self.partition_of = compile_partitioner(partitioner, COUNT, key)
        self.builders = {partition: BatchBuilder() for partition in served}
        self.special: list[Told] = []
        self.refused: list[Message] = []
        self.served = served
        self.encoder = Encoder(
            self.key_of,
            self.partition_of,
            COUNT,
            {partition: builder.add for partition, builder in self.builders.items()},
            special=self._special,
            refused=self._refused,
            wanted=wanted,
            is_special=SPECIAL.__contains__,
            reply_is_special=reply_is_special,
        )

    def _special(self, partition: int, reply: bytes, block: bytes, found: Pairs, tail: bytes) -> None:
        self.special.append((partition, reply, block, found))
        self.builders[partition].add(tail)

    def _refused(
        self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes, error: BadPartition
    ) -> None:
        assert error.partition in self.served
        self.refused.append((subject, reply, header_block, payload))

    def records(self) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {}
        for partition, builder in self.builders.items():
            found[partition] = []
            for batch in builder.finish(NOW_MS, 1 << 30):
                assert isinstance(batch, Batch)
                found[partition] += iterate_records(batch.records)
        return found


class Model:
    """What should come out, each message by itself and nothing remembered."""

    def __init__(self, intake: Intake, wanted: Callable[[bytes], bool], reply_is_special: bool) -> None:
        self.intake = intake
        self.wanted = wanted
        self.reply_is_special = reply_is_special
        self.records: dict[int, list[Record]] = {partition: [] for partition in intake.served}
        self.special: list[Told] = []
        self.refused: list[Message] = []

    def take(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        if not self.wanted(subject):
            return
        key = self.intake.key_of(subject, reply, block, payload)
        partition = self.intake.partition_of(subject, key)
        headers = [(b"nats.subject", subject)]
        if reply:
            headers.append((b"nats.reply", reply))
        own, special = self.own_headers(block)
        asked = [value for name, value in own if name == b"Kafka-Partition"]
        if asked:
            number = asked[0].strip(b" ")
            if number not in (b"0", b"1", b"2"):
                if partition in self.records:
                    self.refused.append((subject, reply, block, payload))
                return
            partition = int(number)
        if partition not in self.records:
            return
        if special or (self.reply_is_special and reply):
            self.special.append((partition, reply, block, special))
        offset = len(self.records[partition])
        named: list[tuple[str, bytes | None]] = [(name.decode(), value) for name, value in headers + own]
        self.records[partition].append(Record(offset, NOW_MS, key, payload, named))

    def own_headers(self, block: bytes) -> tuple[Pairs, Pairs]:
        if not block:
            return [], []
        try:
            pairs = parse_headers(block)
            [name.decode() for name, _ in pairs]
            status = read_status(block)
        except (MalformedHeaders, UnicodeDecodeError):
            raw = [(b"nats.headers.raw", block)]
            return raw, raw
        special = [pair for pair in pairs if pair[0] in SPECIAL]
        return ([(b"nats.status", status)] if status else []) + pairs, special


subjects = st.sampled_from([b"a", b"a.b", b"a.b.c", b"a.1", b"b.2", b"\xff.b", b"c", b"a." + b"x" * 90])
replies = st.sampled_from([b"", b"", b"_INBOX.1", b"r" * 200])
values = st.sampled_from([b"", b"1", b"x: y", b" blank", b"\xff\xfe", b"\n", bytes(70), b"5", b" 2"])
names = st.sampled_from(
    [b"A", b"a", b"Id", b"Nats-Msg-Id", b"Kafka-Ack", b"Kafka-Partition", b"", b"\xff", b"x" * 300]
)
blocks = (
    st.just(b"")
    | st.lists(st.tuples(names, values), max_size=4).map(format_headers)
    | st.lists(st.tuples(names, st.sampled_from([b"0", b"1", b"2", b"3"])), max_size=2).map(format_headers)
    | st.lists(
        st.sampled_from([b"A", b"A:1", b"A: 1", b"A:", b":", b"", b"A : 1", b"B: x: y", b"A:b: c"])
    ).map(lambda lines: b"NATS/1.0\r\n" + b"\r\n".join(lines) + b"\r\n\r\n")
    | st.sampled_from(
        [
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0 503 No Responders\r\nA: 1\r\nKafka-Partition: 1\r\n\r\n",
            b"NATS/1.0\r\nA: " + bytes(20_000) + b"\r\nNats-Msg-Id: 1\r\n\r\n",
            b"nonsense",
            b"NATS/1.0\r\nA: 1\r\n",
        ]
    )
)
payloads = st.sampled_from(
    [b"", b"x", b'{"id":"a"}', b'{"id":7}', b'{"id":"b"}', b'{"id":null}', bytes(20_000)]
)
messages = st.lists(st.tuples(subjects, replies, blocks, payloads), max_size=25)
keys = st.sampled_from(
    ["subject", "none", "token:2", "tokens:3,1", "regex:b(.)?", "reply", "header:Id", "header:A", "json:$.id"]
)
partitioners = st.sampled_from(["murmur2", "fnv1a", "token:2"])


@given(messages, keys, partitioners, st.sets(st.integers(0, 2)), st.booleans(), st.booleans())
@example(
    [(b"a", b"", b"NATS/1.0\r\nKafka-Partition: 1\r\n\r\n", b"")], "subject", "murmur2", {1}, False, False
)
@example(
    [(b"c", b"", b"NATS/1.0\r\nKafka-Partition: 1\r\n\r\n", b"")], "json:$.id", "murmur2", {1}, True, False
)
@example(
    [(b"a", b"", b"NATS/1.0\r\nA: 1\r\nA\r\n\r\n", b"")] * 3, "subject", "murmur2", {0, 1, 2}, False, False
)
def test_records_equal_those_of_the_model(
    sent: list[Message],
    key: str,
    partitioner: str,
    served: set[int],
    is_filtered: bool,
    reply_is_special: bool,
) -> None:
    def wanted(subject: bytes) -> bool:
        return not is_filtered or not subject.startswith(b"c")

    intake = Intake(
        key,
        partitioner,
        served=sorted(served),
        wanted=wanted if is_filtered else None,
        reply_is_special=reply_is_special,
    )
    model = Model(intake, wanted, reply_is_special)
    for message in sent:
        intake.encoder.take(*message)
        model.take(*message)
    assert intake.special == model.special
    assert intake.refused == model.refused
    assert intake.records() == model.records


def test_encode_returns_partition_special_headers_and_tail() -> None:
    intake = Intake("token:2", served=())
    extra = stream_parts(b"ORDERS", b"17", b"1700000000000000001") + header_parts(b"hop", b"x")
    block = format_headers([(b"Nats-Msg-Id", b"5"), (b"Kafka-Partition", b"2"), (b"B", b"")])
    encoded = intake.encoder.encode(b"a.b", b"", block, None, extra)
    assert encoded is not None
    partition, special, tail = encoded
    assert (partition, special) == (2, [(b"Nats-Msg-Id", b"5")])
    builder = BatchBuilder()
    builder.add(tail)
    [batch] = builder.finish(NOW_MS, 1 << 20)
    assert isinstance(batch, Batch)
    [record] = iterate_records(batch.records)
    assert (record.key, record.value) == (b"b", None)
    assert record.headers == [
        ("nats.subject", b"a.b"),
        ("nats.stream", b"ORDERS"),
        ("nats.seq", b"17"),
        ("nats.timestamp", b"1700000000000000001"),
        ("hop", b"x"),
        ("Nats-Msg-Id", b"5"),
        ("Kafka-Partition", b"2"),
        ("B", b""),
    ]
    unwanted = Intake(wanted=lambda subject: False)
    assert unwanted.encoder.encode(b"a.b", b"", b"", b"") is None
    with pytest.raises(BadPartition) as caught:
        intake.encoder.encode(b"a.b", b"", b"NATS/1.0\r\nKafka-Partition: 3\r\n\r\n", b"")
    assert caught.value.partition == intake.partition_of(b"a.b", b"b")


def test_the_same_message_has_the_same_tail_wherever_it_is_encoded() -> None:
    message = (b"a.b", b"_INBOX.1", format_headers([(b"A", b"1")]), b"payload")
    leader, follower = Intake(served=range(3)), Intake(served=())
    leader.encoder.take(*message)
    encoded = follower.encoder.encode(*message)
    assert encoded is not None
    assert leader.builders[encoded[0]].tails == [encoded[2]]


def test_served_partitions_change() -> None:
    intake = Intake(served=())
    intake.encoder.take(b"a", b"", b"", b"1")
    builder = BatchBuilder()
    intake.encoder.serve(dict.fromkeys(range(COUNT), builder.add))
    intake.encoder.take(b"a", b"", b"", b"2")
    assert len(builder) == 1
    intake.encoder.serve({})
    intake.encoder.take(b"a", b"", b"", b"3")
    intake.encoder.take(b"a", b"", b"NATS/1.0\r\nKafka-Partition: 1\r\n\r\n", b"4")
    assert len(builder) == 1


def test_a_bounded_number_of_subjects_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "SUBJECTS_KEPT_MAX", 100)
    monkeypatch.setattr(routes, "SUBJECT_BYTES_KEPT_MAX", 5000)
    asked: list[bytes] = []

    def wanted(subject: bytes) -> bool:
        asked.append(subject)
        return True

    intake = Intake(wanted=wanted)
    kept = intake.encoder.routes.by_subject
    for index in range(250):
        intake.encoder.take(b"s.%d" % index, b"", b"", b"")
        assert len(kept) <= 100
    assert len(kept) == 50
    assert len(asked) == 250
    intake.encoder.take(b"s.249", b"", b"", b"")
    assert len(asked) == 250  # that one is kept
    for index in range(20):
        intake.encoder.take(b"x" * 1000 + b"%d" % index, b"", b"", b"")
        assert sum(map(len, kept)) <= 5000 + 2 * 1002
    assert sum(map(len, intake.records().values())) == 271


def test_a_bounded_number_of_keys_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KEYS_KEPT_MAX", 100)
    partition_of = compile_partitioner("murmur2", COUNT)
    kept = KeyRoutes(partition_of)
    for index in range(250):
        key = b"%d" % index
        assert kept[key] == (partition_of(b"", key), sized(key))
        assert kept[key] == (partition_of(b"", key), sized(key))
        assert key in kept
        assert len(kept) <= 100
    key = bytes(1000)
    assert kept[key] == (partition_of(b"", key), sized(key))
    assert key not in kept


def test_a_bounded_number_of_header_names_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parts, "NAMES_KEPT_MAX", 10)
    asked: list[bytes] = []

    def is_special(name: bytes) -> bool:
        asked.append(name)
        return name.startswith(b"S")

    add_headers = record_parts.make_header_adder(is_special)
    for index in range(25):
        name = b"%c-%d" % (b"SA"[index % 2], index)
        parts: list[bytes] = []
        found = add_headers(format_headers([(name, b"1"), (name, b"2")]), parts)
        assert found == ([(name, b"1"), (name, b"2")] if index % 2 == 0 else None)
        assert parts == [*header_parts(name, b"1"), *header_parts(name, b"2")]
    assert len(asked) == 25  # once each, while it is kept
    add_headers(format_headers([(b"S-0", b"")]), [])
    assert len(asked) == 26


def test_headers_of_published_records_are_stored_unchanged() -> None:
    """Anybody may publish these headers, so none of them makes a tombstone or another header here."""
    block = MessageHeaders("c", "t", bytes(16), 0).block(
        Record(7, NOW_MS, b"k", None, [("Nats-Msg-Id", b"1")])
    )
    intake = Intake()
    intake.encoder.take(b"a", b"", block, b"")
    [record] = [record for found in intake.records().values() for record in found]
    assert record.value == b""
    assert record.headers == [
        ("nats.subject", b"a"),
        ("Kafka-Header", b"Nats-Msg-Id=1"),
        ("Kafka-Tombstone", b"true"),
        ("Barnabas-Hops", b"c/t"),
        ("Nats-Msg-Id", b"AAAAAAAAAAAAAAAAAAAAAA/0/7"),
    ]
