"""The follower's side of a fetch session (KIP-227): what the leader's session has of each partition, and what the next request
must name.

A request names the partitions whose offsets have changed since the last one, and forgets those that must not be fetched now;
so its size depends on the changes, not on the number of partitions. Without a session, as before the first answer or when the
leader has no room for one, every request names all.

Two requests may be in flight: the second one makes the leader answer the first, as it serves a connection in order. So an
answer may belong to the offsets of an earlier request; requests have numbers to tell them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.fastpath.replica_fetch import (
    ONE_PARTITION,
    ONE_TOPIC,
    ONLY_REPLICA_STATE,
    pack_fast_fetch_request,
)
from barnabas.broker.fetch.sessions import INITIAL_EPOCH, NO_SESSION, next_epoch
from barnabas.broker.replica_fetcher.state import FetchState, Status
from barnabas.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = tuple[bytes, int]  # topic id and partition


class FollowerSession:
    """The partitions fetched from one leader over one connection. It does no I/O."""

    def __init__(self, max_wait_ms: int, min_bytes: int, max_bytes: int, partition_max_bytes: int) -> None:
        self.states: dict[Key, FetchState] = {}
        self.ready_count = 0
        self.request_number = 0  # of the last request
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.partition_max_bytes = partition_max_bytes
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._began_with = 0  # the number of the request for the session
        self._is_denied = False  # the leader had no room for one
        self._changed: dict[FetchState, None] = {}  # to be named, or to be forgotten
        self._forgotten_keys: dict[Key, None] = {}  # in the leader's session, and no longer in this one

    # -- partitions

    def add(self, state: FetchState) -> None:
        """Fetch the partition from now on, in place of another state with its key."""
        self.remove(state.key)
        self.states[state.key] = state
        if self._forgotten_keys.pop(state.key, 0) is None:
            state.named_in = 1  # the leader's session has it, with other offsets
        if state.status is Status.READY:
            self.ready_count += 1
        self._changed[state] = None

    def remove(self, key: Key) -> FetchState | None:
        state = self.states.pop(key, None)
        if state is not None:
            self._changed.pop(state, None)
            if state.status is Status.READY:
                self.ready_count -= 1
            if state.named_in:
                self._forgotten_keys[key] = None
        return state

    def set_status(self, state: FetchState, status: Status) -> None:
        """Set the status of a partition of this session."""
        self.ready_count += (status is Status.READY) - (state.status is Status.READY)
        state.status = status
        self._changed[state] = None

    def changed(self, state: FetchState) -> None:
        """The partition's offsets have changed."""
        self._changed[state] = None

    @property
    def has_changes(self) -> bool:
        """Whether the next request would name a partition."""
        return any(state.status is Status.READY for state in self._changed)

    @property
    def may_pipeline(self) -> bool:
        """Whether a second request may follow one that has no answer yet."""
        return self.id != NO_SESSION or self._is_denied

    # -- requests

    def fast_request(self, replica_id: int, broker_epoch: int) -> bytes | None:
        """The body of the next request, if it names one partition and nothing else; then it counts as sent."""
        state = self._begin_fast()
        if state is None:
            return None
        partition = state.partition
        log = partition.log
        body = pack_fast_fetch_request(
            self.max_wait_ms, self.min_bytes, self.max_bytes, self.id, self.epoch,
            ONE_TOPIC, partition.topic_id, ONE_PARTITION, partition.partition,
            state.leader_epoch, log.log_end_offset, log.epochs.latest_epoch, log.log_start_offset, self.partition_max_bytes,
            ONLY_REPLICA_STATE, replica_id, broker_epoch,
        )  # fmt: skip
        self.request_made()
        return body

    def _begin_fast(self) -> FetchState | None:
        """The partition that the next request names, if it names one, forgets none, and continues the session."""
        if (
            self.id == NO_SESSION
            or self.epoch == INITIAL_EPOCH
            or self._forgotten_keys
            or len(self._changed) != 1
        ):
            return None
        (state,) = self._changed
        if state.status is not Status.READY:
            return None
        self.request_number += 1
        self._names(state)
        self._changed.clear()
        return state

    def _names(self, state: FetchState) -> None:
        """Note that the next request has the partition's end."""
        log = state.partition.log
        state.named_in = self.request_number
        state.first_named_in = state.first_named_in or self.request_number
        state.sent_offset = log.log_end_offset
        state.sent_start_offset = log.log_start_offset

    def request_made(self) -> None:
        """A request of the session has been made: the next one has the next epoch."""
        self.epoch = next_epoch(self.epoch)

    def next_request(self, replica_id: int, broker_epoch: int) -> FetchRequest:
        """The next request; it counts as sent."""
        self.request_number += 1
        forgotten: list[ForgottenTopic] = []
        if self.epoch == INITIAL_EPOCH:
            self._began_with = self.request_number
            named: Iterable[FetchState] = (
                state for state in self.states.values() if state.status is Status.READY
            )
            for state in self.states.values():
                state.named_in = state.first_named_in = 0
        else:
            named = [state for state in self._changed if state.status is Status.READY]
            forgotten = self._forgotten()
        topics: dict[bytes, FetchTopic] = {}
        for state in named:
            partition = state.partition
            log = partition.log
            self._names(state)
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = FetchTopic(partition.topic, partition.topic_id, [])
            topic.partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=state.leader_epoch,
                    fetch_offset=log.log_end_offset,
                    last_fetched_epoch=log.epochs.latest_epoch,
                    log_start_offset=log.log_start_offset,
                    partition_max_bytes=self.partition_max_bytes,
                )
            )
        self._changed.clear()
        self._forgotten_keys.clear()
        is_first = self.epoch == INITIAL_EPOCH
        request = FetchRequest(
            replica_state=ReplicaState(replica_id, broker_epoch),
            # Partitions can't be added before the session has its id: the leader answers at once.
            max_wait_ms=0 if is_first and not self._is_denied else self.max_wait_ms,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=forgotten,
        )
        if not is_first:
            self.request_made()
        return request

    def _forgotten(self) -> list[ForgottenTopic]:
        keys = list(self._forgotten_keys)
        for state in self._changed:
            if state.status is not Status.READY and state.named_in:
                state.named_in = state.first_named_in = 0
                keys.append(state.key)
        topics: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in keys:
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = ForgottenTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(index)
        return list(topics.values())

    # -- answers

    def answered(self, number: int, session_id: int) -> None:
        """A request has been answered without an error at the top level."""
        if number == self._began_with and self.epoch == INITIAL_EPOCH:
            self._is_denied = session_id == NO_SESSION
            if session_id != NO_SESSION:
                self.id = session_id
                self.epoch = 1
        elif number > self._began_with and session_id == NO_SESSION and self.id != NO_SESSION:
            self.reset()  # the leader has closed it

    def reset(self) -> None:
        """The leader does not have the session: the next request asks for a new one."""
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._forgotten_keys.clear()

    def answered_partition(self, number: int, key: Key) -> FetchState | None:
        """The partition, if it is still fetched and the answer is to the offset that was sent last."""
        state = self.states.get(key)
        if (
            state is None
            or state.status is not Status.READY
            or not 0 < state.named_in <= number
            or state.sent_offset != state.partition.log.log_end_offset
        ):
            return None
        return state

    def overtaken(self, number: int, key: Key) -> FetchState | None:
        """The partition, if the answer is to an offset that was sent before the last one, in the same leader epoch. Its records are
        here by now, but its high watermark may be new: the leader counts it as known, and will not send it again."""
        state = self.states.get(key)
        if (
            state is None
            or state.status is not Status.READY
            or not 0 < state.first_named_in <= number < state.named_in
        ):
            return None
        return state
