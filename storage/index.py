"""The two sparse indexes of a segment, in Kafka's format, as sorted arrays of big-endian entries.

`.index`      8 bytes: offset relative to the segment's base (i32), position of that batch in the log (i32)
`.timeindex` 12 bytes: timestamp in ms (i64), relative offset (i32) of the record that raised it so far

The active segment's entries live in memory and reach the disk when the segment is rolled, flushed or closed:
after a crash they are rebuilt from the log anyway. An older segment's index is searched where it lies, a
few preads each, so it costs neither memory nor a descriptor while nobody asks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from barnabas.storage.disk import Disk

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


class SparseIndex:
    """Entries of one fixed size. `None` as the entries means that they lie on the disk alone."""

    __slots__ = ("_disk", "_entries", "_entry", "path", "unsaved")

    def __init__(self, disk: Disk, path: str, entry: struct.Struct, *, loaded: bool) -> None:
        self._disk = disk
        self._entry = entry
        self._entries: bytearray | None = bytearray() if loaded else None
        self.path = path
        self.unsaved = loaded

    def load(self) -> None:
        """Take the file's entries into memory. OSError when there is no such file."""
        self._entries = bytearray(self._disk.read_file(self.path))
        self.unsaved = False

    def entries(self) -> list[tuple[int, int]]:
        """Every entry, oldest first."""
        data = self._entries if self._entries is not None else self._disk.read_file(self.path)
        return list(self._entry.iter_unpack(data))

    def __len__(self) -> int:
        if self._entries is not None:
            return len(self._entries) // self._entry.size
        return self._disk.size(self.path) // self._entry.size

    @property
    def on_disk_only(self) -> bool:
        return self._entries is None

    def is_well_formed(self) -> bool:
        """Whole entries, the last not before the first. OSError when there is no file."""
        size = self._disk.size(self.path)
        if size % self._entry.size:
            return False
        if size == 0:
            return True
        read = self._reader()
        return read(size // self._entry.size - 1)[0] >= read(0)[0]

    def append(self, first: int, second: int) -> None:
        """Add an entry; the caller keeps them ascending."""
        if self._entries is None:
            self.load()
        assert self._entries is not None
        self._entries += self._entry.pack(first, second)
        self.unsaved = True

    def last(self) -> tuple[int, int] | None:
        count = len(self)
        return self._reader()(count - 1) if count else None

    def floor(self, first: int) -> tuple[int, int] | None:
        """The last entry whose first field is at most `first`; None when there is none."""
        low, high = 0, len(self)
        if high == 0:
            return None
        read = self._reader()
        while low < high:
            middle = (low + high) // 2
            if read(middle)[0] <= first:
                low = middle + 1
            else:
                high = middle
        return read(low - 1) if low else None

    def truncate(self, keep: Callable[[int, int], bool]) -> None:
        """Drop every entry from the first on that `keep(first, second)` refuses."""
        entries = self.entries()
        kept = bytearray()
        for first, second in entries:
            if not keep(first, second):
                break
            kept += self._entry.pack(first, second)
        self._entries = kept
        self.unsaved = True

    def clear(self) -> None:
        self._entries = bytearray()
        self.unsaved = True

    def save(self, *, sync: bool = False) -> None:
        """Write the entries to the file, whole. OSError leaves them in memory."""
        if self.unsaved and self._entries is not None:
            self._disk.write_file(self.path, bytes(self._entries), sync=sync)
            self.unsaved = False

    def unload(self) -> None:
        """Give the memory back, unless it is the only place that has the entries."""
        if not self.unsaved:
            self._entries = None

    def _reader(self) -> Callable[[int], tuple[int, int]]:
        entry = self._entry
        data = self._entries
        if data is not None:
            return lambda index: entry.unpack_from(data, index * entry.size)
        file = self._disk.open(self.path)
        return lambda index: entry.unpack(file.pread(entry.size, index * entry.size))
