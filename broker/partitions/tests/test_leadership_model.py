"""A leader under random events: what it commits is on all replicas in sync, and what it has acknowledged stays.

The model is what the followers have fetched and what the metadata says; the rules are checked after every step.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.broker.partitions.replica import REST_S_MAX
from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.reply import Reply
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E

FOLLOWERS = (2, 3)
LATE_S = 50.0  # replica.lag.time.max.ms, and half of it until the check, and some more
NOTHING: tuple[tuple[int, int], set[int]] = ((-1, -1), set())


class World:
    """A leader, two followers that keep what they have fetched, and a controller that may be out of reach."""

    def __init__(self, min_isr: int, hedge_ms: int = -1) -> None:
        self.min_isr = min_isr
        self.leader = Leader(
            "/d",
            MemoryDisk(),
            min_insync_replicas=str(min_isr),
            barnabas_isr_hedge_ms=str(hedge_ms),
        )
        self.leader.register(*FOLLOWERS)
        self.leader.create()
        self.ends = dict.fromkeys(FOLLOWERS, 0)  # of the followers' logs
        self.known = dict.fromkeys(FOLLOWERS, -1)  # as fetched in this leader's epoch
        self.high_watermark = 0
        self.epoch_start = 0
        self.is_late = False  # whether no follower has fetched for longer than one may lag
        self.calls: list[tuple[int, Reply]] = []  # (end offset, acks=all)
        self.proposed = NOTHING  # epochs, and the ISR
        channel: Any = self.leader.node.services.controller_channel
        self.send, self.reachable = channel.send, True
        channel.send = self._send

    def _send(self, key: int, request: Any, done: Any) -> None:
        for topic in request.topics:
            for wanted in topic.partitions:
                isr = {state.broker_id for state in wanted.new_isr_with_epochs}
                proposed = ((wanted.leader_epoch, wanted.partition_epoch), isr)
                if proposed != self.proposed:  # or it is asked again, and things may have changed
                    self._check_proposal(isr)
                self.proposed = proposed

        def answered(response: Any, error: E) -> None:
            if any(part.error_code for topic in response.topics for part in topic.partitions):
                self.proposed = NOTHING  # refused: it never was
            done(response, error)

        if self.reachable:
            self.send(key, request, answered)
        else:
            done(None, E.REQUEST_TIMED_OUT)

    def _check_proposal(self, isr: set[int]) -> None:
        """A follower that is to join has what was committed before this leader's epoch and in it, and is alive."""
        for broker_id in isr - set(self.leader.state.isr):
            assert self.known[broker_id] >= self.epoch_start
            assert self.known[broker_id] >= self.leader.partition().high_watermark
            assert not self.leader.node.services.controller.image.brokers[broker_id].fenced

    def fetch(self, broker_id: int, session: bool) -> None:
        leader = self.leader
        if not leader.partition().is_leader:
            return
        end = self.ends[broker_id]
        follower = leader.follower(broker_id)
        follower.broker_epoch = leader.node.services.controller.image.brokers[broker_id].broker_epoch
        call = follower.begin_session(end) if session else follower.fetch(end)
        answer = call.answer.responses[0].partitions[0]
        assert answer.error_code == 0
        self.known[broker_id] = end
        assert answer.high_watermark <= leader.partition().log.log_end_offset
        if answer.records:
            self.ends[broker_id] = leader.partition().log.log_end_offset
        leader.run()

    def produce(self, acks: int) -> None:
        before = self.leader.partition().log.log_end_offset
        leads = self.leader.partition().is_leader
        has_enough = len(self.leader.partition().isr) >= self.min_isr
        call = self.leader.produce("v", acks=acks, timeout_ms=10**9)
        end = self.leader.partition().log.log_end_offset
        if not leads:
            assert self.leader.produced(call).error_code == E.NOT_LEADER_OR_FOLLOWER
        elif acks == -1 and not has_enough:
            assert self.leader.produced(call).error_code == E.NOT_ENOUGH_REPLICAS
        elif acks == -1:
            self.calls.append((end, call))
        assert end - before == int(leads and (acks != -1 or has_enough))

    def turn(self, leader_id: int) -> None:
        """A new leader epoch. A leader other than this one has what is committed, and this one follows it."""
        was_leader = self.leader.partition().is_leader
        for _, call in self.calls if leader_id != 1 else []:
            assert call.done or was_leader
        self.leader.change(leader=leader_id)
        if leader_id != 1:
            for end, call in self.calls:
                error = self.leader.produced(call).error_code
                assert error == (E.NONE if end <= self.high_watermark else E.NOT_LEADER_OR_FOLLOWER)
            self.calls.clear()
            self.known = dict.fromkeys(FOLLOWERS, -1)
        else:
            self.epoch_start = self.leader.partition().log.log_end_offset
            if not was_leader:
                self.known = dict.fromkeys(FOLLOWERS, -1)

    def wait(self, seconds: float) -> None:
        """In steps of a second at most: the high watermark may move, and the ISR shrink later."""
        self.is_late = False
        for _ in range(int(seconds)):
            self.leader.runtime.advance(1)
            self.check()
        self.leader.runtime.advance(seconds % 1)

    def fence(self, broker_id: int, fenced: bool) -> None:
        """As the controller: who is fenced leads nothing and is in no ISR."""
        if self.leader.state.leader != broker_id:
            if fenced:
                self.remove_from_isr([each for each in self.leader.state.isr if each != broker_id])
            self.leader.fence(broker_id, fenced)

    def remove_from_isr(self, isr: list[int]) -> None:
        """As the controller does with a broker that goes."""
        if self.leader.state.leader in isr and self.leader.state.isr != isr:
            self.leader.change(isr=isr)

    def check(self) -> None:
        leader, partition = self.leader, self.leader.partition()
        state, high_watermark = leader.state, partition.high_watermark
        end = partition.log.log_end_offset
        assert self.high_watermark <= high_watermark <= end
        moved = high_watermark > self.high_watermark
        self.high_watermark = high_watermark
        assert (partition.leader_id, partition.leader_epoch) == (state.leader, state.leader_epoch)
        assert 1 in state.isr
        seen = leader.fetched(leader.fetch(0))
        assert bool(seen.records) == (high_watermark > 0)
        if not partition.is_leader:
            return
        in_sync = [self.known[each] for each in state.isr if each != 1]
        epochs, proposed = self.proposed
        if epochs == (state.leader_epoch, state.partition_epoch):
            in_sync += [self.known[each] for each in sorted(proposed - {1})]
        assert partition.isr == state.isr
        if moved:
            assert len(state.isr) >= self.min_isr
            assert all(known >= high_watermark for known in in_sync)
        if self.is_late:
            assert in_sync == [end] * len(in_sync), "who has not caught up for so long is out"
        if len(state.isr) == 3 and self.reachable:
            assert high_watermark >= min(in_sync)
        for end_offset, call in self.calls:
            if call.done:
                assert leader.produced(call).error_code == 0
            assert call.done == (end_offset <= high_watermark)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.sampled_from([-1, 1])),
        st.tuples(st.just("fetch"), st.sampled_from(FOLLOWERS), st.booleans()),
        st.tuples(st.just("fetch"), st.sampled_from(FOLLOWERS), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 10.0, LATE_S])),
        st.tuples(st.just("fence"), st.sampled_from(FOLLOWERS), st.booleans()),
        st.tuples(st.just("reach"), st.booleans()),
        st.tuples(st.just("turn"), st.sampled_from([1, 1, 2])),
        st.tuples(st.just("isr"), st.sampled_from([[1, 2], [1, 3]])),
    ),
    max_size=40,
)


@given(steps=steps, min_isr=st.integers(1, 2), hedge_ms=st.sampled_from([-1, 10, 1000]))
@example(
    steps=[("produce", -1), ("fetch", 2, False), ("fetch", 2, False), ("produce", -1), ("wait", LATE_S)],
    min_isr=2,
    hedge_ms=10,
)
def test_what_a_leader_has_acknowledged_holds(
    steps: list[tuple[Any, ...]], min_isr: int, hedge_ms: int
) -> None:
    world = World(min_isr, hedge_ms)
    for step in steps:
        match step:
            case ("produce", acks):
                world.produce(acks)
            case ("fetch", broker_id, session):
                world.fetch(broker_id, session)
            case ("wait", seconds):
                world.wait(seconds)
            case ("fence", broker_id, fenced):
                world.fence(broker_id, fenced)
            case ("reach", reachable):
                world.reachable = reachable
            case ("turn", leader_id):
                world.turn(leader_id)
            case ("isr", isr):
                world.remove_from_isr([each for each in world.leader.state.isr if each in isr])
        world.is_late = step == ("wait", LATE_S) and world.reachable
        world.check()
    # In the end all are back, and nothing waits any more.
    world.reachable = True
    world.turn(1)
    for broker_id in FOLLOWERS:
        world.leader.fence(broker_id, False)
    world.leader.runtime.advance(1)
    for _ in range(8):
        for broker_id in FOLLOWERS:
            world.fetch(broker_id, False)
        world.leader.runtime.advance(REST_S_MAX / 4)
    world.is_late = False
    world.check()
    assert sorted(world.leader.state.isr) == [1, 2, 3]
    assert world.leader.partition().high_watermark == world.leader.partition().log.log_end_offset
    assert all(call.done for _, call in world.calls)
    world.leader.node.stop()
