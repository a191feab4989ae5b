"""The groups and offsets of one partition of __consumer_offsets: a state machine over its log.

decide -> append -> replay -> commit -> respond. Offsets and tombstones change by replay only, live and at
start alike. Membership is soft: it changes at once and its outcome is appended, so a live group metadata
record is not replayed; at start it rebuilds the group, whose members then have one session timeout to show up.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from barnabas.broker.groups.classic import ClassicProtocol
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.loading import settled_records
from barnabas.broker.groups.member import Member
from barnabas.broker.groups.offset_requests import OffsetRequests
from barnabas.broker.groups.offsets import OffsetStore
from barnabas.broker.groups.rebalance import Rebalancer
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupTombstone,
    GroupWritten,
    OffsetWritten,
    UnknownRecord,
    decode_record,
    encode_batch,
)
from barnabas.broker.groups.state import GroupState
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import EncodeError
from barnabas.wire.record_batch import Record

if TYPE_CHECKING:
    from barnabas.broker.groups.settings import GroupSettings
    from barnabas.storage.runtime import Runtime

log = logging.getLogger(__name__)


class CoordinatorLog(Protocol):
    """The partitions of an internal topic, as a log of record batches."""

    def append(self, partition_index: int, batch: bytes, done: Callable[[ErrorCode], None]) -> None:
        """Append one batch; `done` is called once, when it is committed or has failed, in order of appends."""
        ...

    def load(self, partition_index: int) -> Iterable[bytes]:
        """All batches of the partition, from its start."""
        ...


class Shard:
    """One loaded partition of __consumer_offsets."""

    def __init__(
        self, index: int, coordinator_log: CoordinatorLog, runtime: Runtime, settings: GroupSettings
    ) -> None:
        self.index = index
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetStore()
        self._log = coordinator_log
        self._runtime = runtime
        self._settings = settings
        self._sequence = 0
        self._pending: dict[int, list[Callable[[ErrorCode], None]]] = {}  # append -> who waits for it
        self.rebalancer = Rebalancer(runtime, settings, self.append)
        self.classic = ClassicProtocol(self, self.rebalancer)
        self.offset_requests = OffsetRequests(self, settings, runtime.time_ms)

    # -- groups

    def get(self, group_id: str) -> ClassicGroup | None:
        return self.groups.get(group_id)

    def create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self._runtime.time_ms)
        return group

    def drop(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Forget a group; what waits for it is answered with `error`."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            group.kill(error)

    # -- appending

    def append(self, records: list[GroupRecord], done: Callable[[ErrorCode], None]) -> None:
        """Append the records as one batch and replay them; `done` when they are committed, or have failed
        and left no trace. It may be called before this function returns."""
        self._sequence += 1
        sequence = self._sequence
        inline: list[ErrorCode] = []
        undo: list[Callable[[], None]] = []
        returned = False

        def settled(error: ErrorCode) -> None:
            if not returned:
                inline.append(error)
                return
            waiting = self._pending.pop(sequence, [])
            self._settle(records, sequence, error, undo)
            done(error)
            for callback in waiting:
                callback(error)

        try:
            batch = encode_batch(records, self._runtime.time_ms())
        except EncodeError as reason:  # such as a group id that fits a request but no record
            log.warning("__consumer_offsets-%d: %s", self.index, reason)
            done(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._log.append(self.index, batch, settled)
        returned = True
        if inline:
            error = inline[0]
            if not error:
                for record in records:
                    self._apply(record, None)
            done(error)
            return
        self._pending[sequence] = []
        for record in records:
            revert = self._apply(record, sequence)
            if revert is not None:
                undo.append(revert)

    def when_settled(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once everything appended so far is committed or has failed; at once if nothing pends."""
        if self._pending:
            self._pending[max(self._pending)].append(callback)
        else:
            callback(ErrorCode.NONE)

    def _settle(
        self, records: list[GroupRecord], sequence: int, error: ErrorCode, undo: list[Callable[[], None]]
    ) -> None:
        for record in records:
            if isinstance(record, OffsetWritten):
                if error:
                    self.offsets.revert(record.key, sequence)
                else:
                    self.offsets.commit(record.key, sequence)
        if error:
            for revert in reversed(undo):
                revert()

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

    def load(self) -> None:
        """Replay the whole partition. Members of the groups found get one session timeout from now.

        Records of kinds that this version does not know (Kafka's consumer, share and streams groups) are
        passed over; the offsets of such groups are plain ones and count."""
        unknown: Counter[str] = Counter()
        for record in settled_records(f"__consumer_offsets-{self.index}", self._log.load(self.index)):
            try:
                self._replay(record)
            except UnknownRecord as error:
                unknown[str(error)] += 1
        if unknown:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in unknown.most_common(8))
            log.warning(
                "__consumer_offsets-%d: records that can't be read are passed over (%s)", self.index, kinds
            )
        for group in tuple(self.groups.values()):
            for member in tuple(group.members.values()):
                self.rebalancer.heartbeat(group, member)
            if len(group.members) > self._settings.group_max_size:
                self.rebalancer.prepare(group, "it is larger than group.max.size")

    def _replay(self, record: Record) -> None:
        decoded = decode_record(record)
        if isinstance(decoded, GroupWritten):
            self.groups[decoded.group_id] = restore_group(decoded, self._runtime.time_ms)
        else:
            self._apply(decoded, None)

    def unload(self) -> None:
        """The partition is no longer ours: everything that waits hears NOT_COORDINATOR."""
        for group in tuple(self.groups.values()):
            self.drop(group, ErrorCode.NOT_COORDINATOR)


def restore_group(written: GroupWritten, clock: Callable[[], int]) -> ClassicGroup:
    """The group that a group metadata record describes: Stable with members, else Empty."""
    value = written.value
    group = ClassicGroup(written.group_id, clock)
    group.persisted = True
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.state = GroupState.STABLE if value.members else GroupState.EMPTY
    group.state_timestamp = None if value.current_state_timestamp == -1 else value.current_state_timestamp
    for stored in value.members:
        timeout = stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            timeout,
            stored.session_timeout,
            value.protocol_type,
            [(value.protocol or "", stored.subscription)],
            stored.assignment,
        )
        group.add(member, None)
    group.leader_id = value.leader
    group.subscribed_topics = group.compute_subscribed_topics()
    return group
