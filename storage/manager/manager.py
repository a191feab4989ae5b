"""All logs of a broker, over one or several directories: opened and recovered at start, created, deleted, closed.

A directory that can't be opened, or whose disk fails later, is offline until the next start: its logs answer
KAFKA_STORAGE_ERROR, those in other directories are served as before, and new partitions go to other directories. When every
directory has failed, or the one that holds the metadata, the broker has to stop (`LogManagerEvents.all_failed`), as Kafka
does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Periodic, in_slices
from barnabas.storage.disk.checkpoint_file import CheckpointError, read_offsets
from barnabas.storage.disk.deletion import DirectoryRemover
from barnabas.storage.disk.disk import Disk, write_rest
from barnabas.storage.errors import LogDirectoryError, LogDirectoryOffline, StorageError, is_transient
from barnabas.storage.log.flusher import PARTITION_METADATA
from barnabas.storage.log.log import Log, LogEvents
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from barnabas.storage.manager.checkpointer import Checkpointer
from barnabas.storage.manager.directory import (
    CLEANER_OFFSET_FILE,
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    STRAY_SUFFIX,
    LogDirectories,
    LogDirectory,
    format_partition_metadata,
    parse_directory_name,
    parse_partition_metadata,
    suffixed_name,
)
from barnabas.storage.manager.log_moves import LogMoves
from barnabas.storage.manager.retention import RetentionPass
from barnabas.storage.wall_clock import WallClock
from barnabas.wire.errors import ErrorCode
from barnabas.wire.uuids import random_uuid, uuid_from_string

__all__ = ["LogManager", "LogManagerEvents", "LogManagerSettings", "parse_directory_name"]

logger = logging.getLogger("barnabas.storage")

METADATA_PARTITION = "__cluster_metadata-0"
_ZERO_UUID = bytes(16)


class LogManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Broker settings under Kafka's names, all in ms."""

    log_initial_task_delay_ms: int = 30_000
    log_retention_check_interval_ms: int = 300_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_check_interval_ms: int = 600_000
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    remote_log_storage_system_enable: bool = False


def _ignore(*_: object) -> None:
    pass


class LogManagerEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What the LogManager reports to its subscribers, on the loop."""

    log_removed: Callable[[Log], object] = _ignore  # out of service, deleted or not
    # Everything from the offset on is about to be removed. Raises OSError when it must not be.
    log_truncated: Callable[[Log, int], object] = _ignore
    # A log was opened again, maybe in another directory: the second is in the place of the first
    log_replaced: Callable[[Log, Log], object] = _ignore
    start_offset_changed: Callable[[Log], object] = _ignore  # records at the log's start were removed
    # The path of the directory, and the reason why no directory is left. Called after the request that met the failure has
    # been answered.
    directory_failed: Callable[[str], object] = _ignore
    all_failed: Callable[[str], object] = _ignore


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
        new_cluster_id: str | None = None,
        config: LogConfig | None = None,
        settings: LogManagerSettings | None = None,
        metadata_dir: str | None = None,
        begins_cluster: bool = True,
        is_led: Callable[[Log], bool] = lambda _: True,
    ) -> None:
        """`cluster_id` None takes the one in meta.properties, or `new_cluster_id`, or a random one. `config` serves until each topic's
        own is known. The broker can't live without `metadata_dir`. Without `begins_cluster` there are other nodes, and a
        cluster id that is not known stays so until `directories.join_cluster`. `is_led(log)`: whether this broker leads the log's
        partition."""
        self._disk = disk
        self._runtime = runtime
        self._config = config or LogConfig()
        self._settings = settings or LogManagerSettings()
        self._begins_cluster = begins_cluster
        self.wall_clock = WallClock(runtime, is_alone=begins_cluster)
        self._logs: dict[tuple[str, int], Log] = {}
        self.directories = LogDirectories(
            disk,
            runtime,
            log_dirs,
            self._fail_logs,
            node_id=node_id,
            cluster_id=cluster_id,
            new_cluster_id=new_cluster_id,
            metadata_dir=metadata_dir,
        )
        self._counts = dict.fromkeys(self.directories.paths, 0)  # logs in each
        self.moves = LogMoves(self, self.directories, disk, runtime)
        self._remover = DirectoryRemover(disk, runtime)
        self._checkpointer = Checkpointer(disk, runtime, self._logs, self.directory_failed)
        self._periodic: list[Periodic] = []
        self._futures: dict[str, list[str]] = {}  # directory -> interrupted moves found there
        self._duplicates: list[Log] = []  # found in a second directory, until `settle_duplicates`
        self._events = LogEvents(self._start_offset_changed, self._truncating, self.directory_failed)
        self._closed = False
        self._producer_id_expiration_ms = self._settings.producer_id_expiration_ms
        self.broker_epoch = -1  # of this broker's registration, for the marker of a clean stop
        self.clean_start = True  # whether every directory had been stopped cleanly
        self._is_led = is_led
        self._subscribers: list[LogManagerEvents] = []

    def subscribe(self, events: LogManagerEvents) -> None:
        """Report to `events` from now on."""
        self._subscribers.append(events)

    def registered(self, broker_epoch: int) -> None:
        """Note the epoch of this broker's registration."""
        self.broker_epoch = broker_epoch

    def reconfigure(
        self, *, producer_id_expiration_ms: int, cordoned: Sequence[str], move_bytes_per_second: float
    ) -> None:
        """Take over the settings that change at run time. `cordoned`: directories that take no new logs."""
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self.directories.cordoned = cordoned
        self.moves.limit(move_bytes_per_second)

    # --- start and stop

    def open(self) -> None:
        """Lock the directories, check their identity, open every partition. LogDirectoryError when that is impossible.

        A directory whose disk fails is left out as long as another works. After an error no directory is locked.
        """
        try:
            self.directories.open(begins_cluster=self._begins_cluster)
            self.directories.each(self._open_directory)
        except BaseException:
            self.directories.unlock()
            raise
        for path, names in self._futures.items():
            self.moves.resume(path, names)
        self._begin_periodic()

    def _open_directory(self, directory: LogDirectory) -> None:
        try:
            directory.take_clean_shutdown_marker()
            names = self._disk.list(directory.path)
        except OSError as error:
            raise LogDirectoryOffline(f"{directory.path} can't be used (log.dirs): {error}") from error
        recovery_points = directory.read_checkpoint(RECOVERY_POINT_FILE)
        start_offsets = directory.read_checkpoint(LOG_START_OFFSET_FILE)
        high_watermarks = directory.read_checkpoint(REPLICATION_OFFSET_FILE)
        unclean = 0
        for name in names:
            path = f"{directory.path}/{name}"
            if name == METADATA_PARTITION or not self._disk.is_directory(path):
                continue
            if name.endswith(DELETE_SUFFIX):
                self._remover.remove_later(path, self._config.file_delete_delay_ms)
                continue
            if name.endswith(FUTURE_SUFFIX):
                self._futures.setdefault(directory.path, []).append(name)
                continue
            key = parse_directory_name(name)
            if key is None:
                continue
            unclean += not directory.clean
            self._open_log(
                directory,
                path,
                key,
                recovery_point=recovery_points.get(key, 0),
                start_offset=start_offsets.get(key, 0),
                high_watermark=high_watermarks.get(key, 0),
            )
        if any(key not in self._logs for key in (*recovery_points, *start_offsets, *high_watermarks)):
            try:
                self._checkpointer.rewrite(directory.path)
            except OSError as error:
                raise LogDirectoryOffline(f"{directory.path} can't be used (log.dirs): {error}") from error
        if unclean:
            self.clean_start = False
            logger.info("%s was not stopped cleanly: recovered %d logs", directory.path, unclean)

    def _open_log(
        self,
        directory: LogDirectory,
        path: str,
        key: tuple[str, int],
        *,
        recovery_point: int,
        start_offset: int,
        high_watermark: int,
    ) -> None:
        try:
            log = Log.open(
                self._disk,
                self._runtime,
                directory.path,
                *key,
                self._read_topic_id(path),
                self._config,
                clean=directory.clean,
                recovery_point=recovery_point,
                log_start_offset=start_offset,
                high_watermark=high_watermark,
                producer_expiration_ms=self._producer_expiration_ms(),
                events=self._events,
            )
        except OSError as error:
            raise LogDirectoryOffline(f"{path} can't be opened (log.dirs): {error}") from error
        if self._settings.remote_log_storage_system_enable:
            log.checkpointed_start_offset = start_offset
        other = self._logs.get(key)
        if other is None:
            self._add(key, log)
        else:
            self._duplicate_found(other, log)

    def _duplicate_found(self, first: Log, second: Log) -> None:
        """A log lies in two directories. Until the metadata is known, the longer one is used."""
        if first.topic_id != second.topic_id:
            raise LogDirectoryError(
                f"{first.name} lies in both {first.log_dir} and {second.log_dir} (log.dirs), and they are not "
                "of the same topic"
            )
        from barnabas.storage.manager.duplicate_logs import continues

        key = (first.topic, first.partition)
        kept, other = (second, first) if second.log_end_offset > first.log_end_offset else (first, second)
        if continues(kept, other):
            self._keep_duplicate(kept, other, logging.WARNING, "It has nothing that the first one lacks.")
        else:
            self._use(key, kept)
            self._duplicates.append(other)

    def settle_duplicates(self, named: Callable[[str, int], bytes]) -> None:
        """At start: of two copies that differ, keep the one in the directory that `named(topic, partition)`
        gives the id of, otherwise the longer one; the other becomes a stray."""
        duplicates, self._duplicates = self._duplicates, []
        for other in duplicates:
            key = (other.topic, other.partition)
            kept = self._logs[key]
            if uuid_from_string(self.directories.id_of(other.log_dir)) == named(*key):
                self.moves.end(*key)
                kept, other = other, kept
            self._keep_duplicate(kept, other, logging.ERROR, "Its records are not served.")

    def _keep_duplicate(self, kept: Log, other: Log, level: int, meaning: str) -> None:
        from barnabas.storage.manager.duplicate_logs import describe_duplicates

        self._use((kept.topic, kept.partition), kept)
        name = self._rename_stray(other)
        if name is not None:
            logger.log(level, "%s %s", describe_duplicates(kept, other, name), meaning)

    def _use(self, key: tuple[str, int], log: Log) -> None:
        if self._logs.get(key) is not log:
            self._remove(key)
            self._add(key, log)

    def _read_topic_id(self, path: str) -> bytes:
        file = f"{path}/{PARTITION_METADATA}"
        try:
            return parse_partition_metadata(self._disk.read_file(file))
        except FileNotFoundError:
            return _ZERO_UUID
        except ValueError as error:
            logger.warning("%s is damaged (%s) and is ignored", file, error)
            return _ZERO_UUID

    def _begin_periodic(self) -> None:
        settings, checkpointer = self._settings, self._checkpointer
        first_s = settings.log_initial_task_delay_ms / 1000

        def every(interval_ms: int, run: Callable[[Callable[[], object]], object]) -> None:
            self._periodic.append(Periodic(self._runtime, first_s, interval_ms / 1000, run))

        every(settings.log_retention_check_interval_ms, self.enforce_retention)
        every(settings.log_flush_offset_checkpoint_interval_ms, checkpointer.write_recovery_points)
        every(settings.log_flush_start_offset_checkpoint_interval_ms, checkpointer.write_start_offsets)
        every(settings.replica_high_watermark_checkpoint_interval_ms, checkpointer.write_high_watermarks)
        every(settings.producer_id_expiration_check_interval_ms, self._remove_expired_producers)

    def _remove_expired_producers(self, done: Callable[[], object]) -> None:
        def each() -> Iterator[None]:
            for log in self.logs():
                now_ms = self.wall_clock.deletion_time_ms()
                if now_ms is not None:
                    log.producers.remove_expired(now_ms, self._producer_id_expiration_ms)
                yield

        in_slices(self._runtime, each(), done)

    def _producer_expiration_ms(self) -> int:
        """For opening a log. At a start there may be no other node yet to compare the clock with: then nothing expires."""
        return self._producer_id_expiration_ms if self.wall_clock.is_trusted else LONG_MAX

    def enforce_retention(self, done: Callable[[], object], logs: Iterable[Log] | None = None) -> None:
        """Enforce retention on these logs, or on all; `done()` afterwards."""
        chosen = self.logs() if logs is None else logs
        RetentionPass(self._runtime, self._disk, self.wall_clock, chosen, done, self._is_led)

    def close(self) -> None:
        """Sync and close every log, write the checkpoints and, where all went well, the clean-shutdown marker."""
        if self._closed:
            return
        self._closed = True
        for periodic in self._periodic:
            periodic.stop()
        self.moves.stop()
        self._remover.stop()
        # A node that has not registered since its start has changed nothing: its former registration still counts.
        broker_epoch = self.broker_epoch if self.broker_epoch >= 0 else self.directories.previous_broker_epoch
        for directory in self.directories.online():
            path = directory.path
            clean = True
            logs = self._in(path)
            # In parallel: the disk syncs many files in the time of a few, and nothing else uses the logs now.
            for log, error in zip(logs, self._runtime.run_all([log.close for log in logs]), strict=True):
                if error is not None:
                    clean = False
                    logger.error("%s was not closed cleanly: %s", log.name, error)
            try:
                self._checkpointer.write_now(path)
                if clean:
                    directory.mark_clean_shutdown(broker_epoch)
            except OSError as error:
                logger.error("%s was not closed cleanly: %s", path, error)
        self.directories.unlock()

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
        while True:
            log_dir = self._least_loaded()
            if log_dir is None:
                raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
            try:
                log = self._create_in(log_dir, topic, topic_id, partition, config)
            except OSError as error:
                if is_transient(error):
                    raise StorageError(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"{log_dir}/{topic}-{partition} can't be created: {error}",
                    ) from error
                self.directory_failed(log_dir, str(error))
                continue
            self._add(key, log)
            return log

    def _create_in(self, log_dir: str, topic: str, topic_id: bytes, partition: int, config: LogConfig) -> Log:
        path = f"{log_dir}/{topic}-{partition}"
        if self._disk.exists(path):  # of a log that could not be removed
            self._delete_later(path, topic, partition, log_dir, config.file_delete_delay_ms)
        self._checkpointer.settle(log_dir, (topic, partition))
        self._disk.make_directory(path)
        try:
            with_id = self._disk.open(f"{path}/{PARTITION_METADATA}", create=True)
            write_rest(with_id, format_partition_metadata(topic_id), 0, 0)
            return Log.create(
                self._disk, self._runtime, log_dir, topic, partition, topic_id, config, events=self._events
            )
        except OSError:
            self._disk.remove_tree(path)
            raise

    def delete(self, topic: str, partition: int) -> None:
        """Take the log out of service at once and off the disk after file.delete.delay.ms. Nothing happens when
        there is none. Regions that wait to be sent stay readable."""
        self.moves.end(topic, partition)
        log = self._remove((topic, partition))
        if log is None or log.log_dir in self.directories.offline:
            return
        log.release()
        try:
            self._delete_later(log.directory, topic, partition, log.log_dir, log.config.file_delete_delay_ms)
        except OSError as error:
            logger.error("%s can't be deleted: %s", log.directory, error)
        self._checkpointer.log_removed(log.log_dir)

    def reopen(self, log: Log) -> None:
        """Open a closed log again where it was; its directory is offline when it can't be opened."""
        try:
            self.replace(log, self.open_again(log, log.log_dir))
        except OSError as error:
            self.directory_failed(log.log_dir, str(error))

    def open_again(self, log: Log, log_dir: str) -> Log:
        """Open a closed log again, from its copy in `log_dir`. OSError."""
        opened = Log.open(
            self._disk,
            self._runtime,
            log_dir,
            log.topic,
            log.partition,
            log.topic_id,
            log.config,
            log_start_offset=log.log_start_offset,
            events=self._events,
            producer_expiration_ms=self._producer_expiration_ms(),
        )
        if log.remote is not None:
            opened.checkpointed_start_offset = log.log_start_offset
        return opened

    def replace(self, old: Log, new: Log) -> None:
        """Put `new` in the place of a closed log."""
        new.take_high_watermark(old)
        if old.remote is not None:
            new.begin_tiering(old.remote)
        self._counts[old.log_dir] -= 1
        self._add((old.topic, old.partition), new)
        for log_dir in {old.log_dir, new.log_dir}:
            self._checkpointer.log_removed(log_dir)
        for events in self._subscribers:
            events.log_replaced(old, new)

    def remove_directory(self, path: str, deleted: str, delay_ms: int) -> None:
        """Rename a directory to `deleted`, and remove it later."""
        try:
            self._disk.rename(path, deleted)
        except OSError as error:
            logger.error("%s can't be removed: %s", path, error)
            return
        self._remover.remove_later(deleted, delay_ms)

    def set_stray(self, topic: str, partition: int) -> None:
        """Take a log without a topic out of service; its files stay under a name that ends in -stray."""
        log = self._remove((topic, partition))
        name = self._rename_stray(log) if log is not None else None
        if log is not None and name is not None:
            logger.warning("%s belongs to no known topic; its files are kept in %s", log.directory, name)

    def _rename_stray(self, log: Log) -> str | None:
        """Rename the directory of a log that is out of service; its new name, None when it keeps its name."""
        if log.log_dir in self.directories.offline:
            return None
        log.release()
        name = suffixed_name(log.topic, log.partition, random_uuid(self._runtime.random_bytes), STRAY_SUFFIX)
        try:
            self._disk.rename(log.directory, f"{log.log_dir}/{name}")
        except OSError as error:
            logger.error("%s can't be renamed to %s: %s", log.directory, name, error)
            return None
        self._checkpointer.log_removed(log.log_dir)
        return name

    def _add(self, key: tuple[str, int], log: Log) -> None:
        self._logs[key] = log
        self._counts[log.log_dir] += 1

    def _remove(self, key: tuple[str, int]) -> Log | None:
        log = self._logs.pop(key, None)
        if log is not None:
            self._counts[log.log_dir] -= 1
            for events in self._subscribers:
                events.log_removed(log)
        return log

    def _in(self, log_dir: str) -> list[Log]:
        return [log for log in (*self._logs.values(), *self._duplicates) if log.log_dir == log_dir]

    def _delete_later(self, path: str, topic: str, partition: int, log_dir: str, delay_ms: int) -> None:
        name = suffixed_name(topic, partition, random_uuid(self._runtime.random_bytes), DELETE_SUFFIX)
        self._disk.rename(path, f"{log_dir}/{name}")
        self._remover.remove_later(f"{log_dir}/{name}", delay_ms)

    def adopt(self, log: Log, topic_id: bytes) -> None:
        """Write the topic id of a log whose partition.metadata was lost. KAFKA_STORAGE_ERROR when that fails."""
        try:
            self._disk.write_file(
                f"{log.directory}/{PARTITION_METADATA}", format_partition_metadata(topic_id)
            )
        except OSError as error:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.directory}: {error}") from error
        log.topic_id = topic_id

    def _least_loaded(self) -> str | None:
        """The directory for a new log; a cordoned one only if no other works."""
        online = [directory.path for directory in self.directories.online()]
        cordoned = self.directories.cordoned
        return min(online, key=lambda path: (path in cordoned, self._counts[path]), default=None)

    # --- directories

    def directory_failed(self, log_dir: str, reason: str) -> None:
        """The disk below `log_dir` has failed: it is offline until the next start, and its logs with it."""
        if log_dir in self.directories.offline or self._closed:
            return
        self.directories.fail(log_dir, reason)
        self._runtime.call_soon(lambda: self._report_failure(log_dir, reason))

    def _fail_logs(self, log_dir: str, reason: str) -> None:
        """The directory is offline."""
        for log in self._in(log_dir):
            log.fail(reason)
        self.moves.directory_failed(log_dir)

    def _report_failure(self, log_dir: str, reason: str) -> None:
        for events in self._subscribers:
            events.directory_failed(log_dir)
        fatal = self.directories.fatal_failure(log_dir, reason)
        if fatal is not None:
            for events in self._subscribers:
                events.all_failed(fatal)

    def _start_offset_changed(self, log: Log) -> None:
        """A log's event: records at its start have been removed."""
        self._checkpointer.start_offset_changed(log.log_dir)
        mine = self._logs.get((log.topic, log.partition))
        if mine is log:
            for events in self._subscribers:
                events.start_offset_changed(log)

    def _truncating(self, log: Log, offset: int) -> None:
        """A log's event: everything from `offset` on is about to be removed."""
        self._checkpointer.truncating(log, offset)
        mine = self._logs.get((log.topic, log.partition))
        if mine is log:
            for events in self._subscribers:
                events.log_truncated(log, offset)

    def when_truncatable(
        self, cuts: Iterable[tuple[Log, int]], done: Callable[[BaseException | None], object]
    ) -> None:
        """Call `done` when each of the logs can be truncated to its offset without waiting for the disk: at once, or when a
        thread has written lower checkpoints; with the error if there was one."""
        log_dirs: dict[str, None] = {}  # in this order
        for log, offset in cuts:
            if log.flusher.lower_recovery_point(offset):
                log_dirs[log.log_dir] = None
        if log_dirs:
            self._checkpointer.write_lowered(log_dirs, done)
        else:
            done(None)

    def settle_recovery(self, log: Log, *, others_have_it: bool) -> None:
        """As Log.settle_recovery, once the log has its settings; `others_have_it`: other replicas have what is committed. Where the
        log is or was compacted, gaps are usual. OSError, StorageError."""
        may_cut = others_have_it and "compact" not in log.config.cleanup_policy
        if log.gap_from is not None and may_cut:
            try:
                cleaned = read_offsets(self._disk, f"{log.log_dir}/{CLEANER_OFFSET_FILE}")
            except (CheckpointError, OSError):
                cleaned = {}
            may_cut = log.gap_from >= cleaned.get((log.topic, log.partition), 0)
        log.settle_recovery(may_cut=may_cut)

    def when_start_is_checkpointed(self, log: Log, done: Callable[[BaseException | None], object]) -> None:
        """Call `done` once a start would find the log's start offset, with the error if there was one."""
        self._checkpointer.write_start(log, done)

    def offline_log(self, topic: str, topic_id: bytes, partition: int, config: LogConfig, reason: str) -> Log:
        """The log of a partition that has no files."""
        return Log.without_files(self._disk, self._runtime, topic, partition, topic_id, config, reason)

    def checkpoint(self) -> None:
        """Write recovery points and log start offsets of every directory now, blocking. OSError when the disk
        refuses."""
        for directory in self.directories.online():
            self._checkpointer.write_now(directory.path)
