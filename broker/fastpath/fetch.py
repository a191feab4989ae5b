"""The fetch that a busy broker gets nearly all the time, in one pass: one partition, up to the high watermark,
and the records are there; without a session, or in one where nothing else may have something to say.

It does what fetch/delayed_fetch.py and fetch/reader.py do, for this one shape, without making a request and a response of
structs. Whatever is another shape, has to wait or fails goes the general way, from the beginning.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from barnabas.broker.fastpath.follower_fetch import BODY_SIZE, VERSIONS_FROM, fetch_follower
from barnabas.broker.fastpath.partition_key import ID_KEY_SIZE, NAME_KEY_SIZE, learn_key
from barnabas.broker.fetch.reader import COPIED_BYTES, copied
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.storage.log.log_config import LONG_MAX
from barnabas.wire.messages.fetch import FetchPartition
from barnabas.wire.primitives import MALFORMED, ZERO_UUID, uvarint

if TYPE_CHECKING:
    from barnabas.broker.requests.context import Outcome
    from barnabas.broker.services import HandlerContext
    from barnabas.wire.primitives import Part

# Replica id (until version 14), longest wait, min bytes, max bytes, isolation level, session id and epoch
_unpack_head_12: Final = struct.Struct(">iiiibii").unpack_from
_unpack_head_15: Final = struct.Struct(">iiibii").unpack_from
# Leader epoch, offset, last fetched epoch and (followers') log start offset, max bytes; and no tags of the partition
# nor of the topic, nothing forgotten, no rack, no tags
_unpack_partition: Final = struct.Struct(">iqiqi5s").unpack_from
_PARTITION_SIZE: Final = 4 + 8 + 4 + 8 + 4 + 5
_NOTHING_ELSE: Final = b"\0\0\1\1\0"
# No throttling and no error, session id; the key; no error, high watermark, last stable offset, log start offset, no
# list of aborted transactions, no preferred replica; the records' length plus one.
_pack_session: Final = struct.Struct(">6xi").pack
_WITHOUT_SESSION: Final = _pack_session(0)
_pack_partition: Final = struct.Struct(">2xqqqxi").pack
FINAL_EPOCH: Final = -1  # of a session that is not there: none is wanted
_END: Final = b"\0\0\0"  # no tags: of the partition, the topic, the response


def fetch_usual(
    context: HandlerContext, buffer: memoryview, start: int, end: int
) -> bytes | list[Part] | Outcome | None:
    """The response's body for the request body at buffer[start:end] (versions 12-18), or None when it is not the
    usual one, and nothing has happened."""
    services = context.services
    partitions = services.partitions
    version = context.api_version
    try:
        if version >= VERSIONS_FROM:
            if end - start == BODY_SIZE:
                return fetch_follower(context, buffer, start)
            max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch = _unpack_head_15(
                buffer, start
            )
            start += 21
        else:
            replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch = (
                _unpack_head_12(buffer, start)
            )
            if replica_id >= 0:
                return None
            start += 25
        if isolation_level or (epoch != FINAL_EPOCH if session_id == 0 else epoch <= 0):
            return None
        if version >= 13:
            known = partitions.by_id_key
            position = start + ID_KEY_SIZE
        else:
            known = partitions.by_name_key
            position = start + NAME_KEY_SIZE + buffer[start + 1]
        if position + _PARTITION_SIZE != end:
            return None
        leader_epoch, offset, last_fetched_epoch, start_offset, partition_max_bytes, rest = _unpack_partition(
            buffer, position
        )
        key = buffer[start:position].tobytes()
        partition = known.get(key) or learn_key(partitions, key, version >= 13)
    except MALFORMED:
        return None
    if partition is None or rest != _NOTHING_ELSE or last_fetched_epoch >= 0:
        return None
    session = one = None
    if session_id:
        session = services.fetch_sessions.get(session_id)
        if session is None or session.epoch != epoch or session.privileged:
            return None
        one = session.only_active(partition, version >= 13)
        if one is None:
            return None
    log = partition.log
    high_watermark = log.high_watermark
    if offset >= high_watermark or (leader_epoch >= 0 and leader_epoch != partition.leader_epoch):
        return None
    fetch_max_bytes = services.config.fetch_max_bytes
    if max_bytes > fetch_max_bytes:
        max_bytes = fetch_max_bytes
    try:
        result = log.read(
            offset,
            partition_max_bytes if partition_max_bytes < max_bytes else max_bytes,
            end_offset=high_watermark,
            wait=False,
        )
    except (StorageError, WouldWait):
        return None
    size = result.size
    if size == 0 or (size < min_bytes and size < max_bytes and max_wait_ms > 0):
        return None
    log_start_offset = log.log_start_offset
    if session is not None and one is not None:
        one.wanted = FetchPartition(
            partition.partition,
            leader_epoch,
            offset,
            last_fetched_epoch,
            start_offset,
            partition_max_bytes,
            ZERO_UUID,
            LONG_MAX,
        )
        services.fetch_sessions.touch(session)
        session.advance()
        session.settle_records(one, partition, high_watermark, log_start_offset)
    head = b"".join(
        (
            _pack_session(session_id) if session_id else _WITHOUT_SESSION,
            key,
            _pack_partition(high_watermark, log.last_stable_offset, log_start_offset, -1),
            uvarint(size + 1),
        )
    )
    if size <= COPIED_BYTES:
        records = copied(result)
        if isinstance(records, bytes):
            return head + records + _END
    return [head, *result.regions, _END]
