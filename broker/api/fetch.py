"""Fetch (1), versions 4-18: read committed batches, as file regions that go out by sendfile.

v5 log start offset, v7 sessions (KIP-227), v9 leader epoch (KIP-320), v11 rack (KIP-392), v12 diverging
epoch (KIP-595), v13 topic ids (KIP-516), v15-18 only move and add what followers say.

An offset inside a batch gets the whole batch; consumers skip what they did not ask for. max_bytes and
partition_max_bytes are soft: the first partition that has data always gives one batch, so that a batch
larger than the limit never stops a consumer. Sessions are not kept: every answer says session 0, which
makes clients send full requests; a request that goes on with a session is FETCH_SESSION_ID_NOT_FOUND.
"""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.broker.context import RequestContext
from barnabas.broker.partition import Partition
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

READ_COMMITTED = 1
FINAL_EPOCH = -1  # of a session: closes it, which for us is a full fetch
INITIAL_EPOCH = 0  # asks for a new session, which for us is a full fetch too


@api(1, 4, 18)
def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse | Outcome:
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    read = _Read(context, request)
    if request.max_wait_ms <= 0 or read.size >= request.min_bytes or read.failed or not read.waited_on:
        return read.response
    waiter = context.services.purgatory.wait(
        read.waited_on,
        request.min_bytes - read.size,
        request.max_wait_ms / 1000,
        lambda: context.complete(_Read(context, request).response),
        lambda: context.closed,
    )
    context.when_abandoned(waiter.finish)
    read.release()
    return PENDING


class _Read:
    """One pass over what was asked for."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self.size = 0
        self.failed = False
        self.waited_on: list[Partition] = []
        self._context = context
        self._request = request
        self._by_id = context.api_version >= 13
        self._room = min(request.max_bytes, context.services.config.fetch_max_bytes)
        self.response = FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=list(self._topic(topic))
                )
                for topic in request.topics
            ]
        )

    def release(self) -> None:
        """The regions will not be sent: let go of their files."""
        self.response = FetchResponse()

    def _topic(self, topic: FetchTopic) -> Iterator[PartitionData]:
        partitions = self._context.services.partitions
        for wanted in topic.partitions:
            if self._by_id:
                partition = partitions.by_id(topic.topic_id, wanted.partition)
            else:
                partition = partitions.get(topic.topic, wanted.partition)
            if partition is None:
                answer = _error(wanted, self._why_absent(topic))
                answer.aborted_transactions = []  # Kafka's answer differs in this from a failed read's
            else:
                answer = self._partition(partition, wanted)
            self.failed = self.failed or answer.error_code != 0 or answer.diverging_epoch.epoch != -1
            yield answer

    def _why_absent(self, topic: FetchTopic) -> ErrorCode:
        if self._by_id and self._context.services.controller.image.topic_by_id(topic.topic_id) is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _partition(self, partition: Partition, wanted: FetchPartition) -> PartitionData:
        error = partition.check_leader_epoch(max(wanted.current_leader_epoch, -1))
        if error:
            return _error(wanted, error)
        committed = self._request.isolation_level == READ_COMMITTED
        end_offset = partition.last_stable_offset if committed else partition.high_watermark
        answer = PartitionData(
            partition_index=wanted.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=[] if committed else None,
            records=b"",
        )
        diverging = _diverging_epoch(partition, wanted)
        if diverging is not None:
            if diverging.epoch < 0:  # an epoch later than any we know
                return _error(wanted, ErrorCode.OFFSET_OUT_OF_RANGE)
            answer.diverging_epoch = diverging
            return answer
        try:
            result = partition.log.read(
                wanted.fetch_offset,
                min(wanted.partition_max_bytes, self._room),
                min_one_batch=self.size == 0,
                end_offset=end_offset,
            )
        except StorageError as failure:
            return _error(wanted, failure.error)
        if result.regions:
            answer.records = result.regions
            self.size += result.size
            self._room = max(0, self._room - result.size)
        self.waited_on.append(partition)
        return answer


def _diverging_epoch(partition: Partition, wanted: FetchPartition) -> EpochEndOffset | None:
    """KIP-595: where the reader's history and ours part, if they do."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.epoch_end_offset(wanted.last_fetched_epoch)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _error(wanted: FetchPartition, error: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=wanted.partition,
        error_code=error,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )
