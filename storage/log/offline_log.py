"""The log of a partition that has none: it could not be made, or lies in a directory that is offline.

It stands where a log would stand, so that nobody has to ask twice: it is empty, and everything that a log is
asked for is KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Steps
from barnabas.storage.disk.disk import Disk
from barnabas.storage.errors import StorageError
from barnabas.storage.log.leader_append import AppendResult
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.timestamps import TimestampOffset
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode


class OfflineLog(Log):
    """See the module. It belongs to no LogManager and has no files."""

    __slots__ = ()

    def __init__(  # nothing of a real one: there is no directory to open
        self,
        disk: Disk,
        runtime: Runtime,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        reason: str,
    ) -> None:
        self._disk = disk
        self._runtime = runtime
        self._events = None
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log_dir = self.directory = ""
        self.log_start_offset = self.log_end_offset = self.recovery_point = 0
        self.failure = reason
        self.offline = True
        self.cleaning = False
        self._released = True
        self._held_from = -1
        self._high_watermark = -1
        self.checkpointed_high_watermark = None
        self._sync_waiters = None
        self._segments = []  # reading asks `offline` first
        self._bases = []
        self.update_config(config)

    def _refuse(self) -> StorageError:
        return StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))

    @property
    def high_watermark(self) -> int:
        return 0

    @property
    def replica_end_offset(self) -> int:
        return 0

    @property
    def last_stable_offset(self) -> int:
        return 0

    @property
    def latest_epoch(self) -> int:
        return -1

    def append_as_leader(
        self,
        records: Bytes,  # noqa: ARG002
        leader_epoch: int,  # noqa: ARG002
        *,
        from_client: bool = True,  # noqa: ARG002
    ) -> AppendResult:
        raise self._refuse()

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:  # noqa: ARG002
        raise self._refuse()

    def max_timestamp_offset(self) -> TimestampOffset | None:
        raise self._refuse()

    def timestamp_lookup(self, timestamp: int | None) -> Steps[TimestampOffset | None]:  # noqa: ARG002
        raise self._refuse()

    def increment_log_start_offset(self, offset: int) -> None:  # noqa: ARG002
        raise self._refuse()

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:  # noqa: ARG002
        return -1, -1

    @property
    def has_unsaved_epochs(self) -> bool:
        return False

    def assign_epoch_start_offset(self, leader_epoch: int) -> None:
        """There is nowhere to note it."""

    def epoch_for_offset(self, offset: int) -> int:  # noqa: ARG002
        return -1

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""
