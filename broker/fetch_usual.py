"""The fetch that a busy broker gets nearly all the time, in one pass: one partition, up to the high watermark,
outside of sessions, and the records are there.

It does what fetch_requests.py and fetch_read.py do, for this one shape, without making a request and a response of
structs. Whatever is another shape, has to wait or fails goes the general way, from the beginning.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from barnabas.broker.fetch_read import COPIED_BYTES, copied
from barnabas.broker.partition_keys import ID_KEY_SIZE, NAME_KEY_SIZE, learn_key
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.primitives import MALFORMED, uvarint

if TYPE_CHECKING:
    from barnabas.broker.context import RequestContext
    from barnabas.wire.primitives import Part

# Replica id (until version 14), longest wait, min bytes, max bytes, and in one isolation level (uncommitted), session
# id (none) and epoch (-1: none wanted)
_unpack_head_12: Final = struct.Struct(">iiii9s").unpack_from
_unpack_head_15: Final = struct.Struct(">iii9s").unpack_from
_NO_SESSION: Final = b"\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"
# Leader epoch, offset, last fetched epoch and (followers') log start offset, max bytes; and no tags of the partition
# nor of the topic, nothing forgotten, no rack, no tags
_unpack_partition: Final = struct.Struct(">iqi8xi5s").unpack_from
_PARTITION_SIZE: Final = 4 + 8 + 4 + 8 + 4 + 5
_NOTHING_ELSE: Final = b"\0\0\1\1\0"
# Throttling, error, session id (all none); the key; error, high watermark, last stable offset, log start offset, no
# list of aborted transactions, no preferred replica; the records' length plus one.
_NO_ERROR: Final = bytes(4 + 2 + 4)
_pack_partition: Final = struct.Struct(">2xqqqxi").pack
_END: Final = b"\0\0\0"  # no tags: of the partition, the topic, the response


def fetch_usual(
    context: RequestContext, buffer: memoryview, start: int, end: int
) -> bytes | list[Part] | None:
    """The response's body for the request body at buffer[start:end] (versions 12-18), or None when it is not the
    usual one, and nothing has happened."""
    services = context.services
    partitions = services.partitions
    version = context.api_version
    try:
        if version >= 15:
            max_wait_ms, min_bytes, max_bytes, session = _unpack_head_15(buffer, start)
            start += 21
        else:
            replica_id, max_wait_ms, min_bytes, max_bytes, session = _unpack_head_12(buffer, start)
            if replica_id >= 0:
                return None
            start += 25
        if session != _NO_SESSION:
            return None
        if version >= 13:
            known = partitions.by_id_key
            position = start + ID_KEY_SIZE
        else:
            known = partitions.by_name_key
            position = start + NAME_KEY_SIZE + buffer[start + 1]
        if position + _PARTITION_SIZE != end:
            return None
        leader_epoch, offset, last_fetched_epoch, partition_max_bytes, rest = _unpack_partition(
            buffer, position
        )
        key = buffer[start:position].tobytes()
        partition = known.get(key) or learn_key(partitions, key, version >= 13)
    except MALFORMED:
        return None
    if partition is None or rest != _NOTHING_ELSE or last_fetched_epoch >= 0:
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
    head = b"".join(
        (
            _NO_ERROR,
            key,
            _pack_partition(high_watermark, log.last_stable_offset, log.log_start_offset, -1),
            uvarint(size + 1),
        )
    )
    if size <= COPIED_BYTES:
        records = copied(result)
        if isinstance(records, bytes):
            return head + records + _END
    return [head, *result.regions, _END]
