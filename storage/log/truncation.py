"""Cutting a log back to what its leader has, and beginning one anew where its leader begins.

The order is what keeps a crash harmless: first the checkpoints claim no more than will be left (`LogEvents`), then
segments go from the end, then the last one is cut, at last all of that is synced. `cut_to` leaves the syncing to a
thread, as a follower may have a thousand logs to cut at once; until it is done nothing is to be appended, or a
power failure could leave old and new bytes side by side. `truncate_to` does it all.

Whatever has been noted of what goes is settled: who waits for its sync is told, nothing of it is held back from
readers, the high watermark, the recovery point, leader epochs and producers are those of what stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from barnabas.storage.errors import StorageError
from barnabas.storage.log.leader_append import AppendableLog
from barnabas.storage.segment.segment import Segment
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import RecordBatchError


class TruncatableLog(AppendableLog):
    """The part of `Log` that forgets."""

    __slots__ = ()

    def truncate_to(self, offset: int) -> None:
        """Forget everything from `offset` on; the batch that holds it goes whole. Blocking. OSError when it fails;
        CORRUPT_MESSAGE, and nothing has changed, when damage keeps the batch from being found."""
        make_last = self.cut_to(offset)
        if make_last is not None:
            make_last()

    def cut_to(self, offset: int) -> Callable[[], object] | None:
        """As `truncate_to`, but for the blocking part: what is returned is for a thread, that makes the change last,
        and nothing is to be appended before it has. None when there was nothing to cut."""
        if offset >= self.log_end_offset:
            # An epoch that began at the end, and got no record, may be one that the leader never saw.
            self._epochs.truncate_from_end(self.log_end_offset)
            return None
        if offset < self._bases[0]:
            return self.restart_at(offset)
        kept = bisect_right(self._bases, offset)
        try:
            located = self._segments[kept - 1].locate(offset)
        except RecordBatchError as error:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"{self.name}: {error}") from error
        start_moved = offset < self.log_start_offset
        if self._events is not None:
            self._events.truncating(self, offset)
        removed = self._segments[kept:]
        try:
            del self._segments[kept:], self._bases[kept:]
            if removed:
                self._discard(removed[::-1])  # from the end, so that a crash leaves no hole
            active = self._active = self._segments[-1]
            if located is not None:
                active.truncate(located[0], sync=False)
            file = active.open_for_append()
            self._forget_from(offset)
            self._epochs.truncate_from_end(offset)
            self._truncate_producers()
        except OSError as error:  # nobody knows now what the files hold: only a start finds out
            self._fail(f"{self.name} can't be cut back: {error}", error)
            raise
        if start_moved and self._events is not None:
            self._events.start_offset_changed(self)
        disk, directory = self._disk, self.directory

        def make_last() -> None:
            if removed:
                disk.sync_directory(directory)
            file.sync()

        return make_last

    def restart_at(self, offset: int, log_start_offset: int = -1) -> Callable[[], object]:
        """Forget everything and go on at `offset`, what lies below `log_start_offset` (-1: the same) invisible.
        As Kafka's truncateFullyAndStartAt. What is returned is as with `cut_to`. OSError."""
        if self._events is not None:
            self._events.truncating(self, offset)
        try:
            self._discard(self._segments[::-1])
            self._active = Segment.create(self._disk, self.directory, offset, self._time_ms())
            self._segments = [self._active]
            self._bases = [offset]
            self._new_names += 1
            self._roll_after_ms = self._next_roll_after_ms()
            self._forget_from(offset)
            self.log_end_offset = self.recovery_point = self._sync_to = offset
            self.log_start_offset = offset if log_start_offset < 0 else log_start_offset
            self._limit_high_watermark()
            self._epochs.clear()
            self._epochs.save()
            self._truncate_producers(anew=True)
        except OSError as error:
            self._fail(f"{self.name} can't be begun anew: {error}", error)
            raise
        if self._events is not None:
            self._events.start_offset_changed(self)
        disk, directory = self._disk, self.directory
        return lambda: disk.sync_directory(directory)

    def is_sealing_from(self, offset: int) -> bool:
        """Whether a thread is writing what lies beside a segment that `cut_to(offset)` would touch."""
        base = self._bases[max(0, bisect_right(self._bases, offset) - 1)]
        return any(sealing >= base for sealing in self._sealing)

    @property
    def truncations(self) -> int:
        """How often something has been cut off since the log was opened."""
        return self._truncations

    def _forget_from(self, offset: int) -> None:
        """The end is `offset` now, in everything that is known in memory."""
        self._truncations += 1
        self._resume.clear()
        self._last_base_offset = -1
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._sync_to = min(self._sync_to, offset)
        if offset <= self._held_from:  # all that was held back has gone
            self._held_from = -1
        self._limit_high_watermark()
        self._new_names += 1
        pacing = self._pacing
        if pacing is not None:
            if pacing.segment is not self._active:
                pacing.segment, pacing.position = self._active, 0
            pacing.seen = self._active.size
            pacing.position = min(pacing.position, pacing.seen)
        waiters = self._sync_waiters
        if waiters:
            self._sync_waiters = [waiter for waiter in waiters if waiter[0] <= offset] or None
            for end, call in waiters:
                if end > offset:
                    call(f"{self.name} has been cut back to {offset}")
