"""The log of a coordinator: an internal topic that state machines append to and are rebuilt from.

A state machine is rebuilt when this broker becomes the leader of its partition. Partitions are read one after the other
(loading.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from barnabas.broker.coordinator.loading import Replay, replay_partition
from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.runtime.slices import StepQueue
from barnabas.storage.errors import StorageError
from barnabas.storage.log.verification import REQUEST_TIMEOUT_MS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import NO_SEQUENCE, read_header

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.verification import Verification

log = logging.getLogger("barnabas.coordinator")


class Marker(msgspec.Struct, frozen=True):
    """The end of a producer's transaction, as WriteTxnMarkers has it."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


class CoordinatorLog:
    """One internal topic, such as __consumer_offsets. All calls on the loop's thread."""

    def __init__(
        self,
        topic: str,
        partitions: PartitionManager,
        runtime: Runtime,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """`request_timeout_ms`: of requests to transaction coordinators."""
        self.topic = topic
        self._request_timeout_ms = request_timeout_ms
        self._partitions = partitions
        self._loadings = StepQueue(runtime, begins_in_add=True)

    def append(self, partition_index: int, batch: bytes, done: Callable[[ErrorCode], object]) -> None:
        """Append one record batch; `done(error)` once it is committed (with one replica: before this returns).

        NOT_LEADER_OR_FOLLOWER when this broker does not lead the partition, or stops leading it before the batch is committed;
        NOT_ENOUGH_REPLICAS when the batch was not appended, as the ISR is too small; NOT_ENOUGH_REPLICAS_AFTER_APPEND when it
        is committed, by an ISR that is too small.
        """
        self.append_in_transaction(partition_index, batch, None, done)

    def append_in_transaction(
        self,
        partition_index: int,
        batch: bytes,
        verification: Verification | None,
        done: Callable[[ErrorCode], object],
    ) -> None:
        """As `append`, for a batch of a producer's transaction. `verification`: see Partition.append."""
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        try:
            view = memoryview(bytearray(batch))
            result = partition.append(
                view, read_header(view), ACKS_ALL, from_client=False, verification=verification
            )
        except StorageError as error:
            log.warning("append to %s-%d failed: %s", self.topic, partition_index, error)
            done(error.error)
            return
        partition.when_committed(result.last_offset + 1, done)

    def begin_verification(
        self, partition_index: int, producer_id: int, producer_epoch: int, *, supports_epoch_bump: bool
    ) -> Verification | None:
        """See Partition.begin_verification. NOT_LEADER_OR_FOLLOWER also when the partition is not here."""
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            raise StorageError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{partition_index} is not here"
            )
        return partition.begin_verification(
            producer_id,
            producer_epoch,
            NO_SEQUENCE,
            supports_epoch_bump=supports_epoch_bump,
            request_timeout_ms=self._request_timeout_ms,
        )

    def verification_failed(
        self, partition_index: int, producer_id: int, verification: Verification, error: ErrorCode
    ) -> None:
        """See Partition.verification_failed."""
        partition = self._partitions.get(self.topic, partition_index)
        if partition is not None:
            partition.verification_failed(producer_id, verification, error)

    def append_marker(
        self, partition_index: int, marker: Marker, done: Callable[[ErrorCode], object]
    ) -> None:
        """End the producer's transaction in the partition; `done` as in `append`."""
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        partition.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
            done=done,
        )

    def end_offset(self, partition_index: int) -> int:
        """The offset of the next record; -1 when the partition is not here."""
        partition = self._partitions.get(self.topic, partition_index)
        return -1 if partition is None else partition.log.log_end_offset

    def delete_before(self, partition_index: int, offset: int) -> None:
        """Delete the records before this offset, where that is committed and the partition is led here. Followers do the same."""
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None or not partition.is_leader or partition.log.offline:
            return
        if partition.log.log_start_offset < offset <= partition.high_watermark:
            try:
                partition.log.increment_log_start_offset(offset)
            except StorageError as error:
                log.warning("records of %s-%d can't be deleted: %s", self.topic, partition_index, error)
                return
            partition.interrupt_waiters()

    def is_replicated(self, partition_index: int) -> bool:
        """Whether the partition has other replicas, one of which may have been elected already."""
        partition = self._partitions.get(self.topic, partition_index)
        return partition is not None and partition.leadership is not None

    def when_committed(self, partition_index: int, done: Callable[[ErrorCode], object]) -> None:
        """`done(error)` once all records that are in the partition now are committed; errors as in `append`."""
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            partition.when_committed(partition.log.log_end_offset, done)

    def load(
        self,
        partition_index: int,
        replay: Replay,
        done: Callable[[Exception | None], object],
    ) -> Loading:
        """Have `replay` take all batches of the partition, oldest first, then `done(None)`.

        `done(error)` when it can't be loaded: StorageError or RecordBatchError, see `replay_partition`. Perhaps before this
        returns, and never after `Loading.cancel`.
        """
        loading = Loading(f"{self.topic}-{partition_index}", done)
        partition = self._partitions.get(self.topic, partition_index)
        self._loadings.add(replay_partition(partition, replay, loading.is_cancelled), loading.end)
        return loading


class Loading:
    """A partition that is being loaded."""

    def __init__(self, name: str, done: Callable[[Exception | None], object]) -> None:
        self._name = name
        self._done: Callable[[Exception | None], object] | None = done

    def cancel(self) -> None:
        """Stop loading."""
        self._done = None

    def is_cancelled(self) -> bool:
        return self._done is None

    def end(self, _result: None, error: BaseException | None) -> None:
        """All is loaded, or there is an error."""
        if self._done is None:
            return
        assert error is None or isinstance(error, Exception)
        try:
            self._done(error)
        except Exception:  # other partitions are loaded all the same
            log.exception("%s: a callback failed after loading", self._name)
