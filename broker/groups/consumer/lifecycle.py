"""The consumer groups of one shard, and how they come from classic groups and become some."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from barnabas.broker.groups.consumer import conversion
from barnabas.broker.groups.consumer.changes import GroupChanges
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.consumer.values import LEFT_FOR_NOW, MemberState
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.lifecycle import Done, ModernGroups
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
    from barnabas.runtime.slices import StepQueue

log = logging.getLogger(__name__)


class ConsumerGroups(ModernGroups[ConsumerGroup]):
    """See the module."""

    changes: GroupChanges

    def __init__(
        self,
        store: GroupStore,
        shard_log: ShardLog[GroupRecord],
        runtime: Runtime,
        settings: GroupSettings,
        configs: GroupConfigs,
        rebalancer: Rebalancer,
        work: StepQueue,
    ) -> None:
        """`rebalancer`: of the classic groups that consumer groups may become."""
        super().__init__(ConsumerGroup, store, shard_log, runtime, settings, configs, work)
        self.changes = GroupChanges(
            settings, configs, runtime.time_ms, store.usage, settings.group_consumer_max_size
        )
        self._rebalancer = rebalancer

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

    # -- members that leave

    def remove(self, group: ConsumerGroup, member_ids: Collection[str], done: Done) -> None:
        """If all that stay are of the classic protocol, the group becomes a classic one and rebalances."""
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

    def session_timeout_ms(self, group: ConsumerGroup, member_id: str) -> int:
        member = group.members[member_id]
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.configs.number(group.group_id, "consumer.session.timeout.ms")

    def rebalance_timeout_ms(self, group: ConsumerGroup, member_id: str) -> int | None:
        member, current = group.members[member_id], group.current(member_id)
        is_revoking = current.state == MemberState.UNREVOKED_PARTITIONS and current.epoch != LEFT_FOR_NOW
        return member.rebalance_timeout_ms if member.classic is None and is_revoking else None
