"""The files and names of a disk in memory, as every process sees them and as they are on the medium.

Every change since the last sync is kept, so that a power failure can be computed. After one, each sector of a file has the
content that it had after any number of the changes, and the file's size likewise, each independently: the kernel writes pages
back in any order. Bytes inside the size that were never written are zeros. A new, renamed or removed name survives for
certain once its directory has been synced. Until then any number of the changes survive: those of one name in their order,
those of different names independently, as POSIX allows; or, where `ordered`, all of them in their order, as on ext4 with its
journal. A rename happens as a whole or not at all.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterator

from barnabas.wire.compression import Bytes

Choose = Callable[[int], int]  # n -> one of 0..n; 0 keeps least of what was not synced, n most


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


@functools.lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


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
