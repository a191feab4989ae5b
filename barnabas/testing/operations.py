"""Operations on an in-process broker: topics and records, by way of the controller as with a client's request.

Each takes the nodes, runs on the loop and calls `done(error)` once: at once with a single node, a few turns later in a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from barnabas.storage.errors import StorageError
from barnabas.testing import seeding
from barnabas.testing.contents import (
    NoLeader,
    awake_services_of,
    image_of,
    leader_of,
    partition_indexes,
    services_of,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

if TYPE_CHECKING:
    import msgspec

    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.services import Services
    from barnabas.testing.broker_node import BrokerNode

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
LOOK_AGAIN_S: Final = 0.002  # until all nodes know of a change
LEADERS_S: Final = 10.0  # for others to lead what a node has led that is gone

Done = Callable[[Exception | None], object]
Start = Callable[[Done], object]
Ends: TypeAlias = "list[tuple[Partition, int]]"


class RequestFailed(Exception):
    """The broker refused: `error` is Kafka's code."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(f"{error.name}: {message}")
        self.error = error


def create_topic(
    nodes: Sequence[BrokerNode],
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
    done: Done,
) -> None:
    """`done` when every partition has a leader that serves it."""
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )

    def answered(response: Any) -> None:
        result = response.topics[0]
        if result.error_code:
            done(RequestFailed(ErrorCode.of(result.error_code), result.error_message or ""))
        else:
            when(nodes, lambda: _is_led(nodes, name), lambda: done(None), done)

    ask(nodes, CREATE_TOPICS, CreateTopicsRequest(topics=[topic]), answered, done)


def delete_topics(nodes: Sequence[BrokerNode], names: Sequence[str], done: Done) -> None:
    """`done` when no node has them any more."""
    from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    known = image_of(nodes).topics
    wanted = [name for name in names if name in known]
    if not wanted:
        done(None)
        return

    def answered(response: Any) -> None:
        for result in response.responses:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                done(RequestFailed(ErrorCode.of(result.error_code), result.error_message or ""))
                return
        when(
            nodes,
            lambda: (
                not any(
                    name in services.controller.image.topics
                    for services in awake_services_of(nodes)
                    for name in wanted
                )
            ),
            lambda: done(None),
            done,
        )

    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in wanted], topic_names=[], timeout_ms=30_000
    )
    ask(nodes, DELETE_TOPICS, request, answered, done)


def seed(
    nodes: Sequence[BrokerNode],
    topic: str,
    seeds: Sequence[seeding.Seed],
    done: Done,
    ends: Ends | None = None,
    *,
    may_wait: bool = True,
) -> None:
    """`done` when all of them are committed. A topic that does not exist is made first. `ends` takes the partitions, with the
    offset behind their last record. `may_wait`: for leaders, LEADERS_S at most."""
    if topic not in image_of(nodes).topics:

        def made(error: Exception | None) -> None:
            if error is not None:
                done(error)
            else:
                seed(nodes, topic, seeds, done, ends)

        create_topic(nodes, topic, None, None, {}, made)
        return
    waiting = 1
    try:
        appended = seeding.append(nodes, topic, seeds)
    except NoLeader as error:
        if may_wait:
            when_led(nodes, topic, None, lambda: seed(nodes, topic, seeds, done, ends, may_wait=False), done)
        else:
            done(error)
        return
    except StorageError as error:
        done(RequestFailed(error.error, str(error)))
        return
    if ends is not None:
        ends += appended

    def committed(error: ErrorCode) -> None:
        nonlocal waiting
        if waiting < 0:
            return
        waiting -= 1
        if error:
            waiting = -1
            done(RequestFailed(error, f"records of {topic} are not committed"))
        elif not waiting:
            done(None)

    for partition, end_offset in appended:
        waiting += 1
        partition.when_committed(end_offset, committed)
    committed(ErrorCode.NONE)


def when_led(
    nodes: Sequence[BrokerNode], topic: str, index: int | None, then: Callable[[], object], done: Done
) -> None:
    """Call `then` as soon as one partition, or all of a topic, have leaders that run and know what is committed (a new leader
    learns it from its followers, KIP-207); or after LEADERS_S."""
    loop = nodes[0].loop
    deadline = loop.time() + LEADERS_S

    def is_led() -> bool:
        try:
            indexes = partition_indexes(nodes, topic) if index is None else [index]
            return all(leader_of(nodes, topic, each).knows_high_watermark for each in indexes)
        except NoLeader:
            return False

    when(nodes, lambda: is_led() or loop.time() >= deadline, then, done)


def when_settled(nodes: Sequence[BrokerNode], done: Done) -> None:
    """`done` when every partition has all its replicas in sync again, and consumers may read all of it."""
    when(nodes, lambda: _is_settled(nodes), lambda: done(None), done)


def _is_settled(nodes: Sequence[BrokerNode]) -> bool:
    for name, topic in image_of(nodes).topics.items():
        for index, state in topic.partitions.items():
            if len(state.isr) < len(state.replicas):
                return False
            leaders = [each for each in services_of(nodes) if each.node_id == state.leader]
            partition = leaders[0].partitions.get(name, index) if leaders else None
            if partition is None or partition.high_watermark < partition.log.log_end_offset:
                return False
    return True


def _is_led(nodes: Sequence[BrokerNode], topic: str) -> bool:
    """Whether all nodes know the topic, and all partitions are served: as far as nodes are awake."""
    for services in awake_services_of(nodes):
        known = services.controller.image.topics.get(topic)
        if known is None:
            return False
        for index, state in known.partitions.items():
            if state.leader == services.node_id and services.partitions.get(topic, index) is None:
                return False
    return True


def when(
    nodes: Sequence[BrokerNode], is_so: Callable[[], bool], then: Callable[[], object], done: Done
) -> None:
    """Call `then` as soon as `is_so()`. `done` gets what either raises, and RuntimeError when no node runs any more."""
    try:
        if is_so():
            then()
            return
        if not any(node.is_running for node in nodes):
            raise RuntimeError("no node of this broker runs")
    except Exception as error:  # noqa: BLE001 - whatever it is
        done(error)
        return
    nodes[0].loop.call_later(LOOK_AGAIN_S, when, nodes, is_so, then, done)


def awake_services(nodes: Sequence[BrokerNode]) -> list[Services]:
    """One or more. RuntimeError where no node serves, or each one stands still."""
    image_of(nodes)
    awake = awake_services_of(nodes)
    if not awake:
        raise RuntimeError("every node stands still: resume_node wakes one")
    return awake


def when_there_is_a_controller(nodes: Sequence[BrokerNode], then: Callable[[], object], done: Done) -> None:
    """As soon as one of the nodes that are awake is the active controller. RuntimeError where none is awake; RequestFailed to
    `done` where they have none after LEADERS_S."""
    loop = nodes[0].loop
    deadline = loop.time() + LEADERS_S
    awake_services(nodes)

    def is_active() -> bool:
        return any(services.controller.is_active for services in awake_services_of(nodes))

    def found() -> None:
        if is_active():
            then()
        else:
            done(
                RequestFailed(ErrorCode.NOT_CONTROLLER, "too few controllers are awake to choose one of them")
            )

    when(nodes, lambda: is_active() or loop.time() >= deadline, found, done)


def ask(
    nodes: Sequence[BrokerNode],
    api_key: int,
    request: msgspec.Struct,
    answered: Callable[[Any], object],
    done: Done,
) -> None:
    """Send a request to the active controller in the name of a node, and call `answered` with the response. RequestFailed to `done`
    where no controller answers."""
    is_answered = False
    asked = awake_services(nodes)[0]

    def completed(response: Any, error: ErrorCode) -> None:
        nonlocal is_answered
        is_answered = True
        if error:
            done(RequestFailed(error, "no controller has answered"))
        else:
            answered(response)

    def answered_or_gone() -> None:
        if not is_answered:
            done(RuntimeError(f"node {asked.node_id}, which was asked, runs no more"))

    asked.controller_channel.send(api_key, request, completed)
    if not is_answered:
        when(nodes, lambda: is_answered or _has_ended(nodes, asked), answered_or_gone, done)


def _has_ended(nodes: Sequence[BrokerNode], services: Services) -> bool:
    return not any(node.is_running and node.node.services is services for node in nodes)
