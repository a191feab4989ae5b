"""The directory of one partition: `<log dir>/<topic>-<partition>`."""

from __future__ import annotations

from barnabas.storage.disk.disk import Disk


class PartitionDirectory:
    """Where the files of a log lie, shared by its parts. `name` is the partition's, for messages."""

    __slots__ = ("disk", "log_dir", "name", "path")

    def __init__(self, disk: Disk, log_dir: str, path: str, name: str) -> None:
        self.disk = disk
        self.log_dir = log_dir
        self.path = path
        self.name = name
