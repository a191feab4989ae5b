"""Metadata (3), versions 0-13: where the brokers are, and which of them leads which partition.

All topics: an empty list in version 0, null since version 1. By topic id since version 12; a request that has
ids is answered by id alone, as in Kafka.

A topic that does not exist is created when auto.create.topics.enable and the request allow it, and the answer
waits for that and tells the topic. Kafka answers UNKNOWN_TOPIC_OR_PARTITION at first and has the client ask
again. A topic that can't be created is answered with that error here too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from barnabas.broker.context import RequestContext
from barnabas.broker.metadata_view import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    broker_addresses,
    offline_replicas,
    partition_error,
)
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.controller.image import INTERNAL_TOPICS, MetadataImage, PartitionState, TopicImage
from barnabas.controller.operations.internal_topics import SHARE_GROUP_STATE_TOPIC, auto_created_topic
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.controller.operations.topics import CreatedTopic, create_topics
from barnabas.storage.directory import random_uuid
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


@api(3, 0, 13)
def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse | Outcome:
    image = context.services.controller.image
    topics = request.topics
    if topics is None or (context.api_version == 0 and not topics):
        return _response(context, request, (_topic(image, topic) for topic in image.topics.values()))
    refused = _refuse(context.api_version, topics)
    if refused is not None:
        return refused
    ids = dict.fromkeys(topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID)
    if ids:
        return _response(context, request, (_topic_by_id(image, topic_id) for topic_id in ids))
    names = list(dict.fromkeys(topic.name for topic in topics if topic.name is not None))
    missing = [name for name in names if name not in image.topics and _creatable(name)]
    if missing and request.allow_auto_topic_creation and context.services.config.auto_create_topics_enable:
        _create(context, request, names, missing)
        return PENDING
    return _by_name(context, request, names)


def _creatable(name: str) -> bool:
    """Share groups are not served, so nobody needs the topic that keeps their state."""
    return invalid_topic_name(name) is None and name != SHARE_GROUP_STATE_TOPIC


def _refuse(api_version: int, topics: list[MetadataRequestTopic]) -> MetadataResponse | None:
    """Kafka's answer to topics that are named in no way the version knows."""
    if 10 <= api_version <= 11 and any(t.name is None or t.topic_id != ZERO_UUID for t in topics):
        error = ErrorCode.INVALID_REQUEST
    elif any(topic.name is None and topic.topic_id == ZERO_UUID for topic in topics) and all(
        topic.topic_id == ZERO_UUID for topic in topics
    ):
        error = ErrorCode.UNKNOWN_SERVER_ERROR
    else:
        return None
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
            for topic in topics
        ],
        error_code=error,
    )


def _create(context: RequestContext, request: MetadataRequest, names: list[str], missing: list[str]) -> None:
    services = context.services
    wanted = [auto_created_topic(name, services.config) for name in missing]

    def done(created: list[CreatedTopic]) -> None:
        for topic in created:
            if topic.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                log.info("topic %r is not created for %s: %s", topic.name, context.client_host, topic.message)
        context.complete(_by_name(context, request, names))

    services.controller.run(
        lambda image: create_topics(image, wanted, services.config, lambda: random_uuid(services.runtime)),
        done,
        lambda _error, _message: context.complete(_by_name(context, request, names)),
    )


def _by_name(context: RequestContext, request: MetadataRequest, names: list[str]) -> MetadataResponse:
    image = context.services.controller.image
    return _response(context, request, (_topic_by_name(image, name) for name in names))


def _response(
    context: RequestContext, request: MetadataRequest, topics: Iterable[MetadataResponseTopic]
) -> MetadataResponse:
    listed = list(topics)
    if request.include_topic_authorized_operations:
        for topic in listed:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in broker_addresses(context)
            if not broker.fenced
        ],
        cluster_id=context.services.cluster_id,
        controller_id=context.services.node_id,
        topics=listed,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def _topic_by_id(image: MetadataImage, topic_id: bytes) -> MetadataResponseTopic:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _topic(image, topic)


def _topic_by_name(image: MetadataImage, name: str) -> MetadataResponseTopic:
    topic = image.topics.get(name)
    if topic is not None:
        return _topic(image, topic)
    error = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if invalid_topic_name(name) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    return MetadataResponseTopic(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS)


def _topic(image: MetadataImage, topic: TopicImage) -> MetadataResponseTopic:
    listed: list[MetadataResponsePartition] = []
    previous: PartitionState | None = None
    error, offline = ErrorCode.NONE, list[int]()
    for index, state in topic.partitions.items():
        if state is not previous:  # neighbours mostly share one
            previous = state
            error, offline = partition_error(image, state), offline_replicas(image, state)
        listed.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=state.replicas,
                isr_nodes=state.isr,
                offline_replicas=offline,
            )
        )
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=listed
    )
