"""The request that a follower sends nearly all the time, and the answer it gets, as bytes: one partition of a session, and
a few records of it. What follower_fetch.py is to the leader; replica_fetcher/fetcher.py goes the general way otherwise.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.wire.primitives import MALFORMED, DecodeError, long_uvarint

if TYPE_CHECKING:
    from barnabas.broker.replica_fetcher.session import FollowerSession

# Longest wait, min bytes, max bytes, isolation level, session id and epoch; one topic (counts are written plus one), its
# id, one partition and its index; its leader epoch, offset, last fetched epoch, log start offset, max bytes; no tags of the
# partition nor of the topic, nothing forgotten, no rack; one tag: number 1, 13 bytes: replica id and epoch, no tags
_pack_request: Final = struct.Struct(">iiiBii B16sBi iqiqi BBBBBBBiqB").pack
# No throttling (4), error, session id, topics, the topic's id, partitions, the partition's index, error, high watermark, last
# stable offset, log start offset, aborted transactions, preferred replica; the records' length, in one byte at least
_unpack_answer: Final = struct.Struct(">4x h i B 16s B i h q q q B i B").unpack_from
_ANSWER_SIZE: Final = struct.calcsize(">4x h i B 16s B i h q q q B i B")
_END: Final = b"\0\0\0"  # no tags: of the partition, the topic, the response


class UsualAnswer(NamedTuple):
    """Records of one partition."""

    session_id: int
    topic_id: bytes
    partition: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


def usual_request(session: FollowerSession, replica_id: int, broker_epoch: int) -> bytes | None:
    """The body, version 18, of the session's next request, if it names one partition and nothing else; it counts as
    asked then."""
    state = session.begin_usual()
    if state is None:
        return None
    partition = state.partition
    log = partition.log
    body = _pack_request(
        session.max_wait_ms, session.min_bytes, session.max_bytes, 0, session.id, session.epoch,
        2, partition.topic_id, 2, partition.partition,
        state.leader_epoch, log.log_end_offset, log.latest_epoch, log.log_start_offset, session.partition_max_bytes,
        0, 0, 1, 1, 1, 1, 13, replica_id, broker_epoch, 0,
    )  # fmt: skip
    session.asked()
    return body


def read_usual_answer(frame: memoryview, start: int) -> UsualAnswer | None:
    """What the body at frame[start:] says, if it is one of these without an error; None when it is anything else."""
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
        or topics != 2
        or partitions != 2
        or partition_error
        or aborted
        or preferred_replica != -1
        or size <= 1
        or stop + len(_END) != end
        or bytes(frame[stop:]) != _END
    ):
        return None
    return UsualAnswer(session_id, topic_id, index, high_watermark, log_start_offset, frame[position:stop])
