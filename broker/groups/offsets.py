"""Committed offsets of all groups of one shard, including those whose append is not committed yet.

A commit is applied when it has been appended and counts for readers when the append is committed: until
then `get(..., committed=True)` gives what was before. If an append fails, its values are taken out again
and those around them stay. Without replication appends commit at once, and none of this bookkeeping exists.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

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
    """A topic that is gone: by name, as offsets are committed, and by id, as newer ones are."""

    name: str
    topic_id: bytes


Key = tuple[str, str, int]  # group id, topic, partition


class _Chain(msgspec.Struct):
    """Versions of one position whose appends are pending, oldest first, over the committed one."""

    committed: CommittedOffset | None
    versions: list[tuple[int, CommittedOffset | None]]


class OffsetStore:
    """Offsets by group, topic and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._chains: dict[Key, _Chain] = {}

    def get(
        self, group_id: str, topic: str, partition: int, *, committed: bool = True
    ) -> CommittedOffset | None:
        """The position; `committed` False includes appends that are on their way."""
        if committed and self._chains:
            chain = self._chains.get((group_id, topic, partition))
            if chain is not None:
                return chain.committed
        topics = self._groups.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self._groups

    def topics(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """The group's positions by topic and partition, appends on their way included. Not to be changed."""
        return self._groups.get(group_id, {})

    def committed_topics(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """As `topics`, without what is on its way."""
        topics = self.topics(group_id)
        pending = [key for key in self._chains if key[0] == group_id]
        if not pending:
            return topics
        copy = {topic: dict(partitions) for topic, partitions in topics.items()}
        for key in pending:
            _, topic, partition = key
            committed = self._chains[key].committed
            if committed is not None:
                copy.setdefault(topic, {})[partition] = committed
            else:
                copy[topic].pop(partition, None) if topic in copy else None
        return {topic: partitions for topic, partitions in copy.items() if partitions}

    def positions_of_topic(self, topic: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        """(group id, partition, position) of every group that committed for the topic."""
        for group_id, topics in self._groups.items():
            for partition, position in topics.get(topic, {}).items():
                yield group_id, partition, position

    def apply(self, key: Key, value: CommittedOffset | None, sequence: int | None = None) -> None:
        """Set or (None) remove a position. With the sequence number of a pending append it stays revertible
        until `commit` or `revert` is called with that number."""
        if sequence is not None:
            chain = self._chains.get(key)
            if chain is None:
                chain = self._chains[key] = _Chain(self.get(*key, committed=False), [])
            chain.versions.append((sequence, value))
        self._set(key, value)

    def commit(self, key: Key, sequence: int) -> None:
        """The append of this number is committed; so are all before it."""
        chain = self._chains.get(key)
        if chain is None:
            return
        while chain.versions and chain.versions[0][0] <= sequence:
            chain.committed = chain.versions.pop(0)[1]
        if not chain.versions:
            del self._chains[key]

    def revert(self, key: Key, sequence: int) -> None:
        """The append of this number failed."""
        chain = self._chains.get(key)
        if chain is None:
            return
        chain.versions = [version for version in chain.versions if version[0] != sequence]
        self._set(key, chain.versions[-1][1] if chain.versions else chain.committed)
        if not chain.versions:
            del self._chains[key]

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
