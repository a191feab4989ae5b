"""What a file of a MemoryDisk holds, what of it has reached the medium, and what a power failure makes of the rest.

Every change since the last sync is kept. After a power failure each sector is found as it was after any of
them, and so is the file's size, each independently: the kernel writes pages back when and in which order it
likes. Bytes inside the size that never were written are zeros.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from barnabas.wire.compression import Bytes

Choose = Callable[[int], int]  # n -> one of 0..n; 0 keeps least of what was not synced, n most


class ProcessKilled(BaseException):
    """kill -9, thrown through the code under test by the disk operation that it does not live to see."""


class MemoryContent:
    """One file's bytes; `data` as every process sees them, `synced` as they are on the medium."""

    __slots__ = ("changes", "data", "synced")

    def __init__(self, synced: bytes = b"") -> None:
        self.data = bytearray(synced)
        self.synced = bytearray(synced)
        self.changes: list[tuple[int, bytes | None]] = []  # (position, bytes) or (new size, None)

    def write(self, position: int, data: bytes) -> None:
        self._change(position, data)

    def resize(self, size: int) -> None:
        self._change(size, None)

    def _change(self, position: int, data: bytes | None) -> None:
        self.changes.append((position, data))
        _apply(self.data, position, data)

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


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
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


class FaultPoints(Protocol):
    """What a file asks its disk before it does anything."""

    short_write: int | None
    torn_bytes: int
    write_descriptor: Callable[[int, bytes], int]

    def check(self, operation: str, path: str) -> None: ...

    def room(self) -> int: ...


class MemoryFile:
    """An open file of a MemoryDisk; lives on when its name is gone."""

    def __init__(self, disk: FaultPoints, path: str, content: MemoryContent) -> None:
        self._disk = disk
        self._path = path
        self._content = content

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        return self.pwrite(b"".join(buffers), position)

    def pwrite(self, data: Bytes, position: int) -> int:
        content = self._content
        count = len(data)
        if not count:
            return 0
        try:
            self._disk.check("write", self._path)
        except ProcessKilled:
            torn, self._disk.torn_bytes = self._disk.torn_bytes, 0
            if torn:
                content.write(position, bytes(memoryview(data)[:torn]))
            raise
        room = self._disk.room() + max(0, len(content.data) - position)
        if count > room:
            if room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            count = room
        if self._disk.short_write is not None:
            count = min(count, self._disk.short_write)
        content.write(position, bytes(memoryview(data)[:count]))
        return count

    def pread(self, count: int, position: int) -> bytes:
        self._disk.check("read", self._path)
        return bytes(self._content.data[position : position + count])

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
        return self._disk.write_descriptor(socket_descriptor, self.pread(count, position))

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self._content.data)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self._path)
        self._content.resize(size)

    def write_back(self, position: int, count: int) -> None:  # noqa: ARG002 - promises nothing
        self._disk.check("write_back", self._path)

    def sync(self) -> None:
        try:
            self._disk.check("sync", self._path)
        except OSError:
            self._content.drop_unsynced()
            raise
        self._content.sync()
