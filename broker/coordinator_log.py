"""The log of a coordinator: an internal topic that state machines append to and are rebuilt from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions import PartitionManager

log = logging.getLogger("barnabas.coordinator")

READ_BYTES = 1 << 20


class CoordinatorLog:
    """One internal topic, such as __consumer_offsets."""

    def __init__(self, topic: str, partitions: PartitionManager) -> None:
        self.topic = topic
        self._partitions = partitions

    def append(self, partition_index: int, batch: bytes, done: Callable[[ErrorCode], object]) -> None:
        """Append one record batch; `done(error)` once it is committed (with one replica: at once)."""
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            done(ErrorCode.NOT_COORDINATOR)
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

    def load(self, partition_index: int) -> Iterator[bytes]:
        """Every batch of the partition, oldest first. Blocking reads; meant for start-up.

        StorageError when it can't be read, as when its log directory is offline.
        """
        partition = self._partitions.get(self.topic, partition_index)
        if partition is None:
            return
        if partition.log.offline:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(partition.log.failure))
        offset = partition.log.log_start_offset
        while offset < partition.log.log_end_offset:
            result = partition.log.read(offset, READ_BYTES, min_one_batch=True)
            data = b"".join(region.read() for region in result.regions)
            if not data:
                return
            position = 0
            while position + 12 <= len(data):
                size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
                if position + size > len(data):
                    break
                base_offset = int.from_bytes(data[position : position + 8], "big")
                next_offset = base_offset + int.from_bytes(data[position + 23 : position + 27], "big") + 1
                if next_offset <= offset:  # or it would be read again and again
                    raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"offsets go back at {offset}")
                offset = next_offset
                yield data[position : position + size]
                position += size
            if position == 0:
                return
