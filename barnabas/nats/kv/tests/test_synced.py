"""A bucket and a topic that are both written to agree in the end, whatever is late, lost or repeated.

The bucket is a model with the server's rules (revisions, Nats-Msg-Id, the expected last revision of a key); what is under
test is the topic's way out, and the way in is what the bridge's ingest does: messages of others, once, in their order.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.partitions.partition import Partition
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.errors import NatsError, NotConnected
from barnabas.nats.client.headers import find_header
from barnabas.nats.client.protocol import ServerInfo
from barnabas.nats.client.subscriptions import Message
from barnabas.nats.cluster.positions import Position
from barnabas.nats.egress.partition_publisher import PartitionPublisher
from barnabas.nats.kv.bucket import value_of
from barnabas.nats.kv.synced import SyncedOutgoing
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.records import Record, build_batch, iterate_records
from compat_tests.virtual.runtime import VirtualRuntime

EXPECTED = b"Nats-Expected-Last-Subject-Sequence"


class Bucket:
    """The stream KV_b, and the client that is connected with it."""

    def __init__(self) -> None:
        self.is_connected = True
        self.info = ServerInfo()
        self.messages: list[
            tuple[bytes, bytes, bytes]
        ] = []  # subject, headers, payload; the revision is its place from 1
        self.last: dict[bytes, int] = {}  # by subject
        self.ids: dict[bytes, int] = {}
        self.sent: list[Callable[[str], object]] = []
        self.answer: Callable[[bytes, bytes], object] = lambda _reply, _payload: None
        self.made_at_s = 1

    def recreate(self) -> None:
        """Deletes the bucket and creates another one of the same name."""
        self.made_at_s += 1000
        self.messages, self.last, self.ids = [], {}, {}

    def stored_s(self, revision: int) -> int:
        return self.made_at_s + revision

    def put(self, subject: bytes, headers: bytes, payload: bytes) -> int:
        self.messages.append((subject, headers, payload))
        revision = self.last[subject] = len(self.messages)
        return revision

    def publish(self, subject: bytes, payload: bytes, *, reply: bytes = b"", headers: bytes = b"") -> None:
        if not self.is_connected:
            raise NotConnected("gone")

        def serve(what: str) -> None:
            identity = find_header(headers, b"Nats-Msg-Id") or b""
            expected = find_header(headers, EXPECTED)
            answer: dict[str, Any]
            if identity in self.ids:
                answer = {"stream": "KV_b", "seq": self.ids[identity], "duplicate": True}
            elif expected is not None and int(expected) != self.last.get(subject, 0):
                answer = {
                    "error": {"code": 400, "err_code": 10071, "description": "wrong"},
                    "stream": "KV_b",
                    "seq": 0,
                }
            else:
                self.ids[identity] = self.put(subject, headers, payload)
                answer = {"stream": "KV_b", "seq": self.ids[identity]}
            if what == "store":
                self.answer(reply, msgspec.json.encode(answer))

        self.sent.append(serve)

    def request(
        self,
        subject: bytes,
        payload: bytes,
        *,
        timeout_s: float,
        done: Callable[[Message | None, NatsError | None], object],
    ) -> None:
        assert subject == b"$JS.API.STREAM.MSG.GET.KV_b"
        wanted = msgspec.json.decode(payload)["last_by_subj"].encode()

        def serve(what: str) -> None:
            revision = self.last.get(wanted, 0)
            body: dict[str, Any] = {
                "error": {"code": 404, "err_code": 10037, "description": "no message found"}
            }
            if revision:
                hdrs = base64.b64encode(self.messages[revision - 1][1]).decode()
                time = datetime.fromtimestamp(self.stored_s(revision), UTC).isoformat()
                body = {"message": {"subject": wanted.decode(), "seq": revision, "time": time, "hdrs": hdrs}}
            if what == "gone":
                done(None, NotConnected("gone"))
            else:
                done(Message(b"", b"", b"", msgspec.json.encode(body)), None)

        self.sent.append(serve if self.is_connected else lambda _what: done(None, NotConnected("gone")))

    def serve(self, count: int, what: str) -> None:
        for _ in range(min(count, len(self.sent))):
            self.sent.pop(0)(what)


def bucket_headers(subject: bytes, revision: int, stored_s: int) -> list[tuple[str, bytes | None]]:
    """The headers of a record made from a message of the bucket."""
    return [
        ("nats.subject", subject),
        ("nats.stream", b"KV_b"),
        ("nats.seq", b"%d" % revision),
        ("nats.timestamp", b"%d" % (stored_s * 1_000_000_000)),
    ]


class Bench:
    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        disk = MemoryDisk()
        disk.make_directory("/logs")
        disk.make_directory("/logs/t-0")
        log = Log.open(disk, self.runtime, "/logs", "t", 0, bytes(16), LogConfig.from_properties({}))
        log.end_replication()
        self.partition = Partition("t", bytes(16), 0, log)
        self.partition.is_leader = True
        self.partition._alone = True
        self.bucket = self.client = Bucket()
        self.bucket.answer = self._answered
        self.stats = CarrierStats()
        self.messages_max, self.bytes_max = 8, 100_000
        self.leaders = 0
        self.inbox = b""
        self.group: Position | None = None
        self.ingested = 0  # messages of the bucket
        self.published = 0
        self.publisher = self._begin()

    def _begin(self) -> PartitionPublisher:
        self.leaders += 1
        self.inbox = b"_INBOX.%d." % self.leaders
        client: Any = self.client
        outgoing = SyncedOutgoing(
            "b", "", "c", "t", bytes(16), 0, client=client, stats=self.stats, is_home=lambda _key: True
        )
        publisher = PartitionPublisher(self, self.partition, outgoing)  # type: ignore[arg-type]
        publisher.begin(self.group)
        return publisher

    def _answered(self, reply: bytes, payload: bytes) -> None:
        if reply.startswith(self.inbox):
            _, attempt, offset = reply.removeprefix(self.inbox).split(b".")
            self.publisher.answered(int(attempt), int(offset), b"", payload)

    def ask_position(self, publisher: PartitionPublisher) -> None:
        publisher.moved_to(self.group)

    def has_confirmed(self, publisher: PartitionPublisher) -> None:
        """The test commits."""

    def write(self, key: bytes, value: bytes | None) -> None:
        """A Kafka client writes."""
        self.partition.append(build_batch([Record(0, 0, key, value)]))

    def put(self, key: bytes, value: bytes | None) -> None:
        """A NATS client writes."""
        headers = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n" if value is None else b""
        self.bucket.put(b"$KV.b." + key, headers, value or b"")

    def ingest(self, count: int) -> None:
        for _ in range(min(count, len(self.bucket.messages) - self.ingested)):
            subject, headers, payload = self.bucket.messages[self.ingested]
            self.ingested += 1
            if b"Barnabas-Hops: c/t" in headers:
                continue
            added = bucket_headers(subject, self.ingested, self.bucket.stored_s(self.ingested))
            record = Record(0, 0, subject[6:], value_of(headers, payload), added)
            self.partition.append(build_batch([record], from_extension=True), from_client=False)

    def step(self, step: tuple[Any, ...]) -> None:
        kind = step[0]
        self.published += 1
        if kind == "write":
            self.write(step[1], step[2] and b"kafka-%d" % self.published)
        elif kind == "put":
            self.put(step[1], step[2] and b"nats-%d" % self.published)
        elif kind == "ingest":
            self.ingest(step[1])
        elif kind == "serve":
            self.bucket.serve(step[1], step[2])
        elif kind == "disconnect" and self.bucket.is_connected:
            self.bucket.is_connected = False
            self.bucket.sent.clear()
            self.publisher.disconnected()
        elif kind == "connect" and not self.bucket.is_connected:
            self.bucket.is_connected = True
            self.publisher.connected()
        elif kind == "time":
            self.runtime.advance(step[1])
            self.publisher.check_timeout(self.runtime.monotonic())
        elif kind == "commit":
            offset = self.publisher.confirmed
            self.group = Position(offset, -1, self.publisher.metadata())
            self.publisher.committed_to(offset)
        elif kind == "new leader":
            self.publisher.stop()
            self.publisher = self._begin()
        self.runtime.run_until_idle()

    def finish(self) -> None:
        self.step(("connect",))
        for _ in range(400):
            if self.publisher.confirmed == self.partition.log.log_end_offset and self.ingested == len(
                self.bucket.messages
            ):
                break
            self.step(("ingest", 1000))
            self.step(("serve", 1000, "store"))
            self.step(("time", 1.0))
        assert not self.publisher.lag

    def in_topic(self) -> dict[bytes, bytes | None]:
        log = self.partition.log
        found: dict[bytes, bytes | None] = {}
        data = b"".join(region.read() for region in log.read(log.log_start_offset, 1 << 30).regions)
        while data:
            size = 12 + int.from_bytes(data[8:12], "big")
            found.update((record.key or b"", record.value) for record in iterate_records(data[:size]))
            data = data[size:]
        return found

    def in_bucket(self) -> dict[bytes, bytes | None]:
        return {
            subject[6:]: value_of(*self.bucket.messages[revision - 1][1:])
            for subject, revision in self.bucket.last.items()
        }


KEYS = st.sampled_from([b"a", b"b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "put"]), KEYS, st.sampled_from([True, True, None])),
        st.tuples(st.just("ingest"), st.integers(1, 5)),
        st.tuples(st.just("serve"), st.integers(1, 6), st.sampled_from(["store", "store", "silent", "gone"])),
        st.sampled_from([("disconnect",), ("connect",), ("commit",), ("new leader",)]),
        st.tuples(st.just("time"), st.sampled_from([0.05, 6.0])),
    ),
    max_size=50,
)


@given(STEPS)
def test_bucket_and_topic_agree_in_the_end(steps: list[tuple[Any, ...]]) -> None:
    bench = Bench()
    for step in steps:
        bench.step(step)
    bench.finish()
    assert bench.in_bucket() == bench.in_topic()


def test_a_newer_value_in_the_bucket_stays() -> None:
    bench = Bench()
    bench.put(b"a", b"1")
    bench.write(b"a", b"2")  # the bucket's value comes behind it
    bench.runtime.run_until_idle()
    bench.bucket.serve(10, "store")
    bench.bucket.serve(10, "store")
    assert bench.in_bucket() == {b"a": b"1"}
    assert bench.stats.superseded == 1
    bench.finish()
    assert bench.in_topic() == {b"a": b"1"}


def test_a_newer_value_published_before_a_start_stays() -> None:
    """The first record was superseded, the second one was not: after a start it is not the first one's change."""
    bench = Bench()
    bench.put(b"a", b"nats")
    bench.write(b"a", b"1")
    for _ in range(2):
        bench.step(("serve", 10, "store"))
    bench.ingest(1)
    bench.write(b"a", b"2")
    for _ in range(3):
        bench.step(("serve", 10, "store"))
    assert bench.in_bucket() == {b"a": b"2"}
    bench.step(("new leader",))
    bench.finish()
    assert bench.in_bucket() == bench.in_topic() == {b"a": b"2"}


def test_records_with_copied_headers_count_as_a_clients() -> None:
    """Also those with a revision that the bucket has not reached: its next values are still its own."""
    bench = Bench()
    bench.put(b"a", b"1")
    bench.ingest(1)
    for revision in (1, 1_000_000):
        copied = bucket_headers(b"$KV.b.b", revision, 1)
        bench.partition.append(
            build_batch([Record(0, 0, b"b", b"copied", copied)], from_extension=True)
        )  # as any producer may
    bench.put(b"c", b"2")
    bench.ingest(1)
    bench.finish()
    assert bench.in_bucket() == bench.in_topic() == {b"a": b"1", b"b": b"copied", b"c": b"2"}
    assert [subject[6:] for subject, _, _ in bench.bucket.messages] == [b"a", b"c", b"b", b"b"]


def test_a_bucket_that_was_recreated_keeps_its_own_values() -> None:
    bench = Bench()
    for number in range(3):
        bench.put(b"a", b"%d" % number)
    bench.ingest(3)
    bench.step(("commit",))
    bench.step(("new leader",))
    bench.bucket.recreate()
    bench.ingested = 0
    for number in range(3):
        bench.put(b"b", b"%d" % number)
    bench.ingest(3)
    bench.write(b"b", b"last")
    bench.finish()
    assert [payload for _, _, payload in bench.bucket.messages] == [b"0", b"1", b"2", b"last"]
    assert bench.publisher.metadata() == "kv-revision=3"


def test_a_newer_value_in_a_recreated_bucket_stays() -> None:
    """Its first value is behind the record in the topic, though its revision is smaller than those of the old bucket."""
    bench = Bench()
    for number in range(3):
        bench.put(b"a", b"%d" % number)
    bench.ingest(3)
    bench.finish()
    bench.bucket.recreate()
    bench.ingested = 0
    bench.put(b"a", b"new")
    bench.write(b"a", b"older")
    bench.finish()
    assert bench.in_bucket() == bench.in_topic() == {b"a": b"new"}
    assert bench.stats.superseded == 1
