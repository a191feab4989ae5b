"""Produce (0), versions 3-13: append record batches to the partitions that this broker leads.

v3 record batch v2 and transactional ids, v7 zstd, v8 per-record errors (KIP-467), v10 the new leader in the response
(KIP-951), v13 topic ids (KIP-516). 0-2 are advertised because librdkafka reads the minimum (KAFKA-18659); such a request
closes the connection, as in Kafka.

The records stay opaque: the log reads the batch header alone, unless a config of the topic needs more. Where many records
have to be read, or many partitions to be appended to, the rest of the request is served in later turns of the loop, in
order; the connection's next request waits (`_ProduceInTurns`). A request of more than a thousand partitions is decoded by a
thread (`produce_large`). acks=0 gets no response, and a failure under acks=0 closes the connection, which is all that the
producer can notice. The response waits where a batch must be synced or replicated (acks=all) first, or where the disk has
fallen behind (broker/partitions/delayed_produce.py). Most requests take the fast path (broker/fastpath/produce.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from barnabas.broker.fastpath.produce import fast_produce
from barnabas.broker.partitions.current_leaders import missing_error
from barnabas.broker.partitions.delayed_produce import (
    DelayedProduce,
    add_current_leaders,
    appended_answer,
    failed_answer,
)
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.requests.context import CLOSE_CONNECTION, NO_RESPONSE, PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import TOO_MANY_PARTITIONS, partitions_named_max
from barnabas.broker.requests.sliced_handler import encode_in_thread
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.runtime.slices import TURN_S
from barnabas.storage.errors import StorageError
from barnabas.storage.log.validation import RecordsUnread
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from barnabas.wire.primitives import DecodeError
from barnabas.wire.produce_elements import names_more_than
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_SIZE,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    PRODUCER_ID_OFFSET,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    RecordBatchError,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.storage.log.validation import Inspected
    from barnabas.wire.compression import Bytes
    from barnabas.wire.message_type import Reader
    from barnabas.wire.primitives import Buffer

    # A topic, one of its partitions with its records, and the list for its response
    Part = tuple[TopicProduceData, PartitionProduceData, list[PartitionProduceResponse]]

log = logging.getLogger("barnabas.produce")

# The maxima of one request in its first turn: partitions, bytes and time
TURN_PARTITIONS: Final = 256
TURN_BYTES: Final = 16 << 20
FIRST_TURN_S: Final = 0.01
DECODED_AT_ONCE_MAX: Final = 1000  # topics and partitions of a request that is decoded on the loop
WAITING_BYTES_MAX: Final = 256 << 20  # of requests that are served in several turns; more are refused

TOPIC_IDS_FROM: Final = 13  # the first version that names topics by id (KIP-516)
BATCH_LENGTH_MIN = 14  # of the smallest message in any format; Kafka checks it before the magic
ADMIN_CLIENT_ID = "__admin_client"  # Kafka's own exemption for writing to internal topics


def produce_large(
    context: HandlerContext, read: Reader[ProduceRequest], buffer: memoryview, start: int, end: int
) -> Outcome | None:
    """Serve a request of many partitions: a thread decodes a copy of it, then it is served in turns. None for others."""
    version = context.api_version
    if not names_more_than(DECODED_AT_ONCE_MAX, buffer, start, end, version):
        return None
    services = context.services
    if services.waiting_produce_bytes > WAITING_BYTES_MAX:
        log.warning("closing a connection of %s: too many produce requests wait", context.client_host)
        return CLOSE_CONNECTION
    elements_max = 2 * partitions_named_max(services.controller.image)  # each may have a topic of its own
    body = memoryview(bytearray(buffer[start:end]))  # offsets are written into the batches in place

    def read_some(body: Buffer, start: int, end: int) -> tuple[ProduceRequest, int]:
        if names_more_than(elements_max, body, start, end, version):
            raise DecodeError(TOO_MANY_PARTITIONS)
        return read(body, start, end)

    def decoded(request: ProduceRequest | None, error: BaseException | None) -> None:
        services.waiting_produce_bytes -= len(body)
        if context.closed:
            return
        if request is None:
            services.large_requests.fail(context, error)
        else:
            _ProduceInTurns(context, request, [], DelayedProduce(context), body).resume()

    services.waiting_produce_bytes += len(body)
    services.large_requests.decode(read_some, body, decoded)
    return PENDING


@api(0, 3, 13, advertised_min=0, fast_path=fast_produce, large=produce_large)
def produce(context: HandlerContext, request: ProduceRequest) -> ProduceResponse | Outcome:
    topics: list[TopicProduceResponse] = []
    delayed = DelayedProduce(context)
    partitions_left, bytes_left = TURN_PARTITIONS, TURN_BYTES
    monotonic = context.services.runtime.monotonic
    deadline = monotonic() + FIRST_TURN_S
    try:
        for data in request.topic_data:
            answers: list[PartitionProduceResponse] = []
            topics.append(TopicProduceResponse(data.name, data.topic_id, answers))
            for part in data.partition_data:
                if (
                    partitions_left <= 0
                    or bytes_left <= 0
                    or (partitions_left % 8 == 1 and monotonic() >= deadline)
                ):
                    return _later(context, request, topics, delayed, None)
                answers.append(_serve(context, request, data, part, delayed))
                partitions_left -= 1
                bytes_left -= len(part.records) if part.records else 0
    except RecordsUnread as unread:
        return _later(context, request, topics, delayed, unread)
    return _answer(context, request, topics, delayed)


def _later(
    context: HandlerContext,
    request: ProduceRequest,
    topics: list[TopicProduceResponse],
    delayed: DelayedProduce,
    unread: RecordsUnread | None,
) -> ProduceResponse | Outcome:
    """Serve the other partitions in later turns; refuse them where too many bytes wait already."""
    if context.services.waiting_produce_bytes <= WAITING_BYTES_MAX:
        return _ProduceInTurns(context, request, topics, delayed).resume(unread)
    log.warning("a produce request of %s is refused: too many wait already", context.client_host)
    for number, data in enumerate(request.topic_data):
        if number == len(topics):
            topics.append(TopicProduceResponse(data.name, data.topic_id, []))
        answers = topics[number].partition_responses
        answers += [
            _error(part.index, ErrorCode.REQUEST_TIMED_OUT, "Too many batches wait to be read by this broker")
            for part in data.partition_data[len(answers) :]
        ]
    return _answer(context, request, topics, delayed)


class _ProduceInTurns:
    """A request whose first partitions have been served: serves the others in later turns, in order."""

    __slots__ = (
        "_context", "_current", "_delayed", "_is_large", "_others", "_records", "_request", "_topics",
    )  # fmt: skip

    def __init__(
        self,
        context: HandlerContext,
        request: ProduceRequest,
        topics: list[TopicProduceResponse],
        delayed: DelayedProduce,
        body: memoryview | None = None,
    ) -> None:
        """`topics` has the responses so far. `body`: a buffer that stays, of which the records are views. Without it the records that
        are left are copied, so that the connection's buffer is free."""
        self._context = context
        self._request = request
        self._topics = topics
        self._delayed = delayed
        self._is_large = sum(len(data.partition_data) for data in request.topic_data) > TURN_PARTITIONS
        for data in request.topic_data[len(topics) :]:
            topics.append(TopicProduceResponse(data.name, data.topic_id, []))
        self._records = self._copied_records() if body is None else body
        context.services.waiting_produce_bytes += len(self._records)
        self._others = self._parts()
        self._current = next(self._others, None)

    def _copied_records(self) -> memoryview:
        """Copy the records that are left, in one piece, as there may be very many, and give the request views of the copy."""
        views: list[Bytes] = []
        left: list[PartitionProduceData] = []
        for data, topic in zip(self._request.topic_data, self._topics, strict=True):
            for number, part in enumerate(data.partition_data):
                if number < len(topic.partition_responses):
                    part.records = None
                elif part.records:
                    views.append(part.records)
                    left.append(part)
        records = memoryview(bytearray().join(views))
        position = 0
        for part, view in zip(left, views, strict=True):
            part.records = records[position : position + len(view)]
            position += len(view)
        return records

    def _parts(self) -> Iterator[Part]:
        """The partitions that are left."""
        for data, topic in zip(self._request.topic_data, self._topics, strict=True):
            answers = topic.partition_responses
            for part in data.partition_data[len(answers) :]:
                yield data, part, answers

    def resume(self, unread: RecordsUnread | None = None) -> Outcome:
        """Continue in the next turn, or when `unread` has been read. Returns PENDING."""
        if unread is None:
            self._context.services.runtime.call_soon(self._turn)
        else:
            assert self._current is not None
            records = self._current[1].records
            assert isinstance(records, memoryview)
            unread.read_from(records)
            services = self._context.services
            queue = services.medium_inspections if unread.is_medium else services.inspections
            queue.add(unread.steps(), self._inspected)
        return PENDING

    def _turn(self, inspected: Inspected | None = None) -> None:
        """Serve, for a while."""
        context, request = self._context, self._request
        monotonic = context.services.runtime.monotonic
        deadline = monotonic() + TURN_S
        response: ProduceResponse | Outcome
        try:
            while self._current is not None:
                data, part, answers = self._current
                answers.append(_serve(context, request, data, part, self._delayed, inspected))
                inspected = part.records = None
                self._current = next(self._others, None)
                if monotonic() >= deadline:
                    self.resume()
                    return
            response = _answer(context, request, self._topics, self._delayed)
        except RecordsUnread as unread:
            self.resume(unread)
            return
        except Exception:
            log.exception("a produce request of %s failed; closing its connection", context.client_host)
            response = CLOSE_CONNECTION
        context.services.waiting_produce_bytes -= len(self._records)
        if isinstance(response, ProduceResponse) and self._is_large:
            encode_in_thread(context, response)
        elif response is not PENDING:
            context.complete(response)

    def _inspected(self, inspected: Inspected | None, error: BaseException | None) -> None:
        if error is not None:
            assert self._current is not None
            data, part, answers = self._current
            answers.append(_refuse_inspected(self._context, data, part, error))
            part.records = None
            self._current = next(self._others, None)
        self._turn(inspected)


def _refuse_inspected(
    context: HandlerContext, data: TopicProduceData, part: PartitionProduceData, error: BaseException
) -> PartitionProduceResponse:
    if not isinstance(error, StorageError):
        log.error("records for %s could not be read", data.name, exc_info=error)
        return _error(part.index, ErrorCode.UNKNOWN_SERVER_ERROR)
    partition = _find(context, data, part.index)
    if isinstance(partition, ErrorCode):
        return _error(part.index, partition)
    return failed_answer(part.index, partition, error)


def _answer(
    context: HandlerContext,
    request: ProduceRequest,
    topics: list[TopicProduceResponse],
    delayed: DelayedProduce,
) -> ProduceResponse | Outcome:
    """The response, or PENDING where a batch still waits."""
    response = ProduceResponse(topics)
    if request.acks == 0:
        failed = any(answer.error_code for topic in topics for answer in topic.partition_responses)
        if failed:
            return CLOSE_CONNECTION
        return delayed.begin(NO_RESPONSE, 0) if delayed else NO_RESPONSE
    if delayed:
        return delayed.begin(response, request.timeout_ms)
    add_current_leaders(context, response)
    return response


def _serve(
    context: HandlerContext,
    request: ProduceRequest,
    data: TopicProduceData,
    part: PartitionProduceData,
    delayed: DelayedProduce,
    inspected: Inspected | None = None,
) -> PartitionProduceResponse:
    """Append to one partition. RecordsUnread."""
    if not -1 <= request.acks <= 1:
        return _error(part.index, ErrorCode.INVALID_REQUIRED_ACKS)
    partition = _find(context, data, part.index)
    if isinstance(partition, ErrorCode):
        return _error(part.index, partition)
    return _append(context, request, partition, part, delayed, inspected)


def _append(
    context: HandlerContext,
    request: ProduceRequest,
    partition: Partition,
    part: PartitionProduceData,
    delayed: DelayedProduce,
    inspected: Inspected | None,
) -> PartitionProduceResponse:
    records: memoryview | bytes | None
    header: BatchHeader | None
    if inspected is not None:
        records, header = inspected.records, inspected.header
    else:
        records = part.records
        header = _usual_header(context, partition, records)
    if header is None:
        refusal = _refusal(context, request, partition, records)
        if refusal is not None:
            return _error(part.index, *refusal)
        assert isinstance(records, memoryview)  # otherwise it would have been refused
        size, _ = _next_batch(records, 0)
        records = records[:size]  # a truncated batch behind it is dropped, as in Kafka
        header = read_header(records)
    assert records is not None
    try:
        result = partition.append(records, header, request.acks, inspected=inspected)
    except StorageError as error:
        return failed_answer(part.index, partition, error)
    answer = appended_answer(part.index, result)
    if result.awaits_sync or result.awaits_write_back or result.awaits_commit:
        delayed.wait_for(partition, result, answer, request.acks)
    return answer


def _usual_header(
    context: HandlerContext, partition: Partition, records: memoryview | bytes | None
) -> BatchHeader | None:
    """The header of records that `_refusal` need not check: one whole batch in format v2, in a codec that clients of the version
    may send, for a topic that is not internal. None for all others."""
    if not isinstance(records, memoryview):
        return None
    try:
        header = read_header(records)
    except RecordBatchError:
        return None
    attributes = header.attributes
    if (
        header.batch_length + LOG_OVERHEAD != len(records)
        or attributes & CODEC_MASK > (Codec.ZSTD if context.api_version >= 7 else Codec.ZSTD - 1)
        or attributes & TRANSACTIONAL_FLAG
        or partition.topic in INTERNAL_TOPICS
    ):
        return None
    return header


def _refusal(
    context: HandlerContext, request: ProduceRequest, partition: Partition, records: object
) -> tuple[ErrorCode, str] | None:
    """The error of records that Kafka refuses before they reach the log: all but exactly one batch in format v2."""
    if partition.topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}"
    version = context.api_version
    size, corrupt = _next_batch(records, 0)
    if corrupt is not None:
        return ErrorCode.CORRUPT_MESSAGE, corrupt
    if size == 0 or not isinstance(records, memoryview):
        return (
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} must have at least one record batch per partition",
        )
    if records[MAGIC_OFFSET] < 2:
        return (
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain record batches with "
            "magic version 2",
        )
    if size < HEADER_SIZE:
        return ErrorCode.CORRUPT_MESSAGE, "The record batch is shorter than its header"
    attributes = records[ATTRIBUTES_OFFSET + 1]  # the low byte
    codec = attributes & CODEC_MASK
    if codec == Codec.ZSTD and version < 7:
        return (
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )
    if codec > Codec.ZSTD:
        return ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown compression type id: {codec}"
    if size != len(records):
        another, corrupt = _next_batch(records, size)
        if corrupt is not None:
            return ErrorCode.CORRUPT_MESSAGE, corrupt
        if another:
            return (
                ErrorCode.INVALID_RECORD,
                f"Produce requests with version {version} are only allowed to contain exactly one record "
                "batch per partition",
            )
    if attributes & TRANSACTIONAL_FLAG:
        if request.transactional_id is None:
            return (
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "A transactional batch needs a transactional id",
            )
        if records[PRODUCER_ID_OFFSET] < 0x80:  # not negative: a producer id
            # There is no transaction coordinator, so the transaction could never end.
            return (
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "Unable to verify the partition has been added to the transaction. Underlying error: "
                "COORDINATOR_NOT_AVAILABLE",
            )
    return None


def _next_batch(records: object, position: int) -> tuple[int, str | None]:
    """(size of the whole batch at position, why it is corrupt). The size is 0 when there is none; as in Kafka a truncated batch is
    none."""
    end = position + LOG_OVERHEAD
    if not isinstance(records, memoryview) or len(records) < end:
        return 0, None
    length = int.from_bytes(records[end - LENGTH_SIZE : end], "big", signed=True)
    if length < BATCH_LENGTH_MIN:
        return 0, f"Record size {length} is less than the minimum record overhead ({BATCH_LENGTH_MIN})"
    if len(records) <= position + MAGIC_OFFSET:
        return 0, None
    magic = records[position + MAGIC_OFFSET]
    if magic > 2:
        return 0, f"Invalid magic found in record: {magic - 256 if magic > 127 else magic}"
    size = LOG_OVERHEAD + length
    return (size if len(records) >= position + size else 0), None


def _find(context: HandlerContext, data: TopicProduceData, index: int) -> Partition | ErrorCode:
    """The partition, or why it is not here."""
    services = context.services
    topic: str | bytes
    if context.api_version >= TOPIC_IDS_FROM:
        topic, partition = data.topic_id, services.partitions.by_id(data.topic_id, index)
    else:
        topic, partition = data.name, services.partitions.get(data.name, index)
    return missing_error(services.controller.image, topic, index) if partition is None else partition


def _error(index: int, error: ErrorCode, message: str | None = None) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=index, error_code=error, base_offset=-1, error_message=message)
