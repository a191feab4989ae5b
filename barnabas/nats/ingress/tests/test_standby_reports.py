"""Which followers may join the ISR of a bound partition, and the lapses of those that lead too early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from barnabas.broker.partitions.partition import Partition
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.client import NatsClient
from barnabas.nats.ingress.gap_tracker import GapLog, GapTracker
from barnabas.nats.ingress.roles import NO_ROLES, Roles
from barnabas.nats.ingress.standby import FIRST_MARKS_EVERY_S, KEPT_S, MARKS, RACE_S, Lapse
from barnabas.nats.ingress.standbys import REPORT_VALID_S, WAIT_S, StandbyReport, StandbyReports
from barnabas.nats.ingress.tests.test_standby import EQUAL, Follower
from barnabas.nats.tests.ingests import no_backfill
from compat_tests.virtual.runtime import VirtualRuntime

EPOCH = 7


@pytest.fixture
def runtime() -> VirtualRuntime:
    return VirtualRuntime()


# -- at the leader


def test_a_follower_joins_after_its_report(runtime: VirtualRuntime) -> None:
    reports = StandbyReports(runtime, "t")
    assert not reports.may_take_over(0, 2, EPOCH)
    reports.received(StandbyReport(2, EPOCH, [0]), 0)
    assert not reports.may_take_over(1, 2, EPOCH)
    assert not reports.may_take_over(0, 3, EPOCH)
    assert reports.may_take_over(0, 2, EPOCH)
    assert not reports.may_take_over(0, 2, EPOCH), "it has left since, and has to say so again"


def test_a_report_counts_for_its_broker_epoch_and_a_while(runtime: VirtualRuntime) -> None:
    reports = StandbyReports(runtime, "t")
    reports.received(StandbyReport(2, EPOCH, [0]), 0)
    assert not reports.may_take_over(0, 2, EPOCH + 1)
    reports.received(StandbyReport(2, EPOCH + 1, [0]), 0)
    runtime.advance(REPORT_VALID_S + 1)
    assert not reports.may_take_over(0, 2, EPOCH + 1), "it has said nothing for a while"


def test_a_follower_without_a_report_joins_after_a_while(
    runtime: VirtualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    reports = StandbyReports(runtime, "t")
    assert not reports.may_take_over(0, 2, EPOCH)
    runtime.advance(WAIT_S - 0.1)
    assert not reports.may_take_over(0, 2, EPOCH)
    assert not reports.may_take_over(0, 2, EPOCH + 1), "another run waits anew"
    runtime.advance(WAIT_S + 0.1)
    assert reports.may_take_over(0, 2, EPOCH + 1)
    assert "broker 2 joins the ISR, and may have missed messages" in caplog.text


# -- at the follower


class Joining(Follower):
    """Broker 2, which follows, is level with the leader's log, and not in the ISR yet."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Partition] = []  # to lead
        self.sent: list[tuple[str, bytes]] = []
        subjects: Any = self.standbys._subjects
        subjects.publish = lambda name, payload: self.sent.append((name, payload))
        self.lapses: list[tuple[Partition, Lapse]] = []
        self.standbys._on_lapses = self.lapses.extend
        self.ingest.serve(NO_ROLES)
        self.partition = self.replicas.alive[2].partition
        self.replicas.elect(1, [1])
        self.replicas.run(1)
        self.ingest.subscribed(self.runtime.time_ms())

    def receive(self, number: int) -> None:
        """The server delivers the `number`th message."""
        self.take(b"a.%d" % number, b"", b"", b"x")

    def receive_equal(self, count: int) -> None:
        for _ in range(count):
            self.take(EQUAL, b"", b"", b"x")

    def mark_among_equal(self, number: int, misplaced: int = 0) -> None:
        """A mark while equal messages come; so many of them come to the leader before it, and after it here; a negative number
        the other way round."""
        self.append(5, are_equal=True)
        self.replicas.run(0.2)
        self.receive_equal(5)
        standby, leader = self.standby, self.replicas.alive[1].partition
        standby.mark_sent(number)
        if misplaced < 0:
            self.receive_equal(-misplaced)
        standby.mark_received(number)
        if misplaced > 0:
            self.append(misplaced, are_equal=True)
            self.receive_equal(misplaced)
        standby.mark_found(number, leader.leader_epoch, leader.log.log_end_offset)
        if misplaced < 0:
            self.append(-misplaced, are_equal=True)
        self.replicas.run(0.2)

    def answer(self) -> bool:
        """Its mark comes by, and the leader answers it. Whether there is one."""
        marks = [payload for subject, payload in self.sent if subject.endswith("mark")]
        self.sent = [each for each in self.sent if not each[0].endswith("mark")]
        if not marks:
            return False
        number = msgspec.json.decode(marks[-1])["number"]
        leader = self.replicas.alive[1].partition
        self.standby.mark_received(number)
        self.standby.mark_found(number, leader.leader_epoch, leader.log.log_end_offset)
        return True

    def align(self) -> None:
        """As many marks as it takes."""
        for _ in range(MARKS):
            self.replicas.run(FIRST_MARKS_EVERY_S + 0.2)
            assert self.answer()

    def lead(self) -> None:
        """The leader before has gone."""
        self.replicas.elect(2, [2])
        self.ingest.serve(Roles({0: self.partition}, {}))
        self.ingest.close()

    @property
    def told(self) -> list[StandbyReport]:
        return [
            msgspec.json.decode(payload, type=StandbyReport)
            for subject, payload in self.sent
            if subject.endswith("standby")
        ]


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Joining:
    monkeypatch.setattr(NatsClient, "is_connected", True)
    return Joining()


def test_a_follower_reports_once_it_has_matched(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.replicas.run(0.5)
    assert joining.standby.lapse is not None
    assert not joining.told
    joining.align()
    assert joining.standby.lapse is None
    joining.replicas.run(0.3)
    assert [(each.broker, each.partitions) for each in joining.told] == [(2, [0])]
    joining.replicas.elect(1, [1, 2])
    joining.sent.clear()
    joining.replicas.run(2)
    assert not joining.told, "it is in the ISR"
    joining.lead()
    assert not joining.lapses


def test_only_reports_of_replicas_count(joining: Joining) -> None:
    joining.lead()
    told: list[int] = []
    reports: Any = joining.standbys.reports
    reports.received = lambda standby, _partition: told.append(standby.broker)
    for broker in (1, 9):
        payload = msgspec.json.encode(StandbyReport(broker, 100 + broker, [0, 5]))
        joining.standbys._report_received(payload)
    joining.standbys._report_received(b"{")
    assert told == [1]


def test_a_log_far_behind_has_no_standby(joining: Joining) -> None:
    joining.partition.leader_high_watermark = 1000
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.standbys._tick()
    assert 0 not in joining.ingest.standbys.by_index
    joining.partition.leader_high_watermark = joining.partition.log.log_end_offset
    joining.standbys._tick()
    assert 0 in joining.ingest.standbys.by_index


def test_a_leader_that_has_not_matched_reports_its_lapse(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.replicas.run(0.5)
    joining.receive(1)
    joining.lead()
    ((partition, lapse),) = joining.lapses
    assert partition is joining.partition
    assert lapse.is_older
    assert "before it had caught up" in lapse.cause
    assert partition.log.log_end_offset == 1


def test_an_interruption_is_a_lapse_until_the_standby_has_matched_again(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.align()
    joining.ingest.interrupted(5000, "server gone")
    assert joining.standby.lapse == Lapse(5000, 0, "server gone")
    joining.ingest.resubscribed()
    joining.ingest.subscribed(6000)
    assert joining.standby.lapse == Lapse(5000, 6000, "server gone")
    joining.align()
    assert joining.standby.lapse is None
    joining.ingest.interrupted(7000, "server gone")
    joining.ingest.resubscribed()
    joining.ingest.subscribed(8000)
    joining.lead()
    assert joining.lapses == [(joining.partition, Lapse(7000, 8000, "server gone"))]


def test_the_last_replica_appends_what_its_standby_kept(joining: Joining) -> None:
    """A reassignment from one broker to another: there is one replica afterwards, and no standby any more."""
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.align()
    joining.receive(1)
    state = joining.partition.state
    joining.replicas.elect(2, [2])
    joining.partition.state.replicas[:] = [2]
    assert state.replicas
    joining.ingest.serve(Roles({0: joining.partition}, {}))
    joining.ingest.close()
    assert joining.partition.log.log_end_offset == 1
    assert not joining.ingest.standbys.by_index
    assert not joining.lapses


def test_messages_for_a_stalled_leader_are_kept(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.align()
    joining.receive(1)
    joining.replicas.run(3 * KEPT_S)
    joining.lead()
    assert joining.partition.log.log_end_offset == 1
    assert not joining.lapses


def test_dropped_messages_are_a_lapse() -> None:
    follower = Follower(buffer_bytes=10_000)
    follower.standby.lapse = None
    for number in range(20):
        follower.take(b"a.%d" % number, b"", b"", bytes(1000))
    follower.replicas.run(2)
    lapse = follower.standby.lapse
    assert lapse is not None
    assert lapse.is_older
    assert "nats.buffer.bytes" in lapse.cause


@pytest.mark.parametrize("is_before", [True, False])
def test_a_message_at_the_moment_of_the_mark_counts_once(joining: Joining, is_before: bool) -> None:
    """It comes to the leader on the other side of the mark than here."""
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.replicas.run(FIRST_MARKS_EVERY_S + 0.2)
    joining.answer()
    joining.replicas.run(FIRST_MARKS_EVERY_S + 0.2)
    standby, leader = joining.standby, joining.replicas.alive[1].partition
    number = msgspec.json.decode(joining.sent[-1][1])["number"]
    if is_before:
        joining.receive(1)
        standby.mark_received(number)
        standby.mark_found(number, leader.leader_epoch, leader.log.log_end_offset)
        assert len(standby.matcher.pending) == 1, "if the leader fails now, this broker alone has it"
        joining.replicate(1)
    else:
        joining.replicate(1)
        standby.mark_received(number)
        joining.receive(1)
        standby.mark_found(number, leader.leader_epoch, leader.log.log_end_offset)
    assert not standby.matcher.pending
    assert not standby.matcher.ahead
    joining.lead()
    assert joining.partition.log.log_end_offset == 1


@pytest.mark.parametrize("misplaced", [3, -3])
def test_equal_messages_at_the_moment_of_a_later_mark_are_stored_once(
    joining: Joining, misplaced: int
) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.align()
    joining.mark_among_equal(100)
    joining.mark_among_equal(101, misplaced)
    joining.lead()
    assert not joining.lapses
    assert joining.partition.log.log_end_offset == 5 + 5 + 3


def test_equal_messages_at_the_moment_of_the_first_mark_are_counted_by_two_others(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.replicas.run(0.5)
    joining.mark_among_equal(100, 3)
    joining.mark_among_equal(101)
    assert joining.standby.lapse is not None
    joining.mark_among_equal(102)
    assert joining.standby.lapse is None
    joining.lead()
    assert not joining.lapses
    assert joining.partition.log.log_end_offset == 5 + 3 + 5 + 5


def test_a_message_at_the_moment_of_a_former_leaders_first_mark_is_stored_once(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.align()
    joining.lead()
    joining.replicas.elect(1, [1, 2])
    joining.ingest.serve(Roles({}, {0: joining.partition}))
    joining.replicas.run(0.2)
    standby, leader = joining.standby, joining.replicas.alive[1].partition
    standby.mark_sent(100)
    standby.mark_received(100)
    joining.append(1)
    joining.receive(joining.number)
    standby.mark_found(100, leader.leader_epoch, leader.log.log_end_offset)
    joining.replicas.run(0.2)
    assert standby._resync is None
    joining.lead()
    assert not joining.lapses
    assert joining.partition.log.log_end_offset == 1


def test_a_lapse_lasts_until_the_moment_of_the_mark(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.replicas.run(FIRST_MARKS_EVERY_S + 0.2)
    marks = [payload for name, payload in joining.sent if name == "mark"]
    before = joining.standby.lapse
    joining.standbys._mark_received(marks[-1])
    joining.lead()
    ((_, lapse),) = joining.lapses
    assert before is not None
    assert lapse.until_ms == joining.runtime.time_ms() + int(RACE_S * 1000) > before.until_ms


def test_an_answer_of_another_leader_epoch_is_ignored(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.replicas.run(0.5)
    leader = joining.replicas.alive[1].partition
    number = msgspec.json.decode(joining.sent[-1][1])["number"]
    joining.standby.mark_received(number)
    joining.standby.mark_found(number, leader.leader_epoch, 1)  # its log ends there, this one does not yet
    joining.replicas.elect(1, [1])
    joining.replicate(1)
    assert joining.standby._marks == 0


# -- as a gap


def test_lapses_are_recorded_as_one_gap(joining: Joining) -> None:
    stats = CarrierStats()
    gaps = GapLog("t", stats, joining.runtime.time_ms, lambda: None)
    intake: Any = SimpleNamespace(heartbeat=SimpleNamespace(until_ms=0, on_beat=[]))
    gap_tracker = GapTracker(
        joining.runtime, intake, "t", gaps, no_backfill(joining.runtime, gaps), lambda: True, lambda: True
    )
    gap_tracker.is_subscribed = True
    partition = joining.partition
    gap_tracker.lapsed([(partition, Lapse(5000, 6000, "one")), (partition, Lapse(5500, 6500, "other"))])
    assert [(gap.begin_ms, gap.end_ms, gap.cause) for gap in stats.gaps] == [(5000, 6500, "one; then other")]
