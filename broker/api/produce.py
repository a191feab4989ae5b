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

A request with transactional batches waits for their transaction coordinator first, unless their transactions are open here
(broker/transactions/batch_verifier.py).
"""

from __future__ import annotations

import logging
from functools import partial
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
from barnabas.broker.requests.authorization import allows_topic, allows_transactional_id
from barnabas.broker.requests.context import CLOSE_CONNECTION, NO_RESPONSE, PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import TOO_MANY_PARTITIONS, partitions_named_max
from barnabas.broker.requests.sliced_handler import encode_in_thread
from barnabas.broker.services import HandlerContext
from barnabas.broker.transactions.batch_verifier import BatchVerifier
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.runtime.slices import TURN_S, run_through
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
    TRANSACTIONAL_FLAG,
    BatchHeader,
    RecordBatchError,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.runtime.slices import Steps
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
_UNAUTHORIZED: Final = memoryview(b"")  # in place of records that the sender may not write
_ACKS_MIN: Final = -1
_ACKS_MAX: Final = 1
_ATTRIBUTES: Final = ATTRIBUTES_OFFSET + 1  # their low byte
_MAGIC: Final = 2
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
            in_turns = _ProduceInTurns(context, request, [], DelayedProduce(context), body=body)
            if services.authorizer is None:
                in_turns.begin()
            else:
                in_turns.authorize()

    services.waiting_produce_bytes += len(body)
    services.large_requests.decode(read_some, body, decoded)
    return PENDING


@api(0, 3, 13, advertised_min=0, fast_path=fast_produce, large=produce_large)
def produce(context: HandlerContext, request: ProduceRequest) -> ProduceResponse | Outcome:
    is_transactional = _is_transactional(request)
    if context.services.authorizer is not None:
        try:
            run_through(_authorize(context, request, is_transactional))
        except StorageError as refusal:
            return _refuse_all(context, request, refusal)
    if is_transactional:
        return _produce_in_transactions(context, request)
    return _produce(context, request, None)


def _authorize(context: HandlerContext, request: ProduceRequest, is_transactional: bool) -> Steps[None]:
    """Take the records out that the sender may not write. StorageError when the whole request has to be refused."""
    transactional_id = request.transactional_id
    if is_transactional and (
        transactional_id is None or not allows_transactional_id(context, Operation.WRITE, transactional_id)
    ):
        raise StorageError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "")
    image = context.services.controller.image
    for data in request.topic_data:
        name: str | None = data.name
        if context.api_version >= TOPIC_IDS_FROM:
            known = image.topic_by_id(data.topic_id)
            name = None if known is None else known.name
        if name is not None and not allows_topic(
            context, Operation.WRITE, name, count=len(data.partition_data)
        ):
            for part in data.partition_data:
                part.records = _UNAUTHORIZED
        yield None


def _is_transactional(request: ProduceRequest) -> bool:
    """Whether the request has a transactional batch."""
    for data in request.topic_data:
        for part in data.partition_data:
            records = part.records
            if (
                records is not None
                and len(records) > _ATTRIBUTES
                and records[_ATTRIBUTES] & TRANSACTIONAL_FLAG
                and records[MAGIC_OFFSET] == _MAGIC
            ):
                return True
    return False


def _produce_in_transactions(context: HandlerContext, request: ProduceRequest) -> ProduceResponse | Outcome:
    """Serve a request that has transactional batches."""
    is_large = sum(len(data.partition_data) for data in request.topic_data) > TURN_PARTITIONS
    verifier = None
    if not is_large:
        try:
            verifier = run_through(_begin_verification(context, request))
        except StorageError as refusal:
            return _refuse_all(context, request, refusal)
        if verifier is None or not verifier.must_ask:
            return _produce(context, request, verifier)
    if context.services.waiting_produce_bytes > WAITING_BYTES_MAX:
        return _refuse_rest(context, request, [], DelayedProduce(context))
    in_turns = _ProduceInTurns(context, request, [], DelayedProduce(context), verifier)
    return in_turns.begin_verification() if is_large else in_turns.verify()


def _begin_verification(context: HandlerContext, request: ProduceRequest) -> Steps[BatchVerifier | None]:
    """The verifier of the request's transactional batches, which has begun; None when nothing will be appended. StorageError when
    the whole request has to be refused."""
    if request.transactional_id is None:
        raise StorageError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "")
    if not _ACKS_MIN <= request.acks <= _ACKS_MAX:
        return None
    services = context.services
    verifier = BatchVerifier(
        services.runtime,
        services.config,
        services.add_partitions_to_txn,
        request.transactional_id,
        context.api_version,
    )
    for data in request.topic_data:
        for part in data.partition_data:
            partition = _find(context, data, part.index)
            if not isinstance(partition, ErrorCode):
                header = _verifiable_header(context, partition, part.records)
                if header is not None:
                    verifier.add(partition, header)
            yield None
    for _ in verifier.begin():
        yield None
    return verifier


def _verifiable_header(
    context: HandlerContext, partition: Partition, records: memoryview | bytes | None
) -> BatchHeader | None:
    """The header of a transactional batch with a producer id that is not refused for its form. None for all others, which are not
    verified, as in Kafka."""
    header = _usual_header(context, partition, records)
    if header is None:
        if _refusal(context, partition, records) is not None:
            return None
        assert isinstance(records, memoryview)
        header = read_header(records)
    return header if header.attributes & TRANSACTIONAL_FLAG and header.producer_id >= 0 else None


def _refuse_all(
    context: HandlerContext, request: ProduceRequest, refusal: StorageError
) -> ProduceResponse | Outcome:
    """The answer to a request of which nothing is appended."""
    message = str(refusal) or None
    topics = [
        TopicProduceResponse(
            data.name,
            data.topic_id,
            [_error(part.index, refusal.error, message) for part in data.partition_data],
        )
        for data in request.topic_data
    ]
    return _answer(context, request, topics, DelayedProduce(context))


def _produce(
    context: HandlerContext, request: ProduceRequest, verifier: BatchVerifier | None
) -> ProduceResponse | Outcome:
    """Serve the request, as far as the first turn goes. `verifier`: of its transactional batches, with all results."""
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
                    return _later(context, request, topics, delayed, verifier, None)
                answers.append(_serve(context, request, data, part, delayed, verifier))
                partitions_left -= 1
                bytes_left -= len(part.records) if part.records else 0
    except RecordsUnread as unread:
        return _later(context, request, topics, delayed, verifier, unread)
    return _answer(context, request, topics, delayed)


def _later(
    context: HandlerContext,
    request: ProduceRequest,
    topics: list[TopicProduceResponse],
    delayed: DelayedProduce,
    verifier: BatchVerifier | None,
    unread: RecordsUnread | None,
) -> ProduceResponse | Outcome:
    """Serve the other partitions in later turns; refuse them where too many bytes wait already."""
    if context.services.waiting_produce_bytes <= WAITING_BYTES_MAX:
        return _ProduceInTurns(context, request, topics, delayed, verifier).resume(unread)
    return _refuse_rest(context, request, topics, delayed)


def _refuse_rest(
    context: HandlerContext,
    request: ProduceRequest,
    topics: list[TopicProduceResponse],
    delayed: DelayedProduce,
) -> ProduceResponse | Outcome:
    """Refuse the partitions that have not been served."""
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
        "_context", "_current", "_delayed", "_is_large", "_others", "_records", "_request", "_topics", "_verifier",
    )  # fmt: skip

    def __init__(
        self,
        context: HandlerContext,
        request: ProduceRequest,
        topics: list[TopicProduceResponse],
        delayed: DelayedProduce,
        verifier: BatchVerifier | None = None,
        *,
        body: memoryview | None = None,
    ) -> None:
        """`topics` has the responses so far. `body`: a buffer that stays, of which the records are views. Without it the records that
        are left are copied, so that the connection's buffer is free."""
        self._context = context
        self._request = request
        self._topics = topics
        self._delayed = delayed
        self._verifier = verifier
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

    def authorize(self) -> None:
        """Find what the sender may do, in turns, then verify and serve."""
        steps = _authorize(self._context, self._request, _is_transactional(self._request))
        self._context.services.medium_inspections.add(steps, self._authorized)

    def _authorized(self, _result: None, error: BaseException | None) -> None:
        if error is not None:
            self._verification_begun(None, error)
        else:
            self.begin()

    def begin(self) -> None:
        """Verify and serve."""
        if _is_transactional(self._request):
            self.begin_verification()
        else:
            self.resume()

    def begin_verification(self) -> Outcome:
        """Find what has to be verified, in turns, then verify and serve. Returns PENDING."""
        steps = _begin_verification(self._context, self._request)
        self._context.services.medium_inspections.add(steps, self._verification_begun)
        return PENDING

    def _verification_begun(self, verifier: BatchVerifier | None, error: BaseException | None) -> None:
        if isinstance(error, StorageError):
            self._finish(_refuse_all(self._context, self._request, error))
        elif error is not None:
            log.error(
                "a produce request of %s failed; closing its connection",
                self._context.client_host,
                exc_info=error,
            )
            self._finish(CLOSE_CONNECTION)
        else:
            self._verifier = verifier
            if verifier is not None and verifier.must_ask:
                self.verify()
            else:
                self._turn()

    def verify(self) -> Outcome:
        """Ask the transaction coordinator, then serve. Returns PENDING."""
        assert self._verifier is not None
        self._verifier.ask(partial(self._context.services.verified_produces.add, self._turn))
        return PENDING

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
                answers.append(_serve(context, request, data, part, self._delayed, self._verifier, inspected))
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
        self._finish(response)

    def _finish(self, response: ProduceResponse | Outcome) -> None:
        context = self._context
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
    verifier: BatchVerifier | None,
    inspected: Inspected | None = None,
) -> PartitionProduceResponse:
    """Append to one partition. RecordsUnread."""
    if part.records is _UNAUTHORIZED:
        return _error(part.index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not _ACKS_MIN <= request.acks <= _ACKS_MAX:
        return _error(part.index, ErrorCode.INVALID_REQUIRED_ACKS)
    partition = _find(context, data, part.index)
    if isinstance(partition, ErrorCode):
        return _error(part.index, partition)
    return _append(context, request, partition, part, delayed, verifier, inspected)


def _append(
    context: HandlerContext,
    request: ProduceRequest,
    partition: Partition,
    part: PartitionProduceData,
    delayed: DelayedProduce,
    verifier: BatchVerifier | None,
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
        refused = _refusal(context, partition, records)
        if refused is not None:
            return _error(part.index, *refused)
        assert isinstance(records, memoryview)  # otherwise it would have been refused
        size, _ = _next_batch(records, 0)
        records = records[:size]  # a truncated batch behind it is dropped, as in Kafka
        header = read_header(records)
    assert records is not None
    verification = None
    if verifier is not None:
        refusal = verifier.refusal(partition)
        if refusal is not None:
            return _error(part.index, *refusal)
        verification = verifier.verification(partition)
    try:
        result = partition.append(
            records, header, request.acks, inspected=inspected, verification=verification
        )
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
        or partition.topic in INTERNAL_TOPICS
    ):
        return None
    return header


def _refusal(context: HandlerContext, partition: Partition, records: object) -> tuple[ErrorCode, str] | None:
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
