"""The log directories (log.dirs): each with its lock, its identity in `meta.properties`, its checkpoints and the marker of a
clean stop, and which of them are offline.

File names and formats are Kafka's, so Kafka's tools and Kafka itself can read the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.checkpoint_file import CheckpointError, read_offsets
from barnabas.storage.disk.disk import Disk, Lock
from barnabas.storage.errors import LogDirectoryError, LogDirectoryOffline
from barnabas.wire.uuids import random_uuid, uuid_from_string, uuid_to_string

logger = logging.getLogger("barnabas.storage")

LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
REPLICATION_OFFSET_FILE = "replication-offset-checkpoint"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
FILE_NAME_MAX = 255


class LogDirectory:
    """A directory of `log.dirs`, locked from `open` to `unlock`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.cluster_id: str | None = None
        self.node_id: int | None = None
        self.directory_id: str | None = None
        self.clean = False
        # of the registration that ended with the last stop, if that was clean; -1 when it is unknown
        self.previous_broker_epoch = -1
        self._lock: Lock | None = None

    def open(self) -> None:
        """Create and lock the directory, and read its identity. LogDirectoryError when it can't be used."""
        try:
            self._make()
            self._lock = self._disk.lock(f"{self.path}/{LOCK_FILE}")
            self._read_meta_properties()
        except BlockingIOError:
            raise LogDirectoryError(
                f"{self.path} is in use by another process: its {LOCK_FILE} file is locked. Stop that broker, "
                "or give this one a directory of its own (log.dirs)."
            ) from None
        except OSError as error:
            self.unlock()
            raise LogDirectoryOffline(
                f"{self.path} can't be used as a log directory (log.dirs): {error}"
            ) from error

    def _make(self) -> None:
        try:
            self._disk.make_directory(self.path, parents=True)
        except FileExistsError:
            raise LogDirectoryOffline(f"{self.path} (log.dirs) is a file, not a directory") from None
        except OSError as error:
            reason = error.strerror or error
            raise LogDirectoryOffline(f"{self.path} (log.dirs) can't be created: {reason}") from error

    def _read_meta_properties(self) -> None:
        path = f"{self.path}/{META_PROPERTIES}"
        if not self._disk.exists(path):
            return
        properties: dict[str, str] = {}
        for line in self._disk.read_file(path).decode("latin-1").splitlines():
            name, separator, value = line.partition("=")
            if separator and not line.startswith(("#", "!")):
                properties[name.strip()] = value.strip()
        if properties.get("version") != "1":
            raise LogDirectoryError(
                f"{path}: version {properties.get('version')} is not supported, only 1 is"
            )
        self.cluster_id = properties.get("cluster.id")
        self.directory_id = properties.get("directory.id")
        try:
            self.node_id = int(properties["node.id"])
        except (KeyError, ValueError):
            raise LogDirectoryError(f"{path}: node.id is missing or no number") from None

    def adopt(self, cluster_id: str, node_id: int, runtime: Runtime) -> None:
        """Belong to this cluster and node from now on. LogDirectoryError when it belongs to another. A cluster id of
        "" is one that the node has still to learn: until then the directory belongs to the node alone."""
        for name, mine, wanted in (
            ("cluster.id", self.cluster_id, cluster_id),
            ("node.id", self.node_id, node_id),
        ):
            if mine is not None and mine != wanted and wanted != "":
                raise LogDirectoryError(
                    f"{self.path}/{META_PROPERTIES} says {name}={mine}, but this broker has {name}={wanted}. "
                    "Give it the directory of its own (log.dirs), or set the property to match."
                )
        wanted_id = cluster_id or self.cluster_id
        if (self.cluster_id, self.node_id) == (wanted_id, node_id) and self.directory_id:
            return
        self.cluster_id, self.node_id = wanted_id, node_id
        self.directory_id = self.directory_id or uuid_to_string(random_uuid(runtime.random_bytes))
        cluster = f"cluster.id={wanted_id}\n" if wanted_id else ""
        content = f"#\n{cluster}directory.id={self.directory_id}\nnode.id={node_id}\nversion=1\n"
        try:
            self._disk.write_file(f"{self.path}/{META_PROPERTIES}", content.encode())
        except OSError as error:
            raise LogDirectoryOffline(f"{self.path} can't be written (log.dirs): {error}") from error

    def take_clean_shutdown_marker(self) -> None:
        """Read and remove the marker of a clean stop.

        The removal is synced, or the marker would be found again after a power failure, and torn logs would be trusted.
        """
        path = f"{self.path}/{CLEAN_SHUTDOWN_FILE}"
        self.clean = self._disk.exists(path)
        if self.clean:
            self.previous_broker_epoch = _marked_epoch(self._disk.read_file(path))
            self._disk.remove(path)
            self._disk.sync_directory(self.path)

    def mark_clean_shutdown(self, broker_epoch: int = -1) -> None:
        """`broker_epoch` is that of the registration that ends with this stop, -1 if there is none. Kafka takes a stop for
        unclean unless it is of the last registration in its metadata."""
        content = msgspec.json.encode({"version": 0, "brokerEpoch": broker_epoch})
        self._disk.write_file(f"{self.path}/{CLEAN_SHUTDOWN_FILE}", content)

    def read_checkpoint(self, name: str) -> dict[tuple[str, int], int]:
        """Offsets by (topic, partition); a damaged file counts as none, which is always safe."""
        try:
            return read_offsets(self._disk, f"{self.path}/{name}")
        except CheckpointError as error:
            logger.warning("%s/%s is damaged (%s) and is ignored", self.path, name, error)
            return {}

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class LogDirectories:
    """All directories of log.dirs. `offline`: those that have failed, and why; `cordoned`: those that take no new logs;
    `cluster_id`: "" until it is known."""

    def __init__(
        self,
        disk: Disk,
        runtime: Runtime,
        paths: Sequence[str],
        went_offline: Callable[[str, str], object],
        *,
        node_id: int,
        cluster_id: str | None,
        new_cluster_id: str | None = None,
        metadata_dir: str | None,
    ) -> None:
        """`went_offline(path, reason)` is called when one has failed. `new_cluster_id`: of a cluster that
        begins here. The broker can't live without `metadata_dir`."""
        self._disk = disk
        self._runtime = runtime
        self._went_offline = went_offline
        self._node_id = node_id
        self._metadata_dir = metadata_dir
        self._directories = {path: LogDirectory(disk, path) for path in dict.fromkeys(paths)}
        self.paths = list(self._directories)
        self.offline: dict[str, str] = {}
        self.cordoned: Sequence[str] = ()
        self.cluster_id = cluster_id or ""
        self._new_cluster_id = new_cluster_id

    def online(self) -> list[LogDirectory]:
        return [directory for path, directory in self._directories.items() if path not in self.offline]

    def open(self, *, begins_cluster: bool) -> None:
        """Lock them all and check their identity. With `begins_cluster` a cluster id is made up if there is none.
        LogDirectoryError."""
        self.each(LogDirectory.open)
        found = sorted({each.cluster_id for each in self.online() if each.cluster_id is not None})
        if len(found) > 1:
            raise LogDirectoryError(
                f"the directories of log.dirs belong to different clusters: {', '.join(found)}"
            )
        cluster_id = self.cluster_id or (found[0] if found else "")
        if not cluster_id and begins_cluster:
            cluster_id = self._new_cluster_id or uuid_to_string(random_uuid(self._runtime.random_bytes))
        self.join_cluster(cluster_id)

    def each(self, prepare: Callable[[LogDirectory], object]) -> None:
        """`prepare` each directory. One that raises LogDirectoryOffline is offline; the error is raised when no other
        works."""
        for path, directory in self._directories.items():
            if path in self.offline:
                continue
            try:
                prepare(directory)
            except LogDirectoryOffline as error:
                if self._needs(path):
                    raise
                self.fail(path, str(error))

    def _needs(self, path: str) -> bool:
        return path == self._metadata_dir or not set(self.paths) - {path, *self.offline}

    def join_cluster(self, cluster_id: str) -> None:
        """Set the cluster that the node belongs to. LogDirectoryError when a directory belongs to another one."""
        self.cluster_id = cluster_id
        self.each(lambda directory: directory.adopt(cluster_id, self._node_id, self._runtime))

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch of the registration that ended with the last stop, if that was clean in every directory; otherwise -1."""
        epochs = {directory.previous_broker_epoch for directory in self._directories.values()}
        return epochs.pop() if len(epochs) == 1 else -1

    def fail(self, path: str, reason: str) -> None:
        """The disk of a directory has failed: it is offline until the next start."""
        logger.error("%s is offline until the next start: %s", path, reason)
        self.offline[path] = reason
        self._directories[path].unlock()
        self._went_offline(path, reason)

    def fatal_failure(self, path: str, reason: str) -> str | None:
        """Why the broker can't go on after this failure; None when it can."""
        if len(self.offline) == len(self.paths):
            return f"every log directory has failed: {reason}"
        if path == self._metadata_dir:
            return f"the log directory of the metadata, {path}, has failed: {reason}"
        return None

    def unlock(self) -> None:
        for directory in self._directories.values():
            directory.unlock()

    def online_ids(self) -> list[bytes]:
        """The ids of the directories that work."""
        return [uuid_from_string(self.id_of(directory.path)) for directory in self.online()]

    def id_of(self, path: str) -> str:
        """The directory's id in meta.properties; "" when it has not been read."""
        return self._directories[path].directory_id or ""

    def volume(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the directory's file system; (-1, -1) when they are unknown."""
        try:
            return self._disk.volume(path)
        except OSError:
            return -1, -1


def parse_directory_name(name: str) -> tuple[str, int] | None:
    """(topic, partition) of `<topic>-<partition>`; None for anything else."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isdecimal():
        return None
    return topic, int(partition)


def suffixed_name(topic: str, partition: int, unique: bytes, suffix: str) -> str:
    """`<topic>-<partition>.<32 hex digits><suffix>`, the topic cut so that a file system takes the name."""
    rest = f"-{partition}.{unique.hex()}{suffix}"
    return topic[: FILE_NAME_MAX - len(rest)] + rest


def format_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_to_string(topic_id)}\n".encode()


def parse_partition_metadata(content: bytes) -> bytes:
    """The topic id. ValueError when the file does not hold one."""
    fields = dict(line.partition(": ")[::2] for line in content.decode().splitlines())
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("neither version 0 nor a topic_id")
    return uuid_from_string(fields["topic_id"])


def _marked_epoch(content: bytes) -> int:
    """The broker epoch in a clean-shutdown marker; -1 where it has none, as older markers."""
    try:
        epoch = msgspec.json.decode(content)["brokerEpoch"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return -1
    return epoch if type(epoch) is int else -1
