"""Committed offsets of all groups of one shard, including those whose append is pending.

A commit is applied when it has been appended, and readers get it when the append is committed: until then
`get(..., committed=True)` returns the value before. If an append fails, its values are removed and those around them stay.
Without replication appends are committed at once, and there are no chains.

A position has a value and pending writes, those of transactions that have not ended (broker/coordinator/pending_writes.py). Each
record and each marker is a change of both, a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from functools import partial

import msgspec

from barnabas.broker.coordinator import pending_writes
from barnabas.broker.coordinator.pending_writes import KeysBy, PendingWrite, PendingWrites, Writes
from barnabas.wire.primitives import ZERO_UUID


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """One committed position. Times in ms since the epoch."""

    offset: int
    leader_epoch: int  # -1: not known
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1  # -1: by offsets.retention.minutes; else as the client asked (v2-4)
    topic_id: bytes = ZERO_UUID  # of the topic at the time; zero when not recorded


class DeletedTopic(msgspec.Struct, frozen=True):
    """A deleted topic: by name, as offsets are committed, and by id, as newer ones are."""

    name: str
    topic_id: bytes


Key = tuple[str, str, int]  # group id, topic, partition


# The value of a position, None when there is none, and its pending writes.
State = tuple[CommittedOffset | None, Writes[CommittedOffset]]
_Change = Callable[[State], State]


def _write(value: CommittedOffset, state: State) -> State:
    return value, pending_writes.supersede(state[1])


def _remove(_: State) -> State:
    return None, ()


def _write_pending(write: PendingWrite[CommittedOffset], state: State) -> State:
    return state[0], pending_writes.add(state[1], write)


def _end_transaction(producer_id: int, commit: bool, state: State) -> State:
    writes, committed = pending_writes.end(state[1], producer_id, commit=commit)
    return state[0] if committed is None else committed, writes


class _Chain(msgspec.Struct):
    """Changes of one position whose appends are pending, oldest first, over the committed state."""

    committed: State
    changes: list[tuple[int, _Change]]
    producers: set[int]  # that may have a pending write here, whichever of the changes fail

    def last(self) -> State:
        state = self.committed
        for _, change in self.changes:
            state = change(state)
        return state


class OffsetStore:
    """Offsets by group, topic and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: PendingWrites[Key, CommittedOffset] = PendingWrites()
        self._chains: dict[Key, _Chain] = {}
        # What a group or a producer has of these: the metrics, say, ask for each group
        self._pending_by_group: KeysBy[str, Key] = KeysBy()
        self._chains_by_group: KeysBy[str, Key] = KeysBy()
        self._chains_by_producer: KeysBy[int, Key] = KeysBy()

    def get(
        self, group_id: str, topic: str, partition: int, *, committed: bool = True
    ) -> CommittedOffset | None:
        """The position; `committed` False includes pending appends."""
        if committed and self._chains:
            chain = self._chains.get((group_id, topic, partition))
            if chain is not None:
                return chain.committed[0]
        topics = self._groups.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has written the position, as of what is committed."""
        key = group_id, topic, partition
        chain = self._chains.get(key) if self._chains else None
        return bool(self._pending.of(key) if chain is None else chain.committed[1])

    def clear(self) -> None:
        self._groups.clear()
        self._pending.clear()
        self._chains.clear()
        self._pending_by_group.clear()
        self._chains_by_group.clear()
        self._chains_by_producer.clear()

    def is_used_by(self, group_id: str) -> bool:
        """Whether the group has positions, or open transactions with some."""
        return group_id in self._groups or bool(self.pending_of(group_id))

    def topics(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """The group's positions by topic and partition, with those of pending appends. Not to be changed."""
        return self._groups.get(group_id, {})

    def committed_topics(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """As `topics`, without those of pending appends."""
        topics = self.topics(group_id)
        chains = self._chains_by_group.of(group_id)
        if not chains:
            return topics
        copy = {topic: dict(partitions) for topic, partitions in topics.items()}
        for key in chains:
            _, topic, partition = key
            committed, _ = self._chains[key].committed
            if committed is not None:
                copy.setdefault(topic, {})[partition] = committed
            else:
                copy.get(topic, {}).pop(partition, None)
        return {topic: partitions for topic, partitions in copy.items() if partitions}

    def positions_of(self, names: Set[str]) -> Iterator[tuple[Key, CommittedOffset]]:
        """The positions of every group that committed for these topics, with those of pending appends."""
        for group_id, topics in self._groups.items():
            for topic in names & topics.keys():
                for partition, position in topics[topic].items():
                    yield (group_id, topic, partition), position

    def state(self, key: Key) -> State:
        """What there is of the position, with pending appends."""
        return self.get(*key, committed=False), self._pending.of(key)

    def pending_of(self, group_id: str) -> Collection[Key]:
        """The group's positions that open transactions have written, with those of pending appends. Not to be changed, and valid
        until the next change."""
        return self._pending_by_group.of(group_id)

    def pending_keys(self) -> Iterator[Key]:
        """As `pending_of`, of all groups."""
        return (key for key, _ in self._pending)

    def apply(self, key: Key, value: CommittedOffset | None, append: int | None = None) -> None:
        """Set or (None) remove a position. With the number of a pending append it stays revertible
        until `commit` or `revert` is called with that number."""
        if append is None and not self._pending:
            self._set(key, value)
        else:
            self._change(key, _remove if value is None else partial(_write, value), append)

    def apply_pending(
        self, key: Key, write: PendingWrite[CommittedOffset], append: int | None = None
    ) -> None:
        """Write a position inside a transaction; `append` as in `apply`."""
        self._change(key, partial(_write_pending, write), append)
        if append is not None:
            self._add_producer(key, write.producer_id)

    def end_transaction(
        self, producer_id: int, *, commit: bool, append: int | None = None
    ) -> tuple[Key, ...]:
        """Commit or drop what the producer's transaction has written; `append` as in `apply`. Returns the positions."""
        keys = dict.fromkeys(self._pending.keys_of(producer_id))
        # Where a change is pending, one before this one may fail: then this one has something to end.
        keys.update(dict.fromkeys(self._chains_by_producer.of(producer_id)))
        for key in keys:
            self._change(key, partial(_end_transaction, producer_id, commit), append)
        return tuple(keys)

    def _change(self, key: Key, change: _Change, append: int | None) -> None:
        state = self.state(key)
        if append is not None:
            chain = self._chains.get(key)
            if chain is None:
                chain = self._chains[key] = _Chain(state, [], set())
                self._chains_by_group.add(key[0], key)
                for write in state[1]:
                    self._add_producer(key, write.producer_id)
            chain.changes.append((append, change))
        self._set_state(key, change(state))

    def commit(self, key: Key, append: int) -> None:
        """The append of this number is committed; so are all before it."""
        chain = self._chains.get(key)
        if chain is None:
            return
        while chain.changes and chain.changes[0][0] <= append:
            chain.committed = chain.changes.pop(0)[1](chain.committed)
        if not chain.changes:
            self._end_chain(key)

    def revert(self, key: Key, append: int) -> None:
        """The append of this number failed."""
        chain = self._chains.get(key)
        if chain is None:
            return
        chain.changes = [change for change in chain.changes if change[0] != append]
        self._set_state(key, chain.last())
        if not chain.changes:
            self._end_chain(key)

    def _add_producer(self, key: Key, producer_id: int) -> None:
        self._chains[key].producers.add(producer_id)
        self._chains_by_producer.add(producer_id, key)

    def _end_chain(self, key: Key) -> None:
        self._chains_by_group.discard(key[0], key)
        for producer_id in self._chains.pop(key).producers:
            self._chains_by_producer.discard(producer_id, key)

    def _set_state(self, key: Key, state: State) -> None:
        value, writes = state
        self._set(key, value)
        self._pending.set(key, writes)
        if writes:
            self._pending_by_group.add(key[0], key)
        else:
            self._pending_by_group.discard(key[0], key)

    def _set(self, key: Key, value: CommittedOffset | None) -> None:
        group_id, topic, partition = key
        if value is not None:
            self._groups.setdefault(group_id, {}).setdefault(topic, {})[partition] = value
            return
        topics = self._groups.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
            if not topics:
                del self._groups[group_id]
