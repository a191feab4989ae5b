"""The log of a coordinator: an internal topic that state machines append to and are rebuilt from.

A state machine is rebuilt when this broker becomes the leader of its partition. Partitions are read one after the other,
in slices of the loop, and by a thread where a read would wait for the disk (loading.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from barnabas.broker.coordinator.loading import Loading, Replay
from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.runtime.slices import in_slices
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.coordinator")


class CoordinatorLog:
    """One internal topic, such as __consumer_offsets. All calls on the loop's thread."""

    def __init__(self, topic: str, partitions: PartitionManager, runtime: Runtime) -> None:
        self.topic = topic
        self._partitions = partitions
        self._runtime = runtime
        self._loadings: deque[Loading] = deque()  # the first of them reads
        self._working = False  # here or in a thread

    def append(self, partition_index: int, batch: bytes, done: Callable[[ErrorCode], object]) -> None:
        """Append one record batch; `done(error)` once it is committed (with one replica: at once).

        NOT_LEADER_OR_FOLLOWER when this broker does not lead the partition, or stops leading it before the batch is
        committed; NOT_ENOUGH_REPLICAS when it was not appended for that reason, NOT_ENOUGH_REPLICAS_AFTER_APPEND
        when it was and is committed, by too few.
        """
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        try:
            result = partition.append(batch, required_acks=ACKS_ALL)
        except StorageError as error:
            log.warning("append to %s-%d failed: %s", self.topic, partition_index, error)
            done(error.error)
            return
        partition.when_committed(result.last_offset + 1, done)

    def is_replicated(self, partition_index: int) -> bool:
        """Whether the partition has other replicas, one of which may have been elected already."""
        partition = self._partitions.get(self.topic, partition_index)
        return partition is not None and partition.leadership is not None

    def when_committed(self, partition_index: int, done: Callable[[ErrorCode], object]) -> None:
        """`done(error)` once everything that the partition holds now is committed; errors as of `append`."""
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

        `done(error)` when it can't be: StorageError or RecordBatchError, as when the log directory is offline, a
        batch is damaged or the partition is no longer led here. `done` may be called before this returns, and is not after
        `Loading.cancel`.
        """
        partition = self._partitions.get(self.topic, partition_index)
        loading = Loading(partition, replay, done)
        self._loadings.append(loading)
        self._work()
        return loading

    def _work(self) -> None:
        if not self._working:
            self._working = True
            in_slices(self._runtime, self._steps(), self._pause)

    def _steps(self) -> Iterator[None]:
        """Load one partition after the other, until a thread has to read for one or all are loaded."""
        while self._loadings:
            loading = self._loadings[0]
            yield from loading.steps()
            if loading.for_a_thread is not None:
                return
            self._loadings.popleft()
            loading.end()
            yield

    def _pause(self) -> None:
        self._working = False
        if not self._loadings:
            return
        loading = self._loadings[0]
        work = loading.for_a_thread
        if work is None:  # `done` has failed, and that was logged
            self._work()
            return
        self._working = True

        def done(data: bytes | None, error: BaseException | None) -> None:
            self._working = False
            loading.thread_has_read(data, error)
            self._work()

        self._runtime.run_in_thread(work, done)
