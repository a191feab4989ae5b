"""The segments that keep their file open: many partitions share few descriptors.

A segment that is written to keeps its file, because opening it for every append would cost more than the
write. Beyond the limit the one that has been open longest is closed, unless it has grown meanwhile: then it moves
to the end of the queue. So an append to an open file does nothing here, and busy partitions stay open.

Closing loses nothing: the kernel holds what was written, and an fsync through a later descriptor of the file covers it. One
guarantee is weaker: an error of the kernel's own write-back while the file is closed is reported to the next descriptor only
as long as the kernel keeps the file's inode in memory.
"""

from __future__ import annotations

from typing import Final, Protocol

OPEN_FILES_MAX: Final = 1024
_SPARED_MAX: Final = 8  # segments that have grown are skipped, but no more than these at a time


class Holder(Protocol):
    """What OpenFiles uses of a segment: `size` grows when it is in use."""

    size: int

    def release(self) -> None:
        """Close the file as soon as nothing else holds it; the next use opens it again."""
        ...


class OpenFiles:
    """Holders of open files in the order in which they will be closed. `limit` is at least 1."""

    __slots__ = ("_sizes", "limit")

    def __init__(self, limit: int = OPEN_FILES_MAX) -> None:
        self.limit = limit
        self._sizes: dict[Holder, int] = {}  # the size that the holder had when it was put at the end

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, holder: Holder) -> None:
        """`holder` has just opened its file and keeps it."""
        sizes = self._sizes
        if len(sizes) >= self.limit:
            self._close_one()
        sizes[holder] = holder.size

    def discard(self, holder: Holder) -> None:
        """`holder` has closed its file."""
        self._sizes.pop(holder, None)

    def _close_one(self) -> None:
        sizes = self._sizes
        for spared in range(_SPARED_MAX + 1):
            try:
                oldest = next(iter(sizes))
            except (StopIteration, RuntimeError):  # at start and stop, threads open and close side by side
                return
            size = sizes.pop(oldest, None)
            if size == oldest.size or spared == _SPARED_MAX:
                oldest.release()
                return
            if size is not None:
                sizes[oldest] = oldest.size
