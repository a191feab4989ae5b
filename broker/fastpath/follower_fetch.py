"""A follower's Fetch on the fast path, as the leader serves it: one partition of a session whose other partitions have nothing
new; it waits at the end of the log and is answered with a small batch (versions 15-18).

An acks=all produce waits for two of these: one takes the records to the follower, the next confirms them. So they have the
effects of fetch/delayed_fetch.py without structs for request and response. A fetch whose form changes while it waits is
answered by IncrementalFetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.fastpath.partition_key import ID_KEY_SIZE, id_of_key
from barnabas.broker.fetch.delayed_fetch import IncrementalFetch
from barnabas.broker.fetch.purgatory import HIGH_WATERMARK_DELAY_S
from barnabas.broker.fetch.reader import COPIED_BYTES, copied
from barnabas.broker.requests.context import PENDING, Outcome, RawResponse
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.messages.fast_layouts import (
    FETCH_REQUEST_HEAD_15,
    FETCH_RESPONSE_END_FIXED,
    FETCH_RESPONSE_HEAD,
    FETCH_RESPONSE_REST,
    FOLLOWER_FETCH_REST,
    FOLLOWER_FETCH_REST_FIXED,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, ReplicaState
from barnabas.wire.primitives import uvarint

if TYPE_CHECKING:
    from barnabas.broker.fetch.purgatory import FetchWaiter
    from barnabas.broker.fetch.sessions import FetchSession, SessionPartition
    from barnabas.broker.partitions.leadership import PartitionLeadership
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.services import HandlerContext

VERSIONS_FROM: Final = 15  # the first version with the replica id in a tagged field (KIP-903)
_unpack_head: Final = FETCH_REQUEST_HEAD_15.unpack_from
_HEAD_SIZE: Final = FETCH_REQUEST_HEAD_15.size
_unpack_rest: Final = FOLLOWER_FETCH_REST.unpack_from
_ONLY_REPLICA_STATE, _NO_TAGS = FOLLOWER_FETCH_REST_FIXED
BODY_SIZE: Final = _HEAD_SIZE + ID_KEY_SIZE + FOLLOWER_FETCH_REST.size
_pack_head: Final = FETCH_RESPONSE_HEAD.pack
_pack_rest: Final = FETCH_RESPONSE_REST.pack
(_END,) = FETCH_RESPONSE_END_FIXED


def fast_follower_fetch(context: HandlerContext, buffer: memoryview, start: int) -> bytes | Outcome | None:
    """The response's body for the request body of BODY_SIZE bytes at buffer[start:], PENDING, or None when the request has
    another form (see the package)."""
    max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch = _unpack_head(buffer, start)
    start += _HEAD_SIZE
    (
        leader_epoch,
        offset,
        last_epoch,
        start_offset,
        partition_max_bytes,
        rest,
        replica_id,
        replica_epoch,
        tags,
    ) = _unpack_rest(buffer, start + ID_KEY_SIZE)
    key = buffer[start : start + ID_KEY_SIZE].tobytes()
    named = id_of_key(key)
    if (
        named is None
        or rest != _ONLY_REPLICA_STATE
        or tags != _NO_TAGS
        or isolation_level
        or replica_id != context.reply.peer.broker_id
    ):
        return None
    services = context.services
    session = services.fetch_sessions.get(session_id)
    partition = services.partitions.by_id(*named)
    if session is None or session.epoch != epoch or session.follower_id != replica_id or partition is None:
        return None
    one = session.named_alone(partition)
    leadership = partition.leadership
    log = partition.log
    quota = services.leader_quota
    if (
        one is None
        or leadership is None
        or leader_epoch != partition.leader_epoch
        or last_epoch != leader_epoch
        or not log.log_start_offset <= offset <= log.log_end_offset
        or log.offline
        or min_bytes != 1
        or max_wait_ms <= 0
        or max_bytes < COPIED_BYTES
        or services.config.fetch_max_bytes < COPIED_BYTES
        or (quota is not None and quota.is_set)
    ):
        return None
    replica = leadership.replicas.get(replica_id)
    services.fetch_sessions.touch(session)
    if replica is None or not leadership.follower_fetched(replica, replica_epoch, offset, start_offset):
        return None
    one.wanted = FetchPartition(
        partition.partition, leader_epoch, offset, last_epoch, start_offset, partition_max_bytes
    )
    # Records that this has committed may have let producers append to other partitions of the session.
    is_alone = session.has_only(one, partition)
    session.active.add(one)
    session.advance()
    waiting = FollowerFetch(context, session, one, partition, leadership, key, max_bytes)
    if is_alone and offset >= log.log_end_offset:
        return waiting.wait(max_wait_ms / 1000)
    body = waiting.records() if is_alone else None
    if body is not None:
        return body
    waiting.answer_as_incremental_fetch()
    return PENDING


class FollowerFetch:
    """One such fetch, which the session and the leader have recorded."""

    __slots__ = (
        "_context",
        "_epoch",
        "_key",
        "_leadership",
        "_max_bytes",
        "_one",
        "_partition",
        "_session",
        "_waiter",
    )

    def __init__(
        self,
        context: HandlerContext,
        session: FetchSession,
        one: SessionPartition,
        partition: Partition,
        leadership: PartitionLeadership,
        key: bytes,
        max_bytes: int,
    ) -> None:
        """`key` names the partition in requests and responses (partition_key.py)."""
        self._context = context
        self._session = session
        self._epoch = session.epoch
        self._one = one
        self._partition = partition
        self._leadership = leadership
        self._key = key
        self._max_bytes = max_bytes
        self._waiter: FetchWaiter | None = None

    def wait(self, max_wait_s: float) -> Outcome:
        """Wait for records or another change, at most `max_wait_s`. Returns PENDING."""
        one, partition, context = self._one, self._partition, self._context
        if (
            partition.log.high_watermark != one.high_watermark
            or partition.log.log_start_offset != one.log_start_offset
        ):
            max_wait_s = min(max_wait_s, HIGH_WATERMARK_DELAY_S)
        self._waiter = waiter = context.services.purgatory.wait(1, max_wait_s, self._answer)
        context.on_disconnect(self._abandon)
        context.on_next_request(lambda _api_key: waiter.wake())
        one.partition = partition
        self._session.wait(waiter)
        return PENDING

    def _abandon(self) -> None:
        assert self._waiter is not None
        self._session.stop_waiting(self._waiter)
        self._waiter.cancel()

    def _answer(self) -> None:
        session, partition = self._session, self._partition
        session.stop_waiting(self._waiter)
        if (
            session.epoch == self._epoch
            and partition.leadership is self._leadership
            and partition.leader_epoch == self._one.wanted.current_leader_epoch
            and not partition.log.offline
            and session.has_only(self._one, partition)
        ):
            body = self.records()
            if body is not None:
                self._context.complete(RawResponse(body))
                return
        self.answer_as_incremental_fetch()

    def records(self) -> bytes | None:
        """The body of a response with the available records; None when there are none, or more than COPIED_BYTES."""
        one, partition, session = self._one, self._partition, self._session
        wanted, log = one.wanted, partition.log
        offset = wanted.fetch_offset
        records = self._leadership.tail_at(offset)
        if records is None:
            try:
                result = log.read(offset, wanted.partition_max_bytes, wait=False)
            except (StorageError, WouldWait):
                return None
            if not 0 < result.size <= COPIED_BYTES:
                return None
            read = copied(result)
            if not isinstance(read, bytes):
                return None
            records = read
        high_watermark, log_start_offset = log.high_watermark, log.log_start_offset
        partition.stats.fetch_requests += 1
        partition.stats.replication_bytes_out += len(records)
        session.settle_records(one, partition, high_watermark, log_start_offset)
        return b"".join(
            (
                _pack_head(session.id),
                self._key,
                _pack_rest(high_watermark, log.last_stable_offset, log_start_offset, -1),
                uvarint(len(records) + 1),
                records,
                _END,
            )
        )

    def answer_as_incremental_fetch(self) -> None:
        """Answer as IncrementalFetch does."""
        session = self._session
        request = FetchRequest(
            replica_state=ReplicaState(session.follower_id, -1),
            max_wait_ms=0,
            max_bytes=self._max_bytes,
            session_id=session.id,
        )
        IncrementalFetch(self._context, request, session, self._epoch).serve_late()
