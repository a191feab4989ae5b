"""The requests from the leaders of a transaction's partitions to its coordinator: is this partition part of it?

Before the first batch of a transaction is appended the leader has the coordinator verify that the partition was added, or, for a
producer of transaction.version 2, add it (KIP-890). The group coordinator does the same for offsets. To each coordinator one
request of limited size is sent at a time; what is asked meanwhile, or does not fit, goes into the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.transactions.transaction import TopicPartition, by_topic
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.peer_client import AskBroker
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

log = logging.getLogger("barnabas.transactions")

ADD_PARTITIONS_TO_TXN: Final = 24
VERSION: Final = 5
TIMES_REMEMBERED: Final = 1000
NO_COORDINATOR: Final = -1
# In one request, but for a larger question, which has one of its own. With the longest topic names the answer takes less than
# SMALL_ANSWER_BYTES (broker/cluster/peer_client.py).
REQUEST_PARTITIONS_MAX: Final = 2_000
REQUEST_ID_BYTES_MAX: Final = 256 * 1024

Verified = Callable[[dict[TopicPartition, ErrorCode]], object]

# What the leader answers instead of the coordinator's error.
_PARTITION_ERRORS: Final = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
_REQUEST_ERRORS: Final = {
    ErrorCode.UNSUPPORTED_VERSION: ErrorCode.NONE,  # a coordinator that does not know verification
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE,
}


class _Verification(msgspec.Struct, eq=False):
    """A question about one transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Collection[TopicPartition]
    add: bool
    done: Verified
    began: float  # on the monotonic clock

    def fail(self, error: ErrorCode) -> None:
        self.done(dict.fromkeys(self.partitions, error))


class _Coordinator:
    """What is asked of one broker."""

    __slots__ = ("is_asked", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, _Verification] = {}  # by transactional id
        self.is_asked = False  # a request has no answer yet, or the next turn sends one

    def next_request(self) -> dict[str, _Verification]:
        """Take the questions of the next request, the oldest first."""
        taken: dict[str, _Verification] = {}
        partitions = id_bytes = 0
        for transactional_id, asked in self.waiting.items():
            partitions += len(asked.partitions)
            id_bytes += len(transactional_id.encode())
            if taken and (partitions > REQUEST_PARTITIONS_MAX or id_bytes > REQUEST_ID_BYTES_MAX):
                break
            taken[transactional_id] = asked
        for transactional_id in taken:
            del self.waiting[transactional_id]
        return taken


class AddPartitionsToTxnManager:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, ask: AskBroker, coordinator_of: Callable[[str], int]) -> None:
        """`coordinator_of(transactional_id)`: the node id of its coordinator, this broker too; -1 if there is none."""
        self._runtime = runtime
        self._ask = ask
        self._coordinator_of = coordinator_of
        self._coordinators: dict[int, _Coordinator] = {}
        # Metrics: partitions that were not verified, and requests that failed for a transaction; how long the last questions took
        self.failures = 0
        self.times_s: deque[float] = deque(maxlen=TIMES_REMEMBERED)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
        done: Verified,
    ) -> None:
        """Have the partitions verified, or added. `done({partition: error})` once, perhaps before this returns, with each partition.

        Errors are those of the coordinator (TRANSACTION_ABORTABLE for a partition that is not part of the transaction), or
        COORDINATOR_NOT_AVAILABLE, NETWORK_EXCEPTION. A question replaces a waiting one about the same id and epoch, which gets
        NETWORK_EXCEPTION: its producer has connected again. One about a lower epoch gets INVALID_PRODUCER_EPOCH.
        """
        began = self._runtime.monotonic()
        asked = _Verification(transactional_id, producer_id, producer_epoch, partitions, add, done, began)
        node_id = self._coordinator_of(transactional_id)
        if node_id == NO_COORDINATOR:
            asked.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        coordinator = self._coordinators.get(node_id)
        if coordinator is None:
            coordinator = self._coordinators[node_id] = _Coordinator()
        waiting = coordinator.waiting.get(transactional_id)
        if waiting is not None and waiting.producer_epoch > producer_epoch:
            asked.fail(ErrorCode.INVALID_PRODUCER_EPOCH)
            return
        coordinator.waiting[transactional_id] = asked
        if not coordinator.is_asked:
            coordinator.is_asked = True
            self._runtime.call_soon(partial(self._send_waiting, node_id, coordinator))
        if waiting is not None:
            is_fenced = waiting.producer_epoch < producer_epoch
            waiting.fail(ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else ErrorCode.NETWORK_EXCEPTION)

    def _send_waiting(self, node_id: int, coordinator: _Coordinator) -> None:
        sent = coordinator.next_request()
        request = _request(sent.values())
        answered = partial(self._answered, node_id, coordinator, sent)
        self._ask(node_id, ADD_PARTITIONS_TO_TXN, VERSION, request, answered)

    def _answered(
        self,
        node_id: int,
        coordinator: _Coordinator,
        sent: dict[str, _Verification],
        response: Any,
        error: ErrorCode,
    ) -> None:
        if coordinator.waiting:
            # In the next turn: one answer at once after another must not become a recursion.
            self._runtime.call_soon(partial(self._send_waiting, node_id, coordinator))
        else:
            coordinator.is_asked = False
        error = error or ErrorCode.of(response.error_code)
        now = self._runtime.monotonic()
        self.times_s.extend(now - asked.began for asked in sent.values())
        if error:
            log.info("broker %d has not verified %d transactions: %s", node_id, len(sent), error.name)
            self.failures += len(sent)
            for asked in sent.values():
                asked.fail(_REQUEST_ERRORS.get(error, error))
            return
        codes = {
            transaction.transactional_id: {
                (topic.name, result.partition_index): result.partition_error_code
                for topic in transaction.topic_results
                for result in topic.results_by_partition
            }
            for transaction in response.results_by_transaction
        }
        for transactional_id, asked in sent.items():
            answered = codes.get(transactional_id, {})
            errors = dict.fromkeys(asked.partitions, ErrorCode.NONE)
            for each in errors:
                # Without an answer the producer asks again.
                code = answered.get(each, ErrorCode.NETWORK_EXCEPTION)
                if code:
                    self.failures += 1
                    error = ErrorCode.of(code)
                    errors[each] = _PARTITION_ERRORS.get(error, error)
            asked.done(errors)


def _request(verifications: Iterable[_Verification]) -> AddPartitionsToTxnRequest:
    from barnabas.wire.messages.add_partitions_to_txn import (  # late: a start needs none of it
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTopic,
        AddPartitionsToTxnTransaction,
    )

    return AddPartitionsToTxnRequest(
        [
            AddPartitionsToTxnTransaction(
                asked.transactional_id,
                asked.producer_id,
                asked.producer_epoch,
                not asked.add,
                [
                    AddPartitionsToTxnTopic(topic, indexes)
                    for topic, indexes in by_topic(asked.partitions).items()
                ],
            )
            for asked in verifications
        ]
    )
