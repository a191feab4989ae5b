"""The names of a MemoryDisk: a tree of directories, and which of its changes would survive a power failure.

A new, renamed or removed name is certain to survive once its directory has been synced. Until then a power
failure keeps any number of the changes: those of one name in their order, those of different names
independently, as POSIX allows; with `ordered`, all of them in their order, as ext4's journal has it. A rename
happens as a whole or not at all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from barnabas.storage.memory_file import Choose, MemoryContent


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
    """See the module. Paths are absolute; errors are OSErrors as the operating system's."""

    def __init__(self, root: Directory | None = None) -> None:
        self.root = root or Directory()
        self._unsynced: list[Change] = []

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
