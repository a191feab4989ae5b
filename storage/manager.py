"""All logs of a broker, over one or several directories: opened and recovered at start, created, deleted, closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from barnabas.storage.directory import (
    DELETE_SUFFIX,
    LOG_START_OFFSET_FILE,
    PARTITION_METADATA,
    RECOVERY_POINT_FILE,
    LogDirectory,
    encode_uuid,
    format_partition_metadata,
    parse_partition_metadata,
    random_uuid,
)
from barnabas.storage.disk import Disk, write_rest
from barnabas.storage.errors import LogDirectoryError, StorageError
from barnabas.storage.log import Log
from barnabas.storage.log_config import LogConfig
from barnabas.storage.runtime import Runtime
from barnabas.wire.errors import ErrorCode

logger = logging.getLogger("barnabas.storage")

FILE_NAME_MAX = 255
CHECKPOINT_INTERVAL_S = 60.0  # log.flush.offset.checkpoint.interval.ms
METADATA_PARTITION = "__cluster_metadata-0"
_ZERO_UUID = bytes(16)


class LogManager:
    """See the module. All calls on the loop's thread; `open` and `close` block while they read and sync."""

    def __init__(
        self,
        disk: Disk,
        log_dirs: Sequence[str],
        runtime: Runtime,
        *,
        node_id: int = 1,
        cluster_id: str | None = None,
        config: LogConfig | None = None,
    ) -> None:
        """`cluster_id` None takes the one in meta.properties, or a new one. `config` serves until each topic's
        own is known."""
        self._disk = disk
        self._runtime = runtime
        self._node_id = node_id
        self._config = config or LogConfig()
        self._logs: dict[tuple[str, int], Log] = {}
        self._directories = {path: LogDirectory(disk, path) for path in dict.fromkeys(log_dirs)}
        self._start_offsets_changed: set[str] = set()
        self._closed = False
        self.log_dirs: list[str] = list(self._directories)
        self.cluster_id = cluster_id or ""
        self.clean_start = True  # whether every directory had been stopped cleanly

    # --- start and stop

    def open(self) -> None:
        """Lock the directories, settle whose they are, open every partition. LogDirectoryError when it can't.

        Nothing stays locked when it fails.
        """
        try:
            for directory in self._directories.values():
                directory.open()
            self._settle_identity()
            for directory in self._directories.values():
                self._open_directory(directory)
        except BaseException:
            self._unlock()
            raise
        self._runtime.call_later(CHECKPOINT_INTERVAL_S, self._checkpoint_periodically)

    def _settle_identity(self) -> None:
        found = sorted({d.cluster_id for d in self._directories.values() if d.cluster_id is not None})
        if len(found) > 1:
            raise LogDirectoryError(
                f"the directories of log.dirs belong to different clusters: {', '.join(found)}"
            )
        self.cluster_id = self.cluster_id or (found[0] if found else encode_uuid(random_uuid(self._runtime)))
        for directory in self._directories.values():
            directory.adopt(self.cluster_id, self._node_id, self._runtime)

    def _open_directory(self, directory: LogDirectory) -> None:
        try:
            directory.take_clean_shutdown_marker()
            names = self._disk.list(directory.path)
        except OSError as error:
            raise LogDirectoryError(f"{directory.path} can't be used (log.dirs): {error}") from error
        recovery_points = directory.read_checkpoint(RECOVERY_POINT_FILE)
        start_offsets = directory.read_checkpoint(LOG_START_OFFSET_FILE)
        unclean = 0
        for name in names:
            path = f"{directory.path}/{name}"
            if name == METADATA_PARTITION or not self._disk.is_directory(path):
                continue
            if name.endswith(DELETE_SUFFIX):
                self._remove_later(path, self._config.file_delete_delay_ms)
                continue
            key = parse_directory_name(name)
            if key is None:
                continue
            unclean += not directory.clean
            self._open_log(directory, path, key, recovery_points.get(key, 0), start_offsets.get(key, 0))
        if unclean:
            self.clean_start = False
            logger.info("%s was not stopped cleanly: recovered %d logs", directory.path, unclean)

    def _open_log(
        self, directory: LogDirectory, path: str, key: tuple[str, int], recovery_point: int, start_offset: int
    ) -> None:
        if key in self._logs:
            raise LogDirectoryError(
                f"{key[0]}-{key[1]} lies in both {self._logs[key].log_dir} and {directory.path} (log.dirs)"
            )
        try:
            self._logs[key] = Log(
                self._disk,
                self._runtime,
                directory.path,
                *key,
                self._read_topic_id(path),
                self._config,
                clean=directory.clean,
                recovery_point=recovery_point,
                log_start_offset=start_offset,
                start_offset_changed=self._on_start_offset(directory.path),
            )
        except OSError as error:
            raise LogDirectoryError(f"{path} can't be opened (log.dirs): {error}") from error

    def _read_topic_id(self, path: str) -> bytes:
        file = f"{path}/{PARTITION_METADATA}"
        try:
            return parse_partition_metadata(self._disk.read_file(file))
        except FileNotFoundError:
            return _ZERO_UUID
        except ValueError as error:
            logger.warning("%s is damaged (%s) and is passed over", file, error)
            return _ZERO_UUID

    def close(self) -> None:
        """Sync and close every log, write the checkpoints and, where all went well, the clean-shutdown marker."""
        if self._closed:
            return
        self._closed = True
        for path, directory in self._directories.items():
            clean = True
            for log in self._logs.values():
                if log.log_dir == path:
                    try:
                        log.close()
                    except (OSError, StorageError) as error:
                        clean = False
                        logger.error("%s was not closed cleanly: %s", log.name, error)
            try:
                self._write_checkpoints(directory)
                if clean:
                    directory.mark_clean_shutdown()
            except OSError as error:
                logger.error("%s was not closed cleanly: %s", path, error)
        self._unlock()

    def _unlock(self) -> None:
        for directory in self._directories.values():
            directory.unlock()

    # --- logs

    def logs(self) -> list[Log]:
        return list(self._logs.values())

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def create(self, topic: str, topic_id: bytes, partition: int, config: LogConfig) -> Log:
        """A new, empty log in the directory that has the fewest. KAFKA_STORAGE_ERROR when the disk refuses."""
        key = (topic, partition)
        if key in self._logs:
            raise ValueError(f"{topic}-{partition} exists")
        log_dir = self._least_loaded()
        path = f"{log_dir}/{topic}-{partition}"
        try:
            if self._disk.exists(path):  # left behind when it could not be removed
                self._set_aside(path, topic, partition, log_dir, config.file_delete_delay_ms)
            self._disk.make_directory(path)
            try:
                with_id = self._disk.open(f"{path}/{PARTITION_METADATA}", create=True)
                write_rest(with_id, format_partition_metadata(topic_id), 0, 0)
                log = Log(
                    self._disk,
                    self._runtime,
                    log_dir,
                    topic,
                    partition,
                    topic_id,
                    config,
                    start_offset_changed=self._on_start_offset(log_dir),
                )
            except OSError:
                self._disk.remove_tree(path)
                raise
        except OSError as error:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} can't be created: {error}") from error
        self._logs[key] = log
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Take the log out of service at once and off the disk after file.delete.delay.ms. Nothing happens when
        there is none. Regions that wait to be sent stay readable."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            return
        log.release()
        try:
            self._set_aside(log.directory, topic, partition, log.log_dir, log.config.file_delete_delay_ms)
        except OSError as error:
            logger.error("%s can't be deleted: %s", log.directory, error)

    def _set_aside(self, path: str, topic: str, partition: int, log_dir: str, delay_ms: int) -> None:
        suffix = f".{random_uuid(self._runtime).hex()}{DELETE_SUFFIX}"
        stem = f"{topic[: FILE_NAME_MAX - len(suffix) - len(str(partition)) - 1]}-{partition}"
        doomed = f"{log_dir}/{stem}{suffix}"
        self._disk.rename(path, doomed)
        self._remove_later(doomed, delay_ms)

    def adopt(self, log: Log, topic_id: bytes) -> None:
        """Give a log whose partition.metadata was lost its topic id again. KAFKA_STORAGE_ERROR when that fails."""
        try:
            self._disk.write_file(
                f"{log.directory}/{PARTITION_METADATA}", format_partition_metadata(topic_id)
            )
        except OSError as error:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.directory}: {error}") from error
        log.topic_id = topic_id

    def _remove_later(self, path: str, delay_ms: int) -> None:
        def remove() -> None:
            if not self._closed:
                self._runtime.run_in_thread(lambda: self._disk.remove_tree(path), report)

        def report(_: None, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("%s can't be removed: %s", path, error)

        self._runtime.call_later(delay_ms / 1000, remove)

    def _least_loaded(self) -> str:
        if len(self.log_dirs) == 1:
            return self.log_dirs[0]
        counts = dict.fromkeys(self.log_dirs, 0)
        for log in self._logs.values():
            counts[log.log_dir] += 1
        return min(self.log_dirs, key=lambda path: counts[path])

    def volume(self, log_dir: str) -> tuple[int, int]:
        """(total, usable) bytes of the directory's file system; (-1, -1) when it can't say."""
        try:
            return self._disk.volume(log_dir)
        except OSError:
            return -1, -1

    def directory_id(self, log_dir: str) -> str:
        """The directory's id in meta.properties; "" before `open`."""
        return self._directories[log_dir].directory_id or ""

    # --- checkpoints

    def checkpoint(self) -> None:
        """Write recovery points and log start offsets of every directory now. OSError when the disk refuses."""
        for directory in self._directories.values():
            self._write_checkpoints(directory)

    def _write_checkpoints(self, directory: LogDirectory) -> None:
        mine = {key: log for key, log in self._logs.items() if log.log_dir == directory.path}
        directory.write_checkpoint(
            RECOVERY_POINT_FILE, {key: log.recovery_point for key, log in mine.items()}
        )
        self._write_start_offsets(directory)

    def _write_start_offsets(self, directory: LogDirectory) -> None:
        """Only what the first segment's name does not say, as Kafka."""
        directory.write_checkpoint(
            LOG_START_OFFSET_FILE,
            {
                key: log.log_start_offset
                for key, log in self._logs.items()
                if log.log_dir == directory.path and log.log_start_offset > log.segments[0].base_offset
            },
        )

    def _checkpoint_periodically(self) -> None:
        if self._closed:
            return
        try:
            self.checkpoint()
        except OSError as error:
            logger.error("checkpoints can't be written: %s", error)
        self._runtime.call_later(CHECKPOINT_INTERVAL_S, self._checkpoint_periodically)

    def _on_start_offset(self, log_dir: str) -> Callable[[], None]:
        """Start offsets that DeleteRecords has moved are written once per turn of the loop, however many."""

        def changed() -> None:
            if not self._start_offsets_changed:
                self._runtime.call_soon(self._save_start_offsets)
            self._start_offsets_changed.add(log_dir)

        return changed

    def _save_start_offsets(self) -> None:
        changed, self._start_offsets_changed = self._start_offsets_changed, set()
        if self._closed:
            return
        for log_dir in changed:
            try:
                self._write_start_offsets(self._directories[log_dir])
            except OSError as error:
                logger.error("%s: log start offsets can't be written: %s", log_dir, error)


def parse_directory_name(name: str) -> tuple[str, int] | None:
    """(topic, partition) of `<topic>-<partition>`; None for anything else."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isdecimal():
        return None
    return topic, int(partition)
