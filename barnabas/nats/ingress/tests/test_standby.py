"""Standbys of followers, over real partitions of three replicas on a virtual network."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from barnabas.broker.tests.replicas import Replicas
from barnabas.nats.binding.binding import Binding
from barnabas.nats.ingress.roles import NO_ROLES, Roles
from barnabas.nats.ingress.standby import KEPT_S, Standby
from barnabas.nats.ingress.standbys import SENDER_BYTES, Mark
from barnabas.nats.records.tails import read_tails
from barnabas.nats.tests.ingests import make_ingest
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import assemble_batch, read_header
from barnabas.wire.records import Record, build_batch

EQUAL = b"a.equal"


class Follower:
    """The ingest of broker 2, which follows broker 1."""

    def __init__(self, **binding: Any) -> None:
        self.replicas = Replicas(ids=(1, 2))
        replica = self.replicas.alive[2]
        self.runtime = replica.runtime
        proposals = replica.node.services.partitions.proposals
        self.ingest = make_ingest(
            self.runtime,
            Binding("t", subjects=("a.>",), **binding),
            lambda _data, _count: None,
            proposals=proposals,
        )
        self.standbys = self.ingest.standbys
        self.take = self.ingest.encoder().take
        self.ingest.serve(Roles({}, {0: replica.partition}))
        self.number = 0

    @property
    def standby(self) -> Standby:
        return self.standbys.by_index[0]

    def replicate(self, count: int, value: bytes = b"x") -> None:
        """The leader appends so many messages, and this broker gets them."""
        self.append(count, value)
        self.replicas.run(0.5)

    def append(self, count: int, value: bytes = b"x", *, are_equal: bool = False) -> None:
        """The leader appends so many messages."""
        records: list[Record] = []
        for _ in range(count):
            self.number += not are_equal
            subject = EQUAL if are_equal else b"a.%d" % self.number
            headers: list[tuple[str, bytes | None]] = [("nats.subject", subject)]
            records.append(Record(len(records), 0, subject, value, headers))
        self.replicas.alive[1].partition.append(build_batch(records))


@pytest.fixture
def follower() -> Follower:
    return Follower()


def test_a_standby_without_a_connection_keeps_recent_records(follower: Follower) -> None:
    for _ in range(60):
        follower.replicate(20)
    assert follower.replicas.alive[2].log.log_end_offset == 1200
    assert 0 < len(follower.standby.matcher.ahead) <= 20 * (KEPT_S + 2) / 0.5


def test_a_mark_without_an_answer_is_dropped(follower: Follower) -> None:
    follower.standby.mark_sent(1)
    follower.standby.mark_received(1)
    for _ in range(int(2 * KEPT_S)):
        follower.replicate(1)
        follower.take(b"a.%d" % follower.number, b"", b"", b"x")
    follower.replicas.run(KEPT_S)
    assert follower.standby._resync is None
    assert not follower.standby.matcher.pending


def test_a_mark_that_is_answered_late_keeps_at_most_the_budget() -> None:
    follower = Follower(buffer_bytes=10_000)
    begun_s = follower.runtime.monotonic()
    follower.standby.mark_sent(1)
    for _ in range(4):
        follower.replicate(1, bytes(4000))
    follower.replicas.run(1.5)
    assert follower.standby._resync is None
    assert follower.runtime.monotonic() - begun_s < KEPT_S


def test_standbys_tick_slowly_without_followed_partitions(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.ingest.serve(NO_ROLES)
    follower.replicas.run(2)
    looks: list[float] = []
    call_later = follower.runtime.call_later

    def counted(delay_s: float, callback: Any) -> Any:
        looks.append(delay_s)
        return call_later(delay_s, callback)

    monkeypatch.setattr(
        follower.standbys,
        "_tick_later",
        lambda after_s: counted(after_s, follower.standbys._tick),
    )
    follower.replicas.run(10)
    assert 9 <= len(looks) <= 11
    follower.ingest.serve(Roles({}, {0: follower.replicas.alive[2].partition}))
    follower.replicas.run(2)
    assert len(looks) > 18


def test_a_failing_standby_does_not_stop_replication(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("barnabas.nats.ingress.log_tails.read_tails", fails)
    for _ in range(3):
        follower.replicate(2)
    assert follower.replicas.alive[2].log.log_end_offset == 6
    follower.standby.cutting(follower.replicas.alive[2].log, 0)
    assert len([each for each in caplog.records if each.exc_info]) == 1


def test_truncated_records_are_kept_within_the_budget() -> None:
    follower = Follower(buffer_bytes=3 << 20)
    for _ in range(6):
        follower.replicate(1, bytes(900_000))
    standby, log = follower.standby, follower.replicas.alive[2].log
    standby.matcher.ahead.clear()
    standby.cutting(log, 1)
    assert len(standby.matcher.pending) == 3
    standby.matcher.pending.clear()
    standby.cutting(log, 5)
    assert len(standby.matcher.pending) == 1


@pytest.mark.slow
def test_reading_batches_of_clients_is_bounded(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that hold more than messages could, or can't be read, hide no message behind them."""
    sizes: list[int] = []

    def noted(batch: memoryview, bytes_max: int) -> list[bytes]:
        sizes.append(len(batch))
        return read_tails(batch, bytes_max)

    monkeypatch.setattr("barnabas.nats.ingress.log_tails.read_tails", noted)
    leader, log = follower.replicas.alive[1].partition, follower.replicas.alive[2].log
    tiny = build_batch([Record(number, 0, None, None) for number in range(200_000)], codec=Codec.ZSTD)
    bomb = build_batch([Record(0, 0, None, bytes(8 << 20))], codec=Codec.ZSTD)
    header = read_header(bomb)
    for batch in (tiny, bomb, assemble_batch(header, b"\xff" * 100)):
        leader.append(batch)
    follower.replicate(2)
    assert log.log_end_offset == 200_004
    assert len(follower.standby.matcher.ahead) == 2
    assert len(tiny) not in sizes


@pytest.mark.parametrize(("size", "expected"), [(10, 3000), (10_000, 200)])
def test_fewer_large_records_are_read(size: int, expected: int) -> None:
    follower = Follower()
    for _ in range(30):
        follower.replicate(100, bytes(size))
    partition = follower.replicas.alive[2].partition
    standby = Standby(partition, follower.runtime.monotonic(), 0, 1 << 20)
    assert len(standby.matcher.ahead) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b'{"sender":"\xff","number":1}',
        b"[" * 100_000,
        msgspec.json.encode(Mark("a b", 1)),
        msgspec.json.encode(Mark("x" * 5000, 1)),
        msgspec.json.encode(Mark("0" * (2 * SENDER_BYTES) + ".>", 1)),
    ],
)
def test_an_invalid_mark_is_not_answered(follower: Follower, payload: bytes) -> None:
    sent: list[bytes] = []
    client: Any = follower.standbys._client
    client.publish = lambda subject, *_args, **_options: sent.append(subject)
    follower.ingest.subscribed(1)
    leader = follower.replicas.alive[1].partition
    follower.ingest.serve(Roles({0: leader}, {}))
    follower.ingest.close()
    follower.ingest._admissions.by_index.clear()
    follower.standbys._mark_received(payload)
    follower.standbys._answer_received(payload)
    assert not sent
    follower.standbys._mark_received(msgspec.json.encode(Mark("0" * (2 * SENDER_BYTES), 1)))
    assert len(sent) == 1
