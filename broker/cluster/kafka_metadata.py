"""The metadata directory of this node, which Apache Kafka can take over and give back. The rules stand in
controller/kraft_files/directory.py.

The metadata lies in `metadata.log.dir`, or in the first directory of `log.dirs`, as Kafka's does.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.controller.kraft_files.directory import KraftDirectory
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.unsupported_records import describe
from barnabas.storage.manager.directory import LogDirectory, decode_uuid

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.controller.kraft_files.format import Voter
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import Disk
    from barnabas.storage.manager.manager import LogManager

_SHIPPED_CONTROLLER: Final = ("CONTROLLER", "localhost", 9093)  # in Kafka's shipped server.properties

log = logging.getLogger("barnabas.node")


def metadata_directory(config: BrokerConfig) -> str:
    """Where the metadata lies: `metadata.log.dir`, or the first of `log.dirs`; as `log.dirs` spells it, where it is one of them."""
    found = config.static_value("metadata.log.dir") or config.log_dirs[0]
    return next((path for path in config.log_dirs if Path(path) == Path(found)), found)


class KafkaMetadata:
    """The metadata directory of one node. `enter` before the journal is opened, `leave` after it is closed."""

    def __init__(self, disk: Disk, config: BrokerConfig, log_manager: LogManager, runtime: Runtime) -> None:
        self._disk = disk
        self._config = config
        self._log_manager = log_manager
        self._runtime = runtime
        self._own_directory: LogDirectory | None = None  # where it is none of log.dirs
        self.directory = metadata_directory(config)
        self._kraft = KraftDirectory(disk, self.directory, runtime)
        self.journal_directory = self._kraft.journal_directory

    def enter(self) -> None:
        """LogDirectoryError, MetadataError or OSError when the metadata can't be used."""
        if self.directory not in self._config.log_dirs:
            self._own_directory = LogDirectory(self._disk, self.directory)
            self._own_directory.open()
            self._own_directory.adopt(self._log_manager.cluster_id, self._config.node_id, self._runtime)
        self._kraft.enter(self._config.node_id, self._directory_ids)

    def warn_of_carried(self, image: MetadataImage) -> None:
        """Log what Kafka has written and this version does not act on."""
        if image.carried:
            log.warning(
                "the metadata has %s, which this version keeps for Kafka and does not act on",
                describe(image.carried.values()),
            )

    def leave(self, image: MetadataImage) -> None:
        """Write the metadata for Kafka. A failure is logged: then Kafka can't start, and the next clean stop tries again."""
        try:
            self._kraft.leave(image, self._directory_ids(), self._directory_of, self._voter())
        except (OSError, MetadataError) as error:
            log.error(
                "the metadata was not written for Kafka, which can't start on %s: %s", self.directory, error
            )

    def unlock(self) -> None:
        if self._own_directory is not None:
            self._own_directory.unlock()

    def _directory_ids(self) -> list[bytes]:
        texts = [self._log_manager.directory_id(path) for path in self._log_manager.log_dirs]
        return [decode_uuid(text) for text in texts if text]

    def _directory_of(self, topic: str, partition: int) -> bytes | None:
        found = self._log_manager.get(topic, partition)
        text = None if found is None else self._log_manager.directory_id(found.log_dir)
        return decode_uuid(text) if text else None

    @property
    def directory_id(self) -> bytes:
        """Of the directory that the metadata lies in."""
        if self._own_directory is not None:
            return decode_uuid(self._own_directory.directory_id or "")
        return decode_uuid(self._log_manager.directory_id(self.directory))

    def join_cluster(self, cluster_id: str) -> None:
        """The node has learned which cluster it belongs to. LogDirectoryError when it is of another already."""
        if self._own_directory is not None:
            self._own_directory.adopt(cluster_id, self._config.node_id, self._runtime)

    def _voter(self) -> Voter | None:
        """The quorum as Kafka would find it in the log: not there when the properties name it."""
        if self._config.controller_quorum_voters:
            return None
        from barnabas.broker.config.listeners import controller_endpoint
        from barnabas.controller.kraft_files.format import Voter

        endpoint = controller_endpoint(
            self._config.controller_listener_names,
            *(self._config.given.get(name, "").split(",") for name in ("advertised.listeners", "listeners")),
        )
        return Voter(self._config.node_id, self.directory_id, *(endpoint or _SHIPPED_CONTROLLER))


def why_it_ends(error: Exception, directory: str) -> str:
    """Why a node ends whose metadata in `directory` can't be written, and what to do. Other errors than OSError say it
    themselves."""
    if not isinstance(error, OSError):
        return str(error)
    text = f"the metadata can't be written to {directory}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Make room there and start this node again; it has lost nothing"
    if error.errno == errno.EFBIG:
        return f"{text}. Raise this process's limit of a file's size (ulimit -f) and start this node again"
    return f"{text}. See to the disk (the system's log may say more), then start this node again"
