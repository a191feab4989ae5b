"""OffsetCommit, TxnOffsetCommit, OffsetDelete and DeleteGroups for one shard, and the expiry of offsets.

Topics are given by name and exist: the handlers look up ids and answer for topics that do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.pending_writes import PendingWrite
from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.modern.group import ModernGroup
from barnabas.broker.groups.modern.offset_checks import check_commit, check_transactional_commit
from barnabas.broker.groups.offsets import CommittedOffset, DeletedTopic, Key, State
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupTombstone,
    OffsetWritten,
    PendingOffsetWritten,
    encode_transactional_batch,
)
from barnabas.broker.groups.state import GroupState
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.runtime.slices import in_slices
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shard_log import ShardLog
    from barnabas.broker.groups.group_store import Group, GroupStore
    from barnabas.broker.groups.rebalance import Rebalancer
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
    from barnabas.storage.log.verification import Verification

log = logging.getLogger(__name__)
OFFSETS_AT_ONCE: Final = 500  # looked at, and removed in one batch; more take longer than some ms


def metadata_error(metadata: str | None, bytes_max: int) -> ErrorCode:
    """Of a commit. `bytes_max`: offset.metadata.max.bytes."""
    too_large = metadata is not None and len(metadata) > bytes_max
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE


class OffsetRequests:
    """The requests that change committed offsets, and their expiry."""

    def __init__(
        self,
        store: GroupStore,
        shard_log: ShardLog[GroupRecord],
        rebalancer: Rebalancer,
        settings: GroupSettings,
        configs: GroupConfigs,
        now_ms: Callable[[], int],
    ) -> None:
        self._groups = store.groups
        self._offsets = store.offsets
        self._rebalancer = rebalancer
        self._append = rebalancer.append
        self._log = shard_log
        self._settings = settings
        self._configs = configs
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
        error = self._check_commit(request, topics, api_version)
        if error:
            reply(error, [])
            return
        records: list[GroupRecord] = []
        results: list[OffsetCommitResponseTopic] = []
        now_ms, metadata_max = self._now_ms(), self._settings.offset_metadata_max_bytes
        retention_ms = request.retention_time_ms
        expire_timestamp = -1 if retention_ms == -1 else now_ms + retention_ms
        for topic in topics:
            partitions = []
            for partition in topic.partitions:
                error = metadata_error(partition.committed_metadata, metadata_max)
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
            self._append(records, lambda error: reply(coordinator_error(error), [] if error else results))
        else:
            reply(ErrorCode.NONE, results)

    def _check_commit(
        self, request: OffsetCommitRequest, topics: list[OffsetCommitRequestTopic], api_version: int
    ) -> ErrorCode:
        generation_id = request.generation_id_or_member_epoch
        group = self._groups.get(request.group_id)
        if group is None:
            if generation_id < 0:
                return ErrorCode.NONE  # a consumer without membership; replay makes a simple group
            return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ModernGroup) and group.commits_offsets:
            partitions = [
                (topic.name, topic.topic_id, each.partition_index)
                for topic in topics
                for each in topic.partitions
            ]
            return check_commit(group, request.member_id, generation_id, partitions, api_version=api_version)
        if not isinstance(group, ClassicGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = _check_committer(group, request.member_id, request.group_instance_id, generation_id)
        if not error and group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if not error and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            member = group.members[request.member_id]
            self._rebalancer.heartbeat(group, member)
        return error

    # -- TxnOffsetCommit

    def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        topics: list[TxnOffsetCommitRequestTopic],
        verification: Verification | None,
        reply: Callable[[ErrorCode], None],
    ) -> None:
        """Write `topics`, those of the request's that exist, inside the producer's transaction, which has been verified, but for
        partitions with too much metadata. The reply comes once the records are committed to the log."""
        error = self._check_transactional_commit(request, topics)
        if error:
            reply(error)
            return
        now_ms, metadata_max = self._now_ms(), self._settings.offset_metadata_max_bytes
        records = [
            PendingOffsetWritten(
                (request.group_id, topic.name, partition.partition_index),
                PendingWrite(request.producer_id, _position(partition, now_ms)),
            )
            for topic in topics
            for partition in topic.partitions
            if not metadata_error(partition.committed_metadata, metadata_max)
        ]
        if records:
            self._log.append_in_transaction(
                records,
                lambda now_ms: encode_transactional_batch(
                    records, now_ms, request.producer_id, request.producer_epoch
                ),
                verification,
                lambda error: reply(coordinator_error(error)),
            )
        else:
            reply(ErrorCode.NONE)

    def _check_transactional_commit(
        self, request: TxnOffsetCommitRequest, topics: list[TxnOffsetCommitRequestTopic]
    ) -> ErrorCode:
        """Older versions and some clients give no member; they are accepted beside members (KAFKA-18060)."""
        generation_id = request.generation_id
        group = self._groups.get(request.group_id)
        if group is None:  # replay makes a simple group
            return ErrorCode.NONE if generation_id < 0 else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ModernGroup) and not group.commits_offsets:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if isinstance(group, ModernGroup):
            named = self._configs.image().topics
            partitions = [
                (topic.name, named[topic.name].topic_id, each.partition_index)
                for topic in topics
                if topic.name in named
                for each in topic.partitions
            ]
            return check_transactional_commit(
                group, request.member_id, request.group_instance_id, generation_id, partitions
            )
        if generation_id < 0 and not request.member_id and request.group_instance_id is None:
            return ErrorCode.NONE
        return _check_committer(group, request.member_id, request.group_instance_id, generation_id)

    # -- OffsetDelete

    def delete(
        self,
        group_id: str,
        topics: dict[str, list[int]],
        reply: Callable[[ErrorCode, dict[str, ErrorCode]], None],
    ) -> None:
        """Delete positions by topic name and partition. The reply is one error for all, or one by topic:
        GROUP_SUBSCRIBED_TO_TOPIC where the group reads it; deleting a position that does not exist succeeds."""
        group = self._groups.get(group_id)
        if group is None or (isinstance(group, ModernGroup) and not group.commits_offsets):
            reply(ErrorCode.GROUP_ID_NOT_FOUND, {})
            return
        if not (group.is_empty or group.uses_consumer_protocol() or isinstance(group, StreamsGroup)):
            reply(ErrorCode.NON_EMPTY_GROUP, {})
            return
        records: list[GroupRecord] = []
        errors: dict[str, ErrorCode] = {}
        pending = self._offsets.pending_of(group_id)
        for topic, partitions in topics.items():
            subscribed = group.is_subscribed_to(topic)
            errors[topic] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            if not subscribed:
                records += [
                    OffsetWritten((group_id, topic, partition), None)
                    for partition in dict.fromkeys(partitions)
                    if self._offsets.get(group_id, topic, partition, committed=False) is not None
                    or (group_id, topic, partition) in pending
                ]
        if records:
            self._append(records, lambda error: reply(coordinator_error(error), errors))
        else:
            reply(ErrorCode.NONE, errors)

    # -- DeleteGroups

    def delete_groups(self, group_ids: list[str], reply: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Delete empty groups with their offsets, and what open transactions have written for them."""
        errors: dict[str, ErrorCode] = {}
        records: list[GroupRecord] = []
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is None:
                errors[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                errors[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                errors[group_id] = ErrorCode.NONE
                records += self._offset_tombstones(group_id)
                records += _tombstones(group)

        def appended(error: ErrorCode) -> None:
            failed = coordinator_error(error)
            reply({each: failed if failed and not found else found for each, found in errors.items()})

        if records:
            self._append(records, appended)
        else:
            reply(errors)

    def _offset_tombstones(self, group_id: str) -> list[GroupRecord]:
        keys = dict.fromkeys(
            (group_id, topic, partition)
            for topic, partitions in self._offsets.topics(group_id).items()
            for partition in partitions
        )
        keys.update(dict.fromkeys(self._offsets.pending_of(group_id)))
        return [OffsetWritten(key, None) for key in keys]

    # -- expiry and deleted topics

    def expire(self, now_ms: int) -> Generator[None, None, None]:
        """Remove offsets past their retention, and empty groups that have none left. What an open transaction has written stays,
        and so does its group (KAFKA-19163)."""
        looked_at = 0
        for group in tuple(self._groups.values()):
            topics = self._offsets.topics(group.group_id)
            positions = [(topic, partition) for topic, each in topics.items() for partition in each]
            for start in range(0, max(len(positions), 1), OFFSETS_AT_ONCE):
                if looked_at >= OFFSETS_AT_ONCE:
                    yield
                    looked_at = 0
                some = positions[start : start + OFFSETS_AT_ONCE]
                looked_at += 1 + len(some)
                if self._groups.get(group.group_id) is group:
                    self._expire(group, some, now_ms)

    def _expire(self, group: Group, positions: list[tuple[str, int]], now_ms: int) -> None:
        """Remove those that are past their retention, and the group if it has no others."""
        group_id = group.group_id
        pending = self._offsets.pending_of(group_id)
        subscribed = {topic for topic, _ in positions if group.is_subscribed_to(topic)}
        records: list[GroupRecord] = []
        for topic, partition in positions:
            key = group_id, topic, partition
            position = None if topic in subscribed else self._offsets.get(*key, committed=False)
            if position is not None and self._is_expired(group, position, now_ms) and key not in pending:
                records.append(OffsetWritten(key, None))
        stored = sum(len(partitions) for partitions in self._offsets.topics(group_id).values())
        is_unused = group.is_empty and not (isinstance(group, ModernGroup) and not group.commits_offsets)
        if stored == len(records) and not pending and is_unused:
            records += _tombstones(group)
        if records:
            log.info("Group %s: %d records expire", group_id, len(records))
            self._append(records, _ignore)

    def _is_expired(self, group: Group, position: CommittedOffset, now_ms: int) -> bool:
        """KIP-211. Of a group with members, positions of topics expire that it no longer subscribes to, if it is Stable and its
        topics are known; of an empty one all, counted from when it became empty; of one without membership each, counted from
        its commit, and so of all but classic groups. A retention time in the commit takes precedence."""
        if isinstance(group, ModernGroup) or group.protocol_type is None:
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
        """Remove the offsets of deleted topics, committed or pending; one committed for another topic of that name stays."""
        ids: dict[str, set[bytes]] = {}
        for topic in topics:
            ids.setdefault(topic.name, set()).add(topic.topic_id)
        keys = [
            key
            for key, position in self._offsets.positions_of(ids.keys())
            if not any(position.topic_id) or position.topic_id in ids[key[1]]
        ]
        for key in self._offsets.pending_keys():  # transactional commits have no topic id
            if key[1] in ids and self._offsets.get(*key, committed=False) is None:
                keys.append(key)
        if keys:
            states = [(key, self._offsets.state(key)) for key in keys]
            in_slices(self._rebalancer.runtime, self._remove(states), lambda: None)

    def _remove(self, states: list[tuple[Key, State]]) -> Generator[None, None, None]:
        """Remove positions, but those that were written since: a topic of the same name may be there by now."""
        for start in range(0, len(states), OFFSETS_AT_ONCE):
            records: list[GroupRecord] = [
                OffsetWritten(key, None)
                for key, state in states[start : start + OFFSETS_AT_ONCE]
                if self._offsets.state(key) == state
            ]
            if self._log.is_closed:
                return
            if records:
                self._append(records, _ignore)
            yield


def _tombstones(group: Group) -> list[GroupRecord]:
    """The records that remove the group."""
    return [*group.tombstones()] if isinstance(group, ModernGroup) else [GroupTombstone(group.group_id)]


def _ignore(error: ErrorCode) -> None:
    if error:
        log.warning("tombstones could not be written: %s", error.name)


def _check_committer(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation_id: int
) -> ErrorCode:
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # an administrator, or a consumer without membership
    if generation_id < 0 and not member_id and instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID  # a client that is no member must not interfere with members
    error = group.check_member(member_id, instance_id)
    if not error and generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _position(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now_ms: int,
    expire_timestamp: int = -1,
    topic_id: bytes = ZERO_UUID,
) -> CommittedOffset:
    return CommittedOffset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expire_timestamp,
        topic_id=topic_id,
    )
