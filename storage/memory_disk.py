"""A disk in memory that misbehaves on request: full, short, torn, deaf, and forgetful of what was not synced.

For tests and simulations. `crash` gives the disk as the next start would find it after a power failure: any
of the unsynced sectors (memory_file.py) and names (memory_names.py) may be there or not. `kill_after` ends
the process in the middle of its work instead, with all it had written still in the page cache.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from barnabas.storage.disk.open_files import OpenFiles
from barnabas.storage.disk.write_pressure import WritePressure
from barnabas.storage.memory_file import Choose, MemoryContent, MemoryFile, ProcessKilled
from barnabas.storage.memory_names import Directory, Names
from barnabas.wire.compression import Bytes

_HARMLESS = ("read", "open", "write_back")  # a process that is killed there has changed nothing


class MemoryLock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """Set `capacity` (bytes) for a full disk, `short_write` for partial writes, `fault` for errors of choice.

    `kill_after` is the number of changes that the process lives to make; of the one that it does not,
    `torn_bytes` are made if it is a write. Everything from then on raises ProcessKilled; `revive` ends that.
    A failed sync of a file leaves its unsynced pages readable and never written, as Linux does.
    """

    def __init__(self) -> None:
        self._names = Names()
        self.open_files = OpenFiles()
        self.write_pressure = WritePressure()
        self.waits_count = 0  # what `waits` says
        self.locks: set[str] = set()
        self.modification_times: dict[str, int] = {}  # what `modified_ms` shall say; 0 for the others
        self.capacity: int | None = None
        self.short_write: int | None = None
        # (operation, path) -> errno to raise, or None; operations: write read truncate sync open rename remove
        self.fault: Callable[[str, str], int | None] | None = None
        self.kill_after: int | None = None
        self.torn_bytes = 0
        # how a file's bytes get to a socket: virtual ones have their own way
        self.write_descriptor: Callable[[int, bytes], int] = os.write
        self.sector = 512  # bytes that reach the medium together
        self.ordered_names = (
            False  # whether names survive in the order in which they were changed, as on ext4
        )

    @property
    def files(self) -> Mapping[str, MemoryContent]:
        """Path -> content, as of now; write to a content's `data` for damage that no process has done."""
        return MappingProxyType(dict(self._names.files()))

    def check(self, operation: str, path: str) -> None:
        """Fail here if it is time to. OSError, ProcessKilled."""
        self._live(changes=operation not in _HARMLESS)
        code = self.fault(operation, path) if self.fault is not None else None
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def _live(self, *, changes: bool = True) -> None:
        if self.kill_after is not None:
            if self.kill_after < changes:
                self.kill_after = -1
                raise ProcessKilled
            self.kill_after -= changes

    def waits(self) -> int:
        return self.waits_count

    def room(self) -> int:
        """Bytes that still fit."""
        if self.capacity is None:
            return 1 << 62
        return self.capacity - sum(len(content.data) for _, content in self._names.files())

    def crash(self, choose: Choose) -> MemoryDisk:
        """What a power failure leaves. `choose(n)` decides each time between 0 (least survives) and n (most)."""
        after = MemoryDisk()
        after.sector, after.ordered_names = self.sector, self.ordered_names
        after.write_descriptor = self.write_descriptor
        after._names = self._names.after_power_failure(choose, self.sector, ordered=self.ordered_names)
        return after

    def revive(self) -> None:
        """The process has ended, by `kill_after` or otherwise: its locks are gone, what it wrote is there."""
        self.kill_after = None
        self.torn_bytes = 0
        self.locks.clear()

    # --- Disk

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> MemoryFile:  # noqa: ARG002
        self.check("open", path)
        node = self._names.find(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._live()
            node = MemoryContent()
            self._names.bind(path, node)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        self._live(changes=False)
        return self._names.find(path) is not None

    def size(self, path: str) -> int:
        return self.open(path).size()

    def modified_ms(self, path: str) -> int:
        self.open(path)
        return self.modification_times.get(path, 0)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.open(path)
        self.modification_times[path] = modified_ms

    def list(self, path: str) -> list[str]:
        self._live(changes=False)
        return sorted(self._names.directory(path).entries)

    def is_directory(self, path: str) -> bool:
        self._live(changes=False)
        return isinstance(self._names.find(path), Directory)

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        self.check("open", path)
        if self.exists(path):
            if parents:
                return
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        parent = os.path.dirname(path)
        if parents and not self.exists(parent):
            self.make_directory(parent, parents=True)
        self._live()
        self._names.bind(path, Directory())
        if parents:
            self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        self._names.rename(source, target)
        if source in self.modification_times:
            self.modification_times[target] = self.modification_times.pop(source)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        if self.exists(path):
            self._names.bind(path, None)

    def remove_tree(self, path: str) -> None:
        self.check("remove", path)
        for name, node in list(self._names.directory(path).entries.items()):
            if isinstance(node, Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self._names.bind(path, None)

    def sync_directory(self, path: str) -> None:
        self.check("sync", path)
        self._names.sync(path)

    def read_file(self, path: str) -> bytes:
        return self.open(path).pread(1 << 62, 0)

    def write_file(
        self,
        path: str,
        content: Bytes,
        *,
        sync: bool = True,
        secret: bool = False,  # noqa: ARG002 - it has no modes
    ) -> None:
        temporary = path + ".tmp"
        replacement = MemoryContent()
        try:
            self._live()
            self._names.bind(temporary, replacement)
            self.check("write", path)
            if len(content) > self.room():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            replacement.write(0, bytes(content))
            if sync:
                self.check("sync", path)
                replacement.sync()
            self.check("rename", path)
            self._names.rename(temporary, path)
        except OSError:
            if self._names.find(temporary) is replacement:
                self._names.bind(temporary, None)
            raise
        if sync:
            self.sync_directory(os.path.dirname(path))

    def lock(self, path: str) -> MemoryLock:
        self.check("open", path)
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        if not self.exists(path):
            self._names.bind(path, MemoryContent())
        self.locks.add(path)
        return MemoryLock(self, path)

    def volume(self, path: str) -> tuple[int, int]:  # noqa: ARG002
        return (self.capacity, self.room()) if self.capacity is not None else (-1, -1)
