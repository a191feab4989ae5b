"""The sender of transaction markers: has the end of a transaction written to all its partitions, by their leaders.

The markers that wait for one broker travel together in one WriteTxnMarkers, those of several coordinator partitions too; a large
transaction takes several. A marker that could not be written goes to the leader that its partition has by then, for as long as
this broker is the coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.transactions.transaction import TopicPartition, by_topic
from barnabas.runtime.backoff import Backoff
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.peer_client import AskBroker
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest

log = logging.getLogger("barnabas.transactions")

WRITE_TXN_MARKERS: Final = 27
VERSION: Final = 2
REQUESTS_MAX: Final = 5  # to one broker without an answer
# In one request, of all its transactions. With the longest topic names the answer takes less than SMALL_ANSWER_BYTES
# (broker/cluster/peer_client.py).
REQUEST_PARTITIONS_MAX: Final = 3_000
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0


class _Outcome(Enum):
    WRITTEN = "the partition needs no marker any more"
    FENCED = "a newer coordinator has been there"
    RETRY = "the marker is sent again, to the leader of that time"


_MISSING: Final = -2  # in place of the error of a partition that the answer leaves out

# Every other error is one that Kafka takes for a programming error, and is retried too.
#
# After INVALID_PRODUCER_EPOCH Kafka sends none of the other markers either, as after TRANSACTION_COORDINATOR_FENCED. But a newer
# coordinator writes them itself, whereas after a higher epoch none does: an operator's WriteTxnMarkers to one partition is enough
# for it, and this coordinator knows nothing of that. The last stable offset of the other partitions would stay where it is, and the
# transactional id get CONCURRENT_TRANSACTIONS, until the coordinator is loaded again. In the partition of the higher epoch the
# transaction has ended; it goes on with the others.
_OUTCOMES: Final[dict[int, _Outcome]] = {
    ErrorCode.NONE: _Outcome.WRITTEN,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: _Outcome.WRITTEN,
    ErrorCode.UNSUPPORTED_VERSION: _Outcome.WRITTEN,
    ErrorCode.INVALID_PRODUCER_EPOCH: _Outcome.WRITTEN,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: _Outcome.FENCED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _Outcome.RETRY,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _Outcome.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS: _Outcome.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _Outcome.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: _Outcome.RETRY,
    ErrorCode.KAFKA_STORAGE_ERROR: _Outcome.RETRY,
}


class _EndedTransaction(msgspec.Struct, eq=False):
    """A transaction whose markers are being written; it equals only itself."""

    shard_index: int
    coordinator_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    without_marker: set[TopicPartition]
    written: Callable[[Collection[TopicPartition]], object]
    fenced: Callable[[], object]
    backoff: Backoff
    is_over: bool = False  # all markers are written, or no more are to be


_Partitions = dict[_EndedTransaction, dict[TopicPartition, None]]


class _Destination:
    """What waits for one broker."""

    __slots__ = ("is_due", "requests", "waiting")

    def __init__(self) -> None:
        self.waiting: _Partitions = {}
        self.requests = 0  # without an answer
        self.is_due = False  # the next turn sends what waits

    def next_request(self) -> _Partitions:
        """Take what the next request has: one transaction of each producer id, by which the answer tells them apart. The rest of
        one that does not fit goes behind the others."""
        taken: dict[int, tuple[_EndedTransaction, dict[TopicPartition, None]]] = {}
        free = REQUEST_PARTITIONS_MAX
        for transaction, partitions in self.waiting.items():
            if transaction.producer_id not in taken:
                fitting = dict.fromkeys(islice(partitions, free))
                taken[transaction.producer_id] = transaction, fitting
                free -= len(fitting)
                if not free:
                    break
        for transaction, fitting in taken.values():
            partitions = self.waiting.pop(transaction)
            if len(fitting) < len(partitions):
                for each in fitting:
                    del partitions[each]
                self.waiting[transaction] = partitions
        return dict(taken.values())


class TransactionMarkerSender:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, ask: AskBroker, image: Callable[[], MetadataImage]) -> None:
        """`image()`: the metadata as of now. Whoever changes it calls `metadata_changed`."""
        self._runtime = runtime
        self._ask = ask
        self._image = image
        self._by_shard: dict[int, set[_EndedTransaction]] = {}
        self._destinations: dict[int, _Destination] = {}
        self._without_leader: _Partitions = {}  # until the metadata changes

    def send(
        self,
        shard_index: int,
        coordinator_epoch: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        partitions: Collection[TopicPartition],
        transaction_version: int,
        written: Callable[[Collection[TopicPartition]], object],
        fenced: Callable[[], object],
    ) -> None:
        """Have a marker written to each partition, however long that takes: `written(partitions)` for those of each answer,
        perhaps before this returns; `fenced()` when a newer coordinator has been there, after which nothing more is sent."""
        assert partitions
        transaction = _EndedTransaction(
            shard_index,
            coordinator_epoch,
            transactional_id,
            producer_id,
            producer_epoch,
            commit,
            transaction_version,
            set(partitions),
            written,
            fenced,
            Backoff(self._runtime, RETRY_FIRST_S, RETRY_MAX_S),
        )
        self._by_shard.setdefault(shard_index, set()).add(transaction)
        self._route(transaction, partitions)

    def forget(self, shard_index: int) -> None:
        """Send no more markers of this shard, and call nothing back."""
        for transaction in tuple(self._by_shard.get(shard_index, ())):
            self._end(transaction)

    def stop(self) -> None:
        """Send no more markers, and call nothing back."""
        for shard_index in tuple(self._by_shard):
            self.forget(shard_index)

    def metadata_changed(self) -> None:
        """Send what had no leader."""
        waiting, self._without_leader = self._without_leader, {}
        for transaction, partitions in waiting.items():
            self._route(transaction, partitions)

    @property
    def unknown_destinations(self) -> int:
        """How many transactions wait for the leader of a partition."""
        return len(self._without_leader)

    # -- on the way

    def _route(self, transaction: _EndedTransaction, partitions: Iterable[TopicPartition]) -> None:
        """Hand the markers over to the leaders of their partitions."""
        if transaction.is_over:
            return
        image = self._image()
        deleted: list[TopicPartition] = []
        leaders: dict[int, None] = {}
        for each in sorted(partitions):  # a set's own order differs from one process to the next
            topic = image.topics.get(each[0])
            state = None if topic is None else topic.partitions.get(each[1])
            if state is None:
                deleted.append(each)
            elif state.leader not in image.brokers:
                self._without_leader.setdefault(transaction, {})[each] = None
            else:
                destination = self._destinations.get(state.leader)
                if destination is None:
                    destination = self._destinations[state.leader] = _Destination()
                destination.waiting.setdefault(transaction, {})[each] = None
                leaders[state.leader] = None
        for leader in leaders:
            self._send_soon(leader, self._destinations[leader])
        for each in deleted:
            log.info("%s-%d is gone: %.200r ends without a marker there", *each, transaction.transactional_id)
        if deleted:
            self._written(transaction, deleted)

    def _send_soon(self, node_id: int, destination: _Destination) -> None:
        if not destination.is_due and destination.waiting and destination.requests < REQUESTS_MAX:
            destination.is_due = True
            self._runtime.call_soon(partial(self._send_waiting, node_id, destination))

    def _send_waiting(self, node_id: int, destination: _Destination) -> None:
        destination.is_due = False
        if not destination.waiting or destination.requests >= REQUESTS_MAX:
            return
        sent = destination.next_request()
        destination.requests += 1
        self._send_soon(node_id, destination)
        request = _request(sent)
        answered = partial(self._answered, node_id, destination, sent)
        self._ask(node_id, WRITE_TXN_MARKERS, VERSION, request, answered)

    def _answered(
        self, node_id: int, destination: _Destination, sent: _Partitions, response: Any, error: ErrorCode
    ) -> None:
        destination.requests -= 1
        if error:
            log.info("broker %d has not answered WriteTxnMarkers: %s", node_id, error.name)
            for transaction, partitions in sent.items():
                self._retry(transaction, partitions)
        else:
            errors = {
                marker.producer_id: {
                    (topic.name, result.partition_index): result.error_code
                    for topic in marker.topics
                    for result in topic.partitions
                }
                for marker in response.markers
            }
            for transaction, partitions in sent.items():
                if not transaction.is_over:
                    self._take_errors(transaction, partitions, errors.get(transaction.producer_id, {}))
        self._send_soon(node_id, destination)

    def _take_errors(
        self,
        transaction: _EndedTransaction,
        partitions: Collection[TopicPartition],
        errors: dict[TopicPartition, int],
    ) -> None:
        """What the answer says about the partitions of one transaction; some may be missing from it."""
        written, superseded, failed = [], [], []
        is_fenced = False
        for each in partitions:
            error = errors.get(each, _MISSING)
            outcome = _OUTCOMES.get(error)
            if outcome is _Outcome.WRITTEN:
                written.append(each)
                if error == ErrorCode.INVALID_PRODUCER_EPOCH:
                    superseded.append(each)
            elif outcome is _Outcome.FENCED:
                is_fenced = True
            else:
                failed.append(each)
                if outcome is None and error != _MISSING:
                    log.error(
                        "a marker of %.200r for %s-%d failed: %s",
                        transaction.transactional_id,
                        *each,
                        ErrorCode.of(error).name,
                    )
        if superseded:
            log.warning(
                "%.200r: %d partitions, such as %s-%d, have a higher epoch of producer %d than %d: they need no marker",
                transaction.transactional_id,
                len(superseded),
                *superseded[0],
                transaction.producer_id,
                transaction.producer_epoch,
            )
        if written:
            self._written(transaction, written)
        if is_fenced and not transaction.is_over:
            self._end(transaction)
            transaction.fenced()
        elif failed:
            self._retry(transaction, failed)

    def _retry(self, transaction: _EndedTransaction, partitions: Collection[TopicPartition]) -> None:
        if not transaction.is_over:
            delay_s = transaction.backoff.next_s()
            self._runtime.call_later(delay_s, partial(self._route, transaction, partitions))

    # -- the end

    def _written(self, transaction: _EndedTransaction, partitions: Collection[TopicPartition]) -> None:
        transaction.without_marker.difference_update(partitions)
        if not transaction.without_marker:
            self._end(transaction)
        transaction.written(partitions)

    def _end(self, transaction: _EndedTransaction) -> None:
        transaction.is_over = True
        of_shard = self._by_shard[transaction.shard_index]
        of_shard.discard(transaction)
        if not of_shard:
            del self._by_shard[transaction.shard_index]
        self._without_leader.pop(transaction, None)
        if transaction.without_marker:
            for destination in self._destinations.values():
                destination.waiting.pop(transaction, None)


def _request(sent: _Partitions) -> WriteTxnMarkersRequest:
    from barnabas.wire.messages.write_txn_markers import (  # late: a start needs none of it
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    return WriteTxnMarkersRequest(
        [
            WritableTxnMarker(
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.commit,
                [WritableTxnMarkerTopic(topic, indexes) for topic, indexes in by_topic(partitions).items()],
                transaction.coordinator_epoch,
                transaction.transaction_version,
            )
            for transaction, partitions in sent.items()
        ]
    )
