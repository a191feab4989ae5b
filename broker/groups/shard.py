"""The groups and offsets of one partition of __consumer_offsets: a state machine over its log.

decide -> append -> replay -> commit -> respond. Offsets and tombstones change by replay only, live and at
start alike. Membership is soft: it changes at once and its outcome is appended, so a live group metadata
record is not replayed; when the partition is loaded it rebuilds the group, whose members then have one session
timeout to show up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from barnabas.broker.groups.classic import ClassicProtocol
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.loading import GroupReplay, restore_group
from barnabas.broker.groups.member import GroupUsage
from barnabas.broker.groups.offset_requests import OffsetRequests
from barnabas.broker.groups.offsets import OffsetStore
from barnabas.broker.groups.pending import PendingAppend, PendingAppends
from barnabas.broker.groups.rebalance import Rebalancer
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupTombstone,
    GroupWritten,
    OffsetWritten,
    encode_batch,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import EncodeError

if TYPE_CHECKING:
    from barnabas.broker.coordinator.loading import Replay
    from barnabas.broker.groups.settings import GroupSettings
    from barnabas.runtime.interface import Runtime

log = logging.getLogger(__name__)


class Loading(Protocol):
    """A partition that is being loaded."""

    def cancel(self) -> None: ...


class CoordinatorLog(Protocol):
    """The partitions of an internal topic, as a log of record batches."""

    def append(self, partition_index: int, batch: bytes, done: Callable[[ErrorCode], object]) -> None:
        """Append one batch; `done` is called once, when it is committed or has failed, in order of appends."""
        ...

    def load(
        self,
        partition_index: int,
        replay: Replay,
        done: Callable[[Exception | None], object],
    ) -> Loading:
        """Have `replay` take all batches of the partition, from its start; then `done`, with what went wrong."""
        ...

    def is_replicated(self, partition_index: int) -> bool:
        """Whether another broker may lead the partition by now without our knowing."""
        ...

    def when_committed(self, partition_index: int, done: Callable[[ErrorCode], object]) -> None:
        """`done` when all that the partition holds now is committed, or will not be."""
        ...


# What an append ends with that is in the log for good: too few replicas have it, but nothing takes it back.
_APPENDED = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

_NOT_NOW = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


class Shard:
    """One loaded partition of __consumer_offsets."""

    def __init__(
        self,
        index: int,
        coordinator_log: CoordinatorLog,
        runtime: Runtime,
        settings: GroupSettings,
        usage: GroupUsage | None = None,
    ) -> None:
        """`usage` is that of all groups of the broker."""
        self.index = index
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetStore()
        self._log = coordinator_log
        self._runtime = runtime
        self._settings = settings
        self._usage = usage or GroupUsage()
        self._sequence = 0
        self._pending = PendingAppends(runtime, settings.offsets_commit_timeout_ms)
        self._loading: Loading | None = None
        self._loaded_last: PendingAppend | None = None  # what was loaded and is not committed yet
        self._unloaded = False
        self.rebalancer = Rebalancer(runtime, settings, self.append, self._usage)
        self.classic = ClassicProtocol(self, self.rebalancer)
        self.offset_requests = OffsetRequests(self, settings, runtime.time_ms)

    # -- groups

    def get(self, group_id: str) -> ClassicGroup | None:
        return self.groups.get(group_id)

    def create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self._runtime.time_ms, self._usage)
        return group

    def drop(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Forget a group; what waits for it is answered with `error`."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            group.kill(error)

    # -- appending

    def append(self, records: list[GroupRecord], done: Callable[[ErrorCode], None]) -> None:
        """Append the records as one batch and replay them; `done` when they are committed, or have failed
        and left no trace. It may be called before this function returns. REQUEST_TIMED_OUT: it is not known yet."""
        if self._unloaded:
            done(ErrorCode.NOT_COORDINATOR)
            return
        self._sequence += 1
        sequence = self._sequence
        inline: list[ErrorCode] = []
        returned = False

        def settled(error: ErrorCode) -> None:
            if returned:
                self._settle(sequence, error)
            else:
                inline.append(error)

        try:
            batch = encode_batch(records, self._runtime.time_ms())
        except EncodeError as reason:  # such as a group id that fits a request but no record
            log.warning("__consumer_offsets-%d: %s", self.index, reason)
            done(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._log.append(self.index, batch, settled)
        returned = True
        if inline and not self._pending:
            error = inline[0]
            if error in _APPENDED:
                for record in records:
                    self._apply(record, None)
            done(error)
        elif inline and inline[0] not in _APPENDED:
            done(inline[0])
        else:
            self._begin(self._pending.add(sequence, records, done))
            if inline:
                self._settle(sequence, inline[0])

    def when_settled(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once everything appended so far is committed or has failed; at once if nothing pends."""
        if self._pending:
            self._pending.newest().wait(callback)
        else:
            callback(ErrorCode.NONE)

    def when_stable(self, group_id: str, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once everything appended so far is committed and this broker has shown that it still leads the
        partition: that takes a word of the other replicas, so something is appended that changes nothing.
        COORDINATOR_LOAD_IN_PROGRESS when it can't be shown now."""
        if not self._log.is_replicated(self.index):
            self.when_settled(callback)
            return

        def settled(error: ErrorCode) -> None:
            callback(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error in _NOT_NOW else error)

        self.append([OffsetWritten((group_id, "", 0), None)], settled)

    def _begin(self, append: PendingAppend) -> None:
        """Replay what is on its way."""
        for record in append.records:
            revert = self._apply(record, append.sequence)
            if revert is not None:
                append.undo.append(revert)

    def _settle(self, sequence: int, error: ErrorCode) -> None:
        append = self._pending.take(sequence)
        if append is None:
            return
        is_appended = error in _APPENDED
        for record in append.records:
            if isinstance(record, OffsetWritten):
                if is_appended:
                    self.offsets.commit(record.key, sequence)
                else:
                    self.offsets.revert(record.key, sequence)
        if not is_appended:
            for revert in reversed(append.undo):
                revert()
        append.answer(error)

    # -- replaying

    def _apply(self, record: GroupRecord, sequence: int | None) -> Callable[[], None] | None:
        """Replay a live record; returns what takes back its effect on the set of groups, if it had one."""
        if isinstance(record, OffsetWritten):
            self.offsets.apply(record.key, record.value, sequence)
            group_id = record.key[0]
            if record.value is not None and group_id not in self.groups:
                group = self.create(group_id)  # a simple group: offsets without membership
                return lambda: self._forget_simple(group)
        elif isinstance(record, GroupTombstone):
            removed = self.groups.get(record.group_id)
            if removed is not None:
                del self.groups[record.group_id]
                if sequence is not None:
                    return lambda: self._restore(removed)
        return None

    def _forget_simple(self, group: ClassicGroup) -> None:
        if not group.persisted and not self.offsets.has_offsets(group.group_id):
            self.drop(group, ErrorCode.NOT_COORDINATOR)

    def _restore(self, group: ClassicGroup) -> None:
        self.groups.setdefault(group.group_id, group)

    # -- loading

    def load(self, done: Callable[[Exception | None], object], *, every: bool = False) -> None:
        """Replay what counts of the partition, then `done(None)`, or `done(error)` when it can't be; perhaps at once.
        Members of the groups found get one session timeout from then. `every`: see GroupReplay.

        What is replayed counts, also what is not committed yet: it is by the time that anything behind it is, and who
        asks for positions waits for that (`when_load_committed`). Kafka answers as of the high watermark, which a new
        leader knows late, so that a position that was acknowledged may be missing for a moment."""
        replay = GroupReplay(
            f"__consumer_offsets-{self.index}", self._replay, self._begin_sessions, every=every
        )

        def loaded(error: Exception | None) -> None:
            if error is None and replay.needs_every:
                self.groups.clear()
                self.offsets = OffsetStore()
                self.load(done, every=True)
                return
            if error is None:
                self._await_commit()
                self._shrink()
            done(error)

        self._loading = self._log.load(self.index, replay, loaded)

    def _await_commit(self) -> None:
        append = self._pending.add(self._sequence, [], lambda _: None)
        self._loaded_last = append

        def committed(error: ErrorCode) -> None:
            if error in _APPENDED:
                error = ErrorCode.NONE
                self._loaded_last = None
            self._settle(append.sequence, error)

        self._log.when_committed(self.index, committed)

    def when_load_committed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once what was loaded is committed; at once if it is. COORDINATOR_LOAD_IN_PROGRESS when that takes
        too long."""

        def settled(error: ErrorCode) -> None:
            is_late = error == ErrorCode.REQUEST_TIMED_OUT
            callback(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_late else error)

        if self._loaded_last is None:
            callback(ErrorCode.NONE)
        else:
            self._loaded_last.wait(settled)

    def _begin_sessions(self) -> Iterator[None]:
        for group in tuple(self.groups.values()):
            for member in tuple(group.members.values()):
                self.rebalancer.heartbeat(group, member)
            yield

    def _shrink(self) -> None:
        for group in tuple(self.groups.values()):
            if len(group.members) > self._settings.group_max_size:
                self.rebalancer.prepare(group, "it is larger than group.max.size")

    def _replay(self, record: GroupRecord) -> None:
        if isinstance(record, GroupWritten):
            self.groups[record.group_id] = restore_group(record, self._runtime.time_ms, self._usage)
        else:
            self._apply(record, None)

    def unload(self) -> None:
        """The partition is no longer ours: everything that waits hears NOT_COORDINATOR, and nothing is appended any
        more."""
        self._unloaded = True
        if self._loading is not None:
            self._loading.cancel()
        self._pending.close(ErrorCode.NOT_COORDINATOR)
        for group in tuple(self.groups.values()):
            self.drop(group, ErrorCode.NOT_COORDINATOR)
