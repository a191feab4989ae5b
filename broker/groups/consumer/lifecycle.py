"""The consumer groups of one shard: decisions are committed, timeouts run, and members whose time is up are removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.groups.consumer import conversion
from barnabas.broker.groups.consumer.changes import GroupChanges
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.consumer.records import ConsumerGroupRecord
from barnabas.broker.groups.consumer.values import Key, MemberState
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.timeouts import REASONS, REBALANCE, SESSION, Timeouts
from barnabas.broker.groups.records import group_metadata_record
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shard_log import ShardLog
    from barnabas.broker.groups.group_store import GroupStore
    from barnabas.broker.groups.rebalance import Rebalancer
    from barnabas.broker.groups.records import GroupRecord
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
    from barnabas.runtime.interface import Runtime

log = logging.getLogger(__name__)

Done = Callable[[ErrorCode], None]


class ConsumerGroups:
    """See the module."""

    def __init__(
        self,
        store: GroupStore,
        shard_log: ShardLog[GroupRecord],
        runtime: Runtime,
        settings: GroupSettings,
        configs: GroupConfigs,
        rebalancer: Rebalancer,
    ) -> None:
        """`rebalancer`: of the classic groups that consumer groups may become."""
        self.store = store
        self.runtime = runtime
        self.settings = settings
        self.configs = configs
        self.changes = GroupChanges(settings, configs, runtime.time_ms, store.usage)
        self.timeouts = Timeouts(runtime, self._expired)
        self._log = shard_log
        self._rebalancer = rebalancer

    def group(self, group_id: str, kind: str = "Consumer group") -> ConsumerGroup:
        """ApiError GROUP_ID_NOT_FOUND; `kind`: what its text says that is not there."""
        group = self.store.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    def open(self, group_id: str) -> Draft[ConsumerGroup]:
        """For a member that joins: of a new group as well, or of a classic group that becomes a consumer group. ApiError."""
        found = self.store.groups.get(group_id)
        if found is None:
            return Draft(ConsumerGroup(group_id))
        if isinstance(found, ConsumerGroup):
            return Draft(found)
        if not isinstance(found, ClassicGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return conversion.upgrade(found, self.settings, self.configs.image())

    # -- the log

    def commit(self, draft: Draft[ConsumerGroup], done: Done) -> None:
        """Append the records of a decision, and begin and end the timeouts that follow from them. Without records `done` is called
        once everything before is committed."""
        draft.take_back()
        group_id = draft.group.group_id
        if not draft.records:
            self._log.when_settled(done)
            return

        def appended(error: ErrorCode) -> None:
            if error and (found := self.store.consumer(group_id)) is not None:
                found.is_metadata_checked = False
            done(error)

        self._log.append(draft.records, appended)
        group = self.store.consumer(group_id)
        if group is None:
            return
        for record in draft.records:
            if isinstance(record, ConsumerGroupRecord):
                self._follow(group, record)
        if draft.replaced is not None:
            draft.replaced.kill(ErrorCode.REBALANCE_IN_PROGRESS)
            self.begin_sessions(group)

    def _follow(self, group: ConsumerGroup, record: ConsumerGroupRecord) -> None:
        if record.key == Key.MEMBER and record.name not in group.members:
            group.stop_timers(record.name)
        elif record.key == Key.CURRENT and record.name in group.members:
            self._follow_assignment(group, record.name)

    # -- members that leave

    def remove(self, group: ConsumerGroup, member_ids: Collection[str], done: Done) -> None:
        """Remove members. If all that stay are of the classic protocol, the group becomes a classic one and rebalances."""
        if not conversion.may_downgrade(group, member_ids, self.settings):
            self.commit(self.changes.remove(group, member_ids), done)
            return
        reason = f"Downgrade group {group.group_id} from consumer to classic for member leaving."
        try:
            self.downgrade(group, member_ids, reason, done)
        except ApiError as refusal:
            log.warning("Group %s: %s", group.group_id, refusal.message)
            done(refusal.error)

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[str], rebalance: str | None, done: Done
    ) -> None:
        """Have a classic group in its place, without the members that leave. `rebalance`: why the members have to join again; None: they
        need not. ApiError."""
        records: list[GroupRecord] = [*group.tombstones()]
        classic = self.store.unlisted(group.group_id)
        assignments = conversion.fill_classic(classic, group, leaving, self.configs.image())
        self._log.append([*records, group_metadata_record(classic, assignments)], done)
        if self.store.consumer(group.group_id) is not None:  # the append has failed
            classic.kill(ErrorCode.NOT_COORDINATOR)
            return
        log.info("Group %s is a classic group now", group.group_id)
        classic.persisted = True
        self.store.groups[group.group_id] = classic
        for member in tuple(classic.members.values()):
            self._rebalancer.heartbeat(classic, member)
        if rebalance is not None:
            self._rebalancer.prepare(classic, rebalance)

    # -- timeouts

    def begin_session(self, group_id: str, member_id: str) -> None:
        """The member has sent something."""
        group = self.store.consumer(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self.configs.number(group_id, "consumer.session.timeout.ms")
        self.timeouts.begin(group, member_id, SESSION, timeout_ms)

    def begin_sessions(self, group: ConsumerGroup) -> None:
        """After a load every member has one session timeout to send something."""
        for member_id in group.members:
            self.begin_session(group.group_id, member_id)
            self._follow_assignment(group, member_id)

    def _follow_assignment(self, group: ConsumerGroup, member_id: str) -> None:
        """Begin or end the rebalance timeout, as the member's state has it."""
        member = group.members[member_id]
        if member.classic is not None:
            return
        if group.current(member_id).state == MemberState.UNREVOKED_PARTITIONS:
            self.timeouts.begin(group, member_id, REBALANCE, member.rebalance_timeout_ms)
        else:
            self.timeouts.end(group, member_id, REBALANCE)

    def _expired(self, group_id: str, member_id: str, kind: str) -> None:
        group = self.store.consumer(group_id)
        if group is not None and member_id in group.members:
            log.info("Group %s: member %s is fenced: %s", group_id, member_id, REASONS[kind])
            self.expire(group, member_id)

    def expire(self, group: ConsumerGroup, member_id: str) -> None:
        """Remove a member whose time is up."""
        self.remove(group, [member_id], partial(_log_failure, group.group_id, f"remove {member_id}"))

    def raise_epoch(self, group: ConsumerGroup) -> None:
        """Have the partitions assigned anew."""
        draft = Draft(group)
        self.changes.update_epoch(draft, is_changed=True)
        self.commit(draft, partial(_log_failure, group.group_id, "raise its epoch"))

    def topics_changed(self, names: Iterable[str]) -> None:
        """These topics were created, deleted or have other partitions: the groups that read them look again, with the next
        heartbeat."""
        changed = frozenset(names)
        for group in self.store.groups.values():
            if isinstance(group, ConsumerGroup) and group.is_metadata_checked:
                group.is_metadata_checked = changed.isdisjoint(group.subscribed_topics())


def _log_failure(group_id: str, what: str, error: ErrorCode) -> None:
    if error:
        log.warning("Group %s: could not %s: %s", group_id, what, error.name)
