"""OffsetCommit, OffsetFetch and OffsetDelete on the offsets of one shard, and their expiry.

Topics come by name and are known to exist: the handlers look up ids and answer for what does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from barnabas.broker.groups.offsets import CommittedOffset, DeletedTopic
from barnabas.broker.groups.rebalance import coordinator_error
from barnabas.broker.groups.records import GroupRecord, GroupTombstone, OffsetWritten
from barnabas.broker.groups.state import GroupState
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.offsets import OffsetStore
    from barnabas.broker.groups.rebalance import Rebalancer
    from barnabas.broker.groups.settings import GroupSettings

log = logging.getLogger(__name__)


class GroupsAndOffsets(Protocol):
    """A shard, as far as offset requests use it."""

    groups: dict[str, ClassicGroup]
    offsets: OffsetStore
    rebalancer: Rebalancer

    def get(self, group_id: str) -> ClassicGroup | None: ...

    def append(self, records: list[GroupRecord], done: Callable[[ErrorCode], None]) -> None: ...


class OffsetRequests:
    """What clients do to committed offsets."""

    def __init__(self, shard: GroupsAndOffsets, settings: GroupSettings, now_ms: Callable[[], int]) -> None:
        self._shard = shard
        self._settings = settings
        self._now_ms = now_ms

    # -- OffsetCommit

    def commit(
        self,
        request: OffsetCommitRequest,
        topics: list[OffsetCommitRequestTopic],
        api_version: int,
        reply: Callable[[ErrorCode, list[OffsetCommitResponseTopic]], None],
    ) -> None:
        """Commit `topics`, those of the request's that exist. The reply is one error for all, or results by
        topic; it comes once the offsets are committed to the log."""
        error = self._check_commit(request, api_version)
        if error:
            reply(error, [])
            return
        records: list[GroupRecord] = []
        results: list[OffsetCommitResponseTopic] = []
        now_ms = self._now_ms()
        retention_ms = request.retention_time_ms
        expire_timestamp = -1 if retention_ms == -1 else now_ms + retention_ms
        for topic in topics:
            partitions = []
            for partition in topic.partitions:
                error = self._check_metadata(partition.committed_metadata)
                partitions.append(
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                )
                if not error:
                    value = _position(partition, now_ms, expire_timestamp, topic.topic_id)
                    key = (request.group_id, topic.name, partition.partition_index)
                    records.append(OffsetWritten(key, value))
            results.append(
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            )
        if records:
            self._shard.append(
                records, lambda error: reply(coordinator_error(error), [] if error else results)
            )
        else:
            reply(ErrorCode.NONE, results)

    def _check_metadata(self, metadata: str | None) -> ErrorCode:
        too_large = metadata is not None and len(metadata) > self._settings.offset_metadata_max_bytes
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE

    def _check_commit(self, request: OffsetCommitRequest, api_version: int) -> ErrorCode:
        generation_id = request.generation_id_or_member_epoch
        group = self._shard.get(request.group_id)
        if group is None:
            if generation_id < 0:
                return ErrorCode.NONE  # a consumer without membership; replay makes a simple group
            return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
        error = _check_committer(group, request)
        if not error and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            member = group.members[request.member_id]
            self._shard.rebalancer.heartbeat(group, member)
        return error

    # -- OffsetDelete

    def delete(
        self,
        group_id: str,
        topics: dict[str, list[int]],
        reply: Callable[[ErrorCode, dict[str, ErrorCode]], None],
    ) -> None:
        """Delete positions by topic name and partition. The reply is one error for all, or one by topic:
        a topic that the group reads is GROUP_SUBSCRIBED_TO_TOPIC; deleting what is not there succeeds."""
        group = self._shard.get(group_id)
        if group is None:
            reply(ErrorCode.GROUP_ID_NOT_FOUND, {})
            return
        if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol():
            reply(ErrorCode.NON_EMPTY_GROUP, {})
            return
        offsets = self._shard.offsets
        records: list[GroupRecord] = []
        errors: dict[str, ErrorCode] = {}
        for topic, partitions in topics.items():
            subscribed = group.is_subscribed_to(topic)
            errors[topic] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            if not subscribed:
                records += [
                    OffsetWritten((group_id, topic, partition), None)
                    for partition in dict.fromkeys(partitions)
                    if offsets.get(group_id, topic, partition, committed=False) is not None
                ]
        if records:
            self._shard.append(records, lambda error: reply(coordinator_error(error), errors))
        else:
            reply(ErrorCode.NONE, errors)

    # -- DeleteGroups

    def delete_groups(self, group_ids: list[str], reply: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Delete empty groups with their offsets."""
        errors: dict[str, ErrorCode] = {}
        records: list[GroupRecord] = []
        for group_id in group_ids:
            group = self._shard.get(group_id)
            if group is None:
                errors[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                errors[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                errors[group_id] = ErrorCode.NONE
                records += self._offset_tombstones(group_id)
                records.append(GroupTombstone(group_id))

        def appended(error: ErrorCode) -> None:
            failed = coordinator_error(error)
            reply({each: failed if failed and not found else found for each, found in errors.items()})

        if records:
            self._shard.append(records, appended)
        else:
            reply(errors)

    def _offset_tombstones(self, group_id: str) -> list[GroupRecord]:
        return [
            OffsetWritten((group_id, topic, partition), None)
            for topic, partitions in self._shard.offsets.topics(group_id).items()
            for partition in partitions
        ]

    # -- expiry and deleted topics

    def expire(self, now_ms: int) -> None:
        """Remove offsets past their retention, and empty groups that have none left."""
        for group in tuple(self._shard.groups.values()):
            records = self._expired_offsets(group, now_ms)
            stored = sum(
                len(partitions) for partitions in self._shard.offsets.topics(group.group_id).values()
            )
            if stored == len(records) and group.state is GroupState.EMPTY:
                records.append(GroupTombstone(group.group_id))
            if records:
                log.info("Group %s: %d records expire", group.group_id, len(records))
                self._shard.append(records, _ignore)

    def _expired_offsets(self, group: ClassicGroup, now_ms: int) -> list[GroupRecord]:
        records: list[GroupRecord] = []
        for topic, partitions in self._shard.offsets.topics(group.group_id).items():
            if group.is_subscribed_to(topic):
                continue
            for partition, position in partitions.items():
                if self._is_expired(group, position, now_ms):
                    records.append(OffsetWritten((group.group_id, topic, partition), None))
        return records

    def _is_expired(self, group: ClassicGroup, position: CommittedOffset, now_ms: int) -> bool:
        """KIP-211. Kept by membership: a group with members expires only, when Stable and its topics are
        known, what it no longer subscribes to; an empty one everything, counted from when it became empty;
        one without membership each offset from its commit. A retention time in the commit overrules."""
        if group.protocol_type is None:
            base = position.commit_timestamp
        elif group.state is GroupState.EMPTY:
            base = position.commit_timestamp if group.state_timestamp is None else group.state_timestamp
        elif (
            group.uses_consumer_protocol()
            and group.subscribed_topics is not None
            and group.state is GroupState.STABLE
        ):
            base = position.commit_timestamp
        else:
            return False
        if position.expire_timestamp != -1:
            return now_ms >= position.expire_timestamp
        return now_ms - base >= self._settings.offsets_retention_ms

    def topics_deleted(self, topics: list[DeletedTopic]) -> None:
        """Remove the offsets of deleted topics; one committed for another topic of that name stays."""
        records: list[GroupRecord] = [
            OffsetWritten((group_id, topic.name, partition), None)
            for topic in topics
            for group_id, partition, position in self._shard.offsets.positions_of_topic(topic.name)
            if not any(position.topic_id) or position.topic_id == topic.topic_id
        ]
        if records:
            self._shard.append(records, _ignore)


def _ignore(error: ErrorCode) -> None:
    if error:
        log.warning("tombstones could not be written: %s", error.name)


def _check_committer(group: ClassicGroup, request: OffsetCommitRequest) -> ErrorCode:
    generation_id = request.generation_id_or_member_epoch
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # an administrator, or a consumer without membership
    if generation_id < 0 and not request.member_id and request.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID  # such a one must not interfere with living members
    error = group.check_member(request.member_id, request.group_instance_id)
    if error:
        return error
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _position(
    partition: OffsetCommitRequestPartition, now_ms: int, expire_timestamp: int, topic_id: bytes
) -> CommittedOffset:
    return CommittedOffset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expire_timestamp,
        topic_id=topic_id,
    )
