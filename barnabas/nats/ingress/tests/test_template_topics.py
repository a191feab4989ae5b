"""Creation of the topics of a template: waiting messages, requests, and the controller's answers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.nats.binding.reader import TEMPLATE_OF, read_binding
from barnabas.nats.ingress.backpressure import Budget
from barnabas.nats.ingress.template_ingest import Router
from barnabas.nats.ingress.template_topics import (
    REFUSED_S,
    RETRIED_S,
    RETRY_S,
    TOGETHER_MAX,
    Message,
    TopicCreator,
)
from barnabas.nats.records.routes import SUBJECT_BYTES_KEPT_MAX
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.metadata_records import ConfigRecord, TopicRecord
from compat_tests.virtual.runtime import VirtualRuntime

BOUND = "bound"


def test_subjects_are_kept_within_bounds() -> None:
    class Gathered:
        """Stands for an ingest."""

    ingest = cast("Any", Gathered())
    router = Router(lambda _subject: (lambda *_message: None, ingest), None, {})
    kept = 0
    for number in range(2 * SUBJECT_BYTES_KEPT_MAX // 4000):
        router.take(b"%04000d" % number, b"", b"", b"")
        kept = max(kept, 4000 * len(router.by_subject))
    assert SUBJECT_BYTES_KEPT_MAX // 2 < kept <= SUBJECT_BYTES_KEPT_MAX + 8000


class World:
    """A TopicCreator, and its controller; `answer` gives the results."""

    def __init__(self, **configs: str) -> None:
        self.runtime = VirtualRuntime()
        self.image = MetadataImage()
        self.asked: list[list[str]] = []
        self.requests: list[CreateTopicsRequest] = []
        self.answer: Callable[[str], tuple[ErrorCode, str]] = lambda _: (ErrorCode.NONE, "")
        self.full: list[bool] = []
        self.resolved: list[str] = []
        self.add(
            BOUND, {"nats.subjects": "m.>", "nats.topic.template": "{2}", "retention.ms": "5", **configs}, 4
        )
        binding = read_binding(BOUND, self.image.topic_configs(BOUND))
        assert binding is not None
        services = SimpleNamespace(
            runtime=self.runtime,
            controller=SimpleNamespace(image=self.image),
            controller_channel=SimpleNamespace(send=self.send),
        )
        self.budget = Budget(10_000, self.full.append)
        self.creator = TopicCreator(cast("Any", services), binding, self.budget, self.resolved.append)

    def add(self, name: str, configs: dict[str, str], partitions: int) -> None:
        delta = MetadataDelta()
        topic_id = name.encode().ljust(16)
        self.image.replay(TopicRecord(name=name, topic_id=topic_id), delta)
        state = PartitionState(replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0, partition_epoch=0)
        for index in range(partitions):
            self.image.replay(partition_record(topic_id, index, state), delta)
        for key, value in configs.items():
            self.image.replay(ConfigRecord(resource_type=2, resource_name=name, name=key, value=value), delta)

    def send(
        self,
        _key: int,
        request: CreateTopicsRequest,
        done: Callable[[Any, ErrorCode], object],
        *,
        timeout_s: float,
        client: None,
    ) -> None:
        assert timeout_s > 0
        self.requests.append(request)
        self.asked.append([topic.name for topic in request.topics])
        results = []
        for topic in request.topics:
            error, message = self.answer(topic.name)
            if not error and topic.name not in self.image.topics:
                configs = {config.name: config.value or "" for config in topic.configs}
                self.add(topic.name, configs, topic.num_partitions)
            results.append(
                CreatableTopicResult(name=topic.name, error_code=error, error_message=message or None)
            )
        self.runtime.call_later(0.01, lambda: done(CreateTopicsResponse(topics=results), ErrorCode.NONE))


def message(number: int) -> Message:
    return b"m.x", b"", b"", b"%d" % number


def test_a_topic_is_requested_once_and_its_messages_keep_their_order() -> None:
    world = World()
    for number in range(10):
        world.creator.request("x" if number % 2 else "y").take(*message(number))
    world.runtime.advance(0.1)
    assert world.asked == [["y", "x"]]
    (request,) = world.requests
    assert [(topic.num_partitions, topic.replication_factor) for topic in request.topics] == [(4, 2)] * 2
    configs = {config.name: config.value for config in request.topics[0].configs}
    assert configs == {"retention.ms": "5", TEMPLATE_OF: BOUND}
    assert world.resolved == ["x", "y"]
    assert world.creator.refusal("x", 2) is None
    pending = world.creator.take("x")
    assert pending is not None
    assert [int(payload) for *_, payload in pending.waiting] == [1, 3, 5, 7, 9]
    assert world.creator.take("x") is None


def test_many_topics_are_requested_in_batches() -> None:
    world = World()
    names = [f"t{number}" for number in range(2 * TOGETHER_MAX + 3)]
    for name in names:
        world.creator.request(name)
    world.runtime.advance(1)
    assert [len(asked) for asked in world.asked] == [TOGETHER_MAX, TOGETHER_MAX, 3]
    assert [name for asked in world.asked for name in asked] == names


def test_temporary_failures_are_retried_for_a_while() -> None:
    world = World()
    world.answer = lambda _: (ErrorCode.INVALID_REPLICATION_FACTOR, "one broker only")
    world.creator.request("x").take(*message(1))
    world.runtime.advance(RETRIED_S / 2)
    assert len(world.asked) > 0.8 * RETRIED_S / 2 / (RETRY_S + 0.01)
    assert world.creator.problem == "topic x can't be created yet: one broker only"
    assert world.creator.refusal("x", 0) is None
    world.runtime.advance(RETRIED_S / 2 + 2 * RETRY_S)
    error, why = world.creator.refusal("x", 0) or (ErrorCode.NONE, "")
    assert (error, why) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "topic x can't be created: one broker only",
    )
    assert world.creator.problem == ""
    asked = len(world.asked)
    world.runtime.advance(REFUSED_S + 1)
    assert len(world.asked) == asked
    assert world.creator.refusal("x", 0) is None  # it may be asked for again


def test_refused_topics_are_not_requested_until_topics_change() -> None:
    world = World()
    world.answer = lambda _: (ErrorCode.INVALID_TOPIC_EXCEPTION, "no")
    world.creator.request("x")
    world.runtime.advance(REFUSED_S / 2)
    assert len(world.asked) == 1
    assert world.creator.refusal("x", 0) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "topic x can't be created: no",
    )
    world.creator.topics_changed()
    assert world.creator.refusal("x", 0) is None


def test_topics_of_others_and_topics_beyond_the_limit() -> None:
    world = World(**{"nats.topic.max": "3"})
    world.add("mine", {TEMPLATE_OF: BOUND}, 1)
    world.add("other", {}, 1)
    world.add("bound-itself", {TEMPLATE_OF: BOUND, "nats.subjects": "s"}, 1)
    refusals = {
        name: (world.creator.refusal(name, count) or (ErrorCode.NONE,))[0]
        for name, count in [("mine", 3), (BOUND, 0), ("other", 0), ("bound-itself", 0), ("a", 2), ("b", 3)]
    }
    assert refusals == {
        "mine": ErrorCode.NONE,
        BOUND: ErrorCode.INVALID_TOPIC_EXCEPTION,
        "other": ErrorCode.TOPIC_ALREADY_EXISTS,
        "bound-itself": ErrorCode.TOPIC_ALREADY_EXISTS,
        "a": ErrorCode.NONE,
        "b": ErrorCode.POLICY_VIOLATION,
    }


def test_waiting_messages_are_bounded() -> None:
    world = World()
    pending = world.creator.request("x")
    number = 0
    while not world.full:
        pending.take(*message(number))
        number += 1
    assert 10 < number < 60
    assert world.full == [True]
    world.creator.take("x")
    assert pending.emptied() == number
    assert world.full == [True, False]
    world.creator.request("y").take(*message(1))
    assert world.creator.close() == 1
    asked = len(world.asked)
    world.runtime.advance(1)
    assert len(world.asked) == asked
