"""The balancer of the active controller: when it plans, and how it moves."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from barnabas.controller.balancer.balancer import MOVES_AT_ONCE, Balancer
from barnabas.controller.balancer.load_reports import LoadReport, PartitionLoad
from barnabas.controller.balancer.moves import Move, Plan
from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import PartitionState, partition_record
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.operations.reassignments import alter_reassignments, list_reassignments
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from barnabas.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC = b"t" * 16
MB = 1_000_000.0
BROKER_RESOURCE = 4  # ConfigResource.Type
REST_S = 600
NO_LOADS: Mapping[int, tuple[float, float]] = {}


class Settings:
    """The controller's configuration; `values` may change."""

    node_id = 1

    def __init__(self, mode: str) -> None:
        self.values = {"barnabas.balancer": mode, "min.insync.replicas": "1"}

    def value(self, name: str) -> str | None:
        return self.values.get(name)


class Cluster:
    """Brokers and topic t, whose partitions have these replicas, all led by the first, with 1 MB/s each. A controller that is active
    from the start."""

    def __init__(
        self,
        replicas: Sequence[Sequence[int]],
        brokers: int = 3,
        mode: str = "on",
        loads: Mapping[int, tuple[float, float]] = NO_LOADS,
    ) -> None:
        """`loads`: by partition, bytes in and out per second where they are not 1 MB/s."""
        self.runtime = VirtualRuntime(1)
        self.controller = Controller(LocalMetadataLog(MemoryDisk(), "/m", self.runtime))
        self.controller.open()
        self.controller.serve()
        self.brokers = list(range(1, brokers + 1))
        self.loads = loads
        self.silent: set[int] = set()  # brokers that send no reports
        self.changes: dict[str, object] = {}  # of each report
        self.commit(
            *(
                RegisterBrokerRecord(
                    broker_id=each, broker_epoch=each, fenced=False, log_dirs=[bytes([each]) * 16]
                )
                for each in self.brokers
            ),
            TopicRecord(name="t", topic_id=TOPIC),
            *(
                partition_record(TOPIC, index, PartitionState(list(each), list(each), each[0], 1, 1))
                for index, each in enumerate(replicas)
            ),
        )
        self.settings = Settings(mode)
        self.balancer = Balancer(self.controller, self.settings, self.runtime)
        self.balancer.start()

    def commit(self, *records: msgspec.Struct) -> None:
        self.controller.run(lambda _: Decision(records, None), lambda _: None)
        self.runtime.advance(0.01)

    def switch(self, mode: str) -> None:
        self.settings.values["barnabas.balancer"] = mode
        self.commit(ConfigRecord(BROKER_RESOURCE, "", "barnabas.balancer", mode))

    @property
    def states(self) -> dict[int, PartitionState]:
        return self.controller.image.topics["t"].partitions

    @property
    def leaders(self) -> list[int]:
        return [state.leader for state in self.states.values()]

    def report(self) -> None:
        for broker_id in self.brokers:
            if broker_id not in self.silent:
                led = [
                    PartitionLoad(TOPIC, index, *self.loads.get(index, (MB, MB)), 1000)
                    for index, state in self.states.items()
                    if state.leader == broker_id
                ]
                bytes_in, bytes_out = sum(each.bytes_in for each in led), sum(each.bytes_out for each in led)
                report = LoadReport(led, bytes_in, bytes_out, 1000 * len(led), 10**12, 10**12)
                self.balancer.receive(broker_id, msgspec.structs.replace(report, **self.changes))

    def advance(self, seconds: int) -> None:
        """With a report of each broker every 10 s."""
        for _ in range(seconds // 10):
            self.report()
            self.runtime.advance(10)

    def reassigned(self) -> dict[int, list[int]]:
        """Partition -> its replicas to add, of those that are being reassigned."""
        listed = list_reassignments(self.controller.image, ListPartitionReassignmentsRequest(topics=None))
        return {
            each.partition_index: each.adding_replicas for topic in listed.topics for each in topic.partitions
        }

    def reassign(self, index: int, replicas: list[int] | None) -> None:
        """As a user does."""
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic("t", [ReassignablePartition(index, replicas)])]
        )
        self.controller.run(lambda image: alter_reassignments(image, self.settings, request), lambda _: None)
        self.runtime.advance(0.01)

    def lose(self, broker_id: int) -> None:
        """The broker is fenced, and in sync with nothing. It sends no reports."""
        self.silent.add(broker_id)
        self.commit(
            BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker_id, fenced=1),
            *(
                PartitionChangeRecord(topic_id=TOPIC, partition_id=index, isr=isr, leader=isr[0])
                for index, state in self.states.items()
                if (isr := [each for each in state.isr if each != broker_id]) != state.isr and isr
            ),
        )

    def find(self, broker_id: int) -> None:
        """The broker is back, and in sync."""
        self.silent.remove(broker_id)
        self.commit(
            BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker_id, fenced=-1),
            *(
                PartitionChangeRecord(topic_id=TOPIC, partition_id=index, isr=state.replicas)
                for index, state in self.states.items()
                if broker_id in state.replicas and not state.adding_replicas
            ),
        )

    def catch_up(self, index: int) -> None:
        """The new replicas of a partition have joined its ISR."""
        state = self.states[index]
        wanted = [each for each in state.replicas if each not in state.removing_replicas]
        self.commit(
            PartitionChangeRecord(
                topic_id=TOPIC,
                partition_id=index,
                replicas=wanted,
                isr=wanted,
                adding_replicas=[],
                removing_replicas=[],
                leader=state.leader if state.leader in wanted else wanted[0],
            )
        )


def hot(mode: str = "on") -> Cluster:
    return Cluster([[1, 2, 3]] * 6, mode=mode)


def one_empty() -> Cluster:
    """Broker 3 has nothing: it gets replicas."""
    return Cluster([[1, 2], [2, 1]] * 10)


def test_leaders_spread_once_the_controller_has_been_active_for_the_rest() -> None:
    cluster = hot()
    cluster.advance(REST_S - 20)
    assert cluster.leaders == [1] * 6
    assert len(cluster.balancer.plan.moves) == 4
    cluster.advance(80)
    assert sorted(cluster.leaders) == [1, 1, 2, 2, 3, 3]
    assert all(state.replicas[0] == state.leader for state in cluster.states.values())
    assert cluster.balancer.moved == {False: 4, True: 0}
    cluster.advance(120)
    assert cluster.balancer.plan.moves == []


def test_plan_mode_moves_nothing_and_logs_the_plan_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = hot("plan")
    with caplog.at_level(logging.INFO, "barnabas.balancer"):
        cluster.advance(2 * REST_S)
    assert cluster.leaders == [1] * 6
    (text,) = (each.getMessage() for each in caplog.records if "--execute" in each.getMessage())
    exported = json.loads(text.partition(": ")[2])
    assert exported["version"] == 1
    for partition in exported["partitions"]:
        cluster.reassign(partition["partition"], partition["replicas"])
    preferred = [state.replicas[0] for state in cluster.states.values()]
    assert sorted(preferred) == [1, 1, 2, 2, 3, 3]


def test_off_plans_nothing() -> None:
    cluster = hot("off")
    cluster.advance(2 * REST_S)
    assert cluster.leaders == [1] * 6
    assert not cluster.balancer.is_on
    assert cluster.balancer._timer is None
    cluster.switch("on")
    cluster.advance(70)
    assert sorted(cluster.leaders) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("changes", [{"bytes_in": -1.0}, {"bytes_out": float("nan")}, {"size": -1}])
def test_no_move_by_false_reports(changes: dict[str, object]) -> None:
    cluster = hot()
    cluster.changes = changes
    cluster.advance(2 * REST_S)
    assert cluster.leaders == [1] * 6
    cluster.changes = {}
    cluster.advance(70)
    assert sorted(cluster.leaders) == [1, 1, 2, 2, 3, 3]


def test_no_move_without_a_report_of_each_broker() -> None:
    cluster = hot()
    cluster.silent = {3}
    cluster.advance(2 * REST_S)
    assert cluster.leaders == [1] * 6
    assert cluster.balancer.plan.moves == []
    cluster.silent = set()
    cluster.advance(70)
    assert sorted(cluster.leaders) == [1, 1, 2, 2, 3, 3]


def test_no_move_by_old_reports() -> None:
    cluster = hot()
    cluster.advance(REST_S - 100)
    cluster.runtime.advance(200)
    assert cluster.leaders == [1] * 6


def test_reports_of_unknown_brokers_are_dropped() -> None:
    cluster = hot()
    cluster.balancer.receive(9, LoadReport([], 0, 0, 0, 0, 0))
    assert 9 not in cluster.balancer.loads.reports


def test_at_most_five_moves_at_once_and_the_next_when_one_is_done() -> None:
    cluster = one_empty()
    cluster.advance(REST_S + 10)
    first = cluster.reassigned()
    assert len(first) == MOVES_AT_ONCE
    assert all(adding == [3] for adding in first.values())
    cluster.advance(120)
    assert cluster.reassigned() == first
    cluster.catch_up(min(first))
    assert cluster.balancer.moved[True] == 1
    assert len(cluster.reassigned()) == MOVES_AT_ONCE
    for _ in range(20):
        for index in cluster.reassigned():
            cluster.catch_up(index)
    cluster.advance(60)
    counts = [sum(each in state.replicas for state in cluster.states.values()) for each in (1, 2, 3)]
    assert sum(counts) == 40
    assert max(counts) - min(counts) <= 3, counts
    assert sorted(cluster.leaders.count(each) for each in (1, 2, 3)) == [6, 7, 7]


TWINS = {0: (5 * MB, 10 * MB), 1: (5 * MB, 10 * MB), 2: (5 * MB, 5 * MB), 3: (5 * MB, 5 * MB)}


def twins(replicas: Sequence[Sequence[int]]) -> Cluster:
    """Two brokers with as much in and not as much out, which a swap mends."""
    idle = dict.fromkeys(range(4, len(replicas)), (0.0, 0.0))
    return Cluster(replicas, brokers=2, loads={**TWINS, **idle})


def test_two_leaders_are_swapped() -> None:
    cluster = twins([[1, 2], [1, 2], [2, 1], [2, 1]])
    cluster.advance(REST_S + 10)
    assert sorted(cluster.leaders[:2]) == sorted(cluster.leaders[2:]) == [1, 2]
    assert cluster.balancer.moved == {False: 2, True: 0}


def test_two_replicas_are_swapped_when_both_may_begin() -> None:
    cluster = twins([[1], [1], [2], [2], *[[1], [2]] * 2])
    for index in range(4, 8):
        cluster.reassign(index, [3 - cluster.leaders[index]])
    cluster.advance(REST_S + 60)
    assert len(cluster.balancer.plan.moves) == 2
    assert sorted(cluster.reassigned()) == [4, 5, 6, 7], "one of five may begin, and a swap is two"
    cluster.catch_up(4)
    cluster.advance(60)
    mine = sorted(cluster.reassigned())[:2]
    assert mine[0] in (0, 1)
    assert mine[1] in (2, 3)
    for index in mine:
        cluster.catch_up(index)
    assert cluster.balancer.moved[True] == 2


def test_a_swap_that_has_to_wait_holds_up_no_other_move() -> None:
    cluster = Cluster([[1, 2], [2, 1]] * 6, mode="plan")
    cluster.advance(REST_S + 10)
    cluster.switch("on")
    for index in range(4, 8):
        cluster.reassign(index, [3, 1 + index % 2])
    moves = [
        Move("t", TOPIC, index, [1 + index % 2, 2 - index % 2], [3, 2 - index % 2], 1 + index % 2, 1, "drain")
        for index in (8, 9, 10)
    ]
    cluster.balancer._planned(Plan([(moves[0], moves[1]), (moves[2],)]), None)
    cluster.runtime.advance(0.1)
    assert sorted(cluster.reassigned()) == [4, 5, 6, 7, 10]


def test_a_swap_half_of_which_no_longer_fits_is_dropped() -> None:
    cluster = twins([[1, 2], [1, 2], [2, 1], [2, 1]])
    cluster.advance(REST_S - 20)
    (group,) = cluster.balancer.plan.groups
    gone = group[1].partition
    cluster.commit(
        PartitionChangeRecord(topic_id=TOPIC, partition_id=gone, leader=group[1].target[0], replicas=[1, 2])
    )
    before = cluster.leaders
    cluster.balancer._active_since -= REST_S
    cluster.balancer._planned(Plan([group]), None)
    cluster.runtime.advance(0.1)
    assert cluster.leaders == before
    assert not cluster.balancer._moving


def test_a_partition_does_not_move_twice_within_the_rest() -> None:
    cluster = hot()
    cluster.advance(REST_S + 20)
    moved = {index: leader for index, leader in enumerate(cluster.leaders) if leader != 1}
    assert len(moved) == 4
    for index in range(6):  # all on one broker again, by a user
        cluster.commit(
            PartitionChangeRecord(topic_id=TOPIC, partition_id=index, leader=2, replicas=[2, 1, 3])
        )
    cluster.advance(REST_S - 120)
    assert all(cluster.leaders[index] == 2 for index in moved)
    assert sorted(cluster.leaders) != [2] * 6, "the others may move"
    cluster.advance(240)
    assert sorted(cluster.leaders) == [1, 1, 2, 2, 3, 3]


def test_a_users_reassignment_wins() -> None:
    cluster = one_empty()
    cluster.reassign(0, [2, 3])
    cluster.advance(REST_S + 10)
    begun = cluster.reassigned()
    assert len(begun) == MOVES_AT_ONCE, "the user's counts"
    assert cluster.states[0].replicas == [2, 3, 1]
    mine = max(begun)
    cluster.reassign(mine, None)
    assert mine not in cluster.reassigned(), "cancelled, and not begun again"
    cluster.advance(120)
    assert mine not in cluster.reassigned()
    assert len(cluster.reassigned()) == MOVES_AT_ONCE


def test_nothing_begins_while_users_reassign_five() -> None:
    cluster = one_empty()
    for index in range(MOVES_AT_ONCE):
        cluster.reassign(index, [2, 3])
    cluster.advance(REST_S + 60)
    assert sorted(cluster.reassigned()) == list(range(MOVES_AT_ONCE))


def test_moves_to_a_broker_that_is_away_are_cancelled() -> None:
    cluster = one_empty()
    cluster.advance(REST_S + 10)
    assert len(cluster.reassigned()) == MOVES_AT_ONCE
    cluster.commit(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, fenced=1))
    cluster.advance(60)
    assert cluster.reassigned() == {}
    assert all(3 not in state.replicas for state in cluster.states.values())


def test_no_plan_while_a_broker_may_be_back_soon() -> None:
    cluster = Cluster([[1, 2]] * 6)
    cluster.advance(REST_S - 100)
    cluster.commit(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, fenced=1))
    cluster.advance(REST_S - 20)
    assert cluster.leaders == [1] * 6
    cluster.advance(160)
    assert sorted(cluster.leaders) == [1, 1, 1, 2, 2, 2], "it is gone, and the others share the load"


GONE_S = 1800


def three_of_four() -> Cluster:
    """Replicas on brokers 1 to 3, and so few that none is moved to broker 4."""
    cluster = Cluster([[1, 2, 3]], brokers=4, loads={0: (0, 0)})
    cluster.advance(REST_S + 60)
    cluster.lose(3)
    return cluster


def test_replicas_of_a_broker_that_is_gone_are_replaced() -> None:
    cluster = three_of_four()
    cluster.advance(GONE_S - 60)
    assert cluster.reassigned() == {}
    cluster.advance(120)
    assert cluster.reassigned() == {0: [4]}
    assert cluster.leaders == [1]
    cluster.catch_up(0)
    assert cluster.states[0].replicas == [1, 2, 4]
    cluster.find(3)
    cluster.advance(2 * REST_S)
    assert cluster.states[0].replicas == [1, 2, 4], "it does not go back"
    assert cluster.balancer.moved == {True: 1, False: 0}


def test_a_broker_that_is_back_in_time_keeps_its_replicas() -> None:
    cluster = three_of_four()
    cluster.advance(GONE_S - 60)
    cluster.find(3)
    cluster.advance(120)
    cluster.lose(3)
    cluster.advance(GONE_S - 60)
    assert cluster.reassigned() == {}, "the time begins anew"
    assert cluster.states[0].replicas == [1, 2, 3]


def test_a_broker_that_is_back_before_the_move_begins_keeps_its_replicas() -> None:
    cluster = three_of_four()
    cluster.switch("plan")
    cluster.advance(GONE_S + 60)
    groups = cluster.balancer.plan.groups
    assert [move.reason for move in cluster.balancer.plan.moves] == ["gone"]
    cluster.find(3)
    cluster.switch("on")
    cluster.balancer._planned(Plan(groups), None)
    cluster.runtime.advance(0.1)
    assert cluster.reassigned() == {}


def test_a_move_is_cancelled_when_another_replica_is_gone_which_is_then_replaced() -> None:
    cluster = Cluster([[1, 2, 3]] * 3, brokers=5, loads=dict.fromkeys(range(3), (0, 0)))
    cluster.advance(REST_S + 10)
    state = cluster.states[0]
    lost = max({1, 2, 3} - {state.leader, *state.removing_replicas})
    cluster.lose(lost)
    cluster.advance(REST_S - 60)
    assert cluster.states[0].adding_replicas == state.adding_replicas, "it may be back soon"
    cluster.advance(180)
    assert sorted(cluster.states[0].replicas) == [1, 2, 3]
    cluster.advance(GONE_S)
    assert cluster.states[0].removing_replicas == [lost]


def test_a_move_goes_on_when_another_replica_is_back_before_the_next_plan() -> None:
    cluster = Cluster([[1, 2, 3]] * 3, brokers=5, loads=dict.fromkeys(range(3), (0, 0)))
    cluster.advance(REST_S + 10)
    state = cluster.states[0]
    lost = max({1, 2, 3} - {state.leader, *state.removing_replicas})
    cluster.lose(lost)
    cluster.advance(REST_S + 10)  # the next plan would find it away for too long
    cluster.find(lost)
    cluster.advance(60)
    assert cluster.states[0].adding_replicas == state.adding_replicas


def test_the_time_of_a_broker_that_is_unregistered_counts_from_when_it_was_fenced() -> None:
    cluster = three_of_four()
    cluster.advance(GONE_S - 120)
    cluster.commit(UnregisterBrokerRecord(broker_id=3, broker_epoch=3))
    assert cluster.reassigned() == {}
    cluster.advance(240)
    assert cluster.reassigned() == {0: [4]}


def test_no_replica_is_replaced_before_a_broker_may_be_back() -> None:
    cluster = three_of_four()
    cluster.settings.values["barnabas.balancer.gone.ms"] = "0"
    cluster.commit(UnregisterBrokerRecord(broker_id=3, broker_epoch=3))
    cluster.advance(REST_S - 60)
    assert cluster.reassigned() == {}
    cluster.advance(180)
    assert cluster.reassigned() == {0: [4]}


def test_no_replica_is_replaced_where_that_is_off() -> None:
    cluster = three_of_four()
    cluster.settings.values["barnabas.balancer.gone.ms"] = "-1"
    cluster.advance(3 * GONE_S)
    assert cluster.states[0].replicas == [1, 2, 3]


def test_replicas_of_a_broker_that_is_not_registered_are_replaced() -> None:
    cluster = three_of_four()
    cluster.commit(UnregisterBrokerRecord(broker_id=3, broker_epoch=3))
    cluster.advance(GONE_S - 60)
    assert cluster.reassigned() == {}
    cluster.advance(180)
    assert cluster.reassigned() == {0: [4]}


def test_reassignments_that_wait_for_a_broker_that_is_away_do_not_count() -> None:
    cluster = Cluster([[1, 2], [2, 1]] * 10, brokers=4)
    for index in range(MOVES_AT_ONCE):
        cluster.reassign(index, [1, 2, 4])
    cluster.lose(4)
    cluster.advance(REST_S - 60)
    assert sorted(cluster.reassigned()) == list(range(MOVES_AT_ONCE))
    cluster.advance(120)
    assert len(cluster.reassigned()) == 2 * MOVES_AT_ONCE


def test_reassignments_that_wait_for_a_replica_that_stays_do_not_count() -> None:
    cluster = Cluster([[1, 2, 3]] * 5 + [[1, 2]] * 6, brokers=4)
    for index in range(MOVES_AT_ONCE):
        cluster.reassign(index, [1, 4, 3])
    cluster.lose(3)
    cluster.advance(REST_S - 60)
    assert sorted(cluster.reassigned()) == list(range(MOVES_AT_ONCE))
    cluster.advance(180)
    assert len(cluster.reassigned()) > MOVES_AT_ONCE


def test_switched_off_in_the_middle_it_begins_no_more() -> None:
    cluster = one_empty()
    cluster.advance(REST_S + 10)
    begun = cluster.reassigned()
    cluster.switch("off")
    for index in begun:
        cluster.catch_up(index)
    cluster.advance(120)
    assert cluster.reassigned() == {}
    assert cluster.balancer.moved[True] == MOVES_AT_ONCE


def test_a_drained_broker_is_emptied() -> None:
    cluster = Cluster([[1, 2], [2, 3], [3, 1]] * 2, brokers=4)
    cluster.commit(
        BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, cordoned_log_dirs=[bytes([3]) * 16])
    )
    cluster.advance(REST_S + 10)
    for _ in range(10):
        for index in cluster.reassigned():
            cluster.catch_up(index)
        cluster.advance(60)
    assert all(3 not in state.replicas for state in cluster.states.values())


def test_a_plan_that_no_longer_fits_is_dropped() -> None:
    """The leaders of all partitions have changed since: no move begins, and none is left."""
    replicas = [[1, 2, 3]] * 400
    cluster = Cluster(replicas)
    cluster.advance(REST_S - 20)
    groups = cluster.balancer.plan.groups
    assert len(groups) > 250
    cluster.commit(
        *(
            PartitionChangeRecord(topic_id=TOPIC, partition_id=index, leader=2, replicas=[2, 1, 3])
            for index in range(len(replicas))
        )
    )
    cluster.balancer._planned(Plan(groups), None)
    cluster.balancer._active_since -= REST_S
    cluster.balancer._planned(Plan(groups), None)
    cluster.runtime.advance(0.1)
    assert cluster.leaders == [2] * 400
    assert not cluster.balancer._waiting
    assert not cluster.balancer._moving


def test_loads_for_new_partitions_while_it_is_on() -> None:
    cluster = hot()
    assert cluster.balancer.leader_loads() == {}, "there are no reports so far"
    cluster.report()
    assert cluster.balancer.leader_loads() == {1: 12 * MB, 2: 0, 3: 0}
    cluster.switch("plan")
    assert cluster.balancer.leader_loads() == {}


def test_a_slow_broker_loses_its_leaders_and_in_the_end_its_replicas() -> None:
    cluster = Cluster([[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 2, brokers=4)
    cluster.advance(REST_S + 60)
    for index in cluster.reassigned():  # broker 4 has been empty
        cluster.catch_up(index)
    cluster.advance(REST_S + 60)
    assert 3 in cluster.leaders
    cluster.changes = {"hedges": {3: 1}}
    cluster.advance(360)
    assert 3 not in cluster.leaders
    assert any(3 in state.replicas for state in cluster.states.values())
    cluster.advance(900)
    for _ in range(5):
        for index in cluster.reassigned():
            cluster.catch_up(index)
        cluster.advance(60)
    assert all(3 not in state.replicas for state in cluster.states.values())
    assert all(len(state.replicas) == 3 for state in cluster.states.values())
