"""What a partition must hold after anything that may happen to it: a list, and how much of it is promised.

`batches` is all that is in the log. A killed process has lost nothing of it; after a power failure only
what lies below `promised` is certain, and the rest is there up to some batch boundary or not at all.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import AppendResult, Log
from barnabas.storage.tests.workshop import read_batches
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import BatchHeader, read_header

PRODUCER_BATCHES = 5  # of each producer are recognised when they come again


class Batch:
    """One batch as it was sent and as it stands in the log."""

    def __init__(self, sent: bytes, base_offset: int, epoch: int) -> None:
        self.sent = sent
        self.stored = struct.pack(">q", base_offset) + sent[8:12] + struct.pack(">i", epoch) + sent[16:]
        self.header: BatchHeader = read_header(self.stored)
        self.base = base_offset
        self.last = self.header.last_offset

    def __repr__(self) -> str:
        return f"<{self.base}..{self.last} of producer {self.header.producer_id}>"


class Model:
    """See the module. `start` is where the log begins to readers; `start_kept` has been written down.

    `sure` is the end of what a killed process leaves for certain: below `end` while a step is unanswered.
    """

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        self.batches: list[Batch] = []
        self.history: list[Batch] = []  # with those that have been removed or lost since
        self.start = self.start_kept = 0
        self.start_largest = 0  # epochs are known from here on
        self.end = self.sure = 0
        self.promised = 0
        self.opened_at = 0  # where the log ended when it was opened
        self.epoch = 0
        # (where the log ended, what a failed append had written behind it and cut off again): the cut is not synced
        self.left_over: tuple[int, list[Batch]] = (0, [])
        self.doubtful = False  # a sync has failed: what the page cache shows may never reach the medium

    def append(self, sent: bytes, gap: int = 0) -> None:
        """`gap`: so many offsets that a follower's leader has nothing at."""
        batch = Batch(sent, self.end + gap, self.epoch)
        self.batches.append(batch)
        self.history.append(batch)
        self.end = self.sure = batch.last + 1

    def may_append(self, sent: bytes) -> None:
        """Killed before the answer: there or not."""
        sure = self.end
        self.append(sent)
        self.sure = sure

    def may_follow(self, batches: Sequence[tuple[bytes, int]]) -> None:
        """Killed while several were appended, each behind a gap: some of the first are there."""
        sure = self.end
        for sent, gap in batches:
            self.append(sent, gap)
        self.sure = sure

    def may_truncate(self, offset: int) -> None:
        """Under way: whatever lies behind `offset` may be there or not."""
        self.sure = min(self.sure, offset)
        self.promised = min(self.promised, offset)
        self.start_kept = min(self.start_kept, offset)

    def truncate(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < offset]
        self.history = [batch for batch in self.history if batch.last < offset]
        self.end = self.sure = min(self.end, offset)
        self.start = min(self.start, offset)
        self.start_kept = min(self.start_kept, offset)
        self.promised = min(self.promised, offset)

    def boundary(self, part: float) -> int:
        """A batch's base offset, or the end, about so far between start and end."""
        offset = self.start + round((self.end - self.start) * part)
        return max(
            (batch.base for batch in self.batches if self.start <= batch.base <= offset), default=self.end
        )

    def visible(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.last >= self.start]

    def first_visible(self) -> int:
        """Where the first record stands: retention may move the start up to there, over lost ones."""
        return max(self.start, next((batch.base for batch in self.visible()), self.end))

    def of_producer(self, producer_id: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.header.producer_id == producer_id]

    def next_sequence(self, producer_id: int) -> int:
        """As the producer itself would go on."""
        mine = [batch for batch in self.history if batch.header.producer_id == producer_id]
        return mine[-1].header.last_sequence + 1 if mine else 0

    # --- after a stop

    def found(self, log: Log, *, power_failed: bool) -> None:
        """Compare with what a restart made of it, and go on from there.

        After a power failure an earlier segment may have lost its end, or its name, and a later one not. Where
        no promise covers that it can't be told from what compaction leaves, and Kafka opens such a log too.
        """
        name = log.name
        if power_failed:
            self._take_what_is_back(log)
            self._leave_out_what_is_missing(log)
        starts = range(self.start_kept, self.first_visible() + 1)
        assert log.log_start_offset in starts, f"{name} starts at {log.log_start_offset}, not in {starts}"
        at_least = self.sure
        if power_failed:  # records that have been removed since promise nothing
            kept = any(self.start_largest <= batch.last < self.promised for batch in self.batches)
            at_least = self.promised if kept else 0
        assert at_least <= log.log_end_offset <= max(self.end, log.log_start_offset), (
            f"{name} ends at {log.log_end_offset}, but {at_least} was promised of {self.end}"
        )
        self.start = log.log_start_offset
        self.start_largest = max(self.start_largest, self.start)
        self.truncate(log.log_end_offset)
        self.end = self.sure = log.log_end_offset
        if power_failed:
            self.start_kept = log.log_start_offset
        self.opened_at = self.end
        self.promised = log.flusher.recovery_point if not self.doubtful else self.promised
        check(log, self)

    def _take_what_is_back(self, log: Log) -> None:
        """Batches of a leader, whole or not at all: a replica may have them."""
        end, left_over = self.left_over
        for batch in left_over if end == self.end else ():
            if batch.last < log.log_end_offset:
                self.batches.append(batch)
                self.history.append(batch)
                self.end = batch.last + 1

    def _leave_out_what_is_missing(self, log: Log) -> None:
        there = {header.base_offset for header in log.segments.headers(log.segments[0].base_offset)}
        self.batches = [
            batch
            for batch in self.batches
            if batch.base in there or self.start_largest <= batch.last < self.promised
        ]
        if log.log_start_offset >= self.promised:
            self.start = max(self.start, log.log_start_offset)


def check(log: Log, model: Model) -> None:
    """The log is what the model says, to every reader; its indexes agree with it."""
    assert model.start <= log.log_start_offset <= model.first_visible(), log.name
    assert log.log_end_offset == model.end, log.name
    assert 0 <= log.flusher.recovery_point <= log.log_end_offset
    visible = model.visible()
    found = read_all(log, 1 << 20)
    assert [batch.hex() for batch in found] == [batch.stored.hex() for batch in visible], log.name
    for batch in visible[:: max(1, len(visible) // 4)]:
        result = log.read(max(batch.last, model.start), len(batch.stored))
        assert b"".join(region.read() for region in result.regions) == batch.stored
        if batch.last >= model.start_largest:
            assert log.epochs.epoch_for_offset(batch.last) == batch.header.partition_leader_epoch, log.name
    check_indexes(log)


def read_all(log: Log, max_bytes: int) -> list[bytes]:
    """Every batch up to the log's end, or to a gap before the empty last segment."""
    batches = list(read_batches(log, max_bytes))
    end = read_header(batches[-1]).next_offset if batches else log.log_start_offset
    assert end >= log.log_end_offset or log.segments[-1].size == 0, f"{log.name}: nothing at {end}"
    return batches


def check_indexes(log: Log) -> None:
    """Every entry of each index tells the truth about the segment, as DumpLogSegments asks."""
    segments = log.segments
    for index, segment in enumerate(segments):
        last_of: dict[int, int] = {}
        largest_by: dict[int, int] = {}
        largest = -1
        for position, header in segment.headers(0):
            assert header.base_offset >= segment.base_offset
            largest = max(largest, header.max_timestamp)
            last_of[position] = header.last_offset
            largest_by[header.last_offset] = largest
        if index + 1 < len(segments):
            assert max(largest_by, default=-1) < segments[index + 1].base_offset
        entries = segment.offset_index.entries()
        assert entries == sorted(set(entries)), f"{segment.path}: {entries}"
        for relative, position in entries:
            assert last_of.get(position) == segment.base_offset + relative, segment.path
        times = segment.time_index.entries()
        assert times == sorted(times), f"{segment.path}: {times}"
        for timestamp, relative in times:
            upto = [offset for offset in largest_by if offset <= segment.base_offset + relative]
            assert largest_by[max(upto)] == timestamp, segment.path


def check_duplicates(log: Log, model: Model, producers: int) -> None:
    """The last batches of each producer are recognised when they come again, the very last after a restart too:
    Kafka's snapshots hold no more."""
    for producer_id in range(producers):
        sent = [batch for batch in model.history if batch.header.producer_id == producer_id]
        mine = [batch for batch in model.of_producer(producer_id) if batch.base >= model.start]
        if mine and mine[-1] is not sent[-1]:
            continue  # the producer's last batch has been lost or removed
        for number, batch in enumerate(reversed(mine[-PRODUCER_BATCHES:])):
            result = _send_again(log, model, batch)
            if result is None:
                assert number, f"{log.name}: {batch} is not recognised"
                assert batch.base < model.opened_at, f"{log.name}: {batch} is not recognised"
                continue
            assert result.duplicate, f"{log.name}: {batch} is not recognised"
            assert (result.base_offset, result.last_offset) == (batch.base, batch.last)


def _send_again(log: Log, model: Model, batch: Batch) -> AppendResult | None:
    """The answer; None when it is refused for its sequence number."""
    try:
        return log.append_as_leader(batch.sent, model.epoch)
    except StorageError as error:
        if error.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return None
        raise


def tree(disk: Any, path: str) -> dict[str, bytes]:
    """Every file below `path`, for comparing two states of a directory."""
    found: dict[str, bytes] = {}
    for name in disk.list(path):
        below = f"{path}/{name}"
        if disk.is_directory(below):
            found |= tree(disk, below)
        else:
            found[below] = disk.read_file(below)
    return found
