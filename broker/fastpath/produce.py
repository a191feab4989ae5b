"""Produce on the fast path: one batch for one partition, without a transaction, to be acknowledged (versions 9-13).

The bytes from the number of topics to the partition's index name the partition (partition_key.py), and the response begins
with the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.fastpath.partition_key import (
    ID_KEY_SIZE,
    NAME_KEY_SIZE,
    NAME_LENGTH_OFFSET,
    learn_key,
)
from barnabas.broker.partitions.delayed_produce import (
    DelayedProduce,
    add_current_leaders,
    appended_answer,
    failed_answer,
    one_answer,
)
from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.broker.requests.context import PENDING, Outcome, RawResponse
from barnabas.controller.metadata.acls import Operation
from barnabas.storage.errors import StorageError
from barnabas.storage.log.validation import RecordsUnread
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fast_layouts import (
    PRODUCE_REQUEST_END,
    PRODUCE_REQUEST_HEAD,
    PRODUCE_RESPONSE_REST,
    PRODUCE_RESPONSE_REST_FIXED,
)
from barnabas.wire.primitives import MALFORMED, DecodeError, long_uvarint
from barnabas.wire.record_batch import (
    CODEC_MASK,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    RecordBatchError,
    read_header,
)

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.services import HandlerContext
    from barnabas.runtime.interface import Timer
    from barnabas.storage.log.log import AppendResult
    from barnabas.wire.messages.produce import ProduceResponse

_unpack_head: Final = PRODUCE_REQUEST_HEAD.unpack_from
_HEAD_SIZE: Final = PRODUCE_REQUEST_HEAD.size
_END_SIZE: Final = PRODUCE_REQUEST_END.size
_pack_rest: Final = PRODUCE_RESPONSE_REST.pack
(_NO_RECORD_ERRORS,) = PRODUCE_RESPONSE_REST_FIXED
_ZSTD: Final = int(Codec.ZSTD)
_TRANSACTION_AND_CODEC: Final = TRANSACTIONAL_FLAG | CODEC_MASK


def fast_produce(
    context: HandlerContext, buffer: memoryview, start: int, end: int
) -> bytes | ProduceResponse | Outcome | None:
    """The response's body for the request body at buffer[start:end], what the handler would return, or None when the request
    has another form (see the package)."""
    services = context.services
    partitions = services.partitions
    try:
        transactional_id, acks, timeout_ms = _unpack_head(buffer, start)
        start += _HEAD_SIZE
        if context.api_version >= 13:
            known = partitions.by_id_key
            position = start + ID_KEY_SIZE
        else:
            known = partitions.by_name_key
            position = start + NAME_KEY_SIZE + buffer[start + NAME_LENGTH_OFFSET]
        key = buffer[start:position].tobytes()
        size = buffer[position]
        position += 1
        if size > 127:
            size, position = long_uvarint(size, buffer, position)
        stop = position + size - 1
        if (
            transactional_id
            or (acks != 1 and acks != -1)
            or stop + _END_SIZE != end
            or buffer[stop]
            or buffer[stop + 1]
            or buffer[stop + 2]  # tagged fields, of the partition, the topic and the request
        ):
            return None
        partition = known.get(key) or learn_key(partitions, key, context.api_version >= 13)
        records = buffer[position:stop]
        header = read_header(records)
    except (*MALFORMED, DecodeError, RecordBatchError):
        return None
    if (
        partition is None
        or header.batch_length + LOG_OVERHEAD != len(records)
        or header.attributes & _TRANSACTION_AND_CODEC > _ZSTD
    ):
        return None
    authorizer = services.authorizer
    if authorizer is not None:
        if not authorizer.has_granted(context.caller, Operation.WRITE, partition.topic):
            return None
        authorizer.allowed += 1
    try:
        result = partition.append(records, header, acks)
    except RecordsUnread:
        if authorizer is not None:
            authorizer.allowed -= 1  # the handler asks next, and counts
        return None
    except StorageError as error:
        return one_answer(partition, failed_answer(partition.partition, partition, error))
    if result.awaits_commit and acks == ACKS_ALL and not result.awaits_write_back:
        body = key + _pack_rest(
            result.base_offset, result.log_append_time, result.log_start_offset, _NO_RECORD_ERRORS
        )
        return _CommitWait(context, partition, result, body).begin(timeout_ms)
    if result.awaits_sync or result.awaits_write_back:
        answer = appended_answer(partition.partition, result)
        delayed = DelayedProduce(context)
        delayed.wait_for(partition, result, answer, acks)
        return delayed.begin(one_answer(partition, answer), timeout_ms)
    return key + _pack_rest(
        result.base_offset, result.log_append_time, result.log_start_offset, _NO_RECORD_ERRORS
    )


class _CommitWait:
    """The wait of one batch for the other replicas. `body`: the response when they have it."""

    __slots__ = ("_body", "_context", "_partition", "_result", "_timer")

    def __init__(
        self, context: HandlerContext, partition: Partition, result: AppendResult, body: bytes
    ) -> None:
        self._context = context
        self._partition = partition
        self._result = result
        self._body = body
        self._timer: Timer | None = None

    def begin(self, timeout_ms: int) -> Outcome:
        """Answer when all in-sync replicas have the batch, or the time is up. Returns PENDING."""
        context = self._context
        self._timer = context.services.runtime.call_later(max(timeout_ms, 0) / 1000, self._time_is_up)
        context.allow_pipelined_produces()
        self._partition.when_committed(self._result.last_offset + 1, self._committed)
        return PENDING

    def _committed(self, error: ErrorCode) -> None:
        timer, self._timer = self._timer, None
        if timer is None:
            return  # too late
        timer.cancel()
        if error:
            self._fail(error)
        else:
            self._context.complete(RawResponse(self._body))

    def _time_is_up(self) -> None:
        self._timer = None
        self._fail(ErrorCode.REQUEST_TIMED_OUT)

    def _fail(self, error: ErrorCode) -> None:
        answer = appended_answer(self._partition.partition, self._result)
        answer.error_code = error
        if error == ErrorCode.KAFKA_STORAGE_ERROR:
            answer.base_offset = answer.log_start_offset = answer.log_append_time_ms = -1
        response = one_answer(self._partition, answer)
        add_current_leaders(self._context, response)
        self._context.complete(response)
