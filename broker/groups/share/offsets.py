"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets (KIP-932), and the states of groups that are deleted.

Start offsets are in the states at the share coordinator. Topics are given by name; source: GroupCoordinatorService of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeGuard

import msgspec

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.share import state_topics
from barnabas.broker.groups.share.lifecycle import by_topic
from barnabas.broker.groups.share.values import NO_STATE_TOPICS, Key, StateTopic
from barnabas.broker.share_coordinator.persister import ask_each
from barnabas.broker.share_coordinator.state import UNKNOWN_COUNT, SharePartitionKey
from barnabas.broker.share_coordinator.state_batches import NO_START
from barnabas.controller.metadata.decision import ApiError
from barnabas.storage.log.log_config import LONG_MAX
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.latest_offsets import LatestOffsets
    from barnabas.broker.groups.share.group import ShareGroup
    from barnabas.broker.groups.share.lifecycle import Errors, ShareGroups
    from barnabas.broker.share_coordinator.persister import Persister, StateSummary

UNKNOWN_LAG: Final = -1

TopicPartition = tuple[str, int]
TopicResults = dict[str, tuple[ErrorCode, str | None]]
_DELETED: Final = ErrorCode.NONE, None
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message
_NOTHING_TO_DELETE: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "There is no offset information to delete.",
)


class SharePosition(msgspec.Struct, frozen=True):
    """The start offset of a share partition, -1 if it has none, and how many records after it are not delivered, -1 if unknown.
    `error`: the end of the partition could not be found out."""

    start_offset: int = NO_START
    leader_epoch: int = 0
    lag: int = UNKNOWN_LAG
    error: ErrorCode = ErrorCode.NONE


class ShareGroupOffsets:
    """The requests about start offsets, for the groups of one shard."""

    def __init__(self, groups: ShareGroups, persister: Persister, latest: LatestOffsets) -> None:
        self._groups = groups
        self._persister = persister
        self._latest = latest

    # -- DescribeShareGroupOffsets

    def initialized(self, group_id: str) -> dict[str, list[int]]:
        """Partitions that have a state, by topic; none for other groups."""
        group = self._groups.find(group_id)
        if group is None:
            return {}
        image = self._groups.configs.image()
        return {
            each.name: sorted(each.partitions)
            for topic_id, each in group.state_topics.initialized.items()
            if image.topic_by_id(topic_id) is not None
        }

    def describe(
        self,
        group_id: str,
        topics: Mapping[str, Collection[int]],
        reply: Callable[[Mapping[TopicPartition, SharePosition]], object],
    ) -> None:
        """Positions by topic and partition; of a topic that does not exist there are none."""
        image = self._groups.configs.image()
        names = {image.topics[name].topic_id: name for name in topics if name in image.topics}
        summaries: dict[TopicPartition, StateSummary | None] = {}

        def read(key: SharePartitionKey, answered: Callable[[], object]) -> None:
            def keep(summary: StateSummary | None, _error: ErrorCode) -> None:
                # As in Kafka an error is no position: the share coordinator may not know the partition.
                summaries[names[key.topic_id], key.partition] = summary
                answered()

            self._persister.read_summary(key, keep)

        def all_read() -> None:
            wanted = [each for each, summary in summaries.items() if _has_lag(summary)]
            self._latest.find(
                wanted,
                lambda ends: reply(
                    {each: _position(summary, ends.get(each)) for each, summary in summaries.items()}
                ),
            )

        keys = [
            SharePartitionKey(group_id, topic_id, index)
            for topic_id, name in names.items()
            for index in topics[name]
        ]
        ask_each(keys, read, all_read)

    # -- AlterShareGroupOffsets

    def alter(
        self,
        group_id: str,
        names: Collection[str],
        starts: Mapping[TopicPartition, int],
        reply: Callable[[ErrorCode, str | None, Mapping[TopicPartition, ErrorCode]], object],
    ) -> None:
        """Set start offsets. As in Kafka a group begins if there is none and one of the topics exists, also if none of its partitions
        does; `names`: those topics. The reply is one error for all with its text, or errors by partition."""
        groups, image = self._groups, self._groups.configs.image()
        keys: dict[SharePartitionKey, TopicPartition] = {}
        errors: dict[TopicPartition, ErrorCode] = {}
        for name, index in starts:
            topic = image.topics.get(name)
            if topic is None or index not in topic.partitions:
                errors[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                keys[SharePartitionKey(group_id, topic.topic_id, index)] = name, index
        try:
            draft = groups.open(group_id)
            _check_empty(draft.group)
            groups.check_settled(group_id, by_topic(keys), deletes=False)
        except ApiError as refusal:
            reply(refusal.error, refusal.message, {})
            return
        if not keys:
            if names:
                groups.changes.begin(draft)
            groups.commit(draft, lambda error: reply(coordinator_error(error), None, errors))
            return
        name_of = {key.topic_id: name for key, (name, _) in keys.items()}
        topics = {
            topic_id: StateTopic(name_of[topic_id], indexes) for topic_id, indexes in by_topic(keys).items()
        }
        # A new epoch fences what leaders of the partitions have in memory (KAFKA-20910).
        groups.changes.update_epoch(draft, is_changed=True)
        epoch = draft.group.epoch
        draft.write(Key.STATE_TOPICS, "", state_topics.begin(draft.group.state_topics, topics))

        def recorded(failed: Errors, error: ErrorCode) -> None:
            errors.update({keys[key]: each for key, each in failed.items()})
            reply(coordinator_error(error), None, errors)

        def appended(error: ErrorCode) -> None:
            if error:
                reply(coordinator_error(error), None, {})
            else:
                wanted = {key: starts[each] for key, each in keys.items()}
                groups.initialize_at(group_id, epoch, wanted, recorded)

        groups.commit(draft, appended)
        group = groups.find(group_id)
        if group is not None:
            group.initialization_began(groups.runtime.time_ms())

    # -- DeleteShareGroupOffsets

    def delete(
        self,
        group_id: str,
        names: Collection[str],
        reply: Callable[[ErrorCode, str | None, TopicResults], object],
    ) -> None:
        """Delete the states of whole topics. The reply is one error for all with its text, or results by topic: none, as in Kafka, of a
        group that never had a state."""
        groups, image = self._groups, self._groups.configs.image()
        try:
            group = groups.group(group_id)
            _check_empty(group)
            topic_ids = {image.topics[name].topic_id for name in names if name in image.topics}
            groups.check_settled(group_id, topic_ids, deletes=True)
        except ApiError as refusal:
            reply(refusal.error, refusal.message, {})
            return
        if not group.has_state_topics:
            reply(ErrorCode.NONE, None, {})
            return
        states = group.state_topics
        results: TopicResults = {}
        name_of: dict[bytes, str] = {}
        deleted: dict[bytes, frozenset[int]] = {}
        for name in names:
            topic = image.topics.get(name)
            if topic is None:
                results[name] = _UNKNOWN_TOPIC
                continue
            if topic.topic_id in states.initialized:
                deleted[topic.topic_id] = states.initialized[topic.topic_id].partitions
            elif topic.topic_id in states.deleting:  # a deletion that has failed
                deleted[topic.topic_id] = frozenset(topic.partitions)
            else:
                results[name] = _NOTHING_TO_DELETE
                continue
            name_of[topic.topic_id] = name
            results[name] = _DELETED

        def appended(error: ErrorCode) -> None:
            if error:
                reply(coordinator_error(error), None, {})
            else:
                groups.delete_states(group_id, deleted, states_deleted)

        def states_deleted(failed: Errors) -> None:
            results.update({name_of[key.topic_id]: (each, each.message) for key, each in failed.items()})
            gone = deleted.keys() - by_topic(failed).keys()
            groups.change_state_topics(
                group_id,
                partial(state_topics.finish_deletion, topic_ids=gone),
                lambda error: reply(coordinator_error(error), None, results),
            )

        if deleted:
            begin = partial(state_topics.begin_deletion, topic_ids=deleted.keys() & states.initialized.keys())
            groups.change_state_topics(group_id, begin, appended)
        else:
            reply(ErrorCode.NONE, None, results)

    # -- DeleteGroups

    def delete_all(self, group_ids: Iterable[str], done: Callable[[Mapping[str, ErrorCode]], object]) -> None:
        """Delete the states of those groups that are empty share groups. `done(errors by group)`: groups that must not be deleted."""
        errors: dict[str, ErrorCode] = {}
        missing = 1

        def one_less() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(errors)

        def delete_one(group: ShareGroup) -> None:
            partitions = state_topics.all_partitions(group.state_topics, self._groups.configs.image())
            try:
                self._groups.check_settled(group.group_id, partitions, deletes=True)
            except ApiError as refusal:
                errors[group.group_id] = refusal.error
                one_less()
                return

            def appended(error: ErrorCode) -> None:
                if error:
                    errors[group.group_id] = coordinator_error(error)
                    one_less()
                else:
                    self._groups.delete_states(group.group_id, partitions, deleted)

            def deleted(failed: Errors) -> None:
                if failed:
                    errors[group.group_id] = next(iter(failed.values()))
                one_less()

            self._groups.change_state_topics(group.group_id, state_topics.begin_deletion_of_all, appended)

        for group_id in group_ids:
            group = self._groups.find(group_id)
            if group is not None and group.is_empty and group.state_topics != NO_STATE_TOPICS:
                missing += 1
                delete_one(group)
        one_less()


def _check_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP.message)


def _has_lag(summary: StateSummary | None) -> TypeGuard[StateSummary]:
    return (
        summary is not None
        and summary.start_offset != NO_START
        and summary.delivery_complete_count != UNKNOWN_COUNT
    )


def _position(summary: StateSummary | None, end: int | ErrorCode | None) -> SharePosition:
    if summary is None:
        return SharePosition()
    if not _has_lag(summary) or end is None:
        return SharePosition(summary.start_offset, summary.leader_epoch)
    if isinstance(end, ErrorCode):
        return SharePosition(0, 0, UNKNOWN_LAG, end)
    lag = min(end - summary.start_offset - summary.delivery_complete_count, LONG_MAX)
    return SharePosition(summary.start_offset, summary.leader_epoch, lag)
