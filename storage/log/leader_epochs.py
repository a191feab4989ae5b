"""Which leader epoch began at which offset (KIP-101), kept in `leader-epoch-checkpoint`.

The file is written without fsync when an epoch begins, or soon after: a broker that becomes the leader of a thousand
partitions at once serves them first. It is synced with the batches (flusher.py). What lies beyond the
recovery point is found again, because every batch carries its epoch; an epoch that has no batch yet may be lost. Of a tiered
log the batches are not here any more, so each version of its file is synced; and when the log's start grows the file keeps what
lies below, since a kill may come before the new start is in its own checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from barnabas.storage.disk.checkpoint_file import CheckpointError, format_checkpoint, parse_checkpoint
from barnabas.storage.log.partition_directory import PartitionDirectory

EPOCH_FILE = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochCache:
    """Ascending (epoch, start offset) pairs."""

    __slots__ = (
        "_directory",
        "_epochs",
        "_hidden_below",
        "_starts",
        "latest_epoch",
        "must_last",
        "unsaved",
    )

    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._hidden_below = 0  # what lies below this offset is in the file alone
        self.latest_epoch = UNDEFINED_EPOCH  # read by every append
        self.must_last = False  # what lies below the first segment could not be found again
        self.unsaved = False  # whether the file lacks what `assign_unsaved` has taken

    @property
    def _path(self) -> str:
        return f"{self._directory.path}/{EPOCH_FILE}"

    def load(self) -> bool:
        """Read the file; empty when it is missing or damaged. Whether it could be read."""
        self.clear()
        if not self._directory.disk.exists(self._path):
            return False
        try:
            for epoch, start in parse_checkpoint(self._directory.disk.read_file(self._path)):
                self._insert(int(epoch), int(start))
        except (CheckpointError, ValueError):
            self.clear()
            return False
        return True

    @property
    def entries(self) -> list[tuple[int, int]]:
        first = self._first
        starts = (max(start, self._hidden_below) for start in self._starts[first:])
        return list(zip(self._epochs[first:], starts, strict=True))

    @property
    def _first(self) -> int:
        """Index of the first epoch that is not hidden."""
        return max(0, bisect_right(self._starts, self._hidden_below) - 1)

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`; nothing happens when it is not newer than the latest."""
        if epoch > self.latest_epoch:
            before = list(self._epochs), list(self._starts)
            self._insert(epoch, start_offset)
            try:
                self.save()
            except OSError:  # the next append tries again
                self._epochs, self._starts = before
                self._note_latest()
                raise

    def assign_unsaved(self, epoch: int, start_offset: int) -> None:
        """As `assign`, but the file is written by the `save` that follows."""
        if epoch > self.latest_epoch:
            self._insert(epoch, start_offset)
            self.unsaved = True

    def recover(self, epoch: int, start_offset: int) -> None:
        """Recovery has found a batch of that epoch at `start_offset`; the caller saves at the end. An entry of the file that
        differs is older than the log."""
        if epoch >= 0 and self.epoch_for_offset(start_offset) != epoch:
            self._insert(epoch, start_offset)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch known up to `epoch`, offset where the next one began), (-1, -1) when undefined.

        As Kafka's LeaderEpochFileCache.endOffsetFor.
        """
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        first = self._first
        if higher <= first:  # older than all that are known
            return epoch, max(self._starts[first], self._hidden_below)
        return self._epochs[higher - 1], self._starts[higher]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that `offset` was written in; -1 when unknown."""
        if offset < self._hidden_below:
            return UNDEFINED_EPOCH
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that begin at or beyond `end_offset`."""
        self._hidden_below = min(self._hidden_below, end_offset)
        if self._starts and self._starts[-1] >= end_offset >= 0:
            while self._starts and self._starts[-1] >= end_offset:
                self._starts.pop()
                self._epochs.pop()
            self._note_latest()
            self.save()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove what lies below `start_offset`; the epoch that spans it then begins there."""
        self.truncate_from_start_unsaved(start_offset)
        if self.unsaved:
            self.save()

    def truncate_from_start_unsaved(self, start_offset: int) -> None:
        """As `truncate_from_start`, but the file is written by the `save` that follows."""
        index = bisect_right(self._starts, start_offset)
        if index and (index > 1 or self._starts[0] < start_offset):
            del self._epochs[: index - 1], self._starts[: index - 1]
            self._starts[0] = start_offset
            self.unsaved = True

    def hide_below(self, start_offset: int) -> None:
        """As `truncate_from_start` for all who ask; the file keeps what lies below until the next start of the broker."""
        self._hidden_below = start_offset

    def replace(self, entries: Iterable[tuple[int, int]], start_offset: int) -> None:
        """Hold these instead, from `start_offset` on, and save them. OSError."""
        self.clear()
        for epoch, start in entries:
            self._insert(epoch, max(start, start_offset))
        self.save()

    def clear(self) -> None:
        self._epochs, self._starts = [], []
        self._hidden_below = 0
        self.latest_epoch = UNDEFINED_EPOCH

    def save(self, *, sync: bool = False) -> None:
        content = format_checkpoint(zip(self._epochs, self._starts, strict=True))
        self._directory.disk.write_file(self._path, content, sync=sync or self.must_last)
        self.unsaved = False

    def _insert(self, epoch: int, start_offset: int) -> None:
        # A leader that began and ended without a record leaves its start to its successor.
        while self._starts and (self._starts[-1] >= start_offset or self._epochs[-1] >= epoch):
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest_epoch = epoch

    def _note_latest(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
