"""A follower's Fetch on the fast path, as the follower sends it: the request that names one partition of a session, and the
response with a few records of it (version 18).

follower_fetch.py is the leader's side. replica_fetcher/ fills in the request (FollowerSession.fast_request), and uses the codec for
all other forms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from barnabas.wire.messages.fast_layouts import (
    FETCH_RESPONSE_END_FIXED,
    FOLLOWER_FETCH_REQUEST,
    FOLLOWER_FETCH_REQUEST_FIXED,
    FOLLOWER_FETCH_RESPONSE,
    FOLLOWER_FETCH_RESPONSE_FIXED,
)
from barnabas.wire.primitives import MALFORMED, DecodeError, long_uvarint

# Packs the body of a request that names one partition of a session and nothing else (FollowerSession.fast_request).
pack_fast_fetch_request: Final = FOLLOWER_FETCH_REQUEST.pack
ONE_TOPIC, ONE_PARTITION, ONLY_REPLICA_STATE = FOLLOWER_FETCH_REQUEST_FIXED
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
