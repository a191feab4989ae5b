"""The streams groups of one shard: how they begin, and the delay of their first assignment."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.lifecycle import Done, ModernGroups, log_failure
from barnabas.broker.groups.records import GroupTombstone
from barnabas.broker.groups.streams.changes import GroupChanges
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.broker.groups.streams.values import MemberState

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shard_log import ShardLog
    from barnabas.broker.groups.group_store import GroupStore
    from barnabas.broker.groups.records import GroupRecord
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.slices import StepQueue

log = logging.getLogger(__name__)

INITIAL: Final = "initial"  # the kind of timeout; it is the group's, of no member
_GROUP: Final = ""


class StreamsGroups(ModernGroups[StreamsGroup]):
    """See the module."""

    changes: GroupChanges

    def __init__(
        self,
        store: GroupStore,
        shard_log: ShardLog[GroupRecord],
        runtime: Runtime,
        settings: GroupSettings,
        configs: GroupConfigs,
        work: StepQueue,
    ) -> None:
        super().__init__(StreamsGroup, store, shard_log, runtime, settings, configs, work)
        self.changes = GroupChanges(
            settings, configs, runtime.time_ms, store.usage, settings.group_streams_max_size
        )

    def open(self, group_id: str) -> Draft[StreamsGroup]:
        """For a member that joins: of a new group as well, or in place of an empty classic one. ApiError."""
        found = self.store.groups.get(group_id)
        if found is None:
            return Draft(StreamsGroup(group_id))
        if isinstance(found, ClassicGroup) and found.is_empty:
            return Draft(StreamsGroup(group_id), [GroupTombstone(group_id)], found)
        return Draft(self.group(group_id))

    def remove(self, group: StreamsGroup, member_ids: Collection[str], done: Done) -> None:
        self.commit(self.changes.remove(group, member_ids), done)

    def session_timeout_ms(self, group: StreamsGroup, _member_id: str) -> int:
        return self.configs.number(group.group_id, "streams.session.timeout.ms")

    def rebalance_timeout_ms(self, group: StreamsGroup, member_id: str) -> int | None:
        is_revoking = group.current(member_id).state == MemberState.UNREVOKED_TASKS
        return group.members[member_id].rebalance_timeout_ms if is_revoking else None

    # -- the first assignment

    def initial_delay_ms(self, group_id: str) -> int:
        return self.configs.number(group_id, "streams.initial.rebalance.delay.ms")

    def is_delayed(self, group: StreamsGroup) -> bool:
        """Whether the first assignment waits for more members."""
        return (_GROUP, INITIAL) in group.timers

    def begin_delay(self, group_id: str) -> None:
        group = self.find(group_id)
        if group is not None and not self.is_delayed(group):
            self.timeouts.begin(group, _GROUP, INITIAL, self.initial_delay_ms(group_id))

    def _expired(self, group_id: str, member_id: str, kind: str) -> None:
        if kind != INITIAL:
            super()._expired(group_id, member_id, kind)
            return
        group = self.find(group_id)
        if group is None:
            return
        self.timeouts.end(group, _GROUP, INITIAL)
        if group.members and group.configured is not None:
            draft = Draft(group)
            self.changes.update_target(draft, group.configured)
            self.commit(draft, partial(log_failure, group_id, "assign its tasks"))
