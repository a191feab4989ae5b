"""What a leader has missed and its followers have received."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.ingress.barrier import Ends, Mark
from barnabas.nats.ingress.gap_tracker import WAIT_S, Backfill, GapLog
from barnabas.nats.ingress.standby import SILENT_S, Lapse, StandbyReport
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


def test_a_gap_that_others_fill_is_none(leader: Leader) -> None:
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


def test_a_gap_that_others_take_over_before_it_ends_is_none(leader: Leader) -> None:
    leader.leave(0)
    leader.backfill.led([])
    assert not leader.stats.gaps
    assert leader.return_() == 0
    assert not leader.held


def test_a_gap_that_nobody_fills_is_told_of_later_with_its_times(leader: Leader) -> None:
    leader.leave(0, 2)
    leader.return_()
    leader.backfill.led([2])
    leader.runtime.advance(WAIT_S + 1)
    assert leader.told == [1000]
    assert leader.let_go == 1


def test_followers_that_were_absent_too_are_not_waited_for(leader: Leader) -> None:
    leader.leave(0)
    number = leader.return_()
    leader.backfill.follower_absent(number, 1, [0])
    leader.backfill.follower_absent(number, 1, [0])
    leader.backfill.follower_absent(number, 7, [0, 1])
    assert not leader.told, "that one is none of them"
    leader.backfill.follower_absent(number, 2, [0])
    assert leader.told == [1000]
    assert leader.let_go == 1


def test_where_there_is_no_follower_nothing_waits(leader: Leader) -> None:
    leader.leave(2)
    leader.return_()
    assert not leader.held
    assert leader.told == [1000]


def test_a_gap_for_another_reason_as_well_stays(leader: Leader) -> None:
    leader.leave(0)
    leader.backfill.give_up()
    leader.gaps.begin(0, "the binding is paused")
    leader.backfill.led([])
    leader.return_()
    assert len(leader.told) == 1


def test_one_that_goes_away_again_while_others_are_asked_has_one_gap(leader: Leader) -> None:
    leader.leave(0)
    leader.return_()
    leader.leave(0)
    leader.return_()
    leader.backfill.led([])
    assert not leader.stats.gaps
    assert leader.let_go == 2


def test_what_another_broker_fills_in_is_lacking_here_until_it_is_replicated(joining: Joining) -> None:
    """This broker leads, was away, and another one leads now and appends what was missed, perhaps to its own log alone."""
    joining.lead()
    joining.ingest.lapses(1000, "server gone")
    joining.ingest.hold([0])
    joining.ingest.listens(2000)
    joining.ingest.serve({}, {0: joining.partition})
    joining.ingest.let_go(is_noted=True)
    assert joining.standby.lapse == Lapse(1000, 2000, "server gone")
    joining.lapses.clear()
    joining.lead()
    assert joining.lapses == [(joining.partition, Lapse(1000, 2000, "server gone"))]


def test_what_a_leader_lacks_is_over_once_it_is_noted(joining: Joining) -> None:
    joining.lead()
    joining.ingest.lapses(1000, "server gone")
    joining.ingest.hold([0])
    joining.ingest.listens(2000)
    joining.ingest.let_go(is_noted=False)
    assert joining.standby.lapse is not None, "it goes away again: still the same gap"
    joining.ingest.hold([0])
    joining.ingest.let_go(is_noted=True)
    assert joining.standby.lapse is None


# -- a follower


def in_sync(joining: Joining) -> None:
    joining.ingest.serve({}, {}, joining={0: joining.partition})
    joining.align()
    joining.replicas.elect(1, [1, 2])
    joining.ingest.serve({}, {0: joining.partition})
    joining.asked = []
    proposals: Any = joining.replicas.alive[2].node.services.partitions.proposals
    proposals.propose_leadership = lambda partition, _isr: joining.asked.append(partition)


def answer(joining: Joining, absence: int) -> None:
    partition = joining.partition
    ends = Ends(1, {0: (partition.leader_epoch, partition.log.log_end_offset, absence)})
    joining.standby_barrier._answer_came(msgspec.json.encode(ends))


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


def test_a_follower_that_has_nothing_more_says_that_nothing_is_missing(joining: Joining) -> None:
    in_sync(joining)
    answer(joining, 5)
    assert told(joining) == [([0], 5)]
    assert not joining.asked


def test_a_follower_that_was_absent_itself_says_so(joining: Joining) -> None:
    in_sync(joining)
    joining.ingest.lapses(1000, "server gone")
    joining.ingest.listens(2000)
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
    joining.standby_barrier._call_came(b"")
    joining.replicas.run(0.15)
    assert [subject for subject, _ in joining.sent if subject.endswith("mark")]
