"""The groups and offsets of one partition of __consumer_offsets, put together of their parts.

After a load the members found have one session timeout to send something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.shard_log import ShardLog
from barnabas.broker.groups.classic import ClassicProtocol
from barnabas.broker.groups.consumer.classic_members import ClassicMembers
from barnabas.broker.groups.consumer.expressions import ExpressionResolver
from barnabas.broker.groups.consumer.heartbeats import ConsumerProtocol
from barnabas.broker.groups.consumer.lifecycle import ConsumerGroups
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.group_store import GroupStore
from barnabas.broker.groups.loading import EveryRecordCounts, GroupReplay
from barnabas.broker.groups.member import GroupUsage
from barnabas.broker.groups.offset_requests import OffsetRequests
from barnabas.broker.groups.rebalance import Rebalancer
from barnabas.broker.groups.records import GroupRecord, OffsetWritten, TransactionEnded, encode_batch
from barnabas.broker.groups.share.heartbeats import ShareProtocol
from barnabas.broker.groups.share.lifecycle import ShareGroups
from barnabas.broker.groups.share.offsets import ShareGroupOffsets
from barnabas.broker.groups.streams.heartbeats import StreamsProtocol
from barnabas.broker.groups.streams.lifecycle import StreamsGroups
from barnabas.runtime.slices import StepQueue
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.latest_offsets import LatestOffsets
    from barnabas.broker.coordinator.log import CoordinatorLog, Marker
    from barnabas.broker.groups.offsets import DeletedTopic
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
    from barnabas.broker.share_coordinator.persister import Persister
    from barnabas.runtime.interface import Runtime

_NOT_NOW: Final = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


class Shard:
    """One partition of __consumer_offsets."""

    def __init__(
        self,
        index: int,
        coordinator_log: CoordinatorLog,
        runtime: Runtime,
        settings: GroupSettings,
        configs: GroupConfigs,
        persister: Persister,
        latest_offsets: LatestOffsets,
        usage: GroupUsage,
        work: StepQueue,
    ) -> None:
        """`persister` and `latest_offsets`: for share groups. `usage` is that of all groups of the broker, and `work` does what takes
        long for them."""
        self.index = index
        self.store = GroupStore(runtime.time_ms, usage)
        self.groups = self.store.groups
        self.offsets = self.store.offsets
        self.log: ShardLog[GroupRecord] = ShardLog(
            coordinator_log,
            index,
            runtime,
            settings.offsets_commit_timeout_ms,
            encode_batch,
            self.store.replay,
        )
        self.rebalancer = Rebalancer(runtime, settings, self.log.append, usage)
        self.consumer_groups = ConsumerGroups(
            self.store, self.log, runtime, settings, configs, self.rebalancer, work
        )
        self.consumer = ConsumerProtocol(self.consumer_groups)
        self.expressions = ExpressionResolver(self.consumer_groups, work)
        self.streams_groups = StreamsGroups(self.store, self.log, runtime, settings, configs, work)
        self.streams = StreamsProtocol(self.streams_groups)
        self.share_groups = ShareGroups(self.store, self.log, runtime, settings, configs, persister, work)
        self.share = ShareProtocol(self.share_groups)
        self.share_offsets = ShareGroupOffsets(self.share_groups, persister, latest_offsets)
        self._modern_groups = (self.consumer_groups, self.share_groups, self.streams_groups)
        self.classic = ClassicProtocol(self.store, self.rebalancer, ClassicMembers(self.consumer_groups))
        self.offset_requests = OffsetRequests(
            self.store, self.log, self.rebalancer, settings, configs, runtime.time_ms
        )
        self._group_max_size = settings.group_max_size
        self._is_loaded = False
        self._deleted_topics: list[DeletedTopic] = []  # before it was loaded

    def when_stable(self, group_id: str, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once everything appended so far is committed and this broker has shown that it still leads the
        partition: the other replicas have to answer for that, so something is appended that changes nothing.
        COORDINATOR_LOAD_IN_PROGRESS when it can't be shown now."""
        if not self.log.is_replicated:
            self.log.when_settled(callback)
            return

        def settled(error: ErrorCode) -> None:
            callback(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error in _NOT_NOW else error)

        self.log.append([OffsetWritten((group_id, "", 0), None)], settled)

    def end_transaction(self, marker: Marker, done: Callable[[ErrorCode], object]) -> None:
        """Append the marker; `done(error)` when it is committed and its offsets are visible, or has failed."""
        self.log.append_marker(marker, TransactionEnded(marker.producer_id, marker.commit), done)

    def topics_changed(self, names: Set[str], *, are_created: bool, offset: int) -> None:
        """These topics were created, deleted or have got partitions, by metadata up to this offset."""
        for groups in self._modern_groups:
            groups.topics_changed(names)
        if are_created:
            self.expressions.topics_created_at = offset

    def topics_deleted(self, topics: list[DeletedTopic]) -> None:
        """Remove the offsets of deleted topics, once loaded."""
        if not self._is_loaded:
            self._deleted_topics += topics
            return
        self.offset_requests.topics_deleted(topics)
        self.share_groups.topics_deleted({topic.topic_id for topic in topics})

    def delete_groups(self, group_ids: list[str], reply: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Delete empty groups: the delivery states of share groups first, then the groups with their offsets."""

        def states_deleted(errors: Mapping[str, ErrorCode]) -> None:
            rest = [group_id for group_id in group_ids if group_id not in errors]
            if self.log.is_closed:  # another broker has the groups by now
                reply({**errors, **dict.fromkeys(rest, ErrorCode.NOT_COORDINATOR)})
                return
            self.offset_requests.delete_groups(rest, lambda found: reply({**errors, **found}))

        self.share_offsets.delete_all(group_ids, states_deleted)

    # -- loading (CoordinatorShard)

    def load(self, done: Callable[[Exception | None], object], *, every: bool = False) -> None:
        """Rebuild the groups from the partition. `every`: see GroupReplay."""

        def loaded(error: Exception | None) -> None:
            if isinstance(error, EveryRecordCounts):
                self.store.clear()
                self.load(done, every=True)
                return
            if error is None:
                self._is_loaded = True
                self._shrink()
            done(error)
            if self._deleted_topics and self._is_loaded:
                self.topics_deleted(self._deleted_topics)

        replay = GroupReplay(self.log.name, self.store.restore, self._begin_sessions, every=every)
        self.log.load(replay, loaded)

    def _begin_sessions(self) -> Iterator[None]:
        for group in tuple(self.groups.values()):
            for groups in self._modern_groups:
                groups.begin_sessions_of(group.group_id)
            if isinstance(group, ClassicGroup):
                for member in tuple(group.members.values()):
                    self.rebalancer.heartbeat(group, member)
            yield

    def _shrink(self) -> None:
        for group in tuple(self.groups.values()):
            if isinstance(group, ClassicGroup) and len(group.members) > self._group_max_size:
                self.rebalancer.prepare(group, "it is larger than group.max.size")

    def summary(self) -> str:
        return f"{len(self.groups)} groups" if self.groups else ""

    def unload(self) -> None:
        """Every request that waits gets NOT_COORDINATOR, and nothing is appended any more."""
        self.log.close()
        for group in tuple(self.groups.values()):
            self.store.drop(group, ErrorCode.NOT_COORDINATOR)
