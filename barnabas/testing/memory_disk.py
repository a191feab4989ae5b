"""The disk in memory: of the in-process test broker, of tests and of simulations.

It can be full, make short and torn writes, fail by choice, end the process in the middle of its work (`kill_after`), and lose
power: `crash` gives the disk as the next start finds it. For that every change since the last sync is kept. After a power
failure each sector of a file is as it was after any of them, and so is the file's size, each independently: the kernel writes
pages back when and in which order it likes. Bytes inside the size that never were written are zeros. A new, renamed or
removed name survives for certain once its directory has been synced. Until then a power failure keeps any number of the
changes: those of one name in their order, those of different names independently, as POSIX allows; with `ordered_names`, all
of them in their order, as ext4's journal has it. A rename happens as a whole or not at all.

With `power_failures=False` nothing is kept: a byte that was written costs one byte.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from barnabas.storage.disk.open_files import OpenFiles
from barnabas.storage.disk.write_pressure import WritePressure
from barnabas.wire.compression import Bytes

Choose = Callable[[int], int]  # n -> one of 0..n; 0 keeps least of what was not synced, n most

SEND_BYTES_MAX = 256 * 1024  # copied for the socket at a time: about what it takes at once
_ROOM = 1 << 40  # what `volume` reports where there is no capacity
_HARMLESS = ("read", "open", "write_back")  # a process that is killed there has changed nothing


class ProcessKilled(BaseException):
    """kill -9, raised through the code under test by the disk operation that the process does not survive."""


# --- files


class MemoryContent:
    """One file's bytes; `data` as every process sees them, `synced` as they are on the medium."""

    __slots__ = ("changes", "data", "keeps_changes", "modified_ms", "synced")

    def __init__(self, synced: bytes = b"", *, keeps_changes: bool = True) -> None:
        self.keeps_changes = keeps_changes  # since the last sync, for a power failure
        self.data = bytearray(synced)
        self.synced = bytearray(synced if keeps_changes else b"")
        self.changes: list[tuple[int, bytes | None]] = []  # (position, bytes) or (new size, None)
        self.modified_ms = 0  # as `set_modified_ms` has it

    def copy(self) -> MemoryContent:
        """The same bytes, all of them synced."""
        other = MemoryContent(bytes(self.data), keeps_changes=self.keeps_changes)
        other.modified_ms = self.modified_ms
        return other

    def write(self, position: int, data: Bytes) -> None:
        if self.keeps_changes:
            self.changes.append((position, bytes(data)))
        _apply(self.data, position, data)

    def resize(self, size: int) -> None:
        if self.keeps_changes:
            self.changes.append((size, None))
        _apply(self.data, size, None)

    def sync(self) -> None:
        for position, data in self.changes:
            _apply(self.synced, position, data)
        self.changes.clear()

    def drop_unsynced(self) -> None:
        """A sync has failed: the pages stay readable and count as clean, so no later sync writes them."""
        self.changes.clear()

    def after_power_failure(self, choose: Choose, sector: int) -> MemoryContent:
        """The file as the next start finds it."""
        if not self.changes:
            return MemoryContent(bytes(self.synced))
        size = self._size_found(choose)
        found = bytearray(self.synced[:size])
        found.extend(bytes(size - len(found)))
        touched = sorted({number for change in self.changes for number in _sectors(change, sector, size)})
        for number in touched:
            start = number * sector
            touching = [change for change in self.changes if number in _sectors(change, sector, size)]
            content = bytearray(self.synced[: start + sector])
            for position, data in touching[: choose(len(touching))]:
                _apply(content, position, data)
            content.extend(bytes(max(0, start + sector - len(content))))
            found[start : start + sector] = content[start : start + sector][: max(0, size - start)]
        return MemoryContent(bytes(found))

    def _size_found(self, choose: Choose) -> int:
        """After so many changes; a growing one may have come to any byte."""
        count = choose(len(self.changes))
        size = len(self.synced)
        for position, data in self.changes[:count]:
            size = _size_after(size, position, data)
        if count < len(self.changes):
            grown = _size_after(size, *self.changes[count])
            if grown > size:
                size += choose(grown - size)
        return size


def _size_after(size: int, position: int, data: bytes | None) -> int:
    return position if data is None else max(size, position + len(data))


def _apply(content: bytearray, position: int, data: Bytes | None) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def _sectors(change: tuple[int, bytes | None], sector: int, size: int) -> range:
    position, data = change
    end = size if data is None else min(size, position + len(data))
    return range(position // sector, -(-end // sector)) if end > position else range(0)


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


# --- names


class Directory:
    """Names and what they stand for, now (`entries`) and on the medium (`synced`)."""

    __slots__ = ("entries", "synced")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.synced: dict[str, Node] = {}


Node = MemoryContent | Directory
Binding = tuple[Directory, str, Node | None]  # from now on the name stands for this; None: for nothing
Change = tuple[Binding, ...]  # happens as a whole


class Names:
    """A tree of directories. Paths are absolute; errors are OSErrors as the operating system's."""

    def __init__(self, root: Directory | None = None, *, keeps_changes: bool = True) -> None:
        self.root = root or Directory()
        self._keeps_changes = keeps_changes
        self._unsynced: list[Change] = []

    def copy(self) -> Names:
        """The same names and bytes, all of them synced."""

        def copied(directory: Directory) -> Directory:
            other = Directory()
            for name, node in directory.entries.items():
                other.entries[name] = copied(node) if isinstance(node, Directory) else node.copy()
            other.synced = dict(other.entries)
            return other

        return Names(copied(self.root), keeps_changes=self._keeps_changes)

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Directory) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def directory(self, path: str) -> Directory:
        """The directory of that path; FileNotFoundError or NotADirectoryError."""
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def bind(self, path: str, node: Node | None) -> None:
        """Create the name, replace what it stands for, or (None) remove it."""
        self._change((self._binding(path, node),))

    def rename(self, source: str, target: str) -> None:
        node = self.find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        there = self.find(target)
        if isinstance(there, Directory) and there.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        self._change((self._binding(source, None), self._binding(target, node)))

    def sync(self, path: str) -> None:
        """The directory's names, and what led to them, are on the medium."""
        directory = self.directory(path)
        wanted: set[tuple[int, str]] = set()
        now: list[Change] = []
        later: list[Change] = []
        for change in reversed(self._unsynced):
            keys = _keys(change)
            if wanted & keys or any(where is directory for where, _, _ in change):
                wanted |= keys
                now.append(change)
            else:
                later.append(change)
        self._unsynced = later[::-1]
        for change in reversed(now):
            for where, name, node in change:
                _set(where.synced, name, node)

    def files(self) -> Iterator[tuple[str, MemoryContent]]:
        """(path, content) of every file."""
        yield from _walk("", self.root)

    def after_power_failure(self, choose: Choose, sector: int, *, ordered: bool) -> Names:
        """A tree of its own, as the next start finds it."""
        found: dict[Directory, dict[str, Node]] = {}
        for group in [self._unsynced] if ordered else _independent(self._unsynced):
            for change in group[: choose(len(group))]:
                for where, name, node in change:
                    _set(found.setdefault(where, dict(where.synced)), name, node)

        def copy(directory: Directory) -> Directory:
            after = Directory()
            for name, node in found.get(directory, directory.synced).items():
                if isinstance(node, Directory):
                    after.synced[name] = copy(node)
                else:
                    after.synced[name] = node.after_power_failure(choose, sector)
            after.entries = dict(after.synced)
            return after

        return Names(copy(self.root))

    def _binding(self, path: str, node: Node | None) -> Binding:
        parent, _, name = path.rpartition("/")
        return self.directory(parent), name, node

    def _change(self, change: Change) -> None:
        for where, name, node in change:
            _set(where.entries, name, node)
        if self._keeps_changes:
            self._unsynced.append(change)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _set(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _keys(change: Change) -> set[tuple[int, str]]:
    return {(id(where), name) for where, name, _ in change}


def _walk(path: str, directory: Directory) -> Iterator[tuple[str, MemoryContent]]:
    for name, node in directory.entries.items():
        if isinstance(node, Directory):
            yield from _walk(f"{path}/{name}", node)
        else:
            yield f"{path}/{name}", node


def _independent(changes: list[Change]) -> list[list[Change]]:
    """The changes in groups that have no name in common, each in its order."""
    group_of: dict[tuple[int, str], list[int]] = {}
    for index, change in enumerate(changes):
        merged = sorted({number for key in _keys(change) for number in group_of.get(key, [])} | {index})
        for number in merged:
            for key in _keys(changes[number]):
                group_of[key] = merged
    groups = {tuple(numbers) for numbers in group_of.values()}
    return [[changes[number] for number in numbers] for numbers in sorted(groups)]


# --- the disk


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
