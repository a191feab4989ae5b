"""Fetch sessions (KIP-227): the broker remembers the partitions that a client fetches, so that requests name only changes and
responses have only news.

The partitions in `active` may have something new: they were just named, had records or an error last time, or have changed
since. All others are at their end, with nothing new; the partition notifies the session of changes (`appended`, `changed`),
which collects them in a set. So the cost of a request depends on the changes, not on the number of partitions, and an append
to a partition that is not fetched costs nothing.

Partitions take turns as in Kafka: one that had records goes to the end of the order, so that a small max_bytes starves none.

The cache is bounded by max.incremental.fetch.session.cache.slots and, unlike Kafka's, by CLIENT_PARTITIONS_MAX in all
sessions of clients together. A new session replaces one that was not used for two minutes, or else a smaller one that is at
least that old; followers' sessions have priority over clients'. Where there is no place the response has session 0, and the
client continues without a session. A session that grows beyond the bound is closed (FETCH_SESSION_ID_NOT_FOUND).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.broker.fetch.purgatory import FetchWaiter
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic, PartitionData

NO_SESSION: Final = 0
EVICTION_MS: Final = 120_000  # min.incremental.fetch.session.eviction.ms, a constant in Kafka as well
CLIENT_PARTITIONS_MAX: Final = 200_000  # some 100 MB
SESSION_ID_MAX: Final = 0x7FFFFFFF
# Epochs of requests, also those of share sessions. The first request of a session has 1, and each the next one.
INITIAL_EPOCH: Final = 0  # asks for a new session
FINAL_EPOCH: Final = -1  # closes the session; a fetch is served without one
_EPOCH_MAX: Final = 0x7FFFFFFF

Key: TypeAlias = "tuple[str | bytes, int]"  # topic name or id, as the session has it, and partition

_TURN = attrgetter("turn")


def next_epoch(epoch: int) -> int:
    """Behind the largest one comes 1, because 0 and -1 have meanings of their own."""
    return epoch % _EPOCH_MAX + 1


class SessionPartition:
    """One partition of a session: the client's request for it, and the offsets in the last response."""

    __slots__ = ("high_watermark", "log_start_offset", "partition", "topic", "topic_id", "turn", "wanted")

    def __init__(self, topic: str | None, topic_id: bytes, wanted: FetchPartition, turn: int) -> None:
        self.topic = topic  # None while the name of topic_id is unknown
        self.topic_id = topic_id
        self.wanted = wanted
        self.turn = turn  # the lowest is read first
        self.partition: Partition | None = None  # as it was last found
        self.high_watermark = -1
        self.log_start_offset = -1


class FetchSession:
    """The partitions that one client fetches. All calls on the loop's thread."""

    __slots__ = (
        "_changed", "_turns", "acl_epoch", "active", "committed", "created_ms", "epoch", "evictable_key", "follower_id", "id",
        "is_closed", "is_old",
        "last_used_ms", "partitions", "privileged", "uses_topic_ids", "waiter",
    )  # fmt: skip

    def __init__(self, uses_topic_ids: bool, follower_id: int, committed: bool) -> None:
        """`follower_id` is -1 for a consumer's session."""
        self.id = NO_SESSION
        self.epoch = 1  # of the next request
        self.uses_topic_ids = uses_topic_ids
        self.follower_id = follower_id
        self.privileged = follower_id >= 0
        self.committed = committed  # isolation level of the last request
        self.partitions: dict[Key, SessionPartition] = {}
        self.active: set[SessionPartition] = set()
        self.waiter: FetchWaiter | None = None  # the fetch of this session that waits
        self.is_closed = False
        self.acl_epoch = 0  # of the authorizer when all partitions were authorized last
        self.created_ms = self.last_used_ms = 0
        self.evictable_key: tuple[bool, int, int] | None = None  # the cache's own
        self.is_old = False  # the cache's own
        self._changed: set[Partition] = set()
        self._turns = 0

    # -- notifications of partitions

    def appended(self, partition: Partition, byte_count: int) -> None:
        """A partition of the session grew."""
        self._changed.add(partition)
        leadership = partition.leadership
        if self.privileged and leadership is not None:  # the follower has fetched this one up to its end
            leadership.was_idle(self.follower_id, self.last_used_ms / 1000)
        if self.waiter is None:
            partition.waiters(self.privileged).pop(
                self, None
            )  # one notification is enough until the next request
        else:
            self.waiter.appended(partition, byte_count)

    def changed(self, partition: Partition) -> None:
        """A partition of the session changed in another way: deleted, another start or leader."""
        self._changed.add(partition)
        if self.waiter is not None:
            self.waiter.changed(partition)

    def high_watermark_moved(self, partition: Partition) -> None:
        """More of a partition of a follower's session is committed."""
        self._changed.add(partition)
        if self.waiter is not None:
            self.waiter.high_watermark_moved(partition)

    # -- requests

    def update(self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add the partitions that a request names and drop those that it forgets."""
        for topic in topics:
            name = topic.topic_id if self.uses_topic_ids else topic.topic
            for wanted in topic.partitions:
                known = self.partitions.get((name, wanted.partition))
                if known is None:
                    known = self.add(None if self.uses_topic_ids else topic.topic, topic.topic_id, wanted)
                known.wanted = wanted
                self.active.add(known)
        for topic_forgotten in forgotten:
            name = topic_forgotten.topic_id if self.uses_topic_ids else topic_forgotten.topic
            for index in topic_forgotten.partitions:
                dropped = self.partitions.pop((name, index), None)
                if dropped is not None:
                    self.active.discard(dropped)
                    if dropped.partition is not None:
                        dropped.partition.waiters(self.privileged).pop(self, None)

    def add(self, topic: str | None, topic_id: bytes, wanted: FetchPartition) -> SessionPartition:
        """Add a partition at the end of the order. The last of those that a request names twice counts, as in Kafka."""
        key: Key = topic_id if self.uses_topic_ids else topic or "", wanted.partition
        added = self.partitions.get(key)
        if added is not None:
            added.wanted = wanted
            return added
        self._turns += 1
        added = self.partitions[key] = SessionPartition(topic, topic_id, wanted, self._turns)
        return added

    def use_isolation(self, committed: bool) -> None:
        """Set the isolation level of the request. A partition at its end for one level may not be for the other."""
        if committed != self.committed:
            self.committed = committed
            self.active.update(self.partitions.values())

    def use_acls(self, epoch: int) -> None:
        """Read all partitions again when the ACLs have changed."""
        if epoch != self.acl_epoch:
            self.acl_epoch = epoch
            self.active.update(self.partitions.values())

    def advance(self) -> None:
        """Expect the next epoch in the next request."""
        self.epoch = self.epoch % _EPOCH_MAX + 1  # next_epoch: the fast path saves the call

    # -- waiting

    def wait(self, waiter: FetchWaiter) -> None:
        """Have the waiter notified of all changes, until `stop_waiting`. An earlier fetch that still waits is answered."""
        if self.waiter is not None:
            self.waiter.wake()
        self.waiter = waiter
        for one in self.active:
            if one.partition is not None:
                self._watch(one.partition)
        if self.is_closed:
            waiter.wake()

    def _watch(self, partition: Partition) -> None:
        """Get notified of its changes. Not after `close`: no later request would end that."""
        if not self.is_closed:
            partition.waiters(self.privileged)[self] = None

    def stop_waiting(self, waiter: FetchWaiter | None) -> None:
        if self.waiter is waiter:
            self.waiter = None

    # -- reading

    def to_read(self) -> list[SessionPartition]:
        """The partitions that may have something new, in the order of their turns."""
        active = self.active
        if self._changed:
            for partition in self._changed:
                name = partition.topic_id if self.uses_topic_ids else partition.topic
                found = self.partitions.get((name, partition.partition))
                if found is not None:
                    active.add(found)
            self._changed.clear()
        return sorted(active, key=_TURN) if len(active) > 1 else list(active)

    def settle(self, one: SessionPartition, partition: Partition | None, answer: PartitionData) -> bool:
        """Record a partition's response. Returns whether it has to be sent: it may have no news."""
        respond = False
        if answer.records:
            respond = True
            self._turns += 1
            one.turn = self._turns
        if answer.high_watermark != one.high_watermark:
            respond = True
            one.high_watermark = answer.high_watermark
        if answer.log_start_offset != one.log_start_offset:
            respond = True
            one.log_start_offset = answer.log_start_offset
        if answer.diverging_epoch.epoch != -1 or answer.preferred_read_replica != -1:
            respond = True
        if answer.error_code or (answer.diverging_epoch.epoch != -1 and self.privileged):
            respond = True
            one.high_watermark = (
                -1
            )  # sent again: of this answer a follower takes nothing but the error or the epoch
        self._place(one, partition, answer)
        return respond

    def only_active(self, partition: Partition, by_ids: bool) -> SessionPartition | None:
        """The partition in the session, if a read_uncommitted request that names it alone has to read no other."""
        if by_ids != self.uses_topic_ids or self.committed or self._changed or self.waiter is not None:
            return None
        one = self.partitions.get((partition.topic_id if by_ids else partition.topic, partition.partition))
        active = self.active
        return one if len(active) - (one in active) == 0 else None

    def named_alone(self, partition: Partition) -> SessionPartition | None:
        """The partition in the session, if a follower's request that names it alone, by id, has to read no other."""
        if not self.uses_topic_ids or self.committed or self.waiter is not None:
            return None
        one = self.partitions.get((partition.topic_id, partition.partition))
        if one is None or (one.partition is not partition and one.partition is not None):
            return None
        return one if self.has_only(one, partition) else None

    def has_only(self, one: SessionPartition, partition: Partition) -> bool:
        """Whether no other partition may have something new."""
        changed, active = self._changed, self.active
        return (not changed or (len(changed) == 1 and partition in changed)) and (
            not active or (len(active) == 1 and one in active)
        )

    def settle_records(
        self, one: SessionPartition, partition: Partition, high_watermark: int, log_start_offset: int
    ) -> None:
        """As `settle`, for a response that has records."""
        self._turns += 1
        one.turn = self._turns
        one.topic = partition.topic
        one.high_watermark = high_watermark
        one.log_start_offset = log_start_offset
        if one.partition is not partition:
            if one.partition is not None:
                one.partition.waiters(self.privileged).pop(self, None)
            one.partition = partition
        self.active.add(one)
        self._changed.discard(partition)
        partition.waiters(self.privileged).pop(self, None)

    def _place(self, one: SessionPartition, partition: Partition | None, answer: PartitionData) -> None:
        """Put the partition among the active ones, or watch it until it changes."""
        before = one.partition
        one.partition = partition
        if before is not None and before is not partition:
            before.waiters(self.privileged).pop(self, None)
        if partition is not None and self._is_at_end(one.wanted, partition, answer):
            self.active.discard(one)
            self._watch(partition)
        else:
            self.active.add(one)
            if partition is not None:
                partition.waiters(self.privileged).pop(self, None)

    def _is_at_end(self, wanted: FetchPartition, partition: Partition, answer: PartitionData) -> bool:
        if not self.privileged:
            return is_at_end(wanted, answer, self.committed)
        leadership = partition.leadership
        return (
            not answer.records
            and answer.error_code == 0
            and answer.diverging_epoch.epoch == -1
            and wanted.fetch_offset >= partition.log.log_end_offset
            and leadership is not None
            and leadership.is_settled(self.follower_id)  # otherwise every fetch of it counts
        )

    def close(self) -> None:
        """End all notifications; a fetch that waits is answered."""
        self.is_closed = True
        for one in self.partitions.values():
            if one.partition is not None:
                one.partition.waiters(self.privileged).pop(self, None)
        if self.waiter is not None:
            self.waiter.wake()


def is_at_end(wanted: FetchPartition, answer: PartitionData, committed: bool) -> bool:
    """Whether the partition has nothing new before it changes."""
    end_offset = answer.last_stable_offset if committed else answer.high_watermark
    return (
        not answer.records
        and answer.error_code == 0
        and answer.diverging_epoch.epoch == -1
        and wanted.fetch_offset >= end_offset
    )


class FetchSessionCache:
    """All sessions of the broker, at most `slots`."""

    def __init__(self, runtime: Runtime, slots: int) -> None:
        self._runtime = runtime
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}  # by id, the one that was used last at the end
        self._client_partitions = 0  # in all sessions that are not followers'
        self.evictions = 0
        # Kafka's order of eviction: clients' before followers', small before large.
        self._evictable_by_all: list[tuple[bool, int, int]] = []
        self._evictable_by_privileged: list[tuple[bool, int, int]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def make_room(self, privileged: bool, size: int) -> bool:
        """Whether there is a place for a session of `size` partitions, if necessary by evicting others."""
        if not privileged and size > CLIENT_PARTITIONS_MAX:
            return False
        while len(self._sessions) >= self._slots or self._is_full(privileged, size):
            if not self._sessions:
                return False
            oldest = next(iter(self._sessions.values()))
            if self._now_ms() - oldest.last_used_ms > EVICTION_MS:
                self._evict(oldest.id)
                continue
            evictable = self._evictable_by_privileged if privileged else self._evictable_by_all
            if not evictable or (privileged, size, 0) < evictable[0]:
                return False
            self._evict(evictable[0][2])
        return True

    def _evict(self, session_id: int) -> None:
        self.evictions += 1
        self.remove(session_id)

    def has_room_to_grow(self, session: FetchSession) -> bool:
        """Whether the session may have the partitions that a request has just added."""
        counted = session.evictable_key[1] if session.evictable_key is not None else 0
        return not self._is_full(session.privileged, len(session.partitions) - counted)

    def _is_full(self, privileged: bool, more: int) -> bool:
        return not privileged and more > 0 and self._client_partitions + more > CLIENT_PARTITIONS_MAX

    def add(self, session: FetchSession) -> None:
        """Give it an id and a place; after `make_room`."""
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._runtime.random.randrange(1, SESSION_ID_MAX)
        session.id = session_id
        session.created_ms = self._now_ms()
        self._sessions[session_id] = session
        self.touch(session)

    def touch(self, session: FetchSession) -> None:
        """Record that the session is used now."""
        session.last_used_ms = now_ms = self._now_ms()
        self._sessions[session.id] = self._sessions.pop(session.id)
        key = (session.privileged, len(session.partitions), session.id)
        is_old = now_ms - session.created_ms > EVICTION_MS
        if session.evictable_key != key or session.is_old != is_old:
            self._forget_evictable(session)
            session.evictable_key, session.is_old = key, is_old
            if not session.privileged:
                self._client_partitions += len(session.partitions)
            if not session.privileged or is_old:
                insort(self._evictable_by_privileged, key)
            if is_old:
                insort(self._evictable_by_all, key)

    def remove(self, session_id: int) -> None:
        """Close a session; nothing happens when there is none."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._forget_evictable(session)
            session.close()

    def _forget_evictable(self, session: FetchSession) -> None:
        key = session.evictable_key
        if key is None:
            return
        session.evictable_key = None
        if not session.privileged:
            self._client_partitions -= key[1]
        for keys in (self._evictable_by_all, self._evictable_by_privileged):
            index = bisect_left(keys, key)
            if index < len(keys) and keys[index] == key:
                del keys[index]

    def _now_ms(self) -> int:
        return int(self._runtime.monotonic() * 1000)
