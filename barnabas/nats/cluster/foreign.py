"""Producing to partitions that other brokers lead, as an ordinary producer with acks=all would.

Where one broker takes messages for partitions everywhere (the member of a queue group, the owner of a durable consumer),
it appends to its own partitions and sends the others' to their leaders. Of each partition one batch is under way at a
time, so its batches are appended in their order; what comes meanwhile waits. When one fails, those that wait behind
it fail as well: whoever gave them starts again from there. A batch whose answer was lost may have been appended: at
least once, then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.nats.cluster.peers import Peers, PeerTerms
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if TYPE_CHECKING:
    from barnabas.broker.services import Services

log = logging.getLogger("barnabas.nats")

PRODUCE: Final = 0
VERSION: Final = 13  # the first that names topics by their ids alone
TIMEOUT_S: Final = 10.0
NOBODY: Final = -1
NOWHERE: Final = -1
_TERMS: Final = PeerTerms(
    purpose="nats-producer",
    patience_s=TIMEOUT_S,
    timeout_s=TIMEOUT_S + 5,
    late=ErrorCode.NETWORK_EXCEPTION,
    lost=ErrorCode.NETWORK_EXCEPTION,
    is_strict=False,  # a batch that is under way may be appended yet
)

Done = Callable[[ErrorCode], object]
Placed = Callable[[ErrorCode, int], object]  # with the offset of the batch's first record, -1 with an error


class _Batch(msgspec.Struct, gc=False):
    records: Any  # of one batch
    done: Done


class ForeignProducer:
    """Produces for one broker. All calls on the loop's thread; `done(error)` comes later, or at once for partitions that
    are led here: NONE once the batch is committed, with min.insync.replicas met."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lines: dict[tuple[str, int], _Line] = {}
        self._peers = Peers(services, _TERMS)

    def produce(self, topic: str, partition: int, records: memoryview | bytes, done: Done) -> None:
        """Have one record batch appended by whoever leads the partition. UNKNOWN_TOPIC_OR_PARTITION,
        LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION and REQUEST_TIMED_OUT among the errors; then also all batches that
        were given for this partition since have failed."""
        line = self._lines.get((topic, partition))
        if line is None:
            line = self._lines[topic, partition] = _Line(self, topic, partition)
        line.add(_Batch(records, done))

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._peers.close()
        self._lines.clear()

    def send(self, topic: str, partition: int, records: memoryview | bytes, done: Placed) -> None:
        """As `produce`, at once and beside what else is under way; `done` is told where the batch is, too."""
        image = self._services.controller.image
        known = image.topics.get(topic)
        state = known.partitions.get(partition) if known is not None else None
        if known is None or state is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOWHERE)
        elif state.leader == self._services.node_id:
            self._append(topic, partition, records, done)
        elif state.leader == NOBODY:
            done(ErrorCode.LEADER_NOT_AVAILABLE, NOWHERE)
        else:
            data = TopicProduceData(
                topic_id=known.topic_id,
                partition_data=[PartitionProduceData(index=partition, records=records)],
            )
            request = ProduceRequest(acks=ACKS_ALL, timeout_ms=int(TIMEOUT_S * 1000), topic_data=[data])
            self._peers.ask(state.leader, PRODUCE, VERSION, request, partial(_read_answer, done))

    # -- called by the lines

    def is_empty(self, topic: str, partition: int) -> None:
        """Nothing is under way for it."""
        self._lines.pop((topic, partition), None)

    def _append(self, topic: str, partition: int, records: memoryview | bytes, done: Placed) -> None:
        found = self._services.partitions.get(topic, partition)
        if found is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER, NOWHERE)
            return
        try:
            result = found.append(records, None, ACKS_ALL)
        except StorageError as error:
            done(error.error, NOWHERE)
            return
        base_offset = result.base_offset
        found.when_committed(result.last_offset + 1, lambda error: done(error, base_offset))


class _Line:
    """The batches of one partition, in their order."""

    __slots__ = ("_is_going_on", "_is_under_way", "_partition", "_producer", "_topic", "_waiting")

    def __init__(self, producer: ForeignProducer, topic: str, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._waiting: deque[_Batch] = deque()
        self._is_under_way = False
        self._is_going_on = False  # answers may come at once

    def add(self, batch: _Batch) -> None:
        self._waiting.append(batch)
        self._go_on()

    def _go_on(self) -> None:
        if self._is_going_on:
            return
        self._is_going_on = True
        while self._waiting and not self._is_under_way:
            self._is_under_way = True
            batch = self._waiting.popleft()
            self._producer.send(self._topic, self._partition, batch.records, partial(self._ended, batch))
        self._is_going_on = False
        if not self._waiting and not self._is_under_way:
            self._producer.is_empty(self._topic, self._partition)

    def _ended(self, batch: _Batch, error: ErrorCode, _base_offset: int) -> None:
        failed = deque([batch])
        if error:
            failed.extend(self._waiting)
            self._waiting.clear()
        self._is_under_way = False
        for each in failed:
            each.done(error)
        self._go_on()


def _read_answer(done: Placed, response: Any, error: ErrorCode) -> None:
    answers = (
        []
        if response is None
        else [each for topic in response.responses for each in topic.partition_responses]
    )
    if len(answers) == 1:
        done(ErrorCode.of(answers[0].error_code), answers[0].base_offset)
    else:
        done(error or ErrorCode.UNKNOWN_SERVER_ERROR, NOWHERE)
