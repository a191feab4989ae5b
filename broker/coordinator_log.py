"""The log of a coordinator: an internal topic that state machines append to and are rebuilt from.

A state machine is rebuilt when this broker becomes the leader of its partition. That takes as long as it takes:
partitions are read one after the other, in slices that leave the loop to the requests, and by a thread where a
read would wait for the disk (coordinator_loading.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.coordinator_loading import Loading
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions import PartitionManager
    from barnabas.storage.runtime import Runtime

log = logging.getLogger("barnabas.coordinator")


class CoordinatorLog:
    """One internal topic, such as __consumer_offsets. All calls on the loop's thread."""

    def __init__(self, topic: str, partitions: PartitionManager, runtime: Runtime) -> None:
        self.topic = topic
        self._partitions = partitions
        self._runtime = runtime
        self._loadings: deque[Loading] = deque()  # the first of them reads

    def append(self, partition_index: int, batch: bytes, done: Callable[[ErrorCode], object]) -> None:
        """Append one record batch; `done(error)` once it is committed (with one replica: at once).

        NOT_LEADER_OR_FOLLOWER when this broker does not lead the partition, or ceases to before the batch is
        committed; NOT_ENOUGH_REPLICAS when it was not appended for that reason.
        """
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        try:
            result = partition.append(batch)
        except StorageError as error:
            log.warning("append to %s-%d failed: %s", self.topic, partition_index, error)
            done(error.error)
            return
        if result.awaits_sync:
            partition.log.when_synced(
                result.last_offset + 1,
                lambda failure: done(ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR),
            )
        else:
            done(ErrorCode.NONE)

    def load(
        self,
        partition_index: int,
        replay: Callable[[bytes], object],
        done: Callable[[Exception | None], object],
    ) -> Loading:
        """`replay` every batch of the partition, oldest first, then `done(None)` once all of them are committed.

        `done(error)` when it can't be: StorageError or RecordBatchError, as when the log directory is offline, a
        batch is damaged or the partition is not led here any more. Either may happen before this returns, and
        neither does after `Loading.cancel`.
        """
        partition = self._partitions.get(self.topic, partition_index)
        loading = Loading(self._runtime, partition, replay, done, self._next)
        self._loadings.append(loading)
        if len(self._loadings) == 1:
            loading.start()
        return loading

    def _next(self) -> None:
        """The first one has read all that it reads."""
        self._loadings.popleft()
        if self._loadings:
            # Not at once: a thousand cancelled ones must not pile up on the stack.
            self._runtime.call_soon(self._loadings[0].start)
