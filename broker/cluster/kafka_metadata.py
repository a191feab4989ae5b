"""The metadata directory of this node, which Apache Kafka can use in turn (controller/kraft_files/directory.py).

It is `metadata.log.dir`, or the first directory of `log.dirs`, as in Kafka.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.controller.kraft_files.directory import KraftDirectory
from barnabas.controller.metadata.errors import MetadataError
from barnabas.storage.manager.directory import LogDirectory
from barnabas.wire.uuids import uuid_from_string

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
    """The directory of the metadata, spelled as in `log.dirs` if it is one of them."""
    found = config.static_value("metadata.log.dir") or config.log_dirs[0]
    return next((path for path in config.log_dirs if Path(path) == Path(found)), found)


class KafkaMetadata:
    """The metadata directory of one node. `enter` before the journal is opened, `leave` after it is closed."""

    def __init__(self, disk: Disk, config: BrokerConfig, log_manager: LogManager, runtime: Runtime) -> None:
        self._disk = disk
        self._config = config
        self._log_manager = log_manager
        self._runtime = runtime
        self._own_directory: LogDirectory | None = None  # if it is none of log.dirs
        self.directory = metadata_directory(config)
        self._kraft = KraftDirectory(disk, self.directory, runtime)
        self.journal_directory = self._kraft.journal_directory

    def enter(self) -> None:
        """LogDirectoryError, MetadataError or OSError when the metadata can't be used."""
        if self.directory not in self._config.log_dirs:
            self._own_directory = LogDirectory(self._disk, self.directory)
            self._own_directory.open()
            self._own_directory.adopt(
                self._log_manager.directories.cluster_id, self._config.node_id, self._runtime
            )
        self._kraft.enter(self._config.node_id, self._directory_ids)

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
        texts = [self._log_manager.directories.id_of(path) for path in self._log_manager.directories.paths]
        return [uuid_from_string(text) for text in texts if text]

    def _directory_of(self, topic: str, partition: int) -> bytes | None:
        found = self._log_manager.get(topic, partition)
        text = None if found is None else self._log_manager.directories.id_of(found.log_dir)
        return uuid_from_string(text) if text else None

    @property
    def directory_id(self) -> bytes:
        """The id of the metadata directory."""
        if self._own_directory is not None:
            return uuid_from_string(self._own_directory.directory_id or "")
        return uuid_from_string(self._log_manager.directories.id_of(self.directory))

    def join_cluster(self, cluster_id: str) -> None:
        """This node belongs to the cluster. LogDirectoryError when the directory belongs to another."""
        if self._own_directory is not None:
            self._own_directory.adopt(cluster_id, self._config.node_id, self._runtime)

    def _voter(self) -> Voter | None:
        """The voter to write into Kafka's log; None when the properties name the voters."""
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
    """Why a node ends whose metadata in `directory` can't be written, and what to do. Errors other than OSError have that in
    their text."""
    if not isinstance(error, OSError):
        return str(error)
    text = f"the metadata can't be written to {directory}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Make room there and start this node again; it has lost nothing"
    if error.errno == errno.EFBIG:
        return f"{text}. Raise this process's limit of a file's size (ulimit -f) and start this node again"
    return f"{text}. Check the disk (the system's log may have details), then start this node again"
