"""The window of message ids of a new leader, read from the log: what it, or leaders before it, appended lately.

Records keep the headers of their messages, Nats-Msg-Id among them, so the log is all that has to survive. The time index
says where the window begins; from there to the end the log is read in slices that leave the loop to others, and by a
thread where a read would wait for the disk (broker/coordinator/loading.py). What an ordinary producer has written with such a
header counts as well. Records of transactions do not: they may have been aborted, and no message becomes one.

Until `done` no message may be taken that has an id; what a producer appends meanwhile is read too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.loading import Loading
from barnabas.nats.ingress.dedup import MESSAGE_ID, DedupWindow
from barnabas.nats.records.ids import ids_of
from barnabas.runtime.slices import in_slices
from barnabas.storage.errors import StorageError
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, read_header

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.timestamps import TimestampOffset

log = logging.getLogger("barnabas.nats")

STEP: Final = 128  # records between two looks at the clock
_PREFIX: Final = 12  # base offset and batch length


class IdReplay:
    """Takes the batches of a log and tells a window the ids in them (see Replay in broker/coordinator/loading.py)."""

    def __init__(self, window: DedupWindow, start_offset: int, now_ms: int) -> None:
        self.next_offset = start_offset
        self._window = window
        self._now_ms = now_ms
        self._oldest_ms = now_ms - window.window_ms
        self._last_id = b""

    def take(self, data: bytes) -> Iterator[None]:
        """Take the whole batches at the start of `data`."""
        view = memoryview(data)
        position, size = 0, len(data)
        while position + HEADER_SIZE <= size:
            end = position + _PREFIX + int.from_bytes(view[position + 8 : position + 12], "big")
            if end > size:
                return
            header = read_header(view[position:end])
            if header.last_offset < self.next_offset:
                raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"offsets go back at {self.next_offset}")
            self._last_id = b""
            has_ids = header.codec != Codec.NONE or data.find(MESSAGE_ID, position, end) >= 0
            if has_ids and not header.is_control and not header.is_transactional:
                yield from self._take_records(header, data[position:end])
            self.next_offset = header.next_offset
            position = end
            yield

    def _take_records(self, header: BatchHeader, batch: bytes) -> Iterator[None]:
        oldest_ms, now_ms = self._oldest_ms, self._now_ms
        identity = b""
        together: list[tuple[bytes, int]] = []  # of one time
        time_ms = 0
        for number, (offset, timestamp, identity) in enumerate(ids_of(batch, header), 1):
            if identity and timestamp > oldest_ms:
                if timestamp != time_ms and together:
                    self._window.known(together, min(time_ms, now_ms))
                    together = []
                time_ms = timestamp
                together.append((identity, offset))
            if not number % STEP:
                yield
        if together:
            self._window.known(together, min(time_ms, now_ms))
        self._last_id = identity

    def finish(self) -> Iterator[None]:
        """That was the end of the log."""
        self._window.known_last(self._last_id, self.next_offset)
        yield


class DedupRebuild:
    """Fills the window of one partition that is led here; all calls on the loop's thread.

    `done(error)` once, not before `start` returns: None when the window is whole. When it can't be (StorageError,
    RecordBatchError) it holds what could be read, and messages that come again may be taken twice.
    """

    def __init__(
        self,
        runtime: Runtime,
        partition: Partition,
        window: DedupWindow,
        done: Callable[[Exception | None], object],
    ) -> None:
        self._runtime = runtime
        self._partition = partition
        self._window = window
        self._done = done
        self._now_ms = 0
        self._loading: Loading | None = None
        self._cancelled = False
        self.on_end: Callable[[], object] = lambda: None  # of `RebuildQueue`

    def start(self) -> None:
        """Begin."""
        log_of = self._partition.log
        self._now_ms = self._runtime.time_ms()
        window_ms = self._window.window_ms
        if log_of.log_end_offset == log_of.log_start_offset:
            self._runtime.call_soon(lambda: self._end(None))
        elif not window_ms:
            self._runtime.call_soon(lambda: self._read_from(log_of.log_end_offset - 1))
        else:
            search = log_of.timestamp_search(self._now_ms - window_ms + 1)
            self._runtime.run_in_thread(search, self._found)

    def cancel(self) -> None:
        """The partition is led here no more: `done` is not called any more."""
        self._cancelled = True
        if self._loading is not None:
            self._loading.cancel()
        self._leave()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    def _found(self, found: TimestampOffset | None, error: BaseException | None) -> None:
        """Where the window begins. If the search has failed, segments have gone meanwhile, or the disk is bad: then
        reading all of it will tell."""
        log_of = self._partition.log
        if error is not None:
            self._read_from(log_of.log_start_offset)
        elif found is None:
            self._read_from(log_of.log_end_offset - 1)  # for the last message's id
        else:
            self._read_from(found.offset)

    def _read_from(self, offset: int) -> None:
        if self._cancelled:
            return
        replay = IdReplay(self._window, offset, self._now_ms)
        self._loading = Loading(self._partition, replay, self._end)
        self._read_on(self._loading)

    def _read_on(self, loading: Loading) -> None:
        in_slices(self._runtime, loading.steps(), lambda: self._paused(loading))

    def _paused(self, loading: Loading) -> None:
        work = loading.for_a_thread
        if work is None or self._cancelled:
            loading.end()
            return

        def read(data: bytes | None, error: BaseException | None) -> None:
            loading.thread_has_read(data, error)
            self._read_on(loading)

        self._runtime.run_in_thread(work, read)

    def _end(self, error: Exception | None) -> None:
        if self._cancelled:
            return
        name = f"{self._partition.topic}-{self._partition.partition}"
        if error is not None:
            log.warning("%s: the ids of messages that came lately are known in part: %s", name, error)
        elif len(self._window):
            log.info("%s: the log holds %d ids of messages that came lately", name, len(self._window))
        self._leave()
        self._done(error)

    def _leave(self) -> None:
        """Let the next one of the queue begin, once."""
        on_end, self.on_end = self.on_end, lambda: None
        on_end()


class RebuildQueue:
    """Reads for one partition after the other: each takes a share of every turn of the loop while it reads."""

    def __init__(self) -> None:
        self._waiting: deque[DedupRebuild] = deque()
        self._reading: DedupRebuild | None = None

    def add(self, rebuild: DedupRebuild) -> None:
        """Start it when its turn comes, unless it is cancelled before."""
        self._waiting.append(rebuild)
        self._next()

    def _next(self) -> None:
        while self._reading is None and self._waiting:
            rebuild = self._waiting.popleft()
            if not rebuild.is_cancelled:
                self._reading = rebuild
                rebuild.on_end = self._ended
                rebuild.start()

    def _ended(self) -> None:
        self._reading = None
        self._next()
