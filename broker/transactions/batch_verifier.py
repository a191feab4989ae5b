"""Verifies the transactional batches of a produce request before they are appended (KIP-890).

A late batch must not open a transaction that nothing ends. So before the first batch of a transaction in a partition, the
transaction coordinator is asked whether the partition was added to the transaction; for a producer of transaction.version 2 it is
added then. Nothing is asked while the transaction is open here, and the append has to bring the Verification along, which a
marker removes (storage/log/verification.py).

Who asks for what follows from the version of the request, as in Kafka: from 12 on partitions are added, and 11 is the first
whose clients know TRANSACTION_ABORTABLE. Errors that old clients do not repeat a request after become one that they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from barnabas.storage.errors import StorageError
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.transactions.transaction import TopicPartition
    from barnabas.broker.transactions.verification import AddPartitionsToTxnManager
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.verification import Verification
    from barnabas.wire.record_batch import BatchHeader

ABORTABLE_FROM: Final = 11  # the first version of Produce whose clients know TRANSACTION_ABORTABLE
ADDS_FROM: Final = (
    12  # the first version of Produce whose batches add their partitions (transaction.version 2)
)

# The markers of a small transaction are written by then. uvloop's timers have whole milliseconds: there it is the next turn.
FIRST_PAUSE_S: Final = 0.0005

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class BatchVerifier:
    """The transactional batches of one produce request: `add` each, `begin`, `ask` if that is needed, then append each with its
    `verification`, unless it has a `refusal`. All calls on the loop's thread."""

    __slots__ = (
        "_adds",
        "_api_version",
        "_config",
        "_deadline",
        "_done",
        "_errors",
        "_is_enabled",
        "_manager",
        "_pause_s",
        "_producer",
        "_runtime",
        "_sequences",
        "_transactional_id",
        "_verifications",
    )

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        manager: AddPartitionsToTxnManager,
        transactional_id: str,
        api_version: int,
    ) -> None:
        """`api_version`: of the Produce request."""
        self._runtime = runtime
        self._config = config
        self._manager = manager
        self._transactional_id = transactional_id
        self._api_version = api_version
        self._adds = api_version >= ADDS_FROM
        self._is_enabled = config.transaction_partition_verification_enable
        self._producer = (-1, -1)  # its id and epoch, once there is a batch
        self._sequences: dict[Partition, int] = {}  # the base sequence of the batch in each
        self._verifications: dict[Partition, Verification] = {}
        self._errors: dict[Partition, ErrorCode] = {}
        self._done: Callable[[], object] = _nothing
        self._deadline = 0.0
        self._pause_s = 0.0  # before the question is repeated

    def add(self, partition: Partition, header: BatchHeader) -> None:
        """A batch that is to be appended to the partition. INVALID_PRODUCER_ID_MAPPING when it has another producer id or epoch
        than one before it: then no batch of the request may be appended."""
        producer = header.producer_id, header.producer_epoch
        if self._sequences and producer != self._producer:
            raise StorageError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )
        self._producer = producer
        sequence = header.base_sequence
        self._sequences[partition] = min(sequence, self._sequences.get(partition, sequence))

    def begin(self) -> Iterator[None]:
        """Find the partitions where no transaction of the producer is open, one in each step."""
        producer_id, producer_epoch = self._producer
        for partition, earlier in self._verifications.items():
            partition.verification_failed(producer_id, earlier, ErrorCode.CONCURRENT_TRANSACTIONS)
        self._verifications.clear()
        self._errors.clear()
        if not (self._adds or self._is_enabled):
            return
        for partition, sequence in self._sequences.items():
            try:
                verification = partition.begin_verification(
                    producer_id,
                    producer_epoch,
                    sequence,
                    supports_epoch_bump=self._adds,
                    request_timeout_ms=self._config.request_timeout_ms,
                )
            except StorageError as error:
                self._errors[partition] = error.error
            else:
                if verification is not None:
                    self._verifications[partition] = verification
            yield

    @property
    def must_ask(self) -> bool:
        """Whether there are such partitions."""
        return bool(self._verifications)

    def ask(self, done: Callable[[], object]) -> None:
        """Ask the transaction coordinator about them. `done()` once, perhaps before this returns.

        CONCURRENT_TRANSACTIONS is usual while the coordinator still ends the producer's last transaction. A producer whose batches
        add their partitions would meet it often, so the question is repeated for a while (KAFKA-18654): first after FIRST_PAUSE_S,
        and each pause is twice as long as the last, up to the configured one. The last transaction mostly ends in a few ms, and its
        producer waits for that.
        """
        self._done = done
        config = self._config
        wait_ms = min(config.add_partitions_to_txn_retry_backoff_max_ms, config.request_timeout_ms)
        self._deadline = self._runtime.monotonic() + wait_ms / 1000
        self._pause_s = FIRST_PAUSE_S
        self._ask()

    def _ask(self) -> None:
        by_name = {(each.topic, each.partition): each for each in self._verifications}

        def answered(errors: dict[TopicPartition, ErrorCode]) -> None:
            is_concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if self._adds and is_concurrent and self._runtime.monotonic() < self._deadline:
                longest_s = self._config.add_partitions_to_txn_retry_backoff_ms / 1000
                pause_s = min(self._pause_s, longest_s)
                self._pause_s = 2 * pause_s
                self._runtime.call_later(pause_s, self._ask_again)
                return
            for name, error in errors.items():
                if error:
                    partition = by_name[name]
                    self._errors[partition] = error
                    partition.verification_failed(
                        self._producer[0], self._verifications.pop(partition), error
                    )
            self._done()

        self._manager.verify(
            self._transactional_id, *self._producer, tuple(by_name), add=self._adds, done=answered
        )

    def _ask_again(self) -> None:
        """By now another broker may lead a partition, or it may have the transaction."""
        for _ in self.begin():
            pass
        if self._verifications:
            self._ask()
        else:
            self._done()

    def verification(self, partition: Partition) -> Verification | None:
        """What the append to the partition has to bring along."""
        return self._verifications.get(partition) if self._is_enabled else VERIFICATION_OFF

    def refusal(self, partition: Partition) -> tuple[ErrorCode, str | None] | None:
        """The error, with Kafka's text, of the batch for the partition; None when it may be appended."""
        error = self._errors.get(partition)
        if error is None:
            return None
        if error == ErrorCode.TRANSACTION_ABORTABLE and self._api_version < ABORTABLE_FROM:
            error = ErrorCode.INVALID_TXN_STATE
        if error == ErrorCode.INVALID_TXN_STATE:
            return error, "Partition was not added to the transaction"
        if error in _RETRIABLE or (error == ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds):
            return (
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "Unable to verify the partition has been added to the transaction. Underlying error: "
                f"{error.name}",
            )
        return error, None


def _nothing() -> None:
    """The default of a callback."""
