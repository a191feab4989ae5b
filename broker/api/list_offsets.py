"""ListOffsets (2), versions 1-11: offsets by timestamp, and the special ones.

-1 latest, -2 earliest, -3 the record with the largest timestamp (v7, KIP-734), -4 earliest local (v8,
KIP-405), -5 latest tiered (v9, KIP-1005), -6 earliest not yet tiered (v11, KIP-1023; none where all is tiered). Without
tiering everything is local, so -4 is the log's start, and -5 and -6 have no offset. With it -3 looks at what is local alone.

The leader answers with offsets up to what is committed; for a debugger and for a follower (replica_authorization.py) up to
the log's end. A new leader that does not know the high watermark yet answers OFFSET_NOT_AVAILABLE where the result depends
on it (KIP-207, v5). A leader whose session with the active controller has ended answers NOT_LEADER_OR_FOLLOWER: a new leader
may have answered with a later end offset already, and an end offset must not go back.

A lookup by time may read segments that are not in the page cache, and decompresses a batch: threads do that, for a few
requests at a time (services.lookups).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Mapping
from typing import TypeAlias

from barnabas.broker.partitions.current_leaders import missing_error
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.requests.authorization import refused_topics
from barnabas.broker.requests.context import CLOSE_CONNECTION, PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.replica_authorization import may_act_as_replica
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.runtime.slices import Steps
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.log.timestamps import TimestampOffset
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

log = logging.getLogger("barnabas.list_offsets")

Key: TypeAlias = "tuple[str, int]"  # topic and partition
LookupResult: TypeAlias = "TimestampOffset | StorageError | None"
Found: TypeAlias = "Mapping[Key, LookupResult]"

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
FIRST_VERSION_OF = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
UNKNOWN_SPECIAL = 1 << 15  # a version that no request has
READ_COMMITTED = 1
CONSUMER, DEBUGGER = -1, -2  # replica ids that are no followers'
LOOKUPS_MAX = 3  # of one partition in one request, if what was found is deleted before it can be answered
OFFSET_NOT_AVAILABLE_FROM = 5  # the first version whose clients know it


@api(2, 1, 11)
@sliced
def list_offsets(
    context: HandlerContext, request: ListOffsetsRequest
) -> Generator[None, None, ListOffsetsResponse | Outcome]:
    if request.replica_id >= 0 and not may_act_as_replica(context, request.replica_id):
        return (yield from _refused(request))
    unauthorized = yield from refused_topics(
        context, Operation.DESCRIBE, ((topic.name, len(topic.partitions)) for topic in request.topics)
    )
    named = Counter[Key]()  # how often
    times: dict[Key, int | None] = {}
    for topic in request.topics:
        for part in topic.partitions:
            key = topic.name, part.partition_index
            named[key] += 1
            is_search = part.timestamp >= 0 or part.timestamp == MAX_TIMESTAMP
            if (
                is_search
                and topic.name not in unauthorized
                and context.services.partitions.get(*key) is not None
            ):
                times[key] = None if part.timestamp == MAX_TIMESTAMP else part.timestamp
            yield
        yield
    for key in [key for key in times if named[key] > 1]:
        del times[key]  # it is refused
    if not times:
        return (yield from _answer(context, request, unauthorized, named, {}))

    def done(found: Found | None, error: BaseException | None) -> None:
        if found is None:
            log.error("a lookup by time failed; closing its connection", exc_info=error)
            context.complete(CLOSE_CONNECTION)
        else:
            answer_in_slices(context, _answer(context, request, unauthorized, named, found))

    context.services.lookups.add(_look_up(context, times), done)
    return PENDING


def _refused(request: ListOffsetsRequest) -> Generator[None, None, ListOffsetsResponse]:
    def refuse(part: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        return _error(part, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    response = ListOffsetsResponse()
    for topic in request.topics:
        partitions = yield from collect(refuse, topic.partitions)
        response.topics.append(ListOffsetsTopicResponse(topic.name, partitions))
        yield
    return response


def _look_up(context: HandlerContext, times: Mapping[Key, int | None]) -> Steps[Found]:
    """The lookup result of each partition. Where records were deleted meanwhile, the lookup is repeated a few times."""
    found: dict[Key, LookupResult] = {}
    missing = list(times)
    for _ in range(LOOKUPS_MAX):
        for key in missing:
            partition = context.services.partitions.get(*key)
            if partition is None or context.closed:
                continue
            try:
                found[key] = yield from partition.log.timestamp_lookup(times[key])
            except StorageError as error:
                found[key] = error
        missing = [key for key, looked in found.items() if _is_gone(context, key, looked)]
        if not missing:
            break
    return found


def _is_gone(context: HandlerContext, key: Key, looked: LookupResult) -> bool:
    """Whether records were deleted that the lookup has found or was about to read."""
    partition = context.services.partitions.get(*key)
    if partition is None or partition.log.offline or looked is None:
        return False
    return isinstance(looked, StorageError) or looked.offset < partition.log.log_start_offset


def _answer(
    context: HandlerContext,
    request: ListOffsetsRequest,
    unauthorized: set[str],
    named: Counter[Key],
    found: Found,
) -> Generator[None, None, ListOffsetsResponse]:
    response = ListOffsetsResponse()
    for topic in request.topics:
        result = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(result)
        for part in topic.partitions:
            times = named.pop((topic.name, part.partition_index), 0)
            if topic.name in unauthorized:
                result.partitions.append(_error(part, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif times > 1:
                result.partitions.append(_error(part, ErrorCode.INVALID_REQUEST))
            elif times == 1:  # a repetition is answered once
                result.partitions.append(_lookup(context, request, topic.name, part, found))
            yield
        yield
    return response


def _lookup(
    context: HandlerContext,
    request: ListOffsetsRequest,
    topic: str,
    part: ListOffsetsPartition,
    found: Found,
) -> ListOffsetsPartitionResponse:
    if part.timestamp < 0 and context.api_version < FIRST_VERSION_OF.get(part.timestamp, UNKNOWN_SPECIAL):
        return _error(part, ErrorCode.UNSUPPORTED_VERSION)
    partition = context.services.partitions.get(topic, part.partition_index)
    if partition is None:
        return _error(part, missing_error(context.services.controller.image, topic, part.partition_index))
    error = partition.check_leader_epoch(part.current_leader_epoch)
    if error:
        return _error(part, error)
    is_debugger = request.replica_id == DEBUGGER
    if not is_debugger and not context.services.partitions.leads(partition):
        return _error(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if request.replica_id != CONSUMER:
        limit = partition.log.log_end_offset
    elif request.isolation_level == READ_COMMITTED:
        limit = partition.last_stable_offset
    else:
        limit = partition.high_watermark
    may_lack = request.replica_id == CONSUMER and not partition.knows_high_watermark
    if may_lack and part.timestamp == LATEST:
        return _error(part, _not_available(context))
    try:
        timestamp, offset, epoch = _find(partition, part.timestamp, limit, found)
    except StorageError as failure:
        return _error(part, failure.error)
    if may_lack and offset < 0 and (part.timestamp >= 0 or part.timestamp == MAX_TIMESTAMP):
        return _error(part, _not_available(context))
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _find(partition: Partition, timestamp: int, limit: int, found: Found) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch); -1 for what there is not."""
    log = partition.log
    if timestamp == LATEST:
        return -1, limit, partition.leader_epoch
    if timestamp == EARLIEST:
        return -1, log.log_start_offset, partition.start_epoch()
    if timestamp == EARLIEST_LOCAL:
        local_start = log.local_log_start_offset
        is_empty = local_start == log.log_end_offset
        epoch = partition.leader_epoch if is_empty else log.epochs.epoch_for_offset(local_start)
        return -1, local_start, epoch
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _find_tiered(log, timestamp)
    key = (partition.topic, partition.partition)
    if key not in found:
        raise StorageError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{log.name} was created during the lookups of other partitions"
        )
    record = found[key]
    if isinstance(record, StorageError):
        raise record
    if log.offline:
        raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {log.name} is offline")
    if record is None or record.offset >= limit:
        return -1, -1, -1
    return record.timestamp, record.offset, record.leader_epoch


def _find_tiered(log: Log, timestamp: int) -> tuple[int, int, int]:
    """Of the last offset that is tiered (KIP-1005), or the first that is not (KIP-1023)."""
    if log.remote is None:
        return -1, -1, -1
    tiered = log.remote.tiered_offset
    if timestamp == LATEST_TIERED:
        return -1, tiered, log.epochs.epoch_for_offset(tiered) if tiered >= 0 else -1
    if tiered < 0 and log.local_log_start_offset > log.log_start_offset:
        return -1, -1, -1  # what is tiered is not known here yet
    pending = max(tiered + 1, log.log_start_offset)
    if pending == log.log_end_offset:
        return -1, -1, -1
    return -1, pending, log.epochs.epoch_for_offset(pending)


def _not_available(context: HandlerContext) -> ErrorCode:
    if context.api_version >= OFFSET_NOT_AVAILABLE_FROM:
        return ErrorCode.OFFSET_NOT_AVAILABLE
    return ErrorCode.LEADER_NOT_AVAILABLE


def _error(part: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=error)
