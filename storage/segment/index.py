"""The two sparse indexes of a segment, in Kafka's format, as sorted arrays of big-endian entries.

`.index`      8 bytes: offset relative to the segment's base (i32), position of that batch in the log (i32)
`.timeindex` 12 bytes: timestamp in ms (i64), relative offset (i32) of the record that raised it so far

An index holds only its last entries in memory, up to TAIL_BYTES_MAX. The older ones are in the file and are searched there
with a few preads, so the memory of a partition does not grow with its size, and no descriptor is open between searches. The
file is neither synced nor replaced in one step while its segment is written to: after a crash the entries are rebuilt from
the log.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

from barnabas.storage.disk.disk import Disk, File, write_rest

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TAIL_BYTES_MAX: Final = 2048

_PAGE_BYTES: Final = 4096  # a search in the file finds the page first, then reads all of it


class SparseIndex:
    """Entries of one fixed size: the first `_saved` of them in the file, the rest in memory.

    A reader in a thread finds each entry in one of the two places: `save` raises the count before it drops the entries from
    memory.
    """

    __slots__ = ("_disk", "_entry", "_saved", "_stem", "_suffix", "_tail", "_unsynced")

    def __init__(self, disk: Disk, stem: str, suffix: str, entry: struct.Struct, *, fresh: bool) -> None:
        """`stem` and `suffix` make the path. `fresh`: an existing file does not count."""
        self._disk = disk
        self._stem = stem
        self._suffix = suffix
        self._entry = entry
        self._saved = _FRESH if fresh else _UNCOUNTED
        self._tail: bytearray | None = None
        # Whether the file differs, or will, from what a power failure would leave of it.
        self._unsynced = False

    @property
    def path(self) -> str:
        return self._stem + self._suffix

    def renamed(self, suffix: str) -> None:
        """The file has another name now."""
        self._suffix = suffix

    def __len__(self) -> int:
        tail = self._tail
        return self._count_saved() + (len(tail) // self._entry.size if tail is not None else 0)

    def _count_saved(self) -> int:
        if self._saved == _UNCOUNTED:
            self._saved = self._disk.size(self.path) // self._entry.size
        return max(0, self._saved)

    def entries(self) -> list[tuple[int, int]]:
        """Every entry, oldest first."""
        tail = bytes(self._tail or b"")
        saved = self._count_saved() * self._entry.size
        data = self._disk.read_file(self.path)[:saved] if saved else b""
        return list(self._entry.iter_unpack(data + tail))

    def is_well_formed(self) -> bool:
        """Whole entries in the file, the last not before the first. OSError when there is no file."""
        size = self._disk.size(self.path)
        if size % self._entry.size:
            return False
        if size == 0:
            return True
        file = self._disk.open(self.path)
        return self._read(file, size // self._entry.size - 1)[0] >= self._read(file, 0)[0]

    def append(self, first: int, second: int) -> None:
        """Add an entry; the caller keeps them ascending. OSError when the file can't be counted."""
        self._count_saved()
        tail = self._tail
        if tail is None:
            tail = self._tail = bytearray()
        elif len(tail) >= TAIL_BYTES_MAX:
            self._spill(tail)
        tail += self._entry.pack(first, second)
        self._unsynced = True

    def last(self) -> tuple[int, int] | None:
        tail = self._tail
        if tail:
            return self._unpack(tail, len(tail) - self._entry.size)
        count = self._count_saved()
        return self._read(self._disk.open(self.path), count - 1) if count else None

    def floor(self, first: int, *, wait: bool = True) -> tuple[int, int] | None:
        """The last entry whose first field is at most `first`; None when there is none. Without `wait`
        BlockingIOError when the file's entries are not in memory."""
        tail = self._tail
        if tail and self._unpack(tail, 0)[0] <= first:
            return self._search(bytes(tail), first)
        count = self._count_saved()
        if count == 0:
            return None
        file = self._disk.open(self.path)
        size = self._entry.size
        if not wait and not file.is_cached(0, count * size):
            raise BlockingIOError
        page = _PAGE_BYTES // size
        pages = range(0, count, page)
        number = (
            bisect_right(pages, first, key=lambda start: self._read(file, start)[0]) if count > page else 1
        )
        if number == 0:
            return None
        start = pages[number - 1]
        return self._search(file.pread(min(page, count - start) * size, start * size), first)

    def load(self) -> None:
        """Bring the file's entries into memory, waiting for the disk: for threads."""
        count = self._count_saved()
        if count:
            self._disk.open(self.path).load(0, count * self._entry.size)

    def first_at(self, second: int, *, wait: bool = True) -> tuple[int, int] | None:
        """The first entry whose second field is at least `second`; None when there is none. Without `wait` BlockingIOError when
        the file's entries are not in memory."""
        count = len(self)
        saved = self._count_saved()
        file = self._disk.open(self.path) if saved else None
        if file is not None and not wait and not file.is_cached(0, saved * self._entry.size):
            raise BlockingIOError
        number = bisect_left(range(count), second, key=lambda number: self._entry_at(file, number)[1])
        return self._entry_at(file, number) if number < count else None

    def _entry_at(self, file: File | None, number: int) -> tuple[int, int]:
        saved = self._count_saved()
        if number >= saved:
            assert self._tail is not None
            return self._unpack(self._tail, (number - saved) * self._entry.size)
        assert file is not None
        return self._read(file, number)

    def truncate(self, keep: Callable[[int, int], bool]) -> None:
        """Drop the first entry for which `keep(first, second)` is false, and all later ones. OSError when the file can't be
        truncated."""
        self._unsynced = True  # a killed process may have left it so
        kept = 0
        for first, second in self.entries():
            if not keep(first, second):
                break
            kept += 1
        saved = self._count_saved()
        if kept > saved:
            assert self._tail is not None
            del self._tail[(kept - saved) * self._entry.size :]
            return
        if kept < saved:
            self._disk.open(self.path, writable=True).truncate(kept * self._entry.size)
            self._saved = kept
        self._tail = None

    def clear(self) -> None:
        """Remove every entry; the file's content no longer counts."""
        self._saved = _FRESH
        self._tail = None
        self._unsynced = True

    def save(self, *, sync: bool = False) -> bool:
        """Write all entries to the file; whether there was anything to do. After an OSError the entries that could not be
        written are in memory, and what could not be synced is synced by the next call."""
        tail = self._tail
        if tail or self._saved == _FRESH:
            file = self._write(tail or b"")
            self._tail = None
            if file.size() > self._saved * self._entry.size:  # a write that failed half-way
                file.truncate(self._saved * self._entry.size)
            if sync and self._unsynced:
                file.sync()
                self._unsynced = False
            return True
        if sync and self._unsynced:
            self._disk.open(self.path, writable=True).sync()
            self._unsynced = False
            return True
        return False

    def _spill(self, tail: bytearray) -> None:
        """Write all but the last entry, which is read often, to the file. When that fails, all entries stay in memory."""
        size = self._entry.size
        try:
            self._write(tail[:-size])
        except OSError:
            return
        del tail[:-size]

    def _write(self, entries: bytes | bytearray) -> File:
        file = self._disk.open(self.path, create=True, writable=True)
        if self._saved == _FRESH:
            file.truncate(0)
            self._saved = 0
        write_rest(file, entries, 0, self._saved * self._entry.size)
        self._saved += len(entries) // self._entry.size
        return file

    def _search(self, data: bytes, first: int) -> tuple[int, int] | None:
        size = self._entry.size
        number = bisect_right(
            range(0, len(data), size), first, key=lambda position: self._unpack(data, position)[0]
        )
        return self._unpack(data, (number - 1) * size) if number else None

    def _read(self, file: File, number: int) -> tuple[int, int]:
        size = self._entry.size
        return self._unpack(file.pread(size, number * size), 0)

    def _unpack(self, data: bytes | bytearray, position: int) -> tuple[int, int]:
        first, second = self._entry.unpack_from(data, position)
        return first, second


# `_saved` before it is a count
_UNCOUNTED: Final = -1  # as many as the file holds
_FRESH: Final = -2  # none, and the file, if there is one, has to be emptied first
