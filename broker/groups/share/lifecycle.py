"""The share groups of one shard: how they begin, and the initialization of the partitions that they read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.lifecycle import Done, ModernGroups, log_failure
from barnabas.broker.groups.modern.values import Partitions
from barnabas.broker.groups.share import state_topics
from barnabas.broker.groups.share.changes import GroupChanges
from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.share.values import Key, StateTopic, StateTopics
from barnabas.broker.share_coordinator.persister import ask_each
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.broker.share_coordinator.state_batches import NO_START
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shard_log import ShardLog
    from barnabas.broker.groups.group_store import GroupStore
    from barnabas.broker.groups.records import GroupRecord
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
    from barnabas.broker.share_coordinator.persister import Persister
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.slices import StepQueue

log = logging.getLogger(__name__)

FIRST_OFFSET: Final = 0
Errors = dict[SharePartitionKey, ErrorCode]


class ShareGroups(ModernGroups[ShareGroup]):
    """See the module."""

    changes: GroupChanges

    def __init__(
        self,
        store: GroupStore,
        shard_log: ShardLog[GroupRecord],
        runtime: Runtime,
        settings: GroupSettings,
        configs: GroupConfigs,
        persister: Persister,
        work: StepQueue,
    ) -> None:
        super().__init__(ShareGroup, store, shard_log, runtime, settings, configs, work)
        self.changes = GroupChanges(
            settings, configs, runtime.time_ms, store.usage, settings.group_share_max_size
        )
        self._persister = persister
        # Without an answer: initializations, the last of each, and how many deletions there are by group id and topic id.
        self._latest: dict[SharePartitionKey, object] = {}
        self._deletions: Counter[tuple[str, bytes]] = Counter()

    def open(self, group_id: str) -> Draft[ShareGroup]:
        """For a member that joins: of a new group as well. ApiError."""
        exists = group_id in self.store.groups
        return Draft(self.group(group_id) if exists else ShareGroup(group_id))

    def remove(self, group: ShareGroup, member_ids: Collection[str], done: Done) -> None:
        self.commit(self.changes.remove(group, member_ids), done)

    def session_timeout_ms(self, group: ShareGroup, _member_id: str) -> int:
        return self.configs.number(group.group_id, "share.session.timeout.ms")

    def rebalance_timeout_ms(self, _group: ShareGroup, _member_id: str) -> int | None:
        return None

    # -- delivery states

    def to_initialize(self, group: ShareGroup) -> dict[bytes, StateTopic]:
        """Subscribed partitions without a delivery state, but for those whose states are being deleted."""
        found = self.changes.to_initialize(group)
        return {
            topic_id: each
            for topic_id, each in found.items()
            if (group.group_id, topic_id) not in self._deletions
        }

    def initialize(self, group_id: str, epoch: int, topics: Mapping[bytes, StateTopic]) -> None:
        """Have the share coordinator initialize these partitions, which are recorded as initializing. Their leaders choose where they
        begin; partitions that were added to a topic since the group has read it begin with their first record (KAFKA-20742)."""
        group = self.find(group_id)
        counts = {} if group is None else group.partition_counts
        starts = {
            SharePartitionKey(group_id, topic_id, index): FIRST_OFFSET
            if topic_id in counts and index >= counts[topic_id]
            else NO_START
            for topic_id, each in topics.items()
            for index in each.partitions
        }
        self.runtime.call_soon(
            lambda: self.initialize_at(group_id, epoch, starts, lambda _errors, _error: None)
        )

    def initialize_at(
        self,
        group_id: str,
        epoch: int,
        starts: Mapping[SharePartitionKey, int],
        done: Callable[[Errors, ErrorCode], object],
    ) -> None:
        """As `initialize`, with start offsets. `done(errors of the share coordinator, error of the append)` when the outcome is recorded.
        Of a partition that is initialized once more meanwhile it is not: the later one would reset what is read by then."""
        errors: Errors = {}
        this = object()
        self._latest.update(dict.fromkeys(starts, this))

        def initialize(key: SharePartitionKey, answered: Callable[[], object]) -> None:
            def keep(error: ErrorCode) -> None:
                if error:
                    errors[key] = error
                answered()

            self._persister.initialize(key, epoch, starts[key], keep)

        def all_answered() -> None:
            ended_now = [key for key in starts if self._latest.get(key) is this]
            for key in ended_now:
                del self._latest[key]
            initialized = by_topic(key for key in ended_now if key not in errors)
            failed = by_topic(key for key in ended_now if key in errors)
            errors.update(
                dict.fromkeys(starts.keys() - set(ended_now) - errors.keys(), ErrorCode.FENCED_STATE_EPOCH)
            )
            if errors:
                log.warning("Group %s: %d partitions could not be initialized", group_id, len(errors))
            image = self.configs.image()

            def ended(states: StateTopics) -> StateTopics:
                return state_topics.give_up(state_topics.finish(states, initialized, image), failed)

            self.change_state_topics(group_id, ended, partial(done, errors))
            group = self.find(group_id)
            if group is not None:
                group.is_metadata_checked = False

        ask_each(starts, initialize, all_answered)

    def delete_states(self, group_id: str, partitions: Partitions, done: Callable[[Errors], object]) -> None:
        """Have the share coordinator delete these states, which are recorded as being deleted. Until that has ended they are not
        initialized again, also not for another group of that name: a late deletion would take away the new ones."""
        errors: Errors = {}
        deletions = Counter((group_id, topic_id) for topic_id in partitions)
        self._deletions += deletions
        group = self.find(group_id)
        if group is not None:
            for topic_id in partitions:
                group.partition_counts.pop(topic_id, None)

        def ended() -> None:
            self._deletions -= deletions  # keeps what is above zero
            group = self.find(group_id)
            if group is not None:
                group.is_metadata_checked = False
            done(errors)

        def delete(key: SharePartitionKey, answered: Callable[[], object]) -> None:
            def keep(error: ErrorCode) -> None:
                if error:
                    errors[key] = error
                answered()

            self._persister.delete(key, keep)

        keys = [
            SharePartitionKey(group_id, topic_id, index)
            for topic_id, indexes in partitions.items()
            for index in indexes
        ]
        ask_each(keys, delete, ended)

    def check_settled(self, group_id: str, topic_ids: Collection[bytes], *, deletes: bool) -> None:
        """ApiError while states of these topics are being deleted, or, for one that `deletes` them, initialized: what the share
        coordinator does late would undo what is asked for now. Clients ask again."""
        if any((group_id, topic_id) in self._deletions for topic_id in topic_ids) or (
            deletes and any(key.group_id == group_id and key.topic_id in topic_ids for key in self._latest)
        ):
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "The states of the group's partitions are being changed.",
            )

    def change_state_topics(
        self, group_id: str, change: Callable[[StateTopics], StateTopics], done: Done
    ) -> None:
        """Record what has become of the delivery states, if the group is still there."""
        group = self.find(group_id)
        if group is None:
            self._log.when_settled(done)
            return
        draft = Draft(group)
        after = change(group.state_topics)
        if after != group.state_topics:
            draft.write(Key.STATE_TOPICS, "", after)
        self.commit(draft, done)

    def topics_deleted(self, topic_ids: Collection[bytes]) -> None:
        """Forget the states of these topics, which the share coordinator deletes by itself."""
        for group in tuple(self.store.groups.values()):
            if isinstance(group, ShareGroup) and group.has_state_of(topic_ids):
                self.change_state_topics(
                    group.group_id,
                    partial(state_topics.without_topics, topic_ids=topic_ids),
                    partial(log_failure, group.group_id, "forget deleted topics"),
                )


def by_topic(keys: Iterable[SharePartitionKey]) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, set()).add(key.partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}
