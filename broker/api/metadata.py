"""Metadata (3), versions 0-13: the brokers' addresses, and the leader of each partition.

All topics: an empty list in version 0, null since version 1. By topic id since version 12; a request with ids is answered
by id alone, as in Kafka.

The controller's id is that of any live broker, as in Kafka: every broker forwards requests to the controller.

A topic that does not exist is created when auto.create.topics.enable and the request allow it; the response waits for that
and has the topic. Kafka first answers UNKNOWN_TOPIC_OR_PARTITION, and the client asks again. A topic that cannot be created
gets that error here too. It is created in the client's name: its quota of partitions counts (controller_mutation_rate).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

from barnabas.broker.cluster.metadata_view import OPERATIONS_NOT_ASKED
from barnabas.broker.cluster.topic_creation import create_topics
from barnabas.broker.requests.authorization import (
    allows_cluster,
    allows_topic,
    authorized_cluster_operations,
    authorized_operations,
    refused_topics,
)
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.controller.metadata.image import INTERNAL_TOPICS, NO_LEADER, PartitionState, TopicImage
from barnabas.controller.operations.internal_topics import SHARE_GROUP_STATE_TOPIC, auto_created_topic
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.controller.operations.topics import PARTITIONS_PER_REQUEST_MAX
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.wire.primitives import ZERO_UUID

log = logging.getLogger("barnabas.metadata")

T = TypeVar("T")
_WITHOUT_OPERATIONS: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
REFUSED_NAMED_MAX: Final = 10  # of the topics that one request can't create


@api(3, 0, 13)
@sliced
def metadata(
    context: HandlerContext, request: MetadataRequest
) -> Generator[None, None, MetadataResponse | Outcome]:
    image = context.services.controller.image
    topics = request.topics
    if topics is None or (context.api_version == 0 and not topics):
        shown = list(image.topics.values())
        if context.services.authorizer is not None:
            shown = yield from _described(context, shown)
        answer = _Answer(context, request)
        return (yield from answer.response(shown, answer.topic))
    ids: dict[bytes, None] = {}
    names: dict[str, None] = {}
    has_null, has_neither = False, False
    for topic in topics:
        if topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] = None
        elif topic.name is None:
            has_neither = True
        if topic.name is None:
            has_null = True
        else:
            names[topic.name] = None
        yield
    if 10 <= context.api_version <= 11 and (has_null or ids):
        return (yield from _refuse(topics, ErrorCode.INVALID_REQUEST))
    if has_neither and not ids:
        return (yield from _refuse(topics, ErrorCode.UNKNOWN_SERVER_ERROR))
    if ids:
        answer = _Answer(context, request)
        return (yield from answer.response(ids, answer.topic_by_id))
    hidden = yield from refused_topics(context, Operation.DESCRIBE, ((name, 1) for name in names))
    refused = dict.fromkeys(hidden, False)  # topics, and whether they are shown as internal ones
    if request.allow_auto_topic_creation and context.services.config.auto_create_topics_enable:
        missing = []
        for name in names:
            if name not in hidden and name not in image.topics:
                missing.append(name)
            yield
        if missing and not allows_cluster(context, Operation.CREATE, silent=True):
            uncreatable = yield from refused_topics(
                context, Operation.CREATE, ((name, 1) for name in missing)
            )
            refused |= {name: name in INTERNAL_TOPICS for name in uncreatable}
        missing = [name for name in missing if name not in refused and _creatable(name)]
        if 0 < len(missing) <= PARTITIONS_PER_REQUEST_MAX:
            _create(context, request, list(names), missing, refused)
            return PENDING
    return (yield from _by_name(context, request, list(names), refused))


def _described(context: HandlerContext, topics: list[TopicImage]) -> Generator[None, None, list[TopicImage]]:
    """The topics that the sender may describe."""
    shown = []
    for topic in topics:
        if allows_topic(context, Operation.DESCRIBE, topic.name, silent=True):
            shown.append(topic)
        yield
    return shown


def _creatable(name: str) -> bool:
    """Not the state of share groups, which are not served."""
    return invalid_topic_name(name) is None and name != SHARE_GROUP_STATE_TOPIC


def _refuse(topics: list[MetadataRequestTopic], error: ErrorCode) -> Generator[None, None, MetadataResponse]:
    """Kafka's response to topics that are named in a way that the version does not have."""
    refused = yield from collect(
        lambda topic: MetadataResponseTopic(error, topic.name or "", topic.topic_id), topics
    )
    return MetadataResponse(error_code=error, topics=refused)


def _create(
    context: HandlerContext,
    request: MetadataRequest,
    names: list[str],
    missing: list[str],
    unauthorized: dict[str, bool],
) -> None:
    services = context.services
    wanted = [auto_created_topic(name, services.config) for name in missing]

    def done(created: dict[str, tuple[ErrorCode, str]]) -> None:
        refused = [(name, message) for name, (error, message) in created.items() if error]
        for name, message in refused[:REFUSED_NAMED_MAX]:
            log.info("topic %r is not created for %s: %s", name, context.client_host, message)
        if len(refused) > REFUSED_NAMED_MAX:
            log.info("%d topics in all are not created for %s", len(refused), context.client_host)
        answer_in_slices(context, _by_name(context, request, names, unauthorized))

    create_topics(services.controller_channel, wanted, done, client=(context.caller, context.client_id))


def _by_name(
    context: HandlerContext, request: MetadataRequest, names: list[str], refused: dict[str, bool]
) -> Generator[None, None, MetadataResponse]:
    """`refused`: names that the sender may not describe or create, and whether they are shown as internal."""
    answer = _Answer(context, request)

    def topic_of(name: str) -> MetadataResponseTopic:
        if name in refused:
            return MetadataResponseTopic(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, is_internal=refused[name]
            )
        return answer.topic_by_name(name)

    return (yield from answer.response(names, topic_of))


class _Answer:
    """One response, from the current metadata."""

    def __init__(self, context: HandlerContext, request: MetadataRequest) -> None:
        self._view = context.services.metadata_view(context.listener)
        self._context = context
        self._request = request

    def response(
        self, wanted: Iterable[T], topic_of: Callable[[T], MetadataResponseTopic]
    ) -> Generator[None, None, MetadataResponse]:
        topics = yield from collect(topic_of, wanted)
        if self._request.include_topic_authorized_operations:
            for topic in topics:
                if topic.error_code not in _WITHOUT_OPERATIONS:
                    topic.topic_authorized_operations = authorized_operations(
                        self._context, ResourceType.TOPIC, topic.name or ""
                    )
                yield
        services = self._context.services
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in self._view.brokers
                if not broker.fenced
            ],
            cluster_id=services.cluster_id,
            controller_id=self._view.controller_id(services.runtime.random),
            topics=topics,
            cluster_authorized_operations=authorized_cluster_operations(self._context)
            if self._request.include_cluster_authorized_operations
            else OPERATIONS_NOT_ASKED,
        )

    def topic_by_id(self, topic_id: bytes) -> MetadataResponseTopic:
        topic = self._view.image.topic_by_id(topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        if not allows_topic(self._context, Operation.DESCRIBE, topic.name):
            return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
        return self.topic(topic)

    def topic_by_name(self, name: str) -> MetadataResponseTopic:
        topic = self._view.image.topics.get(name)
        if topic is not None:
            return self.topic(topic)
        error = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if invalid_topic_name(name) is None
            else ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        return MetadataResponseTopic(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS)

    def topic(self, topic: TopicImage) -> MetadataResponseTopic:
        view, version = self._view, self._context.api_version
        listed: list[MetadataResponsePartition] = []
        previous: PartitionState | None = None
        error, leader = ErrorCode.NONE, NO_LEADER
        replicas, isr, offline = list[int](), list[int](), list[int]()
        for index, state in topic.partitions.items():
            if state is not previous:  # neighbours mostly share one
                previous = state
                error, leader = view.partition_error(state, version), view.leader(state)
                replicas, isr = view.listed(state.replicas, version), view.listed(state.isr, version)
                offline = view.offline_replicas(state)
            listed.append(
                MetadataResponsePartition(
                    error_code=error,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=replicas,
                    isr_nodes=isr,
                    offline_replicas=offline,
                )
            )
        return MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=listed
        )
