"""CreateTopics (19), versions 2-7.

v4 the broker's default number of partitions and replicas (KIP-464), v5 the configs of created topics in the response
(KIP-525), v7 their ids. When the response leaves, the metadata has committed and the partitions exist; timeout.ms has no
effect.

A topic's id is derived from the id of the request. When the controller loses its leadership, the request is sent again to the
next one, which finds the topics that this request has created already and does not answer TOPIC_ALREADY_EXISTS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quotas.client_quotas import PartitionPermits
from barnabas.broker.requests.authorization import allows_cluster, allows_topic
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect
from barnabas.broker.requests.throttling import partition_permits
from barnabas.broker.services import HandlerContext
from barnabas.controller.config.topic_configs import TOPIC_SYNONYMS
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.configs import CONFIGS_MAX, TOO_MANY_CONFIGS
from barnabas.controller.operations.topic_names import CLUSTER_METADATA_TOPIC
from barnabas.controller.operations.topics import (
    PARTITIONS_PER_REQUEST_MAX,
    TOO_MANY_PARTITIONS,
    CreatedTopic,
    NewTopic,
    create_topics,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.uuids import derived_uuid

# DescribeConfigsResponse.ConfigSource
_TOPIC, _NODE, _CLUSTER, _STATIC, _DEFAULT = 1, 2, 3, 4, 5


@api(19, 2, 7, controller=True)
def create(context: HandlerContext, request: CreateTopicsRequest) -> Outcome:
    services = context.services
    too_many = _too_many(request.topics)
    if too_many:
        answer_in_slices(context, _refused(request.topics, too_many))
        return PENDING
    unauthorized = _unauthorized(context, request.topics)
    wanted = [_wanted(topic) for topic in request.topics if topic.name not in unauthorized]
    request_id = services.controller_channel.request_id_of(context)
    permits = partition_permits(context, strict_from=6)

    def done(created: list[CreatedTopic]) -> None:
        answer_in_slices(context, _answer(context, created, unauthorized, permits))

    def failed(error: ErrorCode, message: str) -> None:
        if error is ErrorCode.NOT_CONTROLLER:
            services.controller_channel.send_again(context, request, request_id)
            return
        results = [CreatableTopicResult(name=t.name, error_code=error, error_message=message) for t in wanted]
        context.complete(
            CreateTopicsResponse(topics=results + [_unauthorized_result(t) for t in unauthorized])
        )

    services.controller.run(
        lambda image: create_topics(
            image,
            wanted,
            services.config,
            lambda name: derived_uuid(request_id + name.encode()),
            validate_only=request.validate_only,
            draw=services.runtime.random.randrange,
            loads=services.leader_loads(),
            charge=permits.charge,
        ),
        done,
        failed,
    )
    return PENDING


def _unauthorized(context: HandlerContext, topics: list[CreatableTopic]) -> dict[str, None]:
    """The topics that the sender may not create; not those that are named twice, which fail by that."""
    if context.services.authorizer is None or allows_cluster(context, Operation.CREATE, silent=True):
        return {}
    counts = Counter(topic.name for topic in topics)
    return {
        name: None
        for name, count in counts.items()
        if count == 1 and name != CLUSTER_METADATA_TOPIC and not allows_topic(context, Operation.CREATE, name)
    }


def _unauthorized_result(name: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message="Authorization failed."
    )


def _too_many(topics: list[CreatableTopic]) -> str:
    """Why a request is refused whose topics, partitions or configs are more than are created at once; "" for others."""
    if len(topics) > PARTITIONS_PER_REQUEST_MAX or (
        sum([len(topic.assignments) for topic in topics]) > PARTITIONS_PER_REQUEST_MAX
    ):
        return TOO_MANY_PARTITIONS
    return TOO_MANY_CONFIGS if sum([len(topic.configs) for topic in topics]) > CONFIGS_MAX else ""


def _refused(topics: list[CreatableTopic], too_many: str) -> Generator[None, None, CreateTopicsResponse]:
    def refuse(name: str) -> CreatableTopicResult:
        return CreatableTopicResult(name=name, error_code=ErrorCode.POLICY_VIOLATION, error_message=too_many)

    names = dict.fromkeys(topic.name for topic in topics)
    return CreateTopicsResponse(topics=(yield from collect(refuse, names)))


def _answer(
    context: HandlerContext,
    created: list[CreatedTopic],
    unauthorized: dict[str, None],
    permits: PartitionPermits,
) -> Generator[None, None, CreateTopicsResponse]:
    config = context.services.config
    configs: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}  # that several topics have

    def result_of(topic: CreatedTopic) -> CreatableTopicResult:
        result = _result(topic)
        if not topic.error and not allows_topic(context, Operation.DESCRIBE_CONFIGS, topic.name, silent=True):
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.num_partitions = result.replication_factor = -1
            result.configs = []
        elif not topic.error:
            alike = tuple(sorted(topic.configs.items()))
            if alike not in configs:
                configs[alike] = _configs(config, topic)
            result.configs = configs[alike]
        return result

    results = yield from collect(result_of, created)
    return CreateTopicsResponse(
        throttle_time_ms=permits.throttle_ms,
        topics=results + [_unauthorized_result(name) for name in unauthorized],
    )


def _wanted(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(entry.partition_index, entry.broker_ids) for entry in topic.assignments],
        configs=[(config.name, config.value) for config in topic.configs],
    )


def _result(topic: CreatedTopic) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=topic.error,
        error_message=topic.message,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=[],
    )


def _configs(config: BrokerConfig, topic: CreatedTopic) -> list[CreatableTopicConfigs]:
    """The value of every topic property, by name. Internal ones are left out unless they are set."""
    values = config.topic_properties(topic.configs)
    return [
        CreatableTopicConfigs(
            name=name,
            value=values.get(name),
            config_source=_TOPIC if name in topic.configs else _source(config, name),
            is_sensitive=key.sensitive,
        )
        for name, key in sorted(config.tables.topic.items())
        if not key.internal or name in topic.configs
    ]


def _source(config: BrokerConfig, name: str) -> int:
    """The source of a value that is not set on the topic: the first of its broker properties that has one."""
    for broker_name, _ in TOPIC_SYNONYMS.get(name, ()):
        if broker_name in config.dynamic_node:
            return _NODE
        if broker_name in config.dynamic_cluster:
            return _CLUSTER
        if broker_name in config.given:
            return _STATIC
    return _DEFAULT
