"""CreateTopics (19), versions 2-7.

v4 the broker's default number of partitions and replicas (KIP-464), v5 the configs of created topics in the response
(KIP-525), v7 their ids. When the response leaves, the metadata has committed and the partitions exist; timeout.ms has no
effect.

A topic's id is derived from the id of the request. When the controller loses its leadership, the request is sent again to the
next one, which finds the topics that this request has created already and does not answer TOPIC_ALREADY_EXISTS.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect
from barnabas.broker.services import HandlerContext
from barnabas.controller.config.topic_configs import TOPIC_SYNONYMS
from barnabas.controller.operations.configs import CONFIGS_MAX, TOO_MANY_CONFIGS
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
    wanted = [_wanted(topic) for topic in request.topics]
    request_id = services.controller_channel.request_id_of(context)

    def done(created: list[CreatedTopic]) -> None:
        answer_in_slices(context, _answer(services.config, created))

    def failed(error: ErrorCode, message: str) -> None:
        if error is ErrorCode.NOT_CONTROLLER:
            services.controller_channel.send_again(context, request, request_id)
            return
        results = [CreatableTopicResult(name=t.name, error_code=error, error_message=message) for t in wanted]
        context.complete(CreateTopicsResponse(topics=results))

    services.controller.run(
        lambda image: create_topics(
            image,
            wanted,
            services.config,
            lambda name: derived_uuid(request_id + name.encode()),
            validate_only=request.validate_only,
            draw=services.runtime.random.randrange,
        ),
        done,
        failed,
    )
    return PENDING


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


def _answer(config: BrokerConfig, created: list[CreatedTopic]) -> Generator[None, None, CreateTopicsResponse]:
    configs: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}  # that several topics have

    def result_of(topic: CreatedTopic) -> CreatableTopicResult:
        result = _result(topic)
        if not topic.error:
            alike = tuple(sorted(topic.configs.items()))
            if alike not in configs:
                configs[alike] = _configs(config, topic)
            result.configs = configs[alike]
        return result

    return CreateTopicsResponse(topics=(yield from collect(result_of, created)))


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
