"""The hedged ISR (isr_hedge.py): what holds up acknowledgements leaves the ISR, and comes back."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.partitions.isr_hedge import LOOKS_PER_HEDGE, IsrHedge
from barnabas.broker.partitions.leadership import PartitionLeadership
from barnabas.broker.partitions.replica import REST_S_MAX, REST_S_MIN, STEADY_RESTS, RemoteReplica
from barnabas.broker.tests.leader import Follower, Leader, batch
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.metadata_records import ConfigRecord
from compat_tests.virtual.runtime import VirtualRuntime

HEDGE_S = 0.01
LONG_S = 1000.0  # of a produce request's timeout


def make(hedge_ms: int = 10, **properties: str) -> Leader:
    leader = Leader("/d", MemoryDisk(), **{"barnabas_isr_hedge_ms": str(hedge_ms), **properties})
    leader.register(2, 3)
    return leader


@pytest.fixture
def leader() -> Leader:
    made = make()
    made.create()
    return made


def produce(leader: Leader, value: str = "v") -> Any:
    return leader.produce(value, timeout_ms=int(LONG_S * 1000))


def caught_up(leader: Leader) -> tuple[Follower, Follower]:
    """Followers 2 and 3, at the end of an empty log."""
    two, three = leader.follower(2), leader.follower(3)
    for each in (two, three):
        each.fetch(0)
    return two, three


def test_what_most_replicas_have_is_acknowledged_and_no_more(leader: Leader) -> None:
    """Replicas end at 4, 3 and 2, and two have to have a record."""
    two, three = caught_up(leader)
    calls = [produce(leader) for _ in range(4)]
    two.fetch(3)
    three.fetch(2)
    leader.runtime.advance(HEDGE_S / LOOKS_PER_HEDGE)
    assert [call.done for call in calls] == [True, True, False, False]
    leader.runtime.advance(2 * HEDGE_S)
    assert leader.state.isr == [1, 2]
    assert [call.done for call in calls] == [True, True, True, False]
    leader.runtime.advance(1)
    assert not calls[3].done, "one replica alone has it"
    assert leader.state.isr == [1, 2]
    two.fetch(4)
    assert [leader.produced(call).error_code for call in calls] == [E.NONE] * 4
    assert leader.state.leader_epoch == 0, "who leads has not changed"


def hedges(leader: Leader) -> dict[int, int]:
    """By broker, how often it was hedged out."""
    return dict(leader.node.services.partitions.rules.hedge.hedges)


@pytest.mark.parametrize("how", ["min.insync.replicas", "two replicas", "off"])
def test_as_many_replicas_as_have_to_stay_are_waited_for(how: str) -> None:
    leader = make(
        -1 if how == "off" else 10, min_insync_replicas="3" if how == "min.insync.replicas" else "1"
    )
    leader.create(replicas=[1, 2] if how == "two replicas" else [1, 2, 3])
    two, _ = caught_up(leader)
    isr = list(leader.state.isr)
    call = produce(leader)
    if how != "two replicas":
        two.fetch(1)
    leader.runtime.advance(1)
    assert not call.done
    assert leader.state.isr == isr
    assert hedges(leader) == {}


@pytest.mark.parametrize("replicas", [[1, 2], [1, 2, 3]])
def test_a_leader_alone_in_sync_waits_for_one_that_joins(replicas: list[int]) -> None:
    """One copy would be all that there is."""
    leader = make()
    leader.create(replicas=replicas, isr=[1, 2])
    two = leader.follower(2)
    two.fetch(0)
    leader.change(isr=[1])  # the controller has removed it, and it is close behind
    call = produce(leader)
    leader.runtime.advance(1)
    assert not call.done
    two.fetch(1)
    leader.run()
    assert call.done
    assert leader.state.isr == [1, 2]


def test_a_short_hedge_does_not_wait_for_a_long_one(leader: Leader) -> None:
    """Each topic's leaders are looked at in their own time."""
    leader.commit(ConfigRecord(2, "t", "barnabas.isr.hedge.ms", "10000"))
    leader.create(name="u", topic_id=b"u" * 16)
    caught_up(leader)
    produce(leader)
    leader.runtime.advance(1)
    partition = leader.partition(name="u")
    assert partition.leadership is not None
    for replica in partition.leadership.replicas.values():  # 2 as if it fetched what is appended next
        replica.fetched(2 - replica.broker_id + 1, 0, leader.runtime.monotonic(), 0, 100 + replica.broker_id)
    partition.append(memoryview(bytearray(batch("v"))), required_acks=-1)
    done: list[E] = []
    partition.when_committed(1, done.append)
    leader.runtime.advance(2 * HEDGE_S)
    assert done == [E.NONE]
    assert partition.isr == [1, 2]
    assert leader.state.isr == [1, 2, 3]


def test_it_can_be_switched_on_and_off_while_acknowledgements_wait() -> None:
    leader = make(-1)
    leader.create()
    two, _ = caught_up(leader)
    call = produce(leader)
    two.fetch(1)
    leader.runtime.advance(1)
    for hedge_ms in ("1000", "-1", "10"):
        assert not call.done
        leader.commit(ConfigRecord(2, "t", "barnabas.isr.hedge.ms", hedge_ms))
        leader.runtime.advance(0.1)
    assert call.done
    assert leader.state.isr == [1, 2]


class Impatient:
    """A leader with the next acknowledgement to wait for as soon as a replica is hedged out."""

    hedge_ms = 100

    def __init__(self, hedge: IsrHedge) -> None:
        self.wait: object | None = None
        self.looks = 0
        self.is_waiting = True
        self._hedge = hedge

    @property
    def awaited_high_watermark(self) -> int:
        self.looks += 1
        return 7 if self.is_waiting else -1

    def hedge(self) -> None:
        self._hedge.watch(self)


def test_one_that_waits_again_at_once_is_looked_at_as_often_as_others() -> None:
    runtime = VirtualRuntime()
    hedge = IsrHedge(runtime)
    leader = Impatient(hedge)
    hedge.watch(leader)
    runtime.advance(1)
    assert leader.looks <= 2 * LOOKS_PER_HEDGE * 10, "twice in each look that hedges"
    leader.is_waiting = False
    runtime.advance(1)
    seen = leader.looks
    runtime.advance(1)
    assert leader.looks == seen
    leader.is_waiting = True
    hedge.watch(leader)
    runtime.advance(0.2)
    assert leader.looks > seen + 2, "it is looked at again"


def test_another_hedge_time_holds_from_the_next_acknowledgement_on() -> None:
    leader = make(10_000)
    leader.create()
    two, three = caught_up(leader)
    produce(leader)
    two.fetch(1)
    three.fetch(1)  # nothing waits, and it has not been looked at since
    leader.commit(ConfigRecord(2, "t", "barnabas.isr.hedge.ms", "10"))
    call = produce(leader)
    two.fetch(2)
    leader.runtime.advance(2 * HEDGE_S)
    assert call.done
    assert leader.state.isr == [1, 2]


def test_what_ends_while_it_is_watched(leader: Leader, caplog: pytest.LogCaptureFixture) -> None:
    """A leadership that ends is not hedged."""
    two, _ = caught_up(leader)
    call = produce(leader)
    two.fetch(1)
    leader.change(leader=2)
    assert leader.produced(call).error_code == E.NOT_LEADER_OR_FOLLOWER
    leader.runtime.advance(1)
    leader.change(leader=1, replicas=[1], isr=[1])
    assert leader.produced(produce(leader)).error_code == E.NONE
    leader.runtime.advance(1)
    assert hedges(leader) == {}
    assert "could not be hedged out" not in caplog.text


def test_a_hedge_counts_when_the_controller_has_decided(leader: Leader) -> None:
    """Until then the replica is waited for as before."""
    two, _ = caught_up(leader)
    channel: Any = leader.node.services.controller_channel
    send, refused = channel.send, []

    def refuse(_key: int, request: Any, done: Any) -> None:
        refused.append(request)
        leader.runtime.call_soon(lambda: done(None, E.NOT_CONTROLLER))

    channel.send = refuse
    call = produce(leader)
    two.fetch(1)
    leader.runtime.advance(0.5)
    assert refused
    assert not call.done
    assert hedges(leader) == {}
    channel.send = send
    leader.runtime.advance(0.5)
    assert call.done
    assert leader.state.isr == [1, 2]
    assert hedges(leader) == {3: 1}


def test_a_hedge_that_fails_is_not_the_last_one(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    two, _ = caught_up(leader)

    def fail(_: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLeadership, "hedge", fail)
        produce(leader)
        leader.runtime.advance(1)
    call = produce(leader)
    two.fetch(2)
    leader.runtime.advance(2 * HEDGE_S)
    assert call.done
    assert leader.state.isr == [1, 2]


def test_a_loop_that_is_always_late_hedges(leader: Leader) -> None:
    two, _ = caught_up(leader)
    call = produce(leader)
    two.fetch(1)
    for _ in range(8):
        leader.runtime.hold_until(leader.runtime.monotonic() + 2 * HEDGE_S)
        leader.runtime.advance(2 * HEDGE_S)
    assert call.done


def test_a_lag_that_delays_no_acknowledgement_costs_nothing(leader: Leader) -> None:
    two, _ = caught_up(leader)
    leader.produce("a", acks=1)
    two.fetch(1)
    leader.runtime.advance(1)
    assert leader.state.isr == [1, 2, 3]


def test_a_high_watermark_that_moves_is_not_held_up(leader: Leader) -> None:
    """A follower that is always some records behind stays, as long as each look finds it further on."""
    two, three = caught_up(leader)
    for _ in range(5):
        produce(leader)
    for at in range(1, 40):
        produce(leader)
        two.fetch(at + 5)
        three.fetch(at)
        leader.runtime.advance(HEDGE_S / 2)
    assert leader.state.isr == [1, 2, 3]


def test_one_that_was_hedged_out_returns_when_it_has_rested_and_caught_up(leader: Leader) -> None:
    two, three = caught_up(leader)
    produce(leader)
    two.fetch(1)
    leader.runtime.advance(2 * HEDGE_S)
    assert leader.state.isr == [1, 2]
    three.fetch(1)
    leader.runtime.advance(REST_S_MIN / 2)
    three.fetch(1)
    leader.run()
    assert leader.state.isr == [1, 2], "it rests"
    leader.runtime.advance(REST_S_MIN / 2)
    call = produce(leader)
    two.fetch(2)
    assert call.done, "it is not waited for before it has caught up"
    three.fetch(1)
    leader.run()
    assert leader.state.isr == [1, 2], "it lacks a record"
    three.fetch(2)
    leader.run()
    assert leader.state.isr == [1, 2, 3]
    last = produce(leader)
    two.fetch(3)
    assert not last.done, "it is waited for again"


def test_one_that_joins_is_not_waited_for_either() -> None:
    leader = make()
    leader.create(isr=[1, 2])
    two, three = caught_up(leader)
    leader.run()
    assert leader.state.isr == [1, 2, 3]
    leader.change(isr=[1, 2])  # the controller has removed it: it is close behind, and may come back
    call = produce(leader)
    two.fetch(1)
    assert not call.done
    leader.runtime.advance(2 * HEDGE_S)
    assert call.done
    assert leader.state.isr == [1, 2]
    three.fetch(1)


def test_a_leader_that_was_held_up_itself_reads_what_arrived_meanwhile(leader: Leader) -> None:
    two, three = caught_up(leader)
    call = produce(leader)
    two.fetch(1)
    leader.runtime.advance(HEDGE_S / 2)
    leader.runtime.hold_until(leader.runtime.monotonic() + 1.0)
    leader.runtime.advance(1.0)
    three.fetch(1)
    leader.runtime.advance(1)
    assert call.done
    assert leader.state.isr == [1, 2, 3]


def test_the_disk_of_the_leader_is_not_a_follower_that_is_slow() -> None:
    leader = make(flush_messages="1")
    leader.create()
    two, three = caught_up(leader)
    leader.runtime.thread_delay_s = lambda: 1.0
    call = produce(leader)
    leader.runtime.advance(0.5)
    assert leader.state.isr == [1, 2, 3]
    two.fetch(1)
    three.fetch(1)
    leader.runtime.advance(1)
    assert call.done
    assert leader.state.isr == [1, 2, 3]


def test_the_rest_grows_while_a_replica_is_slow_again_and_again() -> None:
    replica = RemoteReplica(2)
    now, rests = 0.0, []
    for _ in range(9):
        replica.rest(now)
        rests.append(replica.rest_s)
        now = replica.rests_until + 1.0
    assert rests == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, REST_S_MAX, REST_S_MAX]
    replica.rest(replica.rests_until + STEADY_RESTS * REST_S_MAX)
    assert replica.rest_s == REST_S_MIN


def test_many_partitions_leave_a_slow_broker_in_one_request() -> None:
    leader = make()
    leader.create(partitions=50)
    two, three = leader.follower(2), leader.follower(3)
    for index in range(50):
        two.fetch(0, index=index)
        three.fetch(0, index=index)
    sent: list[int] = []
    channel: Any = leader.node.services.controller_channel
    send = channel.send

    def counted(key: int, request: Any, done: Any) -> None:
        sent.append(sum(len(topic.partitions) for topic in request.topics))
        send(key, request, done)

    channel.send = counted
    calls = [leader.produce("v", index=index) for index in range(50)]
    for index in range(50):
        two.fetch(1, index=index)
    leader.runtime.advance(2 * HEDGE_S)
    assert sent == [50]
    assert all(call.done for call in calls)
    assert hedges(leader) == {3: 50}
