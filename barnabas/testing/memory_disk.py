"""The disk in memory: of the in-process test broker, of tests and of simulations.

It injects ENOSPC, short and torn writes, errors of choice, a process that ends in the middle of its work (`kill_after`), and
power failures: `crash` returns the disk as the next start finds it (memory_files.py).

With `power_failures=False` no changes are kept: a byte that was written costs one byte.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from barnabas.storage.disk.open_files import OpenFiles
from barnabas.storage.disk.write_pressure import WritePressure
from barnabas.testing.memory_files import Choose, Directory, MemoryContent, Names
from barnabas.wire.compression import Bytes

SEND_BYTES_MAX = 256 * 1024  # copied for the socket at a time: about what it takes at once
_ROOM = 1 << 40  # what `volume` reports where there is no capacity
_HARMLESS = ("read", "open", "write_back")  # a process that is killed there has changed nothing


class ProcessKilled(BaseException):
    """kill -9, raised through the code under test by the disk operation that the process does not survive."""


class MemoryFile:
    """An open file of a MemoryDisk; lives on when its name is gone."""

    def __init__(self, disk: MemoryDisk, path: str, content: MemoryContent) -> None:
        self._disk = disk
        self._path = path
        self.content = content

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        return self.pwrite(b"".join(buffers), position)

    def pwrite(self, data: Bytes, position: int) -> int:
        content = self.content
        count = len(data)
        if not count:
            return 0
        try:
            self._disk.check("write", self._path)
        except ProcessKilled:
            torn, self._disk.torn_bytes = self._disk.torn_bytes, 0
            if torn:
                content.write(position, memoryview(data)[:torn])
            raise
        room = self._disk.room() + max(0, len(content.data) - position)
        if count > room:
            if room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            count = room
        if self._disk.short_write is not None:
            count = min(count, self._disk.short_write)
        content.write(position, memoryview(data)[:count])
        return count

    def pread(self, count: int, position: int) -> bytes:
        self._disk.check("read", self._path)
        return bytes(self.content.data[position : position + count])

    def pread_now(self, count: int, position: int) -> bytes:
        return self.pread(count, position)

    def pread_into_now(self, buffer: memoryview, position: int) -> int:
        data = self.pread_now(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def is_cached(self, position: int, count: int) -> bool:  # noqa: ARG002 - all of it is in memory
        return True

    def load(self, position: int, count: int) -> None:
        """Nothing to do."""

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        data = self.pread(min(count, SEND_BYTES_MAX), position)
        return self._disk.write_descriptor(socket_descriptor, data) if data else 0

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self.content.data)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self._path)
        self.content.resize(size)

    def write_back(self, position: int, count: int) -> None:  # noqa: ARG002 - promises nothing
        self._disk.check("write_back", self._path)

    def sync(self) -> None:
        try:
            self._disk.check("sync", self._path)
        except OSError:
            self.content.drop_unsynced()
            raise
        self.content.sync()


class MemoryLock:
    """Held until released."""

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """A `storage.disk.Disk`. Set `capacity` (bytes) for a full disk, `short_write` for partial writes, `fault` for errors of choice.

    `kill_after` is the number of changes that the process lives to make; of the one that it does not,
    `torn_bytes` are made if it is a write. Everything from then on raises ProcessKilled; `revive` ends that.
    A failed sync of a file leaves its unsynced pages readable and never written, as Linux does.
    """

    def __init__(self, *, power_failures: bool = True) -> None:
        """Without `power_failures` there is no `crash`, and a sync does nothing."""
        self._power_failures = power_failures
        self._names = Names(keeps_changes=power_failures)
        self.open_files = OpenFiles()
        self.write_pressure = WritePressure()
        self.waits_count = 0  # what `waits` says
        self.locks: set[str] = set()
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
        return self.capacity - self.bytes_count()

    def bytes_count(self) -> int:
        """Of all files together."""
        return sum(len(content.data) for _, content in self._names.files())

    def copy(self) -> MemoryDisk:
        """The same files again, none of them open or locked."""
        other = MemoryDisk(power_failures=self._power_failures)
        other._names = self._names.copy()
        return other

    def clear(self) -> None:
        """Remove everything; files that are open stay readable."""
        self._names = Names(keeps_changes=self._power_failures)
        self.locks.clear()

    def crash(self, choose: Choose) -> MemoryDisk:
        """The disk after a power failure. `choose(n)` decides each time between 0 (least survives) and n (most)."""
        assert self._power_failures, "nothing was kept for this"
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
            node = MemoryContent(keeps_changes=self._power_failures)
            self._names.bind(path, node)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        self._live(changes=False)
        return self._names.find(path) is not None

    def size(self, path: str) -> int:
        return self.open(path).size()

    def modified_ms(self, path: str) -> int:
        return self.open(path).content.modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.open(path).content.modified_ms = modified_ms

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
        replacement = MemoryContent(keeps_changes=self._power_failures)
        try:
            self._live()
            self._names.bind(temporary, replacement)
            self.check("write", path)
            if len(content) > self.room():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            replacement.write(0, content)
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
            self._names.bind(path, MemoryContent(keeps_changes=self._power_failures))
        self.locks.add(path)
        return MemoryLock(self, path)

    def volume(self, path: str) -> tuple[int, int]:  # noqa: ARG002
        if self.capacity is None:
            return _ROOM, _ROOM - self.bytes_count()
        return self.capacity, self.room()
