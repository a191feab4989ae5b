"""Creates internal topics, and topics that clients name (auto.create.topics.enable), with CreateTopics to the controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

if TYPE_CHECKING:
    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.broker.security.caller import Caller
    from barnabas.controller.operations.topics import NewTopic

CREATE_TOPICS: Final = 19
# The client's connection waits for it; afterwards the client tries again, perhaps with another broker.
TIMEOUT_S: Final = 5.0


def create_topics(
    controller_channel: ControllerChannel,
    topics: Sequence[NewTopic],
    done: Callable[[dict[str, tuple[ErrorCode, str]]], object],
    client: tuple[Caller, str | None] | None = None,
) -> None:
    """`client`: whose quota of partitions counts, with its client id; None: no quota. `done({name: (error, message)})` once this
    broker's metadata has the topics; NONE also for one that exists already. Perhaps before this returns."""

    def answered(response: Any, error: ErrorCode) -> None:
        if response is None:
            done({topic.name: (error, "the controller has not answered") for topic in topics})
            return
        results: dict[str, tuple[ErrorCode, str]] = {}
        for result in response.topics:
            code = ErrorCode.of(result.error_code)
            exists = code == ErrorCode.TOPIC_ALREADY_EXISTS
            results[result.name] = ErrorCode.NONE if exists else code, result.error_message or ""
        done(results)

    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
            )
            for topic in topics
        ],
        timeout_ms=round(TIMEOUT_S * 1000),
    )
    controller_channel.send(CREATE_TOPICS, request, answered, timeout_s=TIMEOUT_S, client=client)


def create_topic(
    controller_channel: ControllerChannel, topic: NewTopic, done: Callable[[ErrorCode], object]
) -> None:
    """As `create_topics`, for one topic."""
    create_topics(controller_channel, [topic], lambda results: done(results[topic.name][0]))
