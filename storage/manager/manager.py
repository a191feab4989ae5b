"""All logs of a broker, over one or several directories: opened and recovered at start, created, deleted, closed.

A directory that can't be opened, or whose disk fails later, is offline until the next start: its logs answer
KAFKA_STORAGE_ERROR, the others go on, new partitions go to the directories that are left. When none is left,
or the one that holds the metadata has failed, the broker has to stop (`LogManagerEvents.all_failed`), as Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Periodic, in_slices
from barnabas.storage.disk.deletion import DirectoryRemover
from barnabas.storage.disk.disk import Disk, write_rest
from barnabas.storage.errors import LogDirectoryError, LogDirectoryOffline, StorageError, is_passing
from barnabas.storage.log.flusher import PARTITION_METADATA
from barnabas.storage.log.log import Log, LogEvents
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from barnabas.storage.manager.checkpointer import Checkpointer
from barnabas.storage.manager.directory import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    STRAY_SUFFIX,
    LogDirectory,
    decode_uuid,
    encode_uuid,
    format_partition_metadata,
    parse_directory_name,
    parse_partition_metadata,
    random_uuid,
    suffixed_name,
)
from barnabas.storage.manager.log_moves import LogMoves
from barnabas.storage.manager.retention import RetentionPass
from barnabas.storage.wall_clock import WallClock
from barnabas.wire.errors import ErrorCode

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


def _ignore(*_: object) -> None:
    pass


class LogManagerEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What the LogManager reports to those that subscribe, on the loop."""

    log_removed: Callable[[Log], object] = _ignore  # out of service, deleted or not
    # Everything from the offset on is about to be removed. OSError when it must not.
    log_truncated: Callable[[Log, int], object] = _ignore
    # A log was opened again, maybe in another directory: the second is in the place of the first
    log_replaced: Callable[[Log, Log], object] = _ignore
    start_offset_changed: Callable[[Log], object] = _ignore  # records at the log's start were removed
    # Of a directory's path, and of the reason why nothing is left to serve from: called after the request that met the failure
    # has been answered
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
        config: LogConfig | None = None,
        settings: LogManagerSettings | None = None,
        vital_dir: str | None = None,
        begins_cluster: bool = True,
    ) -> None:
        """`cluster_id` None takes the one in meta.properties, or a new one. `config` serves until each topic's
        own is known. The broker can't live without `vital_dir`. Without `begins_cluster` there are other nodes, and a
        cluster id that is not known stays so until `join_cluster`."""
        self._disk = disk
        self._runtime = runtime
        self._node_id = node_id
        self._config = config or LogConfig()
        self._settings = settings or LogManagerSettings()
        self._vital_dir = vital_dir
        self._begins_cluster = begins_cluster
        self.wall_clock = WallClock(runtime, is_alone=begins_cluster)
        self._logs: dict[tuple[str, int], Log] = {}
        self._directories = {path: LogDirectory(disk, path) for path in dict.fromkeys(log_dirs)}
        self._counts = dict.fromkeys(self._directories, 0)  # logs in each
        self.moves = LogMoves(self, disk, runtime)
        self._remover = DirectoryRemover(disk, runtime)
        self._checkpointer = Checkpointer(disk, runtime, self._logs, self.directory_failed)
        self._periodic: list[Periodic] = []
        self._futures: dict[str, list[str]] = {}  # directory -> interrupted moves found there
        self._duplicates: list[Log] = []  # found in a second directory, until `settle_duplicates`
        self._events = LogEvents(self._start_offset_changed, self._truncating, self.directory_failed)
        self._closed = False
        self.producer_id_expiration_ms = self._settings.producer_id_expiration_ms  # may change at run time
        self.log_dirs: list[str] = list(self._directories)
        self.offline: dict[str, str] = {}  # directories that have failed, and why
        self.cordoned: Sequence[str] = ()  # directories that take no new logs
        self.cluster_id = cluster_id or ""
        self.broker_epoch = -1  # of this broker's registration, for the marker of a clean stop
        self.clean_start = True  # whether every directory had been stopped cleanly
        self.is_led: Callable[[Log], bool] = lambda _: True  # whether this broker leads the log's partition
        self._subscribers: list[LogManagerEvents] = []

    def subscribe(self, events: LogManagerEvents) -> None:
        """Call these from now on."""
        self._subscribers.append(events)

    # --- start and stop

    def open(self) -> None:
        """Lock the directories, settle whose they are, open every partition. LogDirectoryError when it can't.

        A directory that the disk refuses is left out as long as another works. Nothing stays locked when it
        fails.
        """
        try:
            self._each_live(LogDirectory.open)
            self._settle_identity()
            self._each_live(self._open_directory)
        except BaseException:
            self._unlock()
            raise
        for path, names in self._futures.items():
            self.moves.resume(path, names)
        self._begin_periodic()

    def _each_live(self, prepare: Callable[[LogDirectory], object]) -> None:
        """Leaves out those that are offline from now on; LogDirectoryError when no other is left."""
        for path, directory in self._directories.items():
            if path in self.offline:
                continue
            try:
                prepare(directory)
            except LogDirectoryOffline as error:
                if path == self._vital_dir or not set(self._directories) - {path, *self.offline}:
                    raise
                logger.error("%s is offline until the next start: %s", path, error)
                self._take_offline(path, str(error))

    def _settle_identity(self) -> None:
        live = [directory for path, directory in self._directories.items() if path not in self.offline]
        found = sorted({d.cluster_id for d in live if d.cluster_id is not None})
        if len(found) > 1:
            raise LogDirectoryError(
                f"the directories of log.dirs belong to different clusters: {', '.join(found)}"
            )
        self.cluster_id = self.cluster_id or (found[0] if found else "")
        if not self.cluster_id and self._begins_cluster:
            self.cluster_id = encode_uuid(random_uuid(self._runtime))
        self._adopt()

    def join_cluster(self, cluster_id: str) -> None:
        """The node has learned which cluster it belongs to. LogDirectoryError when it is of another already."""
        self.cluster_id = cluster_id
        self._adopt()

    def _adopt(self) -> None:
        self._each_live(lambda directory: directory.adopt(self.cluster_id, self._node_id, self._runtime))

    @property
    def previous_broker_epoch(self) -> int:
        """Of the registration that ended with the last stop, when that was clean in every directory; -1 otherwise."""
        epochs = {directory.previous_broker_epoch for directory in self._directories.values()}
        return epochs.pop() if len(epochs) == 1 and self.clean_start else -1

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
        other = self._logs.get(key)
        if other is None:
            self._add(key, log)
        else:
            self._duplicate_found(other, log)

    def _duplicate_found(self, first: Log, second: Log) -> None:
        """One log in two directories. Until the metadata is known, the one that reaches further is used."""
        if first.topic_id != second.topic_id:
            raise LogDirectoryError(
                f"{first.name} lies in both {first.log_dir} and {second.log_dir} (log.dirs), and they are not "
                "of the same topic"
            )
        from barnabas.storage.manager.duplicate_logs import goes_on

        key = (first.topic, first.partition)
        kept, other = (second, first) if second.log_end_offset > first.log_end_offset else (first, second)
        if goes_on(kept, other):
            self._keep_duplicate(kept, other, logging.WARNING, "It has nothing that the first one lacks.")
        else:
            self._use(key, kept)
            self._duplicates.append(other)

    def settle_duplicates(self, named: Callable[[str, int], bytes]) -> None:
        """At start: of two copies that differ, keep the one in the directory that `named(topic, partition)`
        gives the id of, else the one that reaches further; the other is set aside."""
        duplicates, self._duplicates = self._duplicates, []
        for other in duplicates:
            key = (other.topic, other.partition)
            kept = self._logs[key]
            if decode_uuid(self.directory_id(other.log_dir)) == named(*key):
                self.moves.end(*key)
                kept, other = other, kept
            self._keep_duplicate(kept, other, logging.ERROR, "Its records are not served.")

    def _keep_duplicate(self, kept: Log, other: Log, level: int, meaning: str) -> None:
        from barnabas.storage.manager.duplicate_logs import describe_duplicates

        self._use((kept.topic, kept.partition), kept)
        name = self._keep_aside(other)
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
            logger.warning("%s is damaged (%s) and is passed over", file, error)
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
                    log.remove_expired_producers(now_ms, self.producer_id_expiration_ms)
                yield

        in_slices(self._runtime, each(), done)

    def _producer_expiration_ms(self) -> int:
        """For a log that is opened; at a start there may be no other node yet to compare the clock with."""
        return self.producer_id_expiration_ms if self.wall_clock.is_trusted else LONG_MAX

    def enforce_retention(self, done: Callable[[], object], logs: Iterable[Log] | None = None) -> None:
        """Enforce retention on these logs, or on all; `done()` afterwards."""
        chosen = self.logs() if logs is None else logs
        RetentionPass(self._runtime, self._disk, self.wall_clock, chosen, done, self.is_led)

    def close(self) -> None:
        """Sync and close every log, write the checkpoints and, where all went well, the clean-shutdown marker."""
        if self._closed:
            return
        self._closed = True
        for periodic in self._periodic:
            periodic.stop()
        self.moves.stop()
        self._remover.stop()
        # A node that no controller has taken in has changed nothing: the former registration is still what it was.
        broker_epoch = self.broker_epoch if self.broker_epoch >= 0 else self.previous_broker_epoch
        for path, directory in self._directories.items():
            if path in self.offline:
                continue
            clean = True
            logs = self._in(path)
            # Side by side: the disk syncs many files at the price of a few, and nothing else uses the logs now.
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
        while True:
            log_dir = self._least_loaded()
            if log_dir is None:
                raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
            try:
                log = self._create_in(log_dir, topic, topic_id, partition, config)
            except OSError as error:
                if is_passing(error):
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
        if self._disk.exists(path):  # left behind when it could not be removed
            self._set_aside(path, topic, partition, log_dir, config.file_delete_delay_ms)
        self._checkpointer.settle(log_dir, (topic, partition))
        self._disk.make_directory(path)
        try:
            with_id = self._disk.open(f"{path}/{PARTITION_METADATA}", create=True)
            write_rest(with_id, format_partition_metadata(topic_id), 0, 0)
            return Log.open(
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
        if log is None or log.log_dir in self.offline:
            return
        log.release()
        try:
            self._set_aside(log.directory, topic, partition, log.log_dir, log.config.file_delete_delay_ms)
        except OSError as error:
            logger.error("%s can't be deleted: %s", log.directory, error)
        self._checkpointer.log_removed(log.log_dir)

    def open_moved(self, log: Log, log_dir: str) -> Log:
        """Open the log again, from its copy in another directory. OSError."""
        return self._open_again(log, log_dir)

    def reopen(self, log: Log) -> None:
        """Open a closed log again where it was; its directory is offline when it can't be opened."""
        try:
            self.replace(log, self._open_again(log, log.log_dir))
        except OSError as error:
            self.directory_failed(log.log_dir, str(error))

    def _open_again(self, log: Log, log_dir: str) -> Log:
        return Log.open(
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

    def replace(self, old: Log, new: Log) -> None:
        """Put `new` in the place of a closed log."""
        new.take_high_watermark(old)
        self._counts[old.log_dir] -= 1
        self._add((old.topic, old.partition), new)
        for log_dir in {old.log_dir, new.log_dir}:
            self._checkpointer.log_removed(log_dir)
        for events in self._subscribers:
            events.log_replaced(old, new)

    def remove_directory(self, path: str, doomed: str, delay_ms: int) -> None:
        """Rename a directory to `doomed` and remove it later."""
        try:
            self._disk.rename(path, doomed)
        except OSError as error:
            logger.error("%s can't be removed: %s", path, error)
            return
        self._remover.remove_later(doomed, delay_ms)

    def set_stray(self, topic: str, partition: int) -> None:
        """Take a log that no topic claims out of service; its files stay under a name that ends in -stray."""
        log = self._remove((topic, partition))
        name = self._keep_aside(log) if log is not None else None
        if log is not None and name is not None:
            logger.warning(
                "%s belongs to no topic that is known; its files are kept in %s", log.directory, name
            )

    def _keep_aside(self, log: Log) -> str | None:
        """Rename the directory of a log that is out of service; its new name, None when it stays as it is."""
        if log.log_dir in self.offline:
            return None
        log.release()
        name = suffixed_name(log.topic, log.partition, random_uuid(self._runtime), STRAY_SUFFIX)
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

    def _set_aside(self, path: str, topic: str, partition: int, log_dir: str, delay_ms: int) -> None:
        name = suffixed_name(topic, partition, random_uuid(self._runtime), DELETE_SUFFIX)
        self._disk.rename(path, f"{log_dir}/{name}")
        self._remover.remove_later(f"{log_dir}/{name}", delay_ms)

    def adopt(self, log: Log, topic_id: bytes) -> None:
        """Give a log whose partition.metadata was lost its topic id again. KAFKA_STORAGE_ERROR when that fails."""
        try:
            self._disk.write_file(
                f"{log.directory}/{PARTITION_METADATA}", format_partition_metadata(topic_id)
            )
        except OSError as error:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.directory}: {error}") from error
        log.topic_id = topic_id

    def _least_loaded(self) -> str | None:
        """A cordoned directory takes a new log only where nothing else is left: its place has been decided by then."""
        live = (path for path in self._counts if path not in self.offline)
        return min(live, key=lambda path: (path in self.cordoned, self._counts[path]), default=None)

    # --- directories

    def directory_failed(self, log_dir: str, reason: str) -> None:
        """The disk below `log_dir` has failed: it is offline until the next start, and its logs with it."""
        if log_dir in self.offline or self._closed:
            return
        logger.error("%s is offline until the next start: %s", log_dir, reason)
        self._take_offline(log_dir, reason)
        self._runtime.call_soon(lambda: self._report_failure(log_dir, reason))

    def _take_offline(self, log_dir: str, reason: str) -> None:
        self.offline[log_dir] = reason
        self._directories[log_dir].unlock()
        for log in self._in(log_dir):
            log.fail(reason)
        self.moves.directory_failed(log_dir)

    def _report_failure(self, log_dir: str, reason: str) -> None:
        for events in self._subscribers:
            events.directory_failed(log_dir)
        if len(self.offline) == len(self._directories):
            fatal = f"every log directory has failed: {reason}"
        elif log_dir == self._vital_dir:
            fatal = f"the log directory of the metadata, {log_dir}, has failed: {reason}"
        else:
            return
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
        """Call `done` when each of the logs can be cut back to its offset without waiting for the disk: at once, or
        when a thread has made the checkpoints claim less. With what went wrong, if anything did."""
        log_dirs = set()
        for log, offset in cuts:
            if log.lower_recovery_point(offset):
                log_dirs.add(log.log_dir)
        if log_dirs:
            self._checkpointer.claim_less(log_dirs, done)
        else:
            done(None)

    def offline_log(self, topic: str, topic_id: bytes, partition: int, config: LogConfig, reason: str) -> Log:
        """The log of a partition that has no files."""
        return Log.without_files(self._disk, self._runtime, topic, partition, topic_id, config, reason)

    def online_ids(self) -> list[bytes]:
        """The ids of the directories that work."""
        return [
            decode_uuid(self.directory_id(path)) for path in self._directories if path not in self.offline
        ]

    def volume(self, log_dir: str) -> tuple[int, int]:
        """(total, usable) bytes of the directory's file system; (-1, -1) when it can't say."""
        try:
            return self._disk.volume(log_dir)
        except OSError:
            return -1, -1

    def directory_id(self, log_dir: str) -> str:
        """The directory's id in meta.properties; "" when it has not been read."""
        return self._directories[log_dir].directory_id or ""

    def checkpoint(self) -> None:
        """Write recovery points and log start offsets of every directory now, blocking. OSError when the disk
        refuses."""
        for path in self._directories:
            if path not in self.offline:
                self._checkpointer.write_now(path)
