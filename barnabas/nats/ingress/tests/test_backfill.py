"""Backfill: messages that a leader has missed and its followers have received."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.ingress.gap_tracker import WAIT_S, Backfill, GapLog
from barnabas.nats.ingress.roles import Roles
from barnabas.nats.ingress.standby import SILENT_S, Lapse
from barnabas.nats.ingress.standbys import Ends, Mark, StandbyReport
from barnabas.nats.ingress.tests.test_standby_reports import Joining, joining
from compat_tests.virtual.runtime import VirtualRuntime

__all__ = ["joining"]  # a fixture


class Leader:
    """Its gaps and what it does about them; partition 0 has two followers, 1 one, 2 none."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.stats = CarrierStats()
        self.gaps = GapLog("t", self.stats, self.runtime.time_ms, lambda: None)
        self.held: list[list[int]] = []
        self.backfill = Backfill(
            self.runtime, self.gaps, lambda partitions: self.held.append(list(partitions)), self._end
        )
        self.let_go = 0
        self.led: Any = {index: SimpleNamespace(isr=list(range(3 - index))) for index in range(3)}

    def _end(self, _is_noted: bool) -> None:
        self.let_go += 1

    def leave(self, *partitions: int) -> None:
        led = {index: self.led[index] for index in partitions}
        self.backfill.begin(self.runtime.time_ms(), "server gone", led)
        self.runtime.advance(1)

    def return_(self) -> int:
        self.backfill.wait()
        self.gaps.end()
        return self.backfill.number_for(0)

    @property
    def told(self) -> list[int]:
        """How long each gap was that has been told of."""
        return [gap.end_ms - gap.begin_ms for gap in self.stats.gaps if gap.end_ms]


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_a_gap_that_followers_fill_is_removed(leader: Leader) -> None:
    leader.leave(0, 1)
    number = leader.return_()
    assert leader.held == [[0, 1]]
    assert not leader.told
    leader.backfill.led([1])
    assert leader.gaps.open is not None
    leader.backfill.complete(number + 1, [1])
    leader.backfill.complete(number, [1])
    assert leader.gaps.open is None
    assert not leader.stats.gaps
    assert leader.let_go == 1
    assert leader.backfill.number_for(0) == 0
    leader.runtime.advance(2 * WAIT_S)
    assert not leader.stats.gaps


def test_a_gap_of_partitions_that_get_other_leaders_is_removed(leader: Leader) -> None:
    leader.leave(0)
    leader.backfill.led([])
    assert not leader.stats.gaps
    assert leader.return_() == 0
    assert not leader.held


def test_a_gap_that_no_follower_fills_is_recorded_after_the_wait(leader: Leader) -> None:
    leader.leave(0, 2)
    leader.return_()
    leader.backfill.led([2])
    leader.runtime.advance(WAIT_S + 1)
    assert leader.told == [1000]
    assert leader.let_go == 1


def test_the_leader_does_not_wait_for_absent_followers(leader: Leader) -> None:
    leader.leave(0)
    number = leader.return_()
    leader.backfill.follower_absent(number, 1, [0])
    leader.backfill.follower_absent(number, 1, [0])
    leader.backfill.follower_absent(number, 7, [0, 1])
    assert not leader.told, "that one is none of them"
    leader.backfill.follower_absent(number, 2, [0])
    assert leader.told == [1000]
    assert leader.let_go == 1


def test_a_leader_without_followers_does_not_wait(leader: Leader) -> None:
    leader.leave(2)
    leader.return_()
    assert not leader.held
    assert leader.told == [1000]


def test_a_gap_with_another_cause_stays(leader: Leader) -> None:
    leader.leave(0)
    leader.backfill.give_up()
    leader.gaps.begin(0, "the binding is paused")
    leader.backfill.led([])
    leader.return_()
    assert len(leader.told) == 1


def test_a_second_absence_during_the_wait_is_the_same_gap(leader: Leader) -> None:
    leader.leave(0)
    leader.return_()
    leader.leave(0)
    leader.return_()
    leader.backfill.led([])
    assert not leader.stats.gaps
    assert leader.let_go == 2


def test_messages_that_another_broker_fills_in_are_a_lapse_until_replicated(joining: Joining) -> None:
    """This broker leads, was away, and another one leads now and appends what was missed, perhaps to its own log alone."""
    joining.lead()
    joining.ingest.interrupted(1000, "server gone")
    joining.ingest.hold([0])
    joining.ingest.subscribed(2000)
    joining.ingest.serve(Roles({}, {0: joining.partition}))
    joining.ingest.release(is_noted=True)
    assert joining.standby.lapse == Lapse(1000, 2000, "server gone")
    joining.lapses.clear()
    joining.lead()
    assert joining.lapses == [(joining.partition, Lapse(1000, 2000, "server gone"))]


def test_the_lapse_of_a_leader_ends_when_its_gap_is_recorded(joining: Joining) -> None:
    joining.lead()
    joining.ingest.interrupted(1000, "server gone")
    joining.ingest.hold([0])
    joining.ingest.subscribed(2000)
    joining.ingest.release(is_noted=False)
    assert joining.standby.lapse is not None, "it goes away again: still the same gap"
    joining.ingest.hold([0])
    joining.ingest.release(is_noted=True)
    assert joining.standby.lapse is None


# -- a follower


def in_sync(joining: Joining) -> None:
    joining.ingest.serve(Roles({}, {}, joining={0: joining.partition}))
    joining.align()
    joining.replicas.elect(1, [1, 2])
    joining.ingest.serve(Roles({}, {0: joining.partition}))
    joining.asked = []
    proposals: Any = joining.replicas.alive[2].node.services.partitions.proposals
    proposals.propose_leadership = lambda partition, _isr: joining.asked.append(partition)


def answer(joining: Joining, absence: int) -> None:
    partition = joining.partition
    ends = Ends(1, {0: (partition.leader_epoch, partition.log.log_end_offset, absence)})
    joining.standbys._answer_received(msgspec.json.encode(ends))


def told(joining: Joining) -> list[tuple[list[int], int]]:
    found = [
        msgspec.json.decode(payload, type=StandbyReport)
        for subject, payload in joining.sent
        if "standby" in subject
    ]
    return [(each.partitions, each.absence) for each in found if each.absence]


def test_a_follower_that_has_what_the_leader_missed_asks_to_lead(joining: Joining) -> None:
    in_sync(joining)
    joining.receive(1)
    answer(joining, 0)
    assert not joining.asked
    answer(joining, 5)
    assert joining.asked == [joining.partition]


def test_a_follower_without_further_messages_reports_that_none_is_missing(joining: Joining) -> None:
    in_sync(joining)
    answer(joining, 5)
    assert told(joining) == [([0], 5)]
    assert not joining.asked


def test_a_follower_that_was_absent_reports_it(joining: Joining) -> None:
    in_sync(joining)
    joining.ingest.interrupted(1000, "server gone")
    joining.ingest.subscribed(2000)
    joining.receive(1)
    answer(joining, 5)
    assert told(joining) == [([0], -5)]
    joining.align()
    answer(joining, 5)
    assert told(joining) == [([0], -5), ([0], -5)], "it counts since, and still lacks what was before"
    assert not joining.asked


def test_a_leader_that_answers_no_marks_is_replaced(joining: Joining) -> None:
    in_sync(joining)
    joining.receive(1)
    joining.replicas.run(3.5)
    marks = [payload for subject, payload in joining.sent if subject.endswith("mark")]
    joining.standby.mark_received(msgspec.json.decode(marks[-1], type=Mark).number)
    joining.replicas.run(SILENT_S - 0.2)
    assert not joining.asked
    joining.replicas.run(0.5)
    assert joining.asked == [joining.partition]
    joining.replicas.run(1)
    assert len(joining.asked) == 1


def test_a_call_is_answered_with_a_mark_at_once(joining: Joining) -> None:
    in_sync(joining)
    joining.replicas.run(0.5)
    joining.sent.clear()
    joining.standbys._call_received(b"")
    joining.replicas.run(0.15)
    assert [subject for subject, _ in joining.sent if subject.endswith("mark")]
