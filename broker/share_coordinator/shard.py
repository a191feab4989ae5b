"""The share partitions of one partition of __share_group_state.

A decision is made by the state after all records that were appended, and answered when they are committed. A summary shows the
committed state alone. A state is kept as the committed one and the records that are pending, so that one that fails is taken
back whatever follows it.

The topic is not compacted: the shard knows at which offset the last committed snapshot of each share partition lies, and all
records before the first of them can be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.record_encoding import UnknownRecord
from barnabas.broker.coordinator.shard_log import ShardLog, coordinator_error
from barnabas.broker.coordinator.unknown_records import UnknownRecords
from barnabas.broker.share_coordinator import state as states
from barnabas.broker.share_coordinator.records import decode_record, encode_batch
from barnabas.broker.share_coordinator.state import (
    SharePartitionKey,
    ShareRecord,
    ShareState,
    Snapshot,
    refusal,
)
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import iterate_whole_headers
from barnabas.wire.records import iterate_records

if TYPE_CHECKING:
    from barnabas.broker.coordinator.log import CoordinatorLog
    from barnabas.broker.coordinator.shard_log import End
    from barnabas.broker.share_coordinator.state_batches import StateBatch
    from barnabas.runtime.interface import Runtime

Done = Callable[[ApiError | None], object]
DoneReading = Callable[[ShareState | ApiError | None], object]

STEP_BYTES: Final = 16 * 1024  # of records that are read in one step, but for the last
NO_APPEND: Final = -1  # the number of one that has ended at once


class ShareSettings:
    """What shards take from the configuration: share.coordinator.*."""

    __slots__ = ("updates_per_snapshot", "write_timeout_ms")

    def __init__(self, updates_per_snapshot: int = 500, write_timeout_ms: int = 5000) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self.write_timeout_ms = write_timeout_ms


class _Kept:
    """The state of a share partition. `pending`: the records behind the committed one, by the number of their append."""

    __slots__ = ("_current", "_is_current", "committed", "pending", "snapshot_offset")

    def __init__(self) -> None:
        self.committed: ShareState | None = None
        self.pending: dict[int, ShareRecord] = {}
        self.snapshot_offset = -1  # of the last committed one
        self._current: ShareState | None = None
        self._is_current = True

    @property
    def current(self) -> ShareState | None:
        """With the pending records."""
        if not self._is_current:
            self._current, self._is_current = self.committed, True
            for record in self.pending.values():
                self._current = states.apply(self._current, record)
        return self._current

    def append(self, append: int, record: ShareRecord) -> None:
        self._current = states.apply(self.current, record)
        self.pending[append] = record

    def commit(self, record: ShareRecord, offset: int) -> None:
        """The record behind the committed state is committed, and is not among the pending ones any more."""
        if self.pending or not self._is_current:
            self.committed = states.apply(self.committed, record)
        else:
            self.committed = self._current
        if isinstance(record, Snapshot):
            self.snapshot_offset = offset

    def take_back(self) -> None:
        """A record has failed, and is not among the pending ones any more. Others may fail in the same turn."""
        self._is_current = False


class ShareCoordinatorShard:
    """One partition of __share_group_state. All calls on the loop's thread."""

    def __init__(
        self, index: int, coordinator_log: CoordinatorLog, runtime: Runtime, settings: ShareSettings
    ) -> None:
        self.index = index
        self._coordinator_log = coordinator_log
        self._runtime = runtime
        self._settings = settings
        self._kept: dict[SharePartitionKey, _Kept] = {}
        self._log: ShardLog[ShareRecord] = ShardLog(
            coordinator_log, index, runtime, settings.write_timeout_ms, encode_batch, self._replay
        )
        self._append_offset = 0  # of the record that is being appended
        self._changed_since_snapshots = True  # since the last `snapshot_cold`

    # -- requests

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, done: Done) -> None:
        """InitializeShareGroupState, of one share partition."""
        decision = states.initialize(
            key, self._current(key), state_epoch, start_offset, self._runtime.time_ms()
        )
        self._carry_out(decision, done)

    def read(self, key: SharePartitionKey, leader_epoch: int, done: DoneReading) -> None:
        """ReadShareGroupState. The answer leaves when all that it says is committed."""
        state = self._current(key)
        decision = states.read(
            key, state, leader_epoch, self._settings.updates_per_snapshot, self._runtime.time_ms()
        )
        if decision is not None:
            self._carry_out(decision, lambda found: done(state if found is None else found))
            return

        def settled(error: ErrorCode) -> None:
            done(refusal(coordinator_error(error)) if error else state)

        self._log.when_settled(settled)

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Collection[StateBatch],
        done: Done,
    ) -> None:
        """WriteShareGroupState, of one share partition."""
        decision = states.write(
            key,
            self._current(key),
            state_epoch,
            leader_epoch,
            start_offset,
            delivery_complete_count,
            batches,
            self._settings.updates_per_snapshot,
            self._runtime.time_ms(),
        )
        self._carry_out(decision, done)

    def delete(self, key: SharePartitionKey, done: Done) -> None:
        """DeleteShareGroupState. A share partition that is not known is deleted already."""
        if self._current(key) is not None:
            self._carry_out(Snapshot(key, None), done)
            return

        def settled(error: ErrorCode) -> None:
            done(refusal(coordinator_error(error)) if error else None)

        self._log.when_settled(settled)

    def summary_of(self, key: SharePartitionKey, done: DoneReading) -> None:
        """ReadShareGroupStateSummary: the committed state, None if there is none."""

        def loaded(error: ErrorCode) -> None:
            kept = self._kept.get(key)
            done(refusal(coordinator_error(error)) if error else None if kept is None else kept.committed)

        self._log.when_load_committed(loaded)

    def has(self, key: SharePartitionKey) -> bool:
        """Whether there is a state of the share partition."""
        return self._current(key) is not None

    def _current(self, key: SharePartitionKey) -> ShareState | None:
        kept = self._kept.get(key)
        return None if kept is None else kept.current

    def _carry_out(self, decision: ShareRecord | ApiError, done: Done) -> None:
        if isinstance(decision, ApiError):
            done(decision)
            return

        def ended(error: ErrorCode) -> None:
            done(refusal(coordinator_error(error)) if error else None)

        self._append(decision, ended)

    def _append(self, record: ShareRecord, done: Callable[[ErrorCode], object]) -> None:
        self._changed_since_snapshots = True
        self._append_offset = self._coordinator_log.end_offset(self.index)
        self._log.append([record], done)

    # -- upkeep

    def delete_topics(self, topic_ids: Collection[bytes]) -> Iterator[None]:
        """These topics were deleted: delete the state of their partitions, in steps."""
        for key in tuple(self._kept):
            if key.topic_id in topic_ids and not self._log.is_closed:
                self.delete(key, _ignore)
            yield

    def snapshot_cold(self, interval_ms: int) -> Iterator[None]:
        """Snapshot the states whose last snapshot is as old, so that they do not keep old records, in steps. Nothing is written
        if all of them were cold the last time, and nothing has changed since."""
        if not self._changed_since_snapshots:
            return
        is_any_left = False
        for key, kept in tuple(self._kept.items()):
            now_ms = self._runtime.time_ms()
            state = kept.current
            if self._log.is_closed:
                return
            if state is not None and now_ms - state.write_time_ms >= interval_ms:
                self._append(states.snapshot_again(key, state, now_ms), _ignore_error)
            else:
                is_any_left = True
            yield
        self._changed_since_snapshots = is_any_left

    def prune(self) -> None:
        """Delete the records that no state needs."""
        needed = [kept.snapshot_offset for kept in self._kept.values() if kept.snapshot_offset >= 0]
        if needed and not self._log.is_closed:
            self._coordinator_log.delete_before(self.index, min(needed))

    # -- records

    def _replay(self, record: ShareRecord, append: int | None) -> End | None:
        kept = self._kept.get(record.key)
        if kept is None:
            kept = self._kept[record.key] = _Kept()
        offset = self._append_offset
        if append is None:
            kept.append(NO_APPEND, record)
            self._ended(kept, NO_APPEND, offset, True)
            return None
        kept.append(append, record)
        return partial(self._ended, kept, append, offset)

    def _ended(self, kept: _Kept, append: int, offset: int, is_committed: bool) -> None:
        record = kept.pending.pop(append)
        if is_committed:
            kept.commit(record, offset)
        else:
            kept.take_back()
        if kept.committed is None and not kept.pending:
            del self._kept[record.key]

    # -- loading (CoordinatorShard)

    def load(self, done: Callable[[Exception | None], object]) -> None:
        """Rebuild the states from the partition."""
        self._log.load(ShareStateReplay(self._log.name, self._restore), done)

    def _restore(self, record: ShareRecord, offset: int) -> None:
        self._append_offset = offset
        self._replay(record, None)

    def unload(self) -> None:
        """Every request that waits gets NOT_COORDINATOR, and nothing is appended any more."""
        self._log.close()
        self._kept = {}

    def summary(self) -> str:
        return f"{len(self._kept)} share partitions" if self._kept else ""


class ShareStateReplay:
    """Passes all records, with their offsets, to `apply`. As in Kafka, those of unknown types and versions are passed over."""

    def __init__(self, name: str, apply: Callable[[ShareRecord, int], object]) -> None:
        self.next_offset = 0  # behind the last batch taken
        self.name = name
        self._apply = apply
        self._unknown = UnknownRecords()

    def take(self, data: bytes) -> Iterator[None]:
        """Take the whole batches at the start of `data`. RecordBatchError for a damaged one."""
        for position, header in iterate_whole_headers(data):
            if not header.is_control:
                batch = data[position : position + header.size]
                taken = 0
                for record in iterate_records(batch):
                    try:
                        self._apply(decode_record(record.key, record.value), record.offset)
                    except UnknownRecord as error:
                        self._unknown.count(error)
                    taken += 1024 + len(record.value or b"")
                    if taken >= STEP_BYTES:
                        taken = 0
                        yield
            self.next_offset = header.next_offset
            yield

    def finish(self) -> Iterator[None]:
        """Warn of what could not be read."""
        self._unknown.warn(self.name)
        return iter(())


def _ignore(_refusal: ApiError | None) -> None:
    """No request waits for it."""


def _ignore_error(_error: ErrorCode) -> None:
    """No request waits for it."""
