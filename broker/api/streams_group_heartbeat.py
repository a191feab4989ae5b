"""StreamsGroupHeartbeat (88), version 0: the one request of a member of a streams group (KIP-1071).

Internal topics that are missing are created in the name of who sends it. As in Kafka 4.3, static members, warm-up tasks, offsets of
tasks, regular expressions of source topics and changes of the topology are refused.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.cluster.topic_creation import create_topics
from barnabas.broker.groups.member import Client
from barnabas.broker.groups.modern.values import JOINING
from barnabas.broker.groups.streams.heartbeats import HeartbeatResult
from barnabas.broker.groups.streams.internal_topics import Done
from barnabas.broker.groups.streams.topology import TASKS_MAX, Status
from barnabas.broker.requests.authorization import allows_cluster, allows_group, allows_topic, refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.controller.operations.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import streams_group_heartbeat as wire
from barnabas.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

SUBTOPOLOGIES_MAX = 1000
TOPOLOGY_PARTS_MAX = 10_000
_LEFT_FOR_NOW = -2
_ALL_OR_NONE = "If one task-type is non-null, all must be non-null."


@api(88, 0, 0)
@sliced
def streams_group_heartbeat(
    context: HandlerContext, request: StreamsGroupHeartbeatRequest
) -> Generator[None, None, StreamsGroupHeartbeatResponse | Outcome]:
    groups = context.services.groups
    if not groups.serves_streams_groups:
        return StreamsGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        yield from _check(context, request)
    except ApiError as refusal:
        return StreamsGroupHeartbeatResponse(error_code=refusal.error, error_message=refusal.message)
    shard = groups.shards.of(request.group_id)
    if isinstance(shard, ErrorCode):
        return StreamsGroupHeartbeatResponse(error_code=shard)
    client = Client(context.client_id or "", f"/{context.client_host}", context.api_version)

    def answer(result: HeartbeatResult) -> None:
        if result.missing:
            _create(context, result)
        context.complete(result.response)

    shard.streams.heartbeat(request, client, groups.outgoing(answer))
    return PENDING


def _create(context: HandlerContext, result: HeartbeatResult) -> None:
    """Have the missing topics created; what hinders it goes into the status."""
    services, missing, response = context.services, result.missing, result.response
    may_create = allows_cluster(context, Operation.CREATE, silent=True)
    refused = [
        topic.name
        for topic in missing
        if not may_create and not allows_topic(context, Operation.CREATE, topic.name)
    ]
    if refused:
        _add_detail(response, f"Unauthorized to CREATE on topics {', '.join(refused)}.")
        return

    def send(topics: list[NewTopic], done: Done) -> None:
        create_topics(services.controller_channel, topics, done, (context.caller, context.client_id))

    topics = services.groups.internal_topics
    topics.create(missing, send, 2 * response.heartbeat_interval_ms / 1000)
    errors = topics.errors(missing)
    if errors:
        named = ", ".join(f"{name} ({text})" for name, text in errors.items())
        _add_detail(response, f"Creation failed: {named}.")


def _add_detail(response: StreamsGroupHeartbeatResponse, detail: str) -> None:
    for status in response.status or ():
        if status.status_code == Status.MISSING_INTERNAL_TOPICS:
            status.status_detail += f"; {detail}"


def _check(context: HandlerContext, request: StreamsGroupHeartbeatRequest) -> Generator[None, None, None]:
    """ApiError when the request is refused whatever the group's state."""
    if not allows_group(context, Operation.READ, request.group_id):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
    if request.topology is not None:
        yield from _check_size(request.topology)
        yield from _check_topics(context, request.topology)
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if sum(max(len(each.partitions), 1) for of_role in tasks for each in of_role or ()) > TASKS_MAX:
        raise _invalid("The request names more tasks than there may be.")
    yield from _check_features(request)
    yield from _check_form(request)


def _check_size(topology: wire.Topology) -> Generator[None, None, None]:
    """A topology is decided upon in one turn of the loop."""
    parts = 0
    for each in topology.subtopologies:
        parts += len(each.source_topics) + len(each.repartition_sink_topics)
        for info in (*each.repartition_source_topics, *each.state_changelog_topics):
            parts += 1 + len(info.topic_configs)
        for group in each.copartition_groups:
            parts += 1 + len(group.source_topics) + len(group.repartition_source_topics)
        yield
    if len(topology.subtopologies) > SUBTOPOLOGIES_MAX or parts > TOPOLOGY_PARTS_MAX:
        raise ApiError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"The topology has more than {SUBTOPOLOGIES_MAX} subtopologies or {TOPOLOGY_PARTS_MAX} topics, configs and "
            "joined topics.",
        )


def _check_topics(context: HandlerContext, topology: wire.Topology) -> Generator[None, None, None]:
    names: dict[str, None] = {}
    for each in topology.subtopologies:
        for topics in (each.source_topics, each.repartition_sink_topics):
            names.update(dict.fromkeys(topics))
        for infos in (each.repartition_source_topics, each.state_changelog_topics):
            names.update((info.name, None) for info in infos)
        yield
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        text = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    invalid = []
    for name in names:
        if invalid_topic_name(name) is not None:
            invalid.append(name)
        yield
    if invalid:
        text = f"Topic names {','.join(invalid)} are not valid topic names."
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    if (yield from refused_topics(context, Operation.DESCRIBE, ((name, 1) for name in names))):
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


def _check_features(request: StreamsGroupHeartbeatRequest) -> Generator[None, None, None]:
    if request.instance_id is not None:
        raise _invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise _invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise _invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise _invalid("WarmupTasks are not supported yet.")
    for each in () if request.topology is None else request.topology.subtopologies:
        if each.source_topic_regex:
            raise _invalid("Regular expressions for source topics are not supported yet.")
        yield


def _check_form(request: StreamsGroupHeartbeatRequest) -> Generator[None, None, None]:
    epoch = request.member_epoch
    if not request.member_id:
        raise _invalid("MemberId can't be empty.")
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == JOINING:
        yield from _check_first(request)
    elif epoch == _LEFT_FOR_NOW:
        raise _invalid("InstanceId can't be null.")
    elif epoch < _LEFT_FOR_NOW:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    tasks = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if None in tasks and tasks != (None, None, None):
        raise _invalid(_ALL_OR_NONE)
    if epoch != JOINING and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")


def _check_first(request: StreamsGroupHeartbeatRequest) -> Generator[None, None, None]:
    """The first request of a member, or the first one after it was fenced."""
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            raise _invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise _invalid("Topology must be non-null when (re-)joining.")
    for subtopology in request.topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions != 0:
                raise ApiError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}.",
                )
        yield


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
