"""Publishing to a stream that loses acknowledgements, refuses messages and disconnects.

Rare behaviour of a real server is frequent here, on a virtual clock. The stream is a list with the server's rules for
Nats-Msg-Id; in the end it has every record once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.partitions.partition import Partition
from barnabas.nats.binding.templates import parse_publish_template
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.errors import NatsError, NotConnected
from barnabas.nats.client.headers import find_header
from barnabas.nats.client.protocol import ServerInfo
from barnabas.nats.cluster.positions import Position
from barnabas.nats.egress.message import SubjectOutgoing
from barnabas.nats.egress.partition_publisher import PartitionPublisher
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

ACK = b'{"stream":"S","seq":1}'
REFUSAL = (
    b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}'
)


class Stream:
    """A client and its stream; `serve` processes the published messages in their order."""

    def __init__(self, awaits_acks: bool) -> None:
        self.is_connected = True
        self.info = ServerInfo()
        self.stored: list[bytes] = []
        self.heard: list[bytes] = []  # all messages, duplicates included
        self._ids: set[bytes | None] = set()
        self._awaits_acks = awaits_acks
        self._sent: list[Any] = []  # messages, and callbacks of flushes
        self.answer: Callable[[bytes, bytes], object] = lambda _reply, _payload: None

    def publish(self, subject: bytes, payload: bytes, *, reply: bytes = b"", headers: bytes = b"") -> None:
        if not self.is_connected:
            raise NotConnected("gone")
        assert bool(reply) == self._awaits_acks
        self._sent.append((reply, find_header(headers, b"Nats-Msg-Id"), payload))

    def flush(self, done: Callable[[NatsError | None], object]) -> None:
        assert self.is_connected
        self._sent.append(done)

    def serve(self, count: int, what: str) -> None:
        for _ in range(min(count, len(self._sent))):
            message = self._sent.pop(0)
            if callable(message):
                message(None)
                continue
            reply, identity, payload = message
            if what != "refuse":
                self.heard.append(payload)
                if identity not in self._ids:
                    self._ids.add(identity)
                    self.stored.append(payload)
            if what != "silent" and reply:
                self.answer(reply, REFUSAL if what == "refuse" else ACK)

    def disconnect(self) -> None:
        self.is_connected = False
        sent, self._sent = self._sent, []
        for each in sent:
            if callable(each):
                each(NotConnected("gone"))


class Bench:
    """One partition's publisher, with a group that is a number."""

    def __init__(self, awaits_acks: bool) -> None:
        self.runtime = VirtualRuntime()
        disk = MemoryDisk()
        disk.make_directory("/logs")
        disk.make_directory("/logs/t-0")
        log = Log.open(disk, self.runtime, "/logs", "t", 0, bytes(16), LogConfig.from_properties({}))
        log.end_replication()
        self.partition = Partition("t", bytes(16), 0, log)
        self.partition.is_leader = True
        self.partition._alone = True
        self.stream = self.client = Stream(awaits_acks)
        self.stream.answer = self._answered
        self.stats = CarrierStats()
        self.inbox = b"_INBOX.x." if awaits_acks else b""
        self.messages_max, self.bytes_max = 7, 250
        self.count = 0
        self.group = -1
        self.publisher = self._begin(None)

    def _begin(self, position: Position | None) -> PartitionPublisher:
        outgoing = SubjectOutgoing(parse_publish_template("out"), "c", "t", bytes(16), 0)
        publisher = PartitionPublisher(self, self.partition, outgoing)  # type: ignore[arg-type]
        publisher.begin(position)
        return publisher

    def _answered(self, reply: bytes, payload: bytes) -> None:
        _, attempt, offset = reply.removeprefix(b"_INBOX.x.").split(b".")
        self.publisher.answered(int(attempt), int(offset), b"", payload)

    def ask_position(self, publisher: PartitionPublisher) -> None:
        publisher.moved_to(Position(self.group) if self.group >= 0 else None)

    def has_confirmed(self, publisher: PartitionPublisher) -> None:
        """The test commits."""

    def append(self, count: int) -> None:
        records = [Record(number, 0, None, b"%d" % (self.count + number)) for number in range(count)]
        self.count += count
        self.partition.append(build_batch(records))

    def commit(self) -> None:
        self.group = self.publisher.confirmed
        self.publisher.committed_to(self.group)

    def step(self, step: tuple[Any, ...]) -> None:
        kind = step[0]
        if kind == "append":
            self.append(step[1])
        elif kind == "serve":
            self.stream.serve(step[1], step[2])
        elif kind == "disconnect" and self.stream.is_connected:
            self.stream.disconnect()
            self.publisher.disconnected()
        elif kind == "connect" and not self.stream.is_connected:
            self.stream.is_connected = True
            self.publisher.connected()
        elif kind == "time":
            self.runtime.advance(step[1])
            self.publisher.check_timeout(self.runtime.monotonic())
        elif kind == "commit":
            self.commit()
        elif kind == "new leader":
            self.publisher.stop()
            self.publisher = self._begin(Position(self.group) if self.group >= 0 else None)
        self.runtime.run_until_idle()
        # Nothing counts as published that the stream does not have.
        assert set(range(self.publisher.confirmed)) <= {int(each) for each in self.stream.stored}


def steps(*answers: str) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 20)),
            st.tuples(st.just("serve"), st.integers(1, 12), st.sampled_from(answers)),
            st.sampled_from([("disconnect",), ("connect",), ("commit",), ("new leader",)]),
            st.tuples(st.just("time"), st.sampled_from([0.05, 1.0, 6.0])),
        ),
        max_size=40,
    )


def finish(bench: Bench) -> None:
    bench.step(("connect",))
    for _ in range(300):
        if bench.publisher.confirmed == bench.count:
            break
        bench.step(("serve", 1000, "store"))
        bench.step(("time", 1.0))
    bench.commit()
    assert bench.publisher.lag == 0


@given(steps("store", "silent"), st.booleans())
def test_lost_acknowledgements_and_connections(what: list[tuple[Any, ...]], awaits_acks: bool) -> None:
    bench = Bench(awaits_acks)
    for step in what:
        bench.step(step)
    finish(bench)
    assert bench.stream.stored == [b"%d" % number for number in range(bench.count)]


@given(steps("store", "silent", "refuse"))
def test_refused_messages_are_published_again(what: list[tuple[Any, ...]]) -> None:
    bench = Bench(awaits_acks=True)
    for step in what:
        bench.step(step)
    finish(bench)
    assert sorted(map(int, bench.stream.stored)) == list(range(bench.count))


def test_an_administrator_moves_the_position_of_a_stopped_partition() -> None:
    bench = Bench(awaits_acks=True)
    bench.append(5)
    bench.runtime.run_until_idle()
    bench.stream.serve(2, "store")
    bench.commit()
    problems = set()
    for number in range(8):
        bench.stream.serve(100, "refuse")
        problems.add(bench.publisher.problem)
        bench.group = 2 if number < 4 else 4
        bench.runtime.advance(6)
    assert problems == {
        f"waiting: the stream has refused a message: maximum messages exceeded (10077) (t-0, offset {offset})"
        for offset in (2, 4)
    }
    bench.stream.serve(100, "store")
    assert bench.stream.stored == [b"0", b"1", b"4"]
    assert bench.publisher.confirmed == 5


@pytest.mark.parametrize(
    ("messages_max", "bytes_max", "in_flight"), [(7, 10_000, 7), (100, 250, 3), (5, 1, 1)]
)
def test_messages_and_bytes_in_flight_are_bounded(messages_max: int, bytes_max: int, in_flight: int) -> None:
    bench = Bench(awaits_acks=True)
    bench.messages_max, bench.bytes_max = messages_max, bytes_max
    bench.append(50)
    for _ in range(4):
        bench.runtime.run_until_idle()
        assert len(bench.stream._sent) == in_flight
        bench.stream.serve(1, "store")
