"""Produces to partitions on any broker, as a producer with acks=all does.

A broker that receives messages for partitions of the whole topic (the member of a queue group, the owner of a durable
consumer, the source of a dead letter) appends to the partitions that it leads and sends the other batches to their leaders.
`send` makes one request. `produce` keeps the batches of a partition in order: one is in flight at a time, and when it fails
the batches behind it fail, too, so that the caller starts again from there. Without a producer id a batch whose response was
lost may have been appended: at least once. Queue groups add a producer id (ingress/queue_group.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from barnabas.broker.cluster.peers import PeerTerms
from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.controller.metadata.image import NO_LEADER
from barnabas.nats.cluster.peers import peers_of
from barnabas.nats.records.batch_builder import BatchBuilder, TooLarge
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost

PRODUCE: Final = 0
VERSION: Final = 13  # the first that names topics by their ids alone
TIMEOUT_S: Final = 10.0
NO_OFFSET: Final = -1
_TERMS: Final = PeerTerms(
    purpose="nats-producer",
    request_timeout_s=TIMEOUT_S,
    connection_timeout_s=TIMEOUT_S + 5,
    timeout_error=ErrorCode.NETWORK_EXCEPTION,
    disconnect_error=ErrorCode.NETWORK_EXCEPTION,
    gives_up_sent=False,  # a batch that was sent may still be appended
)

M = TypeVar("M")
Done = Callable[[ErrorCode], object]
Produced = Callable[[ErrorCode, int], object]  # with the batch's base offset, NO_OFFSET with an error


class RemoteProducer:
    """Produces on behalf of this broker. All calls on the loop's thread. Calls back with NONE once the batch is committed, with
    min.insync.replicas met; for partitions led here perhaps before the call returns."""

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._peers = peers_of(host, _TERMS)

    def leader(self, topic: str, partition: int) -> int:
        """The node id of the partition's leader, NO_LEADER when it has none or does not exist."""
        known = self._host.controller.image.topics.get(topic)
        state = known.partitions.get(partition) if known is not None else None
        return state.leader if state is not None else NO_LEADER

    def produce(self, topic: str, partition: int, records: memoryview | bytes, done: Done) -> None:
        """Produces one record batch behind the earlier ones for this partition. After an error
        (UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION, REQUEST_TIMED_OUT, ...) the batches behind it
        have failed as well."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            send = partial(self.send, topic, partition)
            remove = partial(self._queues.pop, (topic, partition), None)
            queue = self._queues[topic, partition] = _Queue(send, remove)
        queue.add(_Batch(records, done))

    def send(self, topic: str, partition: int, records: memoryview | bytes, done: Produced) -> None:
        """Produces one record batch at once, whatever else is in flight."""
        known = self._host.controller.image.topics.get(topic)
        leader = self.leader(topic, partition)
        if known is None or partition not in known.partitions:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_OFFSET)
        elif leader == self._host.node_id:
            self._append(topic, partition, records, done)
        elif leader == NO_LEADER:
            done(ErrorCode.LEADER_NOT_AVAILABLE, NO_OFFSET)
        else:
            data = TopicProduceData(
                topic_id=known.topic_id,
                partition_data=[PartitionProduceData(index=partition, records=records)],
            )
            request = ProduceRequest(acks=ACKS_ALL, timeout_ms=int(TIMEOUT_S * 1000), topic_data=[data])
            self._peers.ask(leader, PRODUCE, VERSION, request, partial(_read_answer, done))

    def close(self) -> None:
        """No callback is called any more."""
        self._peers.close()
        self._queues.clear()

    def _append(self, topic: str, partition: int, records: memoryview | bytes, done: Produced) -> None:
        found = self._host.partitions.get(topic, partition)
        if found is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_OFFSET)
            return
        try:
            result = found.append(records, None, ACKS_ALL)
        except StorageError as error:
            done(error.error, NO_OFFSET)
            return
        base_offset = result.base_offset
        found.when_committed(result.last_offset + 1, lambda error: done(error, base_offset))


class _Batch(msgspec.Struct, gc=False):
    records: Any  # of one batch
    done: Done


class _Queue:
    """The batches of one partition, in order. `on_idle` is called when there are none any more."""

    __slots__ = ("_in_flight", "_is_sending", "_on_idle", "_send", "_waiting")

    def __init__(self, send: Callable[[Any, Produced], object], on_idle: Callable[[], object]) -> None:
        self._send = send
        self._on_idle = on_idle
        self._waiting: deque[_Batch] = deque()
        self._in_flight = False
        self._is_sending = False  # `send` may call back before it returns

    def add(self, batch: _Batch) -> None:
        self._waiting.append(batch)
        self._send_next()

    def _send_next(self) -> None:
        if self._is_sending:
            return
        self._is_sending = True
        while self._waiting and not self._in_flight:
            self._in_flight = True
            batch = self._waiting.popleft()
            self._send(batch.records, partial(self._ended, batch))
        self._is_sending = False
        if not self._waiting and not self._in_flight:
            self._on_idle()

    def _ended(self, batch: _Batch, error: ErrorCode, _base_offset: int) -> None:
        ended = deque([batch])
        if error:
            ended.extend(self._waiting)
            self._waiting.clear()
        self._in_flight = False
        for each in ended:
            each.done(error)
        self._send_next()


def _read_answer(done: Produced, response: Any, error: ErrorCode) -> None:
    answers = (
        []
        if response is None
        else [each for topic in response.responses for each in topic.partition_responses]
    )
    if len(answers) == 1:
        done(ErrorCode.of(answers[0].error_code), answers[0].base_offset)
    else:
        done(error or ErrorCode.UNKNOWN_SERVER_ERROR, NO_OFFSET)


class RemoteBatches(Generic[M]):
    """Collects records of messages (M) for partitions that other brokers lead, and produces them in batches. All calls on the
    loop's thread."""

    def __init__(
        self, producer: RemoteProducer, topic: str, ended: Callable[[list[M], ErrorCode], object]
    ) -> None:
        """`producer` is closed with it. `ended(messages, error)`: NONE once they are committed."""
        self.bytes_in_flight = 0
        self._producer = producer
        self._topic = topic
        self._ended = ended
        self._collected: dict[int, tuple[BatchBuilder, list[M]]] = {}  # by partition
        self._in_flight: dict[int, int] = {}  # batches by partition

    def has_in_flight(self, partition: int) -> bool:
        """Whether batches for the partition are in flight: a message sent in another way might overtake them."""
        return partition in self._in_flight

    def add(self, partition: int, tail: bytes, timestamp_ms: int, message: M) -> None:
        builder, messages = self._collected.setdefault(partition, (BatchBuilder(), []))
        builder.add_at(tail, timestamp_ms)
        messages.append(message)

    def send(self, size_max: int) -> None:
        """Produces what was collected, in batches of at most `size_max` bytes."""
        collected, self._collected = self._collected, {}
        for index, (builder, messages) in sorted(collected.items(), key=lambda each: each[0]):
            for batch in builder.finish(0, size_max):
                if isinstance(batch, TooLarge):
                    self._ended(messages[batch.first : batch.first + 1], ErrorCode.MESSAGE_TOO_LARGE)
                    continue
                mine = messages[batch.first : batch.first + batch.header.record_count]
                size = len(batch.records)
                self.bytes_in_flight += size
                self._in_flight[index] = self._in_flight.get(index, 0) + 1
                done = partial(self._produced, index, mine, size)
                self._producer.produce(self._topic, index, batch.records, done)

    def close(self) -> None:
        """`ended` is not called any more."""
        self._producer.close()

    def _produced(self, index: int, messages: list[M], size: int, error: ErrorCode) -> None:
        self.bytes_in_flight -= size
        self._in_flight[index] -= 1
        if not self._in_flight[index]:
            del self._in_flight[index]
        self._ended(messages, error)
