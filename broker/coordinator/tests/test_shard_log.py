"""A shard's log and the shards of a broker, under a state machine of counters: what any coordinator relies on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from barnabas.broker.coordinator.compacted_records import CompactedRecords
from barnabas.broker.coordinator.shard_log import ShardLog
from barnabas.broker.coordinator.shards import Shards
from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.tests.coordinator_world import TOPIC, World
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.records import Record, build_batch

TIMEOUT_MS = 5000
NAME = next(name for name in map(str, range(100)) if partition_for(name, 2) == 0)


class Counters:
    """Counts by name. A record is (name, increment), so that it can be taken back whatever was appended behind it."""

    def __init__(self, world: World, index: int) -> None:
        self.counts: dict[str, int] = {}
        self.log: ShardLog[tuple[str, int]] = ShardLog(
            world.log, index, world.runtime, TIMEOUT_MS, self._encode, self._replay
        )

    def add(self, name: str, number: int) -> list[E]:
        errors: list[E] = []
        self.log.append([(name, number)], errors.append)
        return errors

    def _encode(self, records: Sequence[tuple[str, int]], now_ms: int) -> bytes:
        return build_batch(
            [Record(at, now_ms, name.encode(), b"%d" % number) for at, (name, number) in enumerate(records)]
        )

    def _replay(self, record: tuple[str, int], append: int | None) -> Callable[[bool], object] | None:
        name, number = record
        self.counts[name] = self.counts.get(name, 0) + number
        return None if append is None else partial(self._end, name, number)

    def _end(self, name: str, number: int, is_committed: bool) -> None:
        if not is_committed:
            self.counts[name] -= number

    def load(self, done: Callable[[Exception | None], object]) -> None:
        def restore(key: bytes | None, value: bytes | None) -> None:
            self._replay(((key or b"").decode(), int(value or b"")), None)

        self.log.load(CompactedRecords(self.log.name, restore, every=True), done)

    def unload(self) -> None:
        self.log.close()

    def summary(self) -> str:
        return ""


def test_the_next_decision_sees_a_pending_append() -> None:
    world = World([1, 2])
    shard = Counters(world, 0)
    first, second = shard.add("a", 1), shard.add("a", 1)
    assert (first, second, shard.counts) == ([], [], {"a": 2})
    settled: list[E] = []
    shard.log.when_settled(settled.append)
    world.partition().follower_fetched(2, 102, 2, 0)
    assert (first, second, settled) == ([E.NONE], [E.NONE], [E.NONE])


def test_appends_that_fail_are_taken_back() -> None:
    world = World([1, 2])
    shard = Counters(world, 0)
    world.append(0)
    errors = [shard.add("a", 1), shard.add("a", 1)]
    world.change(0, leader=2, isr=[2])
    assert errors == [[E.NOT_LEADER_OR_FOLLOWER]] * 2
    assert shard.counts == {"a": 0}
    assert shard.add("a", 1) == [E.NOT_LEADER_OR_FOLLOWER]
    assert shard.counts == {"a": 0}


def test_an_append_that_takes_long_is_answered_and_stays_pending() -> None:
    world = World([1, 2])
    shard = Counters(world, 0)
    errors = shard.add("a", 1)
    world.runtime.advance(TIMEOUT_MS / 1000)
    assert (errors, shard.counts) == ([E.REQUEST_TIMED_OUT], {"a": 1})
    late: list[E] = []
    shard.log.when_settled(late.append)
    world.partition().follower_fetched(2, 102, 1, 0)
    assert (errors, late, shard.counts) == ([E.REQUEST_TIMED_OUT], [E.REQUEST_TIMED_OUT], {"a": 1})


def test_shards_follow_the_leaders_of_their_partitions() -> None:
    world = World([1, 2])
    shards = Shards(TOPIC, 1, partial(Counters, world), world.runtime.monotonic)
    assert shards.of(NAME) == E.NOT_COORDINATOR
    shards.metadata_changed(world.image.topics[TOPIC])
    shard = shards.of(NAME)
    assert isinstance(shard, Counters)
    errors = shard.add(NAME, 7)
    world.change(0, leader=2, isr=[1, 2])
    shards.metadata_changed(world.image.topics[TOPIC])
    assert errors == [E.NOT_LEADER_OR_FOLLOWER]
    assert shards.of(NAME) == E.NOT_COORDINATOR
    assert shard.add(NAME, 1) == [E.NOT_COORDINATOR]
    world.change(0, leader=1)
    shards.metadata_changed(world.image.topics[TOPIC])
    loaded = shards.of(NAME)
    assert isinstance(loaded, Counters)
    assert shards.load_times.count == 3  # of two partitions, one of them twice
    assert loaded.counts == {NAME: 7}, "the record is in the log, and is committed with the next ones"
    waiting: list[E] = []
    loaded.log.when_load_committed(waiting.append)
    assert waiting == []
    world.partition().follower_fetched(2, 102, 1, 0)
    assert waiting == [E.NONE]
    shards.stop()
    assert shards.of(NAME) == E.NOT_COORDINATOR
