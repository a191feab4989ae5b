"""Offsets inside transactions while the coordinator moves: random commits, markers, deletions and expiry, against a slow model that
works out the state from the start of the log each time."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.log import Marker
from barnabas.broker.groups.offsets import DeletedTopic
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.shard import Shard
from barnabas.broker.groups.tests.offset_model import Commit, End, GroupRemoval, Position, Removal, State
from barnabas.broker.groups.tests.replicated_log import ReplicatedLog
from barnabas.broker.groups.tests.share_states import ShareStates, shard_with
from barnabas.runtime.slices import run_through
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

RETENTION_MS: Final = 4000
KEYS: Final = [("a", "t", 0), ("a", "t", 1), ("a", "u", 0), ("b", "t", 0)]
PRODUCERS: Final = (1, 2)


class Cluster:
    """A coordinator after the other, on one clock, and the model. `model` has a list of records for each batch of the log."""

    def __init__(self, make_bench: Any) -> None:
        self.bench = make_bench(GroupSettings(offsets_retention_ms=RETENTION_MS))
        self.log = ReplicatedLog()
        self.model: list[list[Any]] = []
        self.loaded = 0  # batches that the coordinator loaded
        self.groups: set[str] = set()  # as it has them
        self.answers: list[list[E]] = []  # of each request, empty while it waits
        self.ends: list[int] = []  # of the log behind each of them; 0 where nothing was written
        self.elect()

    @property
    def shard(self) -> Shard:
        shard: Shard = self.bench.shard
        return shard

    def elect(self) -> None:
        self.bench.log = self.log.lead()
        self.bench.shard = self.bench.make_shard()
        self.bench.load()
        self.loaded = len(self.model)
        self.groups = State(self.model).groups

    def move(self, kept: int) -> None:
        self.log.lose(kept)
        self.shard.unload()
        assert all(self.answers), "a request was not answered"
        del self.model[len(self.log.batches) :]
        self.elect()

    def reply(self) -> list[E]:
        self.answers.append([])
        self.ends.append(0)
        return self.answers[-1]

    def written(self, *batches: list[Any]) -> None:
        """What was done last has written these batches, or none where the ISR is too small."""
        if not self.log.too_few:
            self.model += batches
            for record in [record for batch in batches for record in batch]:
                if isinstance(record, Commit):
                    self.groups.add(record.key[0])
                elif isinstance(record, GroupRemoval):
                    self.groups.discard(record.group)
        assert len(self.model) == len(self.log.batches)

    def requested(self, *batches: list[Any]) -> None:
        """The last request has written these batches."""
        self.written(*batches)
        if batches and not self.log.too_few:
            self.ends[-1] = len(self.model)

    def now(self) -> int:
        now_ms: int = self.bench.clock.time_ms()
        return now_ms

    # -- requests

    def commit(self, key: Position, offset: int) -> None:
        self.bench.commit({key[1:]: offset}, group=key[0])
        self.written([Commit(key, offset, self.now())])

    def commit_inside(self, producer_id: int, keys: list[Position], offset: int) -> None:
        topics = [
            TxnOffsetCommitRequestTopic(topic, [TxnOffsetCommitRequestPartition(partition, offset)])
            for _, topic, partition in keys
        ]
        request = TxnOffsetCommitRequest("id", keys[0][0], producer_id, 0, topics=topics)
        reply = self.reply()
        self.shard.offset_requests.commit_in_transaction(request, topics, None, reply.append)
        self.requested([Commit(key, offset, self.now(), producer_id) for key in keys])

    def end(self, producer_id: int, commit: bool) -> None:
        self.shard.end_transaction(Marker(producer_id, 0, commit, 0, 0), self.reply().append)
        self.requested([End(producer_id, commit)])

    def delete_offset(self, key: Position) -> None:
        before = State(self.model)
        exists = key in before.values or key in before.pending_keys()
        reply = self.reply()
        self.shard.offset_requests.delete(key[0], {key[1]: [key[2]]}, lambda error, _: reply.append(error))
        self.requested(*[[Removal(key)]] * exists)

    def delete_group(self, group: str) -> None:
        removals: list[Any] = [Removal(key) for key in KEYS if key[0] == group]
        exists = group in self.groups
        reply = self.reply()
        self.shard.offset_requests.delete_groups([group], lambda errors: reply.append(errors[group]))
        self.requested(*[[*removals, GroupRemoval(group)]] * exists)

    def delete_topic(self, topic: str) -> None:
        before = State(self.model)
        keys = [
            key for key in KEYS if key[1] == topic and (key in before.values or key in before.pending_keys())
        ]
        self.shard.offset_requests.topics_deleted([DeletedTopic(topic, b"old".ljust(16))])
        self.written(*[[Removal(key) for key in keys]] * bool(keys))

    def expire(self) -> None:
        before = State(self.model)
        batches = []
        for group in sorted(self.groups):
            pending = {key for key in before.pending_keys() if key[0] == group}
            values = {key: record for key, (_, record) in before.values.items() if key[0] == group}
            late = [key for key, each in values.items() if self.now() - each.time_ms >= RETENTION_MS]
            records: list[Any] = [Removal(key) for key in late if key not in pending]
            if len(records) == len(values) and not pending:
                records.append(GroupRemoval(group))
            if records:
                batches.append(records)
        run_through(self.shard.offset_requests.expire(self.now()))
        self.written(*batches)

    # -- comparison

    def check(self) -> None:
        for answers, end in zip(self.answers, self.ends, strict=True):
            assert len(answers) < 2
            assert answers != [E.NONE] or end <= self.log.committed
        committed = State(self.model[: max(self.log.committed, self.loaded)])
        compare(self.shard, committed)
        for group in "ab":
            listed = {
                (group, topic, partition): position.offset
                for topic, partitions in self.shard.offsets.committed_topics(group).items()
                for partition, position in partitions.items()
            }
            assert listed == {key: offset for key, offset in committed.offsets().items() if key[0] == group}
        last = State(self.model)
        found = {key: self.shard.offsets.get(*key, committed=False) for key in KEYS}
        assert {key: each.offset for key, each in found.items() if each is not None} == last.offsets()
        assert {key for group in "ab" for key in self.shard.offsets.pending_of(group)} == last.pending_keys()
        assert set(self.shard.groups) == self.groups

    def check_load(self, count: int, *, every: bool) -> None:
        """Another coordinator that has the first batches, and what it has when all transactions commit."""
        log = ReplicatedLog()
        log.batches = self.log.batches[:count]
        log.committed = count
        model = self.model[:count]
        shard = shard_with(
            ShareStates(), 0, log.lead(), self.bench.clock, self.bench.settings, self.bench.configs
        )
        errors: list[Exception | None] = []
        shard.load(errors.append, every=every)
        assert errors == [None]
        compare(shard, State(model))
        assert set(shard.groups) == State(model).groups
        for producer_id in PRODUCERS:
            shard.end_transaction(Marker(producer_id, 0, True, 0, 0), lambda _: None)
            log.commit(1)
            model.append([End(producer_id, True)])
            compare(shard, State(model))
        shard.unload()


def compare(shard: Shard, state: State) -> None:
    found = {key: shard.offsets.get(*key) for key in KEYS}
    assert {key: each.offset for key, each in found.items() if each is not None} == state.offsets()
    assert {key for key in KEYS if shard.offsets.is_pending(*key)} == state.pending_keys()


KEY = st.sampled_from([*KEYS[:1] * 3, *KEYS])
STEP = st.one_of(
    st.tuples(st.just("commit"), KEY),
    st.tuples(st.just("inside"), st.sampled_from(PRODUCERS), KEY),
    st.tuples(st.just("inside of a"), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.just(True)),
    st.tuples(st.just("delete offset"), KEY),
    st.tuples(st.just("delete group"), st.sampled_from("ab")),
    st.tuples(st.just("delete topic"), st.sampled_from("tu")),
    st.tuples(st.just("expire")),
    st.tuples(st.just("replicate"), st.integers(1, 4)),
    st.tuples(st.just("replicate"), st.integers(1, 4)),
    st.tuples(st.just("move"), st.integers(0, 3)),
    st.tuples(st.just("few"), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 6)),
    st.tuples(st.just("load"), st.integers(0, 30), st.booleans()),
)


@given(steps=st.lists(STEP, min_size=15, max_size=40))
def test_offsets_equal_those_of_a_slow_model_over_moves(make_bench: Any, steps: list[Any]) -> None:
    cluster = Cluster(make_bench)
    for number, (what, *rest) in enumerate(steps):
        if what == "commit":
            cluster.commit(rest[0], number)
        elif what == "inside":
            cluster.commit_inside(rest[0], [rest[1]], number)
        elif what == "inside of a":
            cluster.commit_inside(rest[0], KEYS[:3], number)
        elif what == "end":
            cluster.end(rest[0], rest[1])
        elif what == "delete offset":
            cluster.delete_offset(rest[0])
        elif what == "delete group":
            cluster.delete_group(rest[0])
        elif what == "delete topic":
            cluster.delete_topic(rest[0])
        elif what == "expire":
            cluster.expire()
        elif what == "replicate":
            cluster.log.commit(rest[0])
        elif what == "move":
            cluster.move(rest[0])
        elif what == "few":
            cluster.log.too_few = rest[0]
        elif what == "wait":
            cluster.bench.clock.pass_ms(rest[0] * 1000)
        else:
            cluster.check_load(min(rest[0], len(cluster.model)), every=rest[1])
        cluster.check()
    cluster.move(0)
    cluster.check()
