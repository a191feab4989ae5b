"""Transaction coordinators over a log in memory: brokers 1 and 2, on one virtual clock, of which one leads __transaction_state.

The log is that of partitions with several replicas, as far as coordinators see it. With `log.holds` an append is committed when the
script says so; without, at once. The next leader has what is committed and, of the rest, as much as the script leaves it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

import msgspec

from barnabas.broker.cluster.producer_ids import ProducerIdAllocator, TakeBlock
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinator.loading import Replay
from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.transactions.coordinator import TransactionCoordinator
from barnabas.broker.transactions.records import TransactionRecord, decode_record
from barnabas.broker.transactions.state import TransactionState
from barnabas.broker.transactions.tests.scripted_brokers import Asked, ScriptedBrokers, image_of
from barnabas.broker.transactions.transaction import TopicPartition, Transaction
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from barnabas.wire.records import iterate_records
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC = "__transaction_state"
Done = Callable[[E], object]


class Answers(list[tuple[Any, ...]]):
    """Of one request: empty while it waits. `on_answer(answer)` is called at the time of the answer."""

    on_answer: Callable[[tuple[Any, ...]], object] | None = None

    def __call__(self, *answer: Any) -> None:
        self.append(answer)
        if self.on_answer is not None:
            self.on_answer(answer)


@functools.lru_cache(maxsize=1024)
def records_in(batch: bytes) -> tuple[TransactionRecord, ...]:
    """The records of a batch. Tests read the whole log again at each step."""
    return tuple(decode_record(record.key, record.value) for record in iterate_records(batch))


class MemoryPartition:
    """One partition of the topic."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.committed = 0  # of them
        self.waiting: list[
            tuple[int, Done]
        ] = []  # the number of batches that must be committed, and who waits

    def commit(self, count: int = 1 << 30) -> None:
        """That many more batches are committed."""
        self.committed = min(len(self.batches), self.committed + count)
        self._call(E.NONE)

    def lose(self, kept: int) -> None:
        """The leader is none any more; the next one has `kept` of what was not committed, and commits it."""
        del self.batches[self.committed + kept :]
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(E.NOT_LEADER_OR_FOLLOWER)

    def when_committed(self, done: Done) -> None:
        self.waiting.append((len(self.batches), done))
        self._call(E.NONE)

    def _call(self, error: E) -> None:
        while self.waiting and self.waiting[0][0] <= self.committed:
            self.waiting.pop(0)[1](error)


class MemoryLog:
    """All partitions of the topic. `errors`: of the next appends, which are not appended."""

    def __init__(self, count: int) -> None:
        self.partitions = [MemoryPartition() for _ in range(count)]
        self.leader = 1
        self.holds = False
        self.errors: list[E] = []

    def records(self, index: int = 0) -> list[TransactionRecord]:
        """All records of a partition."""
        return list(chain.from_iterable(map(records_in, self.partitions[index].batches)))

    def states(self, index: int = 0) -> list[str]:
        """The states in the partition's records; "-" for a removal."""
        return ["-" if each.data is None else each.data.state.label for each in self.records(index)]


class BrokerLog:
    """The log as the coordinator of one broker sees it (CoordinatorLog)."""

    topic = TOPIC

    def __init__(self, log: MemoryLog, node_id: int) -> None:
        self._log = log
        self._node_id = node_id

    def append(self, partition_index: int, batch: bytes, done: Done) -> None:
        partition = self._log.partitions[partition_index]
        if self._log.leader != self._node_id:
            done(E.NOT_LEADER_OR_FOLLOWER)
        elif self._log.errors:
            done(self._log.errors.pop(0))
        else:
            partition.batches.append(batch)
            if not self._log.holds:
                partition.commit()
            partition.when_committed(done)

    def load(
        self, partition_index: int, replay: Replay, done: Callable[[Exception | None], object]
    ) -> BrokerLog:
        offset = 0
        data = b""
        for batch in self._log.partitions[partition_index].batches:
            data += offset.to_bytes(8, "big") + batch[8:]
            offset += sum(1 for _ in iterate_records(batch))
        for _ in chain(replay.take(data), replay.finish()):
            pass
        done(None)
        return self

    def when_committed(self, partition_index: int, done: Done) -> None:
        if not self._log.holds:
            self._log.partitions[partition_index].commit()
        self._log.partitions[partition_index].when_committed(done)

    def is_replicated(self, _partition_index: int) -> bool:
        return True

    def cancel(self) -> None:
        """It is all there."""


class Metadata:
    """The controller, as the coordinators see it."""

    def __init__(self, partition_count: int) -> None:
        self.leaders: dict[TopicPartition, int] = {("a", 0): 1, ("a", 1): 2, ("b", 0): 2}
        self.leaders |= {(TOPIC, index): 1 for index in range(partition_count)}
        self.epochs: dict[TopicPartition, int] = {}
        self.features = {"transaction.version": 2}
        self.topic_listeners: list[Callable[..., object]] = []
        self.broker_listeners: list[Callable[..., object]] = []

    @property
    def image(self) -> Any:
        image = image_of(self.leaders, {1, 2})
        for topic in image.topics.values():
            for index, state in topic.partitions.items():
                epoch = self.epochs.get((topic.name, index), 0)
                topic.partitions[index] = msgspec.structs.replace(state, leader_epoch=epoch)
        image.features = self.features
        return image

    def add_listener(self, listener: Callable[..., object]) -> None:
        self.topic_listeners.append(listener)

    def add_broker_listener(self, listener: Callable[..., object]) -> None:
        self.broker_listeners.append(listener)

    def changed(self) -> None:
        image = self.image
        for listener in self.topic_listeners:
            listener(image, {topic.topic_id: [] for topic in image.topics.values()}, set())


class Coordinators:
    """See the module. `markers` are asked for until `write_markers`, or written at once with `writes_markers`."""

    def __init__(self, partition_count: int = 1, **settings: str) -> None:
        self.partition_count = partition_count
        self.runtime = VirtualRuntime()
        self.metadata = Metadata(partition_count)
        self.log = MemoryLog(partition_count)
        self.brokers = ScriptedBrokers()
        self.next_id = 1000
        self.has_ids = True
        self.on_answer: Callable[[tuple[Any, ...], tuple[Any, ...]], object] = lambda _request, _answer: None
        properties = {name.replace("_", "."): value for name, value in settings.items()}
        self.all = {node_id: self._make(node_id, properties) for node_id in (1, 2)}
        for each in self.all.values():
            each.start()

    def _make(self, node_id: int, properties: dict[str, str]) -> TransactionCoordinator:
        config = BrokerConfig.from_properties({"node.id": str(node_id), **properties})
        return TransactionCoordinator(
            cast("Any", BrokerLog(self.log, node_id)),
            config,
            self.runtime,
            cast("Any", self.metadata),
            cast("Any", self),
            lambda _topic, _done: None,
            ProducerIdAllocator(self._give_ids),
            self.brokers.ask,
        )

    def _give_ids(self, done: TakeBlock) -> None:
        if not self.has_ids:
            done(range(0), E.REQUEST_TIMED_OUT)
            return
        done(range(self.next_id, self.next_id + 1), E.NONE)
        self.next_id += 1

    def deletion_time_ms(self) -> int | None:
        return self.runtime.time_ms()

    @property
    def leader(self) -> TransactionCoordinator:
        return self.all[self.log.leader]

    def elect(self, node_id: int, kept: int = 1 << 30) -> None:
        """Another broker becomes the leader of all partitions, or the same in a later epoch."""
        for index, partition in enumerate(self.log.partitions):
            if node_id != self.log.leader:
                partition.lose(kept)
            self.metadata.leaders[TOPIC, index] = node_id
            self.metadata.epochs[TOPIC, index] = self.metadata.epochs.get((TOPIC, index), 0) + 1
        self.log.leader = node_id
        self.metadata.changed()

    # -- requests; their answers

    def initialize(
        self, name: str = "id", producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000
    ) -> Answers:
        answers = self._answers("initialize", name)
        self.leader.initialize(name, timeout_ms, producer_id, epoch, answers)
        return answers

    def add(
        self, producer_id: int, epoch: int, *partitions: TopicPartition, name: str = "id", bumps: bool = False
    ) -> Answers:
        answers = self._answers("add", name, partitions)
        self.leader.add_partitions(name, producer_id, epoch, partitions, bumps, answers)
        return answers

    def end(
        self, producer_id: int, epoch: int, *, commit: bool = True, name: str = "id", bumps: bool = False
    ) -> Answers:
        answers = self._answers("end", name, commit)
        self.leader.end(name, producer_id, epoch, commit, bumps, answers)
        return answers

    def _answers(self, *request: Any) -> Answers:
        answers = Answers()
        answers.on_answer = lambda answer: self.on_answer(request, answer)
        return answers

    def ongoing(
        self, *partitions: TopicPartition, name: str = "id", timeout_ms: int = 60_000, bumps: bool = False
    ) -> tuple[int, int]:
        """The producer of a transaction that is open in these partitions."""
        ((error, producer_id, epoch),) = self.initialize(name, timeout_ms=timeout_ms)
        assert error == E.NONE
        assert self.add(producer_id, epoch, *partitions, name=name, bumps=bumps) == [(E.NONE,)]
        return producer_id, epoch

    # -- what there is

    def transaction(self, name: str = "id") -> Transaction:
        found = self.leader.describe(name)
        assert isinstance(found, Transaction), found
        return found

    def state(self, name: str = "id") -> TransactionState:
        return self.transaction(name).state

    def of_partition(self, index: int) -> Iterator[str]:
        """Transactional ids that belong to the partition."""
        names = (f"id-{number}" for number in range(1 << 30))
        return (name for name in names if partition_for(name, self.partition_count) == index)

    # -- markers

    def asked(self) -> list[Asked]:
        """The requests with markers that have no answer."""
        self.runtime.run_until_idle()
        return self.brokers.take()

    def write_markers(self, error: E = E.NONE) -> int:
        """Answer all that are asked for now; their number."""
        asked = self.asked()
        for each in asked:
            answer_markers(each, error)
        self.runtime.run_until_idle()
        return len(asked)


def answer_markers(asked: Asked, error: E = E.NONE) -> None:
    """Each marker is written, or fails."""
    asked.answer(
        WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                WritableTxnMarkerPartitionResult(index, error)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in asked.request.markers
            ]
        )
    )


Marker = tuple[int, int, bool, TopicPartition]  # producer id, epoch, commit, partition


def each_marker(asked: Asked) -> list[Marker]:
    """The markers of one request."""
    return [
        (marker.producer_id, marker.producer_epoch, marker.transaction_result, (topic.name, index))
        for marker in asked.request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    ]


def markers_of(asked: list[Asked]) -> dict[TopicPartition, tuple[int, int, bool, int, int, int]]:
    """Those of one transaction by partition: producer id, epoch, commit, coordinator epoch, transaction version, broker."""
    return {
        (topic.name, index): (
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
            each.node_id,
        )
        for each in asked
        for marker in each.request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    }
