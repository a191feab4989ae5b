"""A shard of the share coordinator over a log with replicas: what is answered survives, and what fails is taken back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.broker.groups.tests.replicated_log import Replica, ReplicatedLog
from barnabas.broker.share_coordinator import state as states
from barnabas.broker.share_coordinator.records import decode_record, encode_batch
from barnabas.broker.share_coordinator.shard import (
    STEP_BYTES,
    ShareCoordinatorShard,
    ShareSettings,
    ShareStateReplay,
)
from barnabas.broker.share_coordinator.state import (
    KEPT_MAX,
    SharePartitionKey,
    ShareState,
    Snapshot,
    snapshot_of,
)
from barnabas.broker.share_coordinator.state_batches import StateBatch
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.records import iterate_records
from compat_tests.virtual.runtime import VirtualRuntime

KEYS = [SharePartitionKey("group", b"t" * 16, index) for index in range(2)]
KEY = KEYS[0]
UPDATES_PER_SNAPSHOT = 3


class ShareReplica(Replica):
    """With offsets, and a start that moves."""

    deleted_before = 0

    def end_offset(self, _partition_index: int) -> int:
        return len(self._log.batches) << 10

    def delete_before(self, _partition_index: int, offset: int) -> None:
        self.deleted_before = offset


class ShareLog(ReplicatedLog):
    def lead(self) -> ShareReplica:
        self.leader = replica = ShareReplica(self)
        return replica


class World:
    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.log = ShareLog()
        self.lead()

    def lead(self) -> None:
        self.replica = self.log.lead()
        log: Any = self.replica
        self.shard = ShareCoordinatorShard(0, log, self.runtime, ShareSettings(UPDATES_PER_SNAPSHOT, 5000))
        self.shard.load(lambda error: None)

    def lose(self, kept: int = 0) -> None:
        self.log.lose(kept)
        self.shard.unload()

    def initialize(self, key: SharePartitionKey = KEY, state_epoch: int = 0, start: int = 0) -> list[Any]:
        answers: list[Any] = []
        self.shard.initialize(key, state_epoch, start, answers.append)
        return answers

    def write(self, *batches: StateBatch, key: SharePartitionKey = KEY, **fields: int) -> list[Any]:
        answers: list[Any] = []
        self.shard.write(
            key,
            fields.get("state_epoch", -1),
            fields.get("leader_epoch", -1),
            fields.get("start", -1),
            0,
            batches,
            answers.append,
        )
        return answers

    def read(self, leader_epoch: int = -1, key: SharePartitionKey = KEY) -> list[Any]:
        answers: list[Any] = []
        self.shard.read(key, leader_epoch, answers.append)
        return answers

    def summary(self, key: SharePartitionKey = KEY) -> Any:
        answers: list[Any] = []
        self.shard.summary_of(key, answers.append)
        return answers[0] if answers else None


def codes(answers: list[Any]) -> list[E]:
    return [each.error if isinstance(each, ApiError) else E.NONE for each in answers]


def test_a_write_is_answered_when_it_is_committed() -> None:
    world = World()
    first = world.initialize()
    written = world.write(StateBatch(0, 4, 2, 1))
    assert first == written == []
    assert world.summary() is None, "only what is committed is shown"
    world.log.commit(2)
    assert codes(first) == codes(written) == [E.NONE]
    assert world.summary().batches == (StateBatch(0, 4, 2, 1),)


def test_a_read_waits_for_the_writes_before_it() -> None:
    world = World()
    world.initialize()
    read = world.read()
    assert read == []
    world.log.commit(1)
    assert read[0].start_offset == 0


def test_what_fails_is_taken_back_and_what_was_refused_changes_nothing() -> None:
    world = World()
    world.initialize()
    world.log.commit(1)
    world.log.too_few = True
    assert codes(world.write(StateBatch(0, 4, 2, 1))) == [E.COORDINATOR_NOT_AVAILABLE]
    assert world.summary().batches == ()
    world.log.too_few = False
    pending = world.write(StateBatch(0, 4, 2, 1))
    world.lose()
    assert codes(pending) == [E.NOT_COORDINATOR]
    world.lead()
    assert world.summary().batches == ()


def test_a_read_of_a_new_leader_fences_the_old_one() -> None:
    world = World()
    world.initialize(state_epoch=4)
    read = world.read(7)
    world.log.commit(2)
    assert isinstance(read[0], ShareState)
    assert codes(world.write(StateBatch(0, 0, 2, 1), leader_epoch=6)) == [E.FENCED_LEADER_EPOCH]
    assert codes(world.write(StateBatch(0, 0, 2, 1), state_epoch=3)) == [E.FENCED_STATE_EPOCH]
    world.lose()
    world.lead()
    assert codes(world.read(6)) == [E.FENCED_LEADER_EPOCH], "also after the coordinator has moved"


def test_the_start_offset_never_goes_back() -> None:
    world = World()
    world.initialize()
    world.write(start=9)
    world.write(start=5)
    world.log.commit(3)
    assert world.summary().start_offset == 9


def test_records_before_the_first_needed_snapshot_are_deleted() -> None:
    world = World()
    for key in KEYS:
        world.initialize(key)
    for offset in range(UPDATES_PER_SNAPSHOT + 1):
        world.write(StateBatch(offset, offset, 2, 1))
    world.log.commit(9)
    world.shard.prune()
    assert world.replica.deleted_before == 1 << 10, "the other share partition has its snapshot there"
    world.runtime.advance(300)
    for _ in world.shard.snapshot_cold(300_000):
        pass
    world.log.commit(9)
    world.shard.prune()
    assert world.replica.deleted_before == 6 << 10
    world.runtime.advance(300)
    for _ in world.shard.snapshot_cold(300_000):
        pass
    before = len(world.log.batches)
    world.runtime.advance(300)
    for _ in world.shard.snapshot_cold(300_000):
        pass
    assert len(world.log.batches) == before, "nothing has changed since"


def test_states_of_deleted_topics_are_deleted() -> None:
    world = World()
    world.initialize()
    world.log.commit(1)
    for _ in world.shard.delete_topics({KEY.topic_id}):
        pass
    world.log.commit(1)
    assert world.summary() is None
    assert codes(world.write()) == [E.INVALID_REQUEST]


def test_records_that_are_read_are_those_that_were_written() -> None:
    world = World()
    world.initialize(state_epoch=3, start=2)
    world.write(StateBatch(2, 4, 0, 1), StateBatch(5, 5, 4, 5), start=2)
    for batch in world.log.batches:
        for record in iterate_records(batch):
            decoded = decode_record(record.key, record.value)
            (again,) = iterate_records(encode_batch([decoded], record.timestamp))
            assert (again.key, again.value) == (record.key, record.value)


def isolated(first: int, count: int) -> list[StateBatch]:
    return [StateBatch(first + 2 * number, first + 2 * number, 2, 1) for number in range(count)]


def test_a_state_does_not_grow_without_bound() -> None:
    world = World()
    world.initialize()
    size = 4_000
    for first in range(0, KEPT_MAX, size):
        assert codes(world.write(*isolated(2 * first, size))) == []
    span = StateBatch(0, 2 * KEPT_MAX, 0, 0)
    assert codes(world.write(span)) == [E.UNKNOWN_SERVER_ERROR], "it would fill the gaps"
    assert codes(world.write(StateBatch(2 * KEPT_MAX, 2 * KEPT_MAX, 2, 1))) == [E.UNKNOWN_SERVER_ERROR]
    last = world.write(StateBatch(2 * KEPT_MAX, 2 * KEPT_MAX, 2, 1), start=1)
    world.log.commit(100)
    assert codes(last) == [E.NONE], "the start has moved"
    assert len(world.summary().batches) == KEPT_MAX


def test_a_state_that_another_broker_let_grow_may_shrink() -> None:
    batches = tuple(isolated(0, KEPT_MAX + 100))
    state = snapshot_of(0, 0, 0, 0, 0, batches, 0, 0)
    after = states.write(KEY, state, -1, -1, 2, 0, [StateBatch(2, 2, 2, 2)], 500, 0)
    assert isinstance(after, states.Update)


def test_pending_writes_are_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.initialize()
    count = 20
    for offset in range(count):
        world.write(StateBatch(offset, offset, 2, 1))
    applied: list[Any] = []
    apply = states.apply

    def counted(state: ShareState | None, record: Any) -> ShareState | None:
        applied.append(record)
        return apply(state, record)

    monkeypatch.setattr(states, "apply", counted)
    world.log.commit(count + 1)
    assert len(applied) <= count + 1
    assert world.summary().batches == (StateBatch(0, count - 1, 2, 1),)


def test_large_states_are_loaded_in_steps() -> None:
    state = snapshot_of(0, 0, 0, 0, 0, tuple(isolated(0, 2_000)), 0, 0)
    records = [Snapshot(SharePartitionKey("g", b"t" * 16, number), state) for number in range(10)]
    found: list[Any] = []
    replay = ShareStateReplay("log", lambda record, _: found.append(record))
    steps = replay.take(encode_batch(records, 0))
    assert STEP_BYTES < 2_000 * 20
    for number in range(1, 11):
        next(steps)
        assert len(found) == number
    assert found == records


class Model:
    """The state of one share partition by single offsets."""

    def __init__(self) -> None:
        self.start = 0
        self.offsets: dict[int, tuple[int, int]] = {}

    def write(self, start: int, batches: tuple[StateBatch, ...]) -> None:
        self.start = max(start, self.start)
        for each in batches:
            for offset in range(each.first_offset, each.last_offset + 1):
                value = each.delivery_count, each.delivery_state
                self.offsets[offset] = max(self.offsets.get(offset, value), value)
        self.offsets = {at: value for at, value in self.offsets.items() if at >= self.start}


def models_of(batches: list[bytes]) -> dict[SharePartitionKey, Model]:
    """What the log says."""
    found: dict[SharePartitionKey, Model] = {}
    for batch in batches:
        for record in iterate_records(batch):
            decoded = decode_record(record.key, record.value)
            if not isinstance(decoded, Snapshot):
                found[decoded.key].write(decoded.start_offset, decoded.batches)
            elif decoded.state is None:
                found.pop(decoded.key, None)
            else:
                model = found[decoded.key] = Model()
                model.write(decoded.state.start_offset, decoded.state.batches)
    return found


@st.composite
def state_batches(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 20))
    return StateBatch(
        first, first + draw(st.integers(0, 5)), draw(st.sampled_from((0, 2, 4))), draw(st.integers(0, 4))
    )


class Shards(RuleBasedStateMachine):
    """Requests while leaders change: the committed state is that of the log, and answered writes are in it."""

    @initialize()
    def begin(self) -> None:
        self.world = World()

    @rule(key=st.sampled_from(KEYS), epoch=st.integers(0, 3), start=st.integers(0, 5))
    def initialize_state(self, key: SharePartitionKey, epoch: int, start: int) -> None:
        self.world.initialize(key, epoch, start)

    @rule(key=st.sampled_from(KEYS), written=st.lists(state_batches(), max_size=4), start=st.integers(-1, 12))
    def write_state(self, key: SharePartitionKey, written: list[StateBatch], start: int) -> None:
        before = len(self.world.log.batches)
        log = self.world.log

        def done(refused: ApiError | None) -> None:
            assert refused is not None or log.committed > before

        self.world.shard.write(key, -1, -1, start, 0, written, done)

    @rule(key=st.sampled_from(KEYS), epoch=st.integers(0, 5))
    def read_state(self, key: SharePartitionKey, epoch: int) -> None:
        self.world.read(epoch, key)

    @rule(key=st.sampled_from(KEYS))
    def delete_state(self, key: SharePartitionKey) -> None:
        self.world.shard.delete(key, lambda _: None)

    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        self.world.log.commit(count)

    @rule(kept=st.integers(0, 3))
    def move(self, kept: int) -> None:
        self.world.lose(kept)
        self.world.lead()
        self.world.log.commit(100)

    @invariant()
    def the_committed_state_is_that_of_the_log(self) -> None:
        if not hasattr(self, "world"):
            return
        models = models_of(self.world.log.batches[: self.world.log.committed])
        for key in KEYS:
            state = self.world.summary(key)
            model = models.get(key)
            assert (state is None) == (model is None)
            if state is not None and model is not None:
                assert state.start_offset == model.start
                assert {
                    offset: (each.delivery_count, each.delivery_state)
                    for each in state.batches
                    for offset in range(each.first_offset, each.last_offset + 1)
                } == model.offsets


TestShards = Shards.TestCase
