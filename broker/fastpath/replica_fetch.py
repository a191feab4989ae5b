"""A follower's Fetch on the fast path, as the follower sends it: the request that names one partition of a session, and the
response with a few records of it (version 18).

follower_fetch.py is the leader's side. replica_fetcher/fetcher.py uses FollowerSession.next_request and the codec for all
other forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.wire.messages.fast_layouts import (
    FETCH_RESPONSE_END_FIXED,
    FOLLOWER_FETCH_REQUEST,
    FOLLOWER_FETCH_REQUEST_FIXED,
    FOLLOWER_FETCH_RESPONSE,
    FOLLOWER_FETCH_RESPONSE_FIXED,
)
from barnabas.wire.primitives import MALFORMED, DecodeError, long_uvarint

if TYPE_CHECKING:
    from barnabas.broker.replica_fetcher.session import FollowerSession

_pack_request: Final = FOLLOWER_FETCH_REQUEST.pack
_ONE_TOPIC, _ONE_PARTITION, _ONLY_REPLICA_STATE = FOLLOWER_FETCH_REQUEST_FIXED
_unpack_answer: Final = FOLLOWER_FETCH_RESPONSE.unpack_from
_ANSWER_SIZE: Final = FOLLOWER_FETCH_RESPONSE.size
(_END,) = FETCH_RESPONSE_END_FIXED


class FastFetchResponse(NamedTuple):
    """Records of one partition."""

    session_id: int
    topic_id: bytes
    partition: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


def fast_fetch_request(session: FollowerSession, replica_id: int, broker_epoch: int) -> bytes | None:
    """The body of the session's next request, if it names one partition and nothing else; then it counts as sent."""
    state = session.begin_usual()
    if state is None:
        return None
    partition = state.partition
    log = partition.log
    body = _pack_request(
        session.max_wait_ms, session.min_bytes, session.max_bytes, session.id, session.epoch,
        _ONE_TOPIC, partition.topic_id, _ONE_PARTITION, partition.partition,
        state.leader_epoch, log.log_end_offset, log.latest_epoch, log.log_start_offset, session.partition_max_bytes,
        _ONLY_REPLICA_STATE, replica_id, broker_epoch,
    )  # fmt: skip
    session.asked()
    return body


def read_fast_fetch_response(frame: memoryview, start: int) -> FastFetchResponse | None:
    """The response whose body is frame[start:], if it has this form and no error."""
    end = len(frame)
    if end - start < _ANSWER_SIZE + len(_END):
        return None
    (
        error, session_id, topics, topic_id, partitions, index, partition_error, high_watermark, _last_stable_offset,
        log_start_offset, aborted, preferred_replica, size,
    ) = _unpack_answer(frame, start)  # fmt: skip
    position = start + _ANSWER_SIZE
    if size > 127:
        try:
            size, position = long_uvarint(size, frame, position)
        except (*MALFORMED, DecodeError):
            return None
    stop = position + size - 1
    if (
        error
        or (topics, partitions, aborted) != FOLLOWER_FETCH_RESPONSE_FIXED
        or partition_error
        or preferred_replica != -1
        or size <= 1
        or stop + len(_END) != end
        or bytes(frame[stop:]) != _END
    ):
        return None
    return FastFetchResponse(
        session_id, topic_id, index, high_watermark, log_start_offset, frame[position:stop]
    )
