"""One log directory: its lock, its identity in `meta.properties`, its checkpoints and the marker of a clean stop.

File names and formats are Kafka's, so Kafka's tools and Kafka itself can read the directory.
"""

from __future__ import annotations

import base64
import logging

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.checkpoint_file import CheckpointError, read_offsets
from barnabas.storage.disk.disk import Disk, Lock
from barnabas.storage.errors import LogDirectoryError, LogDirectoryOffline

logger = logging.getLogger("barnabas.storage")

LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
REPLICATION_OFFSET_FILE = "replication-offset-checkpoint"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
FILE_NAME_MAX = 255


def encode_uuid(value: bytes) -> str:
    """Kafka's text form of 16 bytes: url-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """The 16 bytes; ValueError when the text is no uuid."""
    value = base64.urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is no uuid")
    return value


def random_uuid(runtime: Runtime) -> bytes:
    """A random uuid (version 4) whose text does not begin with a dash, as Kafka makes them."""
    while True:
        value = _version_4(runtime.random_bytes(16))
        if not encode_uuid(value).startswith("-"):
            return value


def derived_uuid(seed: bytes) -> bytes:
    """As `random_uuid`, and always the same for the same seed."""
    import hashlib  # late: a start needs none of it

    while True:
        seed = hashlib.blake2b(seed, digest_size=16).digest()
        value = _version_4(seed)
        if not encode_uuid(value).startswith("-"):
            return value


def _version_4(random_bytes: bytes) -> bytes:
    value = bytearray(random_bytes)
    value[6] = value[6] & 0x0F | 0x40
    value[8] = value[8] & 0x3F | 0x80
    return bytes(value)


class LogDirectory:
    """A directory of `log.dirs`, locked from `open` to `unlock`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.cluster_id: str | None = None
        self.node_id: int | None = None
        self.directory_id: str | None = None
        self.clean = False
        self.previous_broker_epoch = (
            -1
        )  # of the registration that the last stop ended cleanly, -1 when none is known
        self._lock: Lock | None = None

    def open(self) -> None:
        """Make it, lock it, read who it belongs to. LogDirectoryError when it can't be used."""
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
        self.directory_id = self.directory_id or encode_uuid(random_uuid(runtime))
        cluster = f"cluster.id={wanted_id}\n" if wanted_id else ""
        content = f"#\n{cluster}directory.id={self.directory_id}\nnode.id={node_id}\nversion=1\n"
        try:
            self._disk.write_file(f"{self.path}/{META_PROPERTIES}", content.encode())
        except OSError as error:
            raise LogDirectoryOffline(f"{self.path} can't be written (log.dirs): {error}") from error

    def take_clean_shutdown_marker(self) -> None:
        """Note whether the last stop was clean; from now on the next one is not until it is marked.

        Synced, or the marker would be found again after a power failure and the torn logs be trusted.
        """
        path = f"{self.path}/{CLEAN_SHUTDOWN_FILE}"
        self.clean = self._disk.exists(path)
        if self.clean:
            self.previous_broker_epoch = _marked_epoch(self._disk.read_file(path))
            self._disk.remove(path)
            self._disk.sync_directory(self.path)

    def mark_clean_shutdown(self, broker_epoch: int = -1) -> None:
        """`broker_epoch`: which registration has ended here. Kafka takes a stop for unclean that is not of the
        last one in its metadata; -1 means none."""
        content = msgspec.json.encode({"version": 0, "brokerEpoch": broker_epoch})
        self._disk.write_file(f"{self.path}/{CLEAN_SHUTDOWN_FILE}", content)

    def read_checkpoint(self, name: str) -> dict[tuple[str, int], int]:
        """Offsets by (topic, partition); a damaged file counts as none, which is always safe."""
        try:
            return read_offsets(self._disk, f"{self.path}/{name}")
        except CheckpointError as error:
            logger.warning("%s/%s is damaged (%s) and is passed over", self.path, name, error)
            return {}

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


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
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode()


def parse_partition_metadata(content: bytes) -> bytes:
    """The topic id. ValueError when the file does not say."""
    fields = dict(line.partition(": ")[::2] for line in content.decode().splitlines())
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("neither version 0 nor a topic_id")
    return decode_uuid(fields["topic_id"])


def _marked_epoch(content: bytes) -> int:
    """The broker epoch in a clean-shutdown marker; -1 where it has none, as those of old."""
    try:
        epoch = msgspec.json.decode(content)["brokerEpoch"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return -1
    return epoch if type(epoch) is int else -1
