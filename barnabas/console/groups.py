"""Views of groups: all of them, and one with its members, committed offsets and lags."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from barnabas.broker.groups.consumer.embedded_protocol import MalformedProtocol, assignment
from barnabas.console.cluster import TEXT_MAX, Cluster, RowPage, Unanswered, error_name, page_of
from barnabas.console.topics import LATEST, offsets
from barnabas.controller.metadata.image import NO_LEADER
from barnabas.runtime.http import HttpError
from barnabas.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.streams_group_describe import StreamsGroupDescribeRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.controller.metadata.image import PartitionState
    from barnabas.runtime.slices import Steps

OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, DESCRIBE_SHARE_OFFSETS = 9, 15, 16, 90
CONSUMER_PROTOCOL: Final = "consumer"
MEMBERS_MAX: Final = 500
OFFSETS_MAX: Final = 1000
ASSIGNED_MAX: Final = 5000  # partitions of all members
# By the type of the group: API key, version, and the class of the request
_DESCRIBES: Final[dict[str, tuple[int, int, Any]]] = {
    "consumer": (69, 1, ConsumerGroupDescribeRequest),
    "share": (77, 1, ShareGroupDescribeRequest),
    "streams": (89, 0, StreamsGroupDescribeRequest),
}


class GroupRow(msgspec.Struct):
    id: str
    type: str
    state: str
    protocol: str
    coordinator: int


class GroupPage(msgspec.Struct):
    groups: list[GroupRow]
    total: int  # that match
    has_more: bool
    problems: list[str]


class MemberRow(msgspec.Struct):
    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assigned: list[tuple[str, list[int]]]  # (topic, or the subtopology of a streams group, partitions)


class OffsetRow(msgspec.Struct):
    """`committed`: of a share group, the offset before which all is finished. `lag` None: it is not known."""

    topic: str
    partition: int
    committed: int
    end: int | None
    lag: int | None
    member: str  # that has the partition; "": none


class GroupView(msgspec.Struct):
    id: str
    type: str
    state: str
    protocol: str
    epoch: int | None
    coordinator: int
    member_count: int
    members: list[MemberRow]
    offset_count: int
    offsets: list[OffsetRow]
    total_lag: int
    problems: list[str]


async def group_page(cluster: Cluster, contained: str, after: str, limit: int) -> GroupPage:
    """Every broker lists the groups that it coordinates."""
    brokers = cluster.brokers()
    answers = await cluster.all([cluster.ask(each, LIST_GROUPS, 5, ListGroupsRequest()) for each in brokers])
    problems: list[str] = []
    rows: list[tuple[str, tuple[Any, int]]] = []
    for broker_id, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, Unanswered):
            problems.append(str(answer))
        elif answer.error_code:
            problems.append(f"broker {broker_id}: {error_name(answer.error_code)}")
        else:
            rows += [(each.group_id, (each, broker_id)) for each in answer.groups]
    page = await cluster.in_slices(page_of(rows, contained, after, limit))
    found = [
        GroupRow(group_id, each.group_type, each.group_state, each.protocol_type[:TEXT_MAX], broker_id)
        for group_id, (each, broker_id) in page.rows
    ]
    return GroupPage(found, page.total, page.has_more, problems)


async def group_view(cluster: Cluster, group_id: str) -> GroupView:
    """HttpError when there is no such group."""
    coordinator = cluster.host.groups.topic.node_of(group_id)
    if coordinator == NO_LEADER:
        raise HttpError(404, f"no broker coordinates the group {group_id[:TEXT_MAX]!r} now")
    listed = await cluster.ask(coordinator, LIST_GROUPS, 5, ListGroupsRequest())
    group_type = next((each.group_type for each in listed.groups if each.group_id == group_id), None)
    if group_type is None:
        raise HttpError(404, f"there is no group {group_id[:TEXT_MAX]!r}")
    if group_type in _DESCRIBES:
        key, version, make = _DESCRIBES[group_type]
        described = await cluster.ask(coordinator, key, version, make(group_ids=[group_id]))
    else:
        described = await cluster.ask(coordinator, DESCRIBE_GROUPS, 5, DescribeGroupsRequest([group_id]))
    (group,) = described.groups
    if group.error_code:
        raise HttpError(502, error_name(group.error_code))
    members = await cluster.in_slices(_members(group))
    read = _share_offsets if group_type == "share" else _committed
    offsets_read = await read(cluster, coordinator, group_id)
    rows, problems = await _lags(cluster, [each for _, each in offsets_read.rows], _owners(members))
    return GroupView(
        group_id,
        group_type,
        group.group_state,
        getattr(group, "protocol_data", "") or getattr(group, "assignor_name", ""),
        getattr(group, "group_epoch", None),
        coordinator,
        len(group.members),
        members,
        offsets_read.total,
        rows,
        sum(each.lag for each in rows if each.lag is not None),
        problems,
    )


def _members(group: Any) -> Steps[list[MemberRow]]:
    """The first of them, with the first partitions that they have: a classic group's may claim any number."""
    left = ASSIGNED_MAX
    rows = []
    for member in group.members[:MEMBERS_MAX]:
        row = _member(member, group, left)
        left -= sum(len(partitions) for _, partitions in row.assigned)
        rows.append(row)
        yield None
    return rows


def _member(member: Any, group: Any, count: int) -> MemberRow:
    """With at most so many of its partitions."""
    assigned = []
    for topic, partitions in _assigned(member, group) if count else ():
        assigned.append((topic[:TEXT_MAX], partitions[:count]))
        count -= len(partitions[:count])
        if not count:
            break
    return MemberRow(
        member.member_id[:TEXT_MAX],
        getattr(member, "instance_id", None) or getattr(member, "group_instance_id", None),
        member.client_id[:TEXT_MAX],
        member.client_host[:TEXT_MAX],
        assigned,
    )


def _assigned(member: Any, group: Any) -> Iterable[tuple[str, list[int]]]:
    """What a member of a group of any type has."""
    if hasattr(member, "member_assignment"):
        if group.protocol_type != CONSUMER_PROTOCOL or not member.member_assignment:
            return ()
        try:
            topics = assignment(bytes(member.member_assignment)).assigned_partitions
        except MalformedProtocol:
            return ()
        return ((each.topic, each.partitions) for each in topics)
    if hasattr(member.assignment, "active_tasks"):
        tasks = member.assignment.active_tasks
        return ((f"subtopology {each.subtopology_id}", each.partitions) for each in tasks)
    return ((each.topic_name, each.partitions) for each in member.assignment.topic_partitions)


def _owners(members: Iterable[MemberRow]) -> dict[tuple[str, int], str]:
    return {
        (topic, index): member.id
        for member in members
        for topic, indexes in member.assigned
        for index in indexes
    }


# Topic, partition, committed offset, and the lag where it is known
_Committed: TypeAlias = "tuple[str, int, int, int | None]"


async def _committed(cluster: Cluster, coordinator: int, group_id: str) -> RowPage[_Committed]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=None)])
    (answer,) = (await cluster.ask(coordinator, OFFSET_FETCH, 8, request)).groups
    return await _first(
        cluster,
        (
            (topic.name, each.partition_index, each.committed_offset, None)
            for topic in answer.topics
            for each in topic.partitions
            if not each.error_code
        ),
    )


async def _share_offsets(cluster: Cluster, coordinator: int, group_id: str) -> RowPage[_Committed]:
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id, None)
    request = DescribeShareGroupOffsetsRequest([wanted])
    (answer,) = (await cluster.ask(coordinator, DESCRIBE_SHARE_OFFSETS, 1, request)).groups
    return await _first(
        cluster,
        (
            (topic.topic_name, each.partition_index, each.start_offset, each.lag if each.lag >= 0 else None)
            for topic in answer.topics
            for each in topic.partitions
            if not each.error_code
        ),
    )


async def _first(cluster: Cluster, offsets: Iterable[_Committed]) -> RowPage[_Committed]:
    """The first of them by topic and partition."""
    rows = ((f"{each[0]} {each[1]:010}", each) for each in offsets)
    page: RowPage[_Committed] = await cluster.in_slices(page_of(rows, "", "", OFFSETS_MAX))
    return page


async def _lags(
    cluster: Cluster,
    found: list[_Committed],
    owners: dict[tuple[str, int], str],
) -> tuple[list[OffsetRow], list[str]]:
    image = cluster.image
    states: dict[str, dict[int, PartitionState]] = defaultdict(dict)
    for name, index, _, _ in found:
        topic = image.topics.get(name)
        if topic is not None and index in topic.partitions:
            states[name][index] = topic.partitions[index]
    ends = await offsets(cluster, states, LATEST)
    rows = []
    for name, index, committed, lag in found:
        end = ends.found.get((name, index))
        if lag is None and end is not None and committed >= 0:
            lag = max(0, end - committed)
        rows.append(OffsetRow(name, index, committed, end, lag, owners.get((name, index), "")))
    return rows, ends.problems
