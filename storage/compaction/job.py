"""Runs one cleaning of one log from the loop: its slices in a thread, swaps between them, and its end."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from barnabas.runtime.interface import Runtime, Timer
from barnabas.storage.compaction.cleaning import Cleaning, Slice, clean
from barnabas.storage.compaction.segment_swap import SegmentSwap
from barnabas.storage.disk.disk import Disk
from barnabas.storage.log.log import Log
from barnabas.storage.segment.segment import Segment


class Outcome(msgspec.Struct, frozen=True):
    """`finished`: all segments were swapped in. If not, and without an error, the log has changed or was removed."""

    finished: bool
    error: BaseException | None = None


class CleaningJob:
    """`start` once; `done(job, outcome)` is called once, unless `stop` was. All calls on the loop's thread."""

    def __init__(
        self,
        disk: Disk,
        runtime: Runtime,
        log: Log,
        cleaning: Cleaning,
        pace: Callable[[int], float],
        done: Callable[[CleaningJob, Outcome], object],
    ) -> None:
        """`pace(bytes moved)` says how many seconds to wait before the next slice."""
        self.log = log
        self.cleaning = cleaning
        self._disk = disk
        self._runtime = runtime
        self._pace = pace
        self._done = done
        self._slices = clean(cleaning)
        self._started = runtime.monotonic()
        self._swap: SegmentSwap | None = None
        self._timer: Timer | None = None
        self._working = False
        self._aborted = False
        self._stopped = False

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._runtime.monotonic() - self._started

    def start(self) -> None:
        self.log.cleaning = True
        self._next()

    def abort(self) -> None:
        """The log has been truncated: end without changing it. Blocks while a swap is undone; OSError when it can't be."""
        self._aborted = True
        swap = self._swap
        if swap is not None and not swap.replaced:  # otherwise its segment is a part of the log already
            self._swap = None
            swap.abandon()
            self._close()

    def stop(self) -> None:
        """After the loop has stopped: put the log's files in order, without a call of `done`. Blocks. OSError."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._swap is not None:
            self._swap.stop()
        if not self._working:
            self._slices.close()

    def _next(self) -> None:
        self._timer = None
        if self._stopped:
            return
        if not self._may_continue():
            self._close()
            return
        self._working = True
        self._runtime.run_in_thread(lambda: next(self._slices, None), self._worked)

    def _may_continue(self) -> bool:
        log = self.log
        return not (self._aborted or log.closed or log.failure is not None) and log.config.is_compacted

    def _lacks_source(self, error: BaseException | None) -> bool:
        """Whether a segment could not be read because the log has removed it."""
        return isinstance(error, FileNotFoundError) and all(
            segment.path != error.filename for segment in self.log.segments
        )

    def _worked(self, done: Slice | None, error: BaseException | None) -> None:
        self._working = False
        if self._stopped:
            return
        may_continue = self._may_continue() and not self._lacks_source(error)
        if error is not None or done is None:
            self._end(Outcome(may_continue and error is None, error if may_continue else None))
        elif not may_continue:
            self._close(unwanted=done.cleaned)
        elif done.cleaned is not None:  # its slices have been paced
            self._swap = SegmentSwap(
                self._disk, self._runtime, self.log, done.cleaned, done.old, self._swapped
            )
            self._swap.start()
        else:
            delay = self._pace(done.bytes_moved)
            if delay > 0:
                self._timer = self._runtime.call_later(delay, self._next)
            else:
                self._next()

    def _swapped(self, happened: bool, error: BaseException | None) -> None:
        self._swap = None
        if happened:
            self._next()
        else:
            self._aborted = True
            self._close(error)

    def _close(self, error: BaseException | None = None, unwanted: Segment | None = None) -> None:
        """Remove unfinished files and the `unwanted` segment in a thread, then end."""

        def work() -> None:
            self._slices.close()
            for path in unwanted.files if unwanted is not None else ():
                self._disk.remove(path)

        self._working = True
        self._runtime.run_in_thread(work, lambda _, failed: self._end(Outcome(False, error or failed)))

    def _end(self, outcome: Outcome) -> None:
        self._working = False
        self.log.cleaning = False
        if not self._stopped:
            self._done(self, outcome)
