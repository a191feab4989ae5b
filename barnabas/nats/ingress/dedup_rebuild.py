"""The window of message ids of a new leader, read from the log: ids of messages that it, or leaders before it, appended lately.

Records keep the headers of their messages, Nats-Msg-Id among them, so the log is all that has to survive. The time index
says where the window begins; from there to the end the log is read in slices that leave the loop to others, and by a
thread where a read would wait for the disk (broker/coordinator/loading.py). Records with this header that an ordinary producer
has written count as well. Records of transactions do not: they may have been aborted, and no message becomes one.

Until `done` no message with an id may be taken; records that a producer appends meanwhile are read, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.loading import replay_partition
from barnabas.nats.ingress.dedup import MESSAGE_ID, DedupWindow
from barnabas.nats.ingress.message_ids import ids_of
from barnabas.storage.errors import StorageError
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, read_header

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.slices import Steps

log = logging.getLogger("barnabas.nats")

STEP: Final = 128  # records between two looks at the clock
_PREFIX: Final = 12  # base offset and batch length


class IdReplay:
    """Adds the ids in a log's batches to a window; a Replay (broker/coordinator/loading.py)."""

    def __init__(self, window: DedupWindow, start_offset: int, now_ms: int) -> None:
        self.next_offset = start_offset
        self._window = window
        self._now_ms = now_ms
        self._oldest_ms = now_ms - window.window_ms
        self._last_id = b""

    def take(self, data: bytes) -> Iterator[None]:
        """Takes the whole batches at the start of `data`."""
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
        together: list[tuple[bytes, int]] = []  # with the same timestamp
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
        """The end of the log is reached."""
        self._window.known_last(self._last_id, self.next_offset)
        yield


class DedupRebuild:
    """Fills the window of one partition that is led here, on a StepQueue.

    `done(error)` is called once, not before the queue's `add` returns: None when the window is whole. When it can't be
    (StorageError, RecordBatchError) it holds what could be read, and repeated messages may be stored twice.
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
        self._cancelled = False

    def cancel(self) -> None:
        """The partition is not led here any more: `done` is not called."""
        self._cancelled = True

    def steps(self) -> Steps[None]:
        if self._cancelled:
            return
        now_ms = self._runtime.time_ms()
        start_offset = yield from self._start_offset(now_ms)
        replay = IdReplay(self._window, start_offset, now_ms)
        try:
            yield from replay_partition(self._partition, replay, lambda: self._cancelled)
        except Exception as error:  # noqa: BLE001 - `done` gets it
            self._end(error)
        else:
            self._end(None)

    def _start_offset(self, now_ms: int) -> Steps[int]:
        """Where the window begins; at least the last message is read, for its id. If the search fails, segments have been
        deleted meanwhile, or the disk is bad: reading all of the log finds out."""
        partition_log, window_ms = self._partition.log, self._window.window_ms
        last = max(partition_log.log_end_offset - 1, partition_log.log_start_offset)
        if last == partition_log.log_end_offset or not window_ms:
            return last
        try:
            found = yield partition_log.timestamp_search(now_ms - window_ms + 1)
        except Exception:  # noqa: BLE001 - see above
            return partition_log.log_start_offset
        return last if found is None else found.offset

    def _end(self, error: Exception | None) -> None:
        if self._cancelled:
            return
        name = f"{self._partition.topic}-{self._partition.partition}"
        if error is not None:
            log.warning("%s: the ids of recent messages are known in part: %s", name, error)
        elif len(self._window):
            log.info("%s: the log holds %d ids of recent messages", name, len(self._window))
        self._done(error)
