"""The disk of the in-process broker: files that live in this process alone, and are gone when it lets go of them.

The store's own code runs on it as on the system's files. Nothing is ever waited for: a sync returns at once. Whoever wants
a disk that fills up, fails or loses what was not synced takes storage/memory_disk.py, which remembers every change and costs
accordingly; here a byte that was written is one byte.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from barnabas.storage.disk.open_files import OpenFiles
from barnabas.storage.disk.write_pressure import WritePressure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.wire.compression import Bytes

SEND_BYTES_MAX = 256 * 1024  # copied for the socket at a time: about what it takes at once
_ROOM = 1 << 40  # what `volume` claims


class StoredFile:
    """A file, open and closed alike; it lives as long as a name or a reader holds it."""

    __slots__ = ("_data",)

    def __init__(self, data: Bytes = b"") -> None:
        self._data = bytearray(data)

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        return self.pwrite(b"".join(buffers), position)

    def pwrite(self, data: Bytes, position: int) -> int:
        stored = self._data
        count = len(data)
        if count and position > len(stored):
            stored.extend(bytes(position - len(stored)))
        if position == len(stored):
            stored += data
        else:
            stored[position : position + count] = data
        return count

    def pread(self, count: int, position: int) -> bytes:
        return bytes(self._data[position : position + count])

    def pread_now(self, count: int, position: int) -> bytes:
        return bytes(self._data[position : position + count])

    def pread_into_now(self, buffer: memoryview, position: int) -> int:
        data = self._data[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def is_cached(self, position: int, count: int) -> bool:  # noqa: ARG002 - all of it is in memory
        return True

    def load(self, position: int, count: int) -> None:
        """Nothing to do."""

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        data = self._data[position : position + min(count, SEND_BYTES_MAX)]
        return os.write(socket_descriptor, data) if data else 0

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self._data)

    def truncate(self, size: int) -> None:
        stored = self._data
        if size > len(stored):
            stored.extend(bytes(size - len(stored)))
        else:
            del stored[size:]

    def write_back(self, position: int, count: int) -> None:
        """Nothing to do."""

    def sync(self) -> None:
        """Nothing to do."""


class StoredLock:
    """Taken until released."""

    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


Directory = dict[str, "StoredFile | Directory"]


class MemoryStore:
    """A `storage.disk.Disk`. Paths are absolute; the root is there from the start."""

    def __init__(self) -> None:
        self.open_files = OpenFiles()
        self.write_pressure = WritePressure()
        self._root: Directory = {}
        self._locks: set[str] = set()
        self._modified_ms: dict[StoredFile, int] = {}

    def copy(self) -> MemoryStore:
        """The same files once more, of which nobody holds a lock or an open one."""
        other = MemoryStore()
        other._root = self._copied(self._root, other)
        return other

    def _copied(self, directory: Directory, other: MemoryStore) -> Directory:
        copied: Directory = {}
        for name, node in directory.items():
            if isinstance(node, dict):
                copied[name] = self._copied(node, other)
                continue
            file = copied[name] = StoredFile(node.pread(node.size(), 0))
            if node in self._modified_ms:
                other._modified_ms[file] = self._modified_ms[node]
        return copied

    def bytes_count(self) -> int:
        """Of all files together."""
        count, directories = 0, [self._root]
        while directories:
            for node in directories.pop().values():
                if isinstance(node, dict):
                    directories.append(node)
                else:
                    count += node.size()
        return count

    def clear(self) -> None:
        """Everything is gone, except what somebody still holds open."""
        self._root = {}
        self._locks.clear()
        self._modified_ms.clear()

    # -- names

    def _find(self, path: str) -> StoredFile | Directory | None:
        node: StoredFile | Directory = self._root
        for name in path.split("/"):
            if name:
                if not isinstance(node, dict) or name not in node:
                    return None
                node = node[name]
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if node is None:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        if not isinstance(node, dict):
            raise _error(NotADirectoryError, errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> StoredFile:
        node = self._find(path)
        if node is None:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        if isinstance(node, dict):
            raise _error(IsADirectoryError, errno.EISDIR, path)
        return node

    # -- the disk

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> StoredFile:  # noqa: ARG002
        if create and self._find(path) is None:
            parent, _, name = path.rpartition("/")
            file = self._directory(parent)[name] = StoredFile()
            return file
        return self._file(path)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return self._file(path).size()

    def modified_ms(self, path: str) -> int:
        return self._modified_ms.get(self._file(path), 0)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._modified_ms[self._file(path)] = modified_ms

    def list(self, path: str) -> list[str]:
        return sorted(self._directory(path))

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), dict)

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        if self.exists(path):
            if parents:
                return
            raise _error(FileExistsError, errno.EEXIST, path)
        parent, _, name = path.rpartition("/")
        if parents and parent:
            self.make_directory(parent, parents=True)
        self._directory(parent)[name] = {}

    def rename(self, source: str, target: str) -> None:
        node = self._find(source)
        if node is None:
            raise _error(FileNotFoundError, errno.ENOENT, source)
        if there := self._find(target):
            if isinstance(there, dict):
                raise _error(OSError, errno.ENOTEMPTY, target)
            self._modified_ms.pop(there, None)
        source_parent, _, source_name = source.rpartition("/")
        target_parent, _, target_name = target.rpartition("/")
        to = self._directory(target_parent)
        del self._directory(source_parent)[source_name]
        to[target_name] = node

    def remove(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        directory = self._find(parent)
        if isinstance(directory, dict):
            node = directory.pop(name, None)
            if isinstance(node, StoredFile):
                self._modified_ms.pop(node, None)

    def remove_tree(self, path: str) -> None:
        directory = self._directory(path)
        for name, node in list(directory.items()):
            if isinstance(node, dict):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        parent, _, name = path.rpartition("/")
        del self._directory(parent)[name]

    def sync_directory(self, path: str) -> None:
        self._directory(path)

    def read_file(self, path: str) -> bytes:
        file = self._file(path)
        return file.pread(file.size(), 0)

    def write_file(
        self,
        path: str,
        content: Bytes,
        *,
        sync: bool = True,  # noqa: ARG002 - memory alone
        secret: bool = False,  # noqa: ARG002
    ) -> None:
        parent, _, name = path.rpartition("/")
        directory = self._directory(parent)
        there = directory.get(name)
        if isinstance(there, dict):
            raise _error(IsADirectoryError, errno.EISDIR, path)
        if there is not None:
            self._modified_ms.pop(there, None)
        directory[name] = StoredFile(content)

    def lock(self, path: str) -> StoredLock:
        self.open(path, create=True)
        if path in self._locks:
            raise _error(BlockingIOError, errno.EAGAIN, path)
        self._locks.add(path)
        return StoredLock(self._locks, path)

    def waits(self) -> int:
        return 0

    def volume(self, path: str) -> tuple[int, int]:  # noqa: ARG002 - everything is in one place
        return _ROOM, _ROOM - self.bytes_count()


def _error(kind: type[OSError], number: int, path: str) -> OSError:
    return kind(number, os.strerror(number), path)
