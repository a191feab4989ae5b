"""`barnabas leave-quorum`: makes the metadata of a stopped voter that of a single node."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from barnabas.broker.cluster.kafka_metadata import metadata_directory
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.kraft_files.directory import JOURNAL, KRAFT_LOG
from barnabas.controller.link.quorum_state import QUORUM_STATE
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.departure import leave_quorum, offset_in_quorum
from barnabas.extensions import EXTENSIONS
from barnabas.storage.disk.disk import RealDisk
from barnabas.storage.errors import LogDirectoryError
from barnabas.storage.manager.directory import LogDirectory


def leave(file: str | None, settings: Iterable[str], *, show: bool = False) -> int:
    """Leave the quorum; the process's exit code. Prints one line with the result, or with the reason of a failure. `show`: only
    print how far the metadata goes."""
    disk = RealDisk()
    try:
        config = BrokerConfig.load(None if file is None else Path(file), os.environ, settings, EXTENSIONS)
        config.check_is_one_node(
            "set barnabas.cores=1, and the node.id and the log.dirs (they end in node-<id>) of one node"
        )
        directory = metadata_directory(config)
        if not disk.exists(directory):
            raise MetadataError(f"{directory} (metadata.log.dir, or the first of log.dirs) is not there")
        locked = LogDirectory(disk, directory)
        locked.open()
        journal = f"{directory}/{KRAFT_LOG}/{JOURNAL}"
        try:
            end_offset = (
                offset_in_quorum(disk, journal) if show else leave_quorum(disk, journal, QUORUM_STATE)
            )
        finally:
            locked.unlock()
    except (ConfigError, LogDirectoryError, MetadataError, OSError) as error:
        print(f"barnabas: {error}", file=sys.stderr)  # noqa: T201 - the terminal is the interface here
        return 1
    if show:
        print(  # noqa: T201 - the terminal is the interface here
            f"node {config.node_id} has the metadata up to offset {end_offset} in {directory}; nothing was changed"
        )
        return 0
    print(  # noqa: T201 - the terminal is the interface here
        f"node {config.node_id} has left its quorum, with the metadata up to offset {end_offset} in {directory}. Before "
        f"the other voters are started with it, remove {KRAFT_LOG} from their metadata directories. It can also be "
        f"started alone, without controller.quorum.voters"
    )
    return 0
