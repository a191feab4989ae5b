"""The groups of one kind in a shard: decisions are committed, timeouts run, and members whose time is up are removed."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from barnabas.broker.groups.modern.changes import ModernGroupChanges
from barnabas.broker.groups.modern.draft import AssignmentSteps, Draft
from barnabas.broker.groups.modern.group import AnyGroup, ModernGroupRecord
from barnabas.broker.groups.modern.timeouts import REASONS, REBALANCE, SESSION, Timeouts
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shard_log import ShardLog
    from barnabas.broker.groups.group_store import GroupStore
    from barnabas.broker.groups.records import GroupRecord
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.slices import StepQueue

log = logging.getLogger(__name__)

G = TypeVar("G", bound=AnyGroup)
Done = Callable[[ErrorCode], object]
RETRY_MS: Final = 500  # of a removal that could not be written
ASSIGN_AGAIN_S: Final = 5.0  # after a target that took long and could not be written


class ModernGroups(ABC, Generic[G]):
    """See the module. Each kind of group has a subclass."""

    changes: ModernGroupChanges[G]

    def __init__(
        self,
        kind: type[G],
        store: GroupStore,
        shard_log: ShardLog[GroupRecord],
        runtime: Runtime,
        settings: GroupSettings,
        configs: GroupConfigs,
        work: StepQueue,
    ) -> None:
        """`work`: where assignments are computed that take long, for all groups of the broker."""
        self._work = work
        self.store = store
        self.runtime = runtime
        self.settings = settings
        self.configs = configs
        self.timeouts = Timeouts(runtime, self._expired)
        self._kind = kind
        self._log = shard_log

    def find(self, group_id: str) -> G | None:
        """The group, if it is of this kind."""
        group = self.store.groups.get(group_id)
        return group if isinstance(group, self._kind) else None

    def group(self, group_id: str, kind: str = "Group") -> G:
        """ApiError GROUP_ID_NOT_FOUND; `kind`: what its text says that is not there."""
        group = self.store.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} {group_id} not found.")
        if not isinstance(group, self._kind):
            text = f"Group {group_id} is not a {self._kind.group_type} group."
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        return group

    def raise_epoch(self, group: G) -> None:
        """Have the group assigned anew."""
        draft = Draft(group)
        self.changes.raise_epoch(draft)
        self.commit(draft, partial(log_failure, group.group_id, "raise its epoch"))

    @abstractmethod
    def remove(self, group: G, member_ids: Collection[str], done: Done) -> None:
        """Remove members that leave, or whose time is up."""

    @abstractmethod
    def session_timeout_ms(self, group: G, member_id: str) -> int: ...

    @abstractmethod
    def rebalance_timeout_ms(self, group: G, member_id: str) -> int | None:
        """Of a member that has to give up something; None if it has not."""

    # -- the log

    def commit(self, draft: Draft[G], done: Done) -> None:
        """Append the records of a decision, and begin and end the timeouts that follow from them. Without records `done` is called
        once everything before is committed."""
        draft.take_back()
        if draft.records:
            self._append(draft, done)
        else:
            self._log.when_settled(done)
        if draft.assignment is not None:
            self._assign_in_slices(draft.group.group_id, draft.assignment)

    def _append(self, draft: Draft[G], done: Done) -> None:
        group_id = draft.group.group_id

        def appended(error: ErrorCode) -> None:
            if error and (found := self.find(group_id)) is not None:
                found.is_metadata_checked = False
                self._resume_sessions(found, draft)
            done(error)

        self._log.append(draft.records, appended)
        group = self.find(group_id)
        if group is None:
            return
        for record in draft.records:
            if isinstance(record, ModernGroupRecord):
                self._follow(group, record)
        if draft.replaced is not None:
            draft.replaced.kill(ErrorCode.REBALANCE_IN_PROGRESS)
            self.begin_sessions(group)

    def _assign_in_slices(self, group_id: str, assignment: AssignmentSteps[G]) -> None:
        """Compute a target assignment from the group as it is when that begins, one at a time in the broker, and write it. Members
        that send heartbeats meanwhile are answered by the last one."""
        group = self.find(group_id)
        if group is None:
            return
        group.is_assigning = True

        def computed(write: Callable[[Draft[G]], None] | None, error: BaseException | None) -> None:
            if write is None:
                log.error("Group %s: its target can't be computed", group_id, exc_info=error)
                written(ErrorCode.UNKNOWN_SERVER_ERROR)
            elif self.find(group_id) is group:
                draft = Draft(group, is_decided=True)
                write(draft)
                self.commit(draft, written)

        def written(error: ErrorCode) -> None:
            log_failure(group_id, "write its target", error)
            if error:
                self.runtime.call_later(ASSIGN_AGAIN_S, may_assign)
            else:
                may_assign()

        def may_assign() -> None:
            group.is_assigning = False

        self._work.add(assignment(group), computed)

    def _follow(self, group: G, record: ModernGroupRecord) -> None:
        if record.key == group.keys.member and record.name not in group.members:
            group.stop_timers(record.name)
        elif record.key == group.keys.current and record.name in group.members:
            self._follow_assignment(group, record.name)

    def _resume_sessions(self, group: G, draft: Draft[G]) -> None:
        """Members that could not be removed are still there: their clients may be gone."""
        for record in draft.records:
            if (
                isinstance(record, ModernGroupRecord)
                and record.key == group.keys.member
                and record.name in group.members
                and (record.name, SESSION) not in group.timers
            ):
                self.begin_session(group.group_id, record.name)
                self._follow_assignment(group, record.name)

    def _follow_assignment(self, group: G, member_id: str) -> None:
        """Begin or end the rebalance timeout, as the member's state has it."""
        timeout_ms = self.rebalance_timeout_ms(group, member_id)
        if timeout_ms is None:
            self.timeouts.end(group, member_id, REBALANCE)
        else:
            self.timeouts.begin(group, member_id, REBALANCE, timeout_ms)

    # -- timeouts

    def begin_session(self, group_id: str, member_id: str) -> None:
        """The member has sent something."""
        group = self.find(group_id)
        if group is not None and member_id in group.members:
            self.timeouts.begin(group, member_id, SESSION, self.session_timeout_ms(group, member_id))

    def begin_sessions_of(self, group_id: str) -> None:
        """As `begin_sessions`, if the group is of this kind."""
        group = self.find(group_id)
        if group is not None:
            self.begin_sessions(group)

    def begin_sessions(self, group: G) -> None:
        """After a load every member has one session timeout to send something."""
        for member_id in group.members:
            self.begin_session(group.group_id, member_id)
            self._follow_assignment(group, member_id)

    def _expired(self, group_id: str, member_id: str, kind: str) -> None:
        group = self.find(group_id)
        if group is not None and member_id in group.members:
            log.info("Group %s: member %s is fenced: %s", group_id, member_id, REASONS[kind])
            self.expire(group, member_id, kind)

    def expire(self, group: G, member_id: str, kind: str = SESSION) -> None:
        """Remove a member whose time is up; again a little later where that fails."""

        def removed(error: ErrorCode) -> None:
            log_failure(group.group_id, f"remove {member_id}", error)
            found = self.find(group.group_id)
            if error and found is not None and member_id in found.members:
                self.timeouts.begin(found, member_id, kind, RETRY_MS)

        self.remove(group, [member_id], removed)

    def topics_changed(self, names: Iterable[str]) -> None:
        """These topics were created, deleted or have other partitions: the groups that read them look again, with the next
        heartbeat."""
        changed = frozenset(names)
        for group in self.store.groups.values():
            if isinstance(group, self._kind) and group.is_metadata_checked:
                group.is_metadata_checked = changed.isdisjoint(group.subscribed_topics())


def log_failure(group_id: str, what: str, error: ErrorCode) -> None:
    if error:
        log.warning("Group %s: could not %s: %s", group_id, what, error.name)
