"""A disk in memory that misbehaves on request: full, short, torn, deaf, and forgetful of what was not synced.

For tests and simulations. Names (create, rename, remove) are durable at once; bytes are durable when synced.
`crash` gives the disk as the next start would find it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from barnabas.wire.compression import Bytes


class _Content:
    """One file's bytes, and how they were when last synced."""

    __slots__ = ("data", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""


class MemoryFile:
    """An open file of a MemoryDisk; lives on when its name is gone."""

    def __init__(self, disk: MemoryDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        return self.pwrite(b"".join(buffers), position)

    def pwrite(self, data: Bytes, position: int) -> int:
        self._disk.check("write", self._path)
        content = self._content.data
        end = position + len(data)
        room = self._disk.room() + max(0, len(content) - position)
        if len(data) > room:
            if room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            data, end = memoryview(data)[:room], position + room
        limit = self._disk.short_write
        if limit is not None and len(data) > limit:
            data, end = memoryview(data)[:limit], position + limit
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position:end] = data
        return end - position

    def pread(self, count: int, position: int) -> bytes:
        self._disk.check("read", self._path)
        return bytes(self._content.data[position : position + count])

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        return os.write(socket_descriptor, self.pread(count, position))

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self._content.data)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self._path)
        data = self._content.data
        if size < len(data):
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))

    def sync(self) -> None:
        self._disk.check("sync", self._path)
        self._content.synced = bytes(self._content.data)


class MemoryLock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """Set `capacity` (bytes) for a full disk, `short_write` for partial writes, `fault` for errors of choice."""

    def __init__(self) -> None:
        self.files: dict[str, _Content] = {}
        self.directories: set[str] = set()
        self.locks: set[str] = set()
        self.capacity: int | None = None
        self.short_write: int | None = None
        # (operation, path) -> errno to raise, or None; operations: write read truncate sync open rename remove
        self.fault: Callable[[str, str], int | None] | None = None

    def check(self, operation: str, path: str) -> None:
        code = self.fault(operation, path) if self.fault is not None else None
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def room(self) -> int:
        """Bytes that still fit."""
        if self.capacity is None:
            return 1 << 62
        return self.capacity - sum(len(content.data) for content in self.files.values())

    def crash(self, keep: Callable[[int], int]) -> MemoryDisk:
        """What a power failure leaves: of n bytes appended since the last sync, the first `keep(n)`."""
        after = MemoryDisk()
        after.directories = set(self.directories)
        for path, content in self.files.items():
            survivor = after.files[path] = _Content()
            synced = len(content.synced)
            if content.data.startswith(content.synced):
                kept = synced + keep(len(content.data) - synced)
                survivor.data = bytearray(content.data[:kept])
            else:  # cut back or overwritten: either version may be found
                survivor.data = bytearray(content.data if keep(1) else content.synced)
            survivor.synced = bytes(survivor.data)
        return after

    # --- Disk

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> MemoryFile:  # noqa: ARG002
        self.check("open", path)
        content = self.files.get(path)
        if content is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if os.path.dirname(path) not in self.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            content = self.files[path] = _Content()
        return MemoryFile(self, path, content)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def size(self, path: str) -> int:
        return self.open(path).size()

    def list(self, path: str) -> list[str]:
        prefix = path + "/"
        names = [*self.files, *self.directories]
        return sorted({name[len(prefix) :].split("/")[0] for name in names if name.startswith(prefix)})

    def is_directory(self, path: str) -> bool:
        return path in self.directories

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        self.check("open", path)
        if path in self.directories and not parents:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.directories.add(path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        prefix = source + "/"
        self.directories = {
            target + name[len(source) :] if name == source or name.startswith(prefix) else name
            for name in self.directories
        }
        for name in [name for name in self.files if name.startswith(prefix)]:
            self.files[target + name[len(source) :]] = self.files.pop(name)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        self.files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        self.check("remove", path)
        prefix = path + "/"
        self.directories = {name for name in self.directories if name != path and not name.startswith(prefix)}
        for name in [name for name in self.files if name.startswith(prefix)]:
            del self.files[name]

    def sync_directory(self, path: str) -> None:
        self.check("sync", path)

    def read_file(self, path: str) -> bytes:
        return self.open(path).pread(1 << 62, 0)

    def write_file(self, path: str, content: Bytes, *, sync: bool = True) -> None:
        self.check("write", path)
        if len(content) > self.room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        replaced = _Content()
        replaced.data = bytearray(content)
        if sync:
            self.check("sync", path)
            replaced.synced = bytes(content)
        self.files[path] = replaced

    def lock(self, path: str) -> MemoryLock:
        self.check("open", path)
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.files.setdefault(path, _Content())
        self.locks.add(path)
        return MemoryLock(self, path)

    def volume(self, path: str) -> tuple[int, int]:  # noqa: ARG002
        return (self.capacity, self.room()) if self.capacity is not None else (-1, -1)
