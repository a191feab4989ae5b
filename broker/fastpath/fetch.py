"""A consumer's Fetch on the fast path: one partition that has committed records (versions 12-18), without a session, or in one
whose other partitions have nothing new.

It has the effects of fetch/delayed_fetch.py and fetch/reader.py, without structs for request and response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.fastpath.follower_fetch import BODY_SIZE, VERSIONS_FROM, fast_follower_fetch
from barnabas.broker.fastpath.partition_key import (
    ID_KEY_SIZE,
    NAME_KEY_SIZE,
    NAME_LENGTH_OFFSET,
    learn_key,
)
from barnabas.broker.fetch.reader import COPIED_BYTES, copied
from barnabas.broker.fetch.sessions import FINAL_EPOCH
from barnabas.controller.metadata.acls import Operation
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.storage.log.log_config import LONG_MAX
from barnabas.wire.messages.fast_layouts import (
    FETCH_REQUEST_HEAD_12,
    FETCH_REQUEST_HEAD_15,
    FETCH_REQUEST_REST,
    FETCH_REQUEST_REST_FIXED,
    FETCH_RESPONSE_END_FIXED,
    FETCH_RESPONSE_HEAD,
    FETCH_RESPONSE_REST,
)
from barnabas.wire.messages.fetch import FetchPartition
from barnabas.wire.primitives import MALFORMED, ZERO_UUID, uvarint

if TYPE_CHECKING:
    from barnabas.broker.requests.context import Outcome
    from barnabas.broker.services import HandlerContext
    from barnabas.wire.primitives import Part

_unpack_head_12: Final = FETCH_REQUEST_HEAD_12.unpack_from
_HEAD_SIZE_12: Final = FETCH_REQUEST_HEAD_12.size
_unpack_head_15: Final = FETCH_REQUEST_HEAD_15.unpack_from
_HEAD_SIZE_15: Final = FETCH_REQUEST_HEAD_15.size
_unpack_rest: Final = FETCH_REQUEST_REST.unpack_from
_REST_SIZE: Final = FETCH_REQUEST_REST.size
(_NOTHING_ELSE,) = FETCH_REQUEST_REST_FIXED  # no tagged fields, forgotten topics or rack
_pack_head: Final = FETCH_RESPONSE_HEAD.pack
_WITHOUT_SESSION: Final = _pack_head(0)
_pack_rest: Final = FETCH_RESPONSE_REST.pack
(_END,) = FETCH_RESPONSE_END_FIXED


def fast_fetch(
    context: HandlerContext, buffer: memoryview, start: int, end: int
) -> bytes | list[Part] | Outcome | None:
    """The response's body for the request body at buffer[start:end], or None when the request has another form (see the
    package). PENDING for a follower's that waits."""
    services = context.services
    partitions = services.partitions
    version = context.api_version
    try:
        if version >= VERSIONS_FROM:
            if end - start == BODY_SIZE:
                return fast_follower_fetch(context, buffer, start)
            max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch = _unpack_head_15(
                buffer, start
            )
            start += _HEAD_SIZE_15
        else:
            replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch = (
                _unpack_head_12(buffer, start)
            )
            if replica_id >= 0:
                return None
            start += _HEAD_SIZE_12
        if isolation_level or (epoch != FINAL_EPOCH if session_id == 0 else epoch <= 0):
            return None
        if version >= 13:
            known = partitions.by_id_key
            position = start + ID_KEY_SIZE
        else:
            known = partitions.by_name_key
            position = start + NAME_KEY_SIZE + buffer[start + NAME_LENGTH_OFFSET]
        if position + _REST_SIZE != end:
            return None
        leader_epoch, offset, last_fetched_epoch, start_offset, partition_max_bytes, rest = _unpack_rest(
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
    authorizer = services.authorizer
    if authorizer is not None and (
        not authorizer.has_granted(context.caller, Operation.READ, partition.topic)
        or (session is not None and session.acl_epoch != authorizer.epoch)
    ):
        return None
    log = partition.log
    high_watermark = log.high_watermark
    if offset >= high_watermark or (leader_epoch >= 0 and leader_epoch != partition.leader_epoch):
        return None
    fetch_max_bytes = services.config.fetch_max_bytes
    if max_bytes > fetch_max_bytes:
        max_bytes = fetch_max_bytes
    quotas = services.client_quotas
    if quotas is not None:
        max_bytes = min(max_bytes, quotas.fetch_max_bytes(context.caller, context.client_id))
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
    if quotas is not None and quotas.fetch_throttle_ms(context.caller, context.client_id, size):
        return None
    if authorizer is not None:
        authorizer.allowed += 1
    stats = partition.stats
    stats.fetch_requests += 1
    stats.bytes_out += size
    partition.bytes_out += size
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
            _pack_head(session_id) if session_id else _WITHOUT_SESSION,
            key,
            _pack_rest(high_watermark, log.last_stable_offset, log_start_offset, -1),
            uvarint(size + 1),
        )
    )
    if size <= COPIED_BYTES:
        records = copied(result)
        if isinstance(records, bytes):
            return head + records + _END
    return [head, *result.regions, _END]
