"""StreamsGroupHeartbeat (KIP-1071): decisions about the members of the streams groups of one shard.

A request is decided on a draft of its group: the member's description, the topology, the epoch of the group, the target assignment when
it is due, and the member's step towards it. The records are appended together, and the response leaves when they are committed.
Source: GroupMetadataManager of Kafka's group coordinator; texts of errors are Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.modern.changes import check_epoch, unknown_member
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.values import JOINING, LEAVING
from barnabas.broker.groups.streams.changes import INITIAL_DELAY
from barnabas.broker.groups.streams.topology import ConfiguredTopology, InternalTopic, Status
from barnabas.broker.groups.streams.values import CurrentAssignment, Member, TargetTasks
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import consumer_offsets as records
from barnabas.wire.messages import streams_group_heartbeat as wire
from barnabas.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.groups.member import Client
    from barnabas.broker.groups.streams.group import StreamsGroup
    from barnabas.broker.groups.streams.lifecycle import StreamsGroups
    from barnabas.broker.groups.streams.reconciliation import Owned
    from barnabas.controller.metadata.image import MetadataImage

log = logging.getLogger(__name__)

NEW_MEMBER = Member()


class HeartbeatResult(msgspec.Struct):
    """`missing`: internal topics to create."""

    response: StreamsGroupHeartbeatResponse
    missing: tuple[InternalTopic, ...] = ()


Reply = Callable[[HeartbeatResult], None]


class StreamsProtocol:
    """The requests of members of streams groups, for the groups of one shard."""

    def __init__(self, groups: StreamsGroups) -> None:
        self._groups = groups
        self._changes = groups.changes

    def heartbeat(self, request: StreamsGroupHeartbeatRequest, client: Client, reply: Reply) -> None:
        """The reply comes once all that the response says is committed."""
        try:
            if request.member_epoch == LEAVING:
                self._leave(request, reply)
            else:
                self._update(request, client, reply)
        except ApiError as refusal:
            reply(_failed(refusal.error, refusal.message))

    # -- a member that joins, or is there

    def _update(self, request: StreamsGroupHeartbeatRequest, client: Client, reply: Reply) -> None:
        groups = self._groups
        if request.member_epoch == JOINING:
            draft = groups.open(request.group_id)
            begins_delay = draft.group.is_empty and groups.initial_delay_ms(request.group_id) > 0
        else:
            draft = Draft(groups.group(request.group_id, "Streams group"))
            begins_delay = False
        is_delayed = begins_delay or groups.is_delayed(draft.group)
        try:
            result, configured = self._decide(draft, request, client, is_delayed=is_delayed)
        except Exception:
            draft.take_back()
            raise
        draft.group.is_metadata_checked = True  # until the append fails
        draft.group.configured = configured
        groups.commit(draft, partial(_answer, reply, result))
        groups.begin_session(request.group_id, request.member_id)
        if begins_delay:
            groups.begin_delay(request.group_id)

    def _decide(
        self,
        draft: Draft[StreamsGroup],
        request: StreamsGroupHeartbeatRequest,
        client: Client,
        *,
        is_delayed: bool,
    ) -> tuple[HeartbeatResult, ConfiguredTopology]:
        group, member_id = draft.group, request.member_id
        if request.member_epoch == JOINING:
            self._changes.check_size(group)
        owned = _owned(request)
        before = self._admit(group, request, owned)
        member = _described(before or NEW_MEMBER, request, client)
        self._changes.describe(draft, member_id, member)
        given = None if request.topology is None else _recorded(request.topology)
        topology = self._changes.update_topology(draft, given)
        configured, found_hash = self._changes.configure(group, topology)
        if configured.is_ready:
            _check_tasks(configured, request)
        assigned_before = group.current(member_id).assigned
        self._changes.update_epoch(draft, configured, found_hash, is_changed=member != before)
        if is_delayed:
            delay: str | None = INITIAL_DELAY
            target = TargetTasks()
        else:
            delay = self._changes.update_target(draft, configured)
            target = group.target(member_id)
        current = self._changes.step(draft, member_id, owned, target)
        if request.shutdown_application and group.shutdown_by is None:
            log.info("Group %s: member %s asks all to shut down", group.group_id, member_id)
            group.shutdown_by = member_id
        response = StreamsGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self._groups.configs.number(
                group.group_id, "streams.heartbeat.interval.ms"
            ),
            status=_statuses(group, member, topology.epoch, delay, configured),
        )
        if request.member_epoch == JOINING or current.assigned != assigned_before:
            _show_tasks(response, current)
            if member.user_endpoint is not None:
                group.endpoint_epoch += 1
        if group.endpoint_epoch != request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = partitions_by_endpoint(
                group, member_id, configured, self._groups.configs.image()
            )
        if self._groups.find(group.group_id) is group:
            response.endpoint_information_epoch = group.endpoint_epoch
        return HeartbeatResult(response, configured.missing), configured

    def _admit(
        self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest, owned: Owned
    ) -> Member | None:
        member = group.members.get(request.member_id)
        if member is not None:
            check_epoch(
                group,
                request.member_id,
                request.member_epoch,
                lambda: _is_within(owned, group.current(request.member_id)),
            )
        elif request.member_epoch != JOINING:
            raise unknown_member(group, request.member_id)
        return member

    # -- a member that leaves

    def _leave(self, request: StreamsGroupHeartbeatRequest, reply: Reply) -> None:
        group, member_id = self._groups.group(request.group_id), request.member_id
        if request.shutdown_application and group.shutdown_by is None:
            group.shutdown_by = member_id
        if member_id not in group.members:
            raise unknown_member(group, member_id)
        log.info("Group %s: member %s leaves", group.group_id, member_id)
        response = StreamsGroupHeartbeatResponse(
            member_id=member_id, member_epoch=request.member_epoch, status=[]
        )
        self._groups.remove(group, [member_id], partial(_answer, reply, HeartbeatResult(response)))


def _answer(reply: Reply, result: HeartbeatResult, error: ErrorCode) -> None:
    failed = coordinator_error(error)
    reply(_failed(failed, None) if failed else result)


def _failed(error: ErrorCode, message: str | None) -> HeartbeatResult:
    return HeartbeatResult(StreamsGroupHeartbeatResponse(error_code=error, error_message=message))


def _statuses(
    group: StreamsGroup,
    member: Member,
    topology_epoch: int,
    delay: str | None,
    configured: ConfiguredTopology,
) -> list[wire.Status]:
    found: list[tuple[Status, str]] = []
    if member.topology_epoch < topology_epoch:
        text = f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch {topology_epoch}."
        found.append((Status.STALE_TOPOLOGY, text))
    if delay is not None:
        found.append((Status.ASSIGNMENT_DELAYED, delay))
    if configured.problem is not None:
        found.append(configured.problem)
    if group.shutdown_by is not None:
        text = (
            f"Streams group member {group.shutdown_by} encountered a fatal error and requested a shutdown for the entire "
            "application."
        )
        found.append((Status.SHUTDOWN_APPLICATION, text))
    return [wire.Status(*each) for each in found]


def _show_tasks(response: StreamsGroupHeartbeatResponse, current: CurrentAssignment) -> None:
    response.active_tasks, response.standby_tasks, response.warmup_tasks = (
        [wire.ResponseTaskIds(name, sorted(indexes)) for name, indexes in sorted(tasks.items())]
        for tasks in current.assigned.by_role()
    )


def _owned(request: StreamsGroupHeartbeatRequest) -> Owned:
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return TargetTasks(_sets(active), _sets(standby), _sets(warmup))


def _sets(tasks: Iterable[wire.TaskIds]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for each in tasks:
        found.setdefault(each.subtopology_id, set()).update(each.partitions)
    return {subtopology_id: frozenset(indexes) for subtopology_id, indexes in found.items()}


def _described(before: Member, request: StreamsGroupHeartbeatRequest, client: Client) -> Member:
    """The member as the request describes it; what is null has not changed."""
    endpoint, tags, timeout_ms = request.user_endpoint, request.client_tags, request.rebalance_timeout_ms
    changes: dict[str, object] = {
        "client_id": client.client_id,
        "client_host": client.client_host,
        "rack_id": request.rack_id,
        "process_id": request.process_id,
        "rebalance_timeout_ms": None if timeout_ms == -1 else timeout_ms,
        "topology_epoch": None if request.topology is None else request.topology.epoch,
        "user_endpoint": None if endpoint is None else (endpoint.host, endpoint.port),
        "client_tags": None
        if tags is None
        else tuple(sorted({each.key: each.value for each in tags}.items())),
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return msgspec.structs.replace(before, **given)


def _recorded(topology: wire.Topology) -> records.StreamsGroupTopologyValue:
    def topics(given: list[wire.TopicInfo]) -> list[records.StreamsGroupTopologyValueTopicInfo]:
        return [
            records.StreamsGroupTopologyValueTopicInfo(
                each.name,
                each.partitions,
                each.replication_factor,
                [records.TopicConfig(config.key, config.value) for config in each.topic_configs],
            )
            for each in given
        ]

    return records.StreamsGroupTopologyValue(
        topology.epoch,
        [
            records.Subtopology(
                each.subtopology_id,
                each.source_topics,
                each.source_topic_regex,
                topics(each.state_changelog_topics),
                each.repartition_sink_topics,
                topics(each.repartition_source_topics),
                [
                    records.CopartitionGroup(
                        group.source_topics, group.source_topic_regex, group.repartition_source_topics
                    )
                    for group in each.copartition_groups
                ],
            )
            for each in topology.subtopologies
        ],
    )


def _is_within(owned: Owned, current: CurrentAssignment) -> bool:
    if owned is None:
        return False
    roles: Iterable[tuple[Mapping[str, frozenset[int]], Mapping[str, Mapping[int, int] | frozenset[int]]]] = (
        zip((owned.active, owned.standby, owned.warmup), current.assigned.by_role(), strict=True)
    )
    return all(
        subtopology_id in assigned and all(index in assigned[subtopology_id] for index in indexes)
        for owning, assigned in roles
        for subtopology_id, indexes in owning.items()
    )


def _check_tasks(configured: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> None:
    """INVALID_REQUEST for tasks that do not exist."""
    for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        for each in tasks or ():
            subtopology = configured.subtopologies.get(each.subtopology_id)
            if subtopology is None:
                text = f"Subtopology {each.subtopology_id} does not exist in the topology."
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
            for index in each.partitions:
                if not 0 <= index < subtopology.task_count:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"Task {index} for subtopology {each.subtopology_id} is invalid. Number of tasks for this "
                        f"subtopology: {subtopology.task_count}",
                    )


def partitions_by_endpoint(
    group: StreamsGroup, asking_id: str, configured: ConfiguredTopology, image: MetadataImage
) -> list[wire.EndpointToPartitions]:
    """Which member answers queries of which partitions: of all that have an endpoint (application.server); that of the member which asks
    comes last."""
    found = []
    for member_id in sorted(group.members, key=lambda each: (each == asking_id, each)):
        endpoint = group.members[member_id].user_endpoint
        if endpoint is not None:
            assigned = group.current(member_id).assigned
            found.append(
                wire.EndpointToPartitions(
                    wire.ResponseEndpoint(*endpoint),
                    _partitions(assigned.active, configured, image),
                    _partitions(assigned.standby, configured, image),
                )
            )
    return found


def _partitions(
    tasks: Mapping[str, Mapping[int, int] | frozenset[int]],
    configured: ConfiguredTopology,
    image: MetadataImage,
) -> list[wire.TopicPartition]:
    """Of the topics that exist; a topic may have fewer partitions than there are tasks."""
    found = []
    for subtopology_id, indexes in tasks.items():
        subtopology = configured.subtopologies.get(subtopology_id)
        for topic in () if subtopology is None else subtopology.sources:
            if topic in image.topics:
                count = len(image.topics[topic].partitions)
                found.append(
                    wire.TopicPartition(topic, [index for index in sorted(indexes) if index < count])
                )
    return found
