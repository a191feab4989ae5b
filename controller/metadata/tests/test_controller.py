"""The controller: operations in any order, against a slow model, through commits, failures and restarts."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.config.topic_configs import TOPIC_CONFIGS
from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.controller import STEP_RECORDS, Controller
from barnabas.controller.metadata.decision import ApiError, Decision, Steps
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import TOPIC_RESOURCE, MetadataImage, TopicChanges
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.operations.brokers import register_broker
from barnabas.controller.operations.features import FEATURES
from barnabas.controller.operations.partitions import MorePartitions, create_partitions
from barnabas.controller.operations.producer_ids import BLOCK_SIZE, allocate_block
from barnabas.controller.operations.topics import NewTopic, create_topics, delete_topics
from barnabas.controller.raft.raft_log import RaftMetadataLog
from barnabas.controller.raft.voters import Voter
from barnabas.controller.sessions.single_node import start_alone
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ConfigRecord, PartitionChangeRecord
from barnabas.wire.primitives import ZERO_UUID
from compat_tests.virtual.runtime import VirtualRuntime


@dataclass
class Settings:
    """What a broker's configuration says to its controller."""

    tables = ConfigTables()
    node_id: int = 1
    broker_rack: str | None = "r1"
    num_partitions: int = 2
    default_replication_factor: int = 1
    listeners: Sequence[SimpleNamespace] = field(
        default_factory=lambda: [
            SimpleNamespace(
                name="PLAINTEXT", security_protocol="PLAINTEXT", advertised_host="h", advertised_port=9092
            )
        ]
    )

    def value(self, _name: str) -> str | None:
        return None

    def topic_defaults(self) -> dict[str, str]:
        return {name: key.default for name, key in TOPIC_CONFIGS.items() if key.default is not None}


class World:
    """A controller on a disk, and the names of all that happened."""

    def __init__(self, disk: MemoryDisk, journal_bytes_min: int = 1 << 20, seed: int = 1) -> None:
        self.settings = Settings()
        self.runtime = VirtualRuntime(seed)
        log = LocalMetadataLog(disk, "/m", self.runtime, journal_bytes_min=journal_bytes_min)
        self.controller = Controller(log)
        start_alone(self.controller, self.settings, self.runtime)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def new_id(self, _name: str) -> bytes:
        return self.runtime.random_bytes(16)

    def create(self, topic: NewTopic) -> Callable[[MetadataImage], Decision[list[str]]]:
        def operation(image: MetadataImage) -> Decision[list[str]]:
            decision = create_topics(image, [topic], self.settings, self.new_id)
            return Decision(decision.records, [result.error.name for result in decision.response])

        return operation


def add(name: str, count: int) -> Callable[[MetadataImage], Decision[list[str]]]:
    def operation(image: MetadataImage) -> Decision[list[str]]:
        decision = create_partitions(image, [MorePartitions(name, count)])
        return Decision(decision.records, [result.error.name for result in decision.response])

    return operation


def remove(name: str) -> Callable[[MetadataImage], Decision[list[str]]]:
    def operation(image: MetadataImage) -> Decision[list[str]]:
        decision = delete_topics(image, [(name, ZERO_UUID)])
        return Decision(decision.records, [result.error.name for result in decision.response])

    return operation


def configure(name: str, value: str | None) -> Callable[[MetadataImage], Decision[list[str]]]:
    def operation(image: MetadataImage) -> Decision[list[str]]:
        if name not in image.topics:
            return Decision([], ["UNKNOWN_TOPIC_OR_PARTITION"])
        record = ConfigRecord(
            resource_type=TOPIC_RESOURCE, resource_name=name, name="retention.ms", value=value
        )
        return Decision([record], ["NONE"])

    return operation


@dataclass
class Model:
    """Topics as name -> [partitions, retention]. Every operation at once."""

    topics: dict[str, list[object]] = field(default_factory=dict)

    def create(self, name: str, count: int, retention: str | None) -> str:
        if name in self.topics:
            return "TOPIC_ALREADY_EXISTS"
        if any(other.replace(".", "_") == name.replace(".", "_") for other in self.topics):
            return "INVALID_TOPIC_EXCEPTION"
        if count == 0:
            return "INVALID_PARTITIONS"
        self.topics[name] = [2 if count == -1 else count, retention]
        return "NONE"

    def add(self, name: str, count: int) -> str:
        if name not in self.topics:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        if count <= self.topics[name][0]:  # type: ignore[operator]
            return "INVALID_PARTITIONS"
        self.topics[name][0] = count
        return "NONE"

    def configure(self, name: str, value: str | None) -> str:
        if name not in self.topics:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        self.topics[name][1] = value
        return "NONE"

    def remove(self, name: str) -> str:
        return "NONE" if self.topics.pop(name, None) else "UNKNOWN_TOPIC_OR_PARTITION"


def told(image: MetadataImage) -> dict[str, list[object]]:
    """The image as the model tells it."""
    return {
        topic.name: [len(topic.partitions), image.topic_configs(topic.name).get("retention.ms")]
        for topic in image.topics.values()
    }


def same(one: MetadataImage, other: MetadataImage) -> None:
    """Equal in everything that outlives a restart; a restarted broker registers anew."""

    def lasting(image: MetadataImage) -> list[msgspec.Struct]:
        return [r for r in image.records() if type(r).__name__ != "RegisterBrokerRecord"]

    assert lasting(one) == lasting(other)


NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "x"])
RETENTION = st.sampled_from([None, "1", "-1"])
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.sampled_from([-1, 0, 1, 3]), RETENTION),
    st.tuples(st.just("add"), NAMES, st.integers(0, 5)),
    st.tuples(st.just("configure"), NAMES, RETENTION),
    st.tuples(st.just("remove"), NAMES),
)


def run(world: World, model: Model, step: tuple[str, ...], answers: list[tuple[list[str], str]]) -> None:
    kind, name, *rest = step
    expected: str = getattr(model, kind)(name, *rest)
    operations: dict[str, Callable[..., Callable[[MetadataImage], Decision[list[str]]]]] = {
        "create": lambda name, count, retention: world.create(
            NewTopic(name, count, configs=() if retention is None else [("retention.ms", retention)])
        ),
        "add": add,
        "configure": configure,
        "remove": remove,
    }
    world.controller.run(operations[kind](name, *rest), lambda got: answers.append((got, expected)))


@given(
    steps=st.lists(st.tuples(OPERATIONS, st.sampled_from(["go on", "settle", "restart"])), max_size=25),
    data=st.data(),
)
def test_random_operations_agree_with_the_model_through_restarts(
    steps: list[tuple[tuple[str, ...], str]], data: st.DataObject
) -> None:
    disk, model, answers = MemoryDisk(), Model(), list[tuple[list[str], str]]()
    bound = data.draw(st.sampled_from([1, 500, 1 << 20]))
    world = World(disk, bound)
    for number, (step, then) in enumerate(steps):
        run(world, model, step, answers)
        if then == "go on":
            continue
        world.runtime.run_until_idle()
        assert told(world.image) == model.topics
        if then == "restart":
            before = world.image
            world = World(disk, bound, seed=number + 2)
            same(before, world.image)
            assert world.image.offset == before.offset + 1  # the new registration
    world.runtime.run_until_idle()
    assert told(world.image) == model.topics
    assert len(answers) == len(steps)
    assert all(got == [expected] for got, expected in answers)
    for topic in world.image.topics.values():
        assert world.image.topic_by_id(topic.topic_id) is topic
        assert list(topic.partitions) == list(range(len(topic.partitions)))
        assert all(state.leader == 1 and state.isr == [1] for state in topic.partitions.values())


def test_changes_are_visible_and_answered_only_when_committed() -> None:
    world, answers, seen = World(MemoryDisk()), list[str](), list[tuple[TopicChanges, set[str], int]]()
    world.controller.add_listener(
        lambda image, topics, names: seen.append((topics, names, len(image.topics)))
    )
    world.controller.run(world.create(NewTopic("a")), answers.extend)
    world.controller.run(world.create(NewTopic("a")), answers.extend)
    assert (answers, seen, dict(world.image.topics)) == ([], [], {})
    world.runtime.run_until_idle()
    assert answers == ["NONE", "TOPIC_ALREADY_EXISTS"]
    assert seen == [({world.image.topics["a"].topic_id: {0, 1}}, set(), 1)]


def test_listeners_get_the_partitions_that_have_changed() -> None:
    world, seen = World(MemoryDisk()), list[TopicChanges]()
    world.controller.add_listener(lambda _image, topics, _names: seen.append(topics))
    world.controller.run(world.create(NewTopic("a", 3)), lambda _: None)
    world.controller.run(add("a", 5), lambda _: None)
    world.runtime.run_until_idle()
    topic_id = world.image.topics["a"].topic_id
    change = PartitionChangeRecord(topic_id=topic_id, partition_id=2, isr=[1], leader=1)
    world.controller.run(lambda _: Decision([change], None), lambda _: None)
    world.controller.run(lambda image: delete_topics(image, [("a", bytes(16))]), lambda _: None)
    world.runtime.run_until_idle()
    assert seen == [{topic_id: {0, 1, 2}}, {topic_id: {3, 4}}, {topic_id: {2}}, {topic_id: set()}]


def test_a_failed_change_fails_those_decided_on_top_of_it() -> None:
    disk = MemoryDisk()
    world = World(disk)
    refused: list[ErrorCode] = []
    answers: list[str] = []
    disk.fault = lambda operation, path: errno.ENOSPC if operation == "write" else None
    world.controller.run(world.create(NewTopic("a")), answers.extend, lambda error, _: refused.append(error))
    world.controller.run(add("a", 5), answers.extend, lambda error, _: refused.append(error))
    world.runtime.run_until_idle()
    assert (answers, refused) == ([], [ErrorCode.KAFKA_STORAGE_ERROR] * 2)
    disk.fault = None
    world.controller.run(add("a", 5), answers.extend)
    world.controller.run(world.create(NewTopic("a")), answers.extend)
    world.runtime.run_until_idle()
    assert answers == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE"]
    same(world.image, World(disk).image)


def test_an_operation_run_from_a_failure_callback_sees_the_committed_image() -> None:
    disk = MemoryDisk()
    world = World(disk)
    answers: list[str] = []

    def again(_error: ErrorCode, _message: str) -> None:
        disk.fault = None
        world.controller.run(world.create(NewTopic("b")), answers.extend)

    disk.fault = lambda operation, path: errno.ENOSPC if operation == "write" else None
    world.controller.run(world.create(NewTopic("a")), answers.extend, again)
    world.controller.run(world.create(NewTopic("a")), answers.extend, lambda _error, _message: None)
    world.runtime.run_until_idle()
    world.controller.run(world.create(NewTopic("b")), answers.extend)
    world.runtime.run_until_idle()
    assert answers == ["NONE", "TOPIC_ALREADY_EXISTS"]
    assert list(world.image.topics) == ["b"]


def test_a_change_that_is_too_large_fails_alone() -> None:
    runtime, settings = VirtualRuntime(), Settings()
    peers: Any = SimpleNamespace(send=lambda _node_id, _message: False)
    controller = Controller(
        RaftMetadataLog(MemoryDisk(), "/raft", runtime, 1, [Voter(1, "", 0)], peers, ([], -1))
    )
    controller.open()
    controller.serve()
    runtime.advance(1)
    controller.run(lambda image: register_broker(image, settings, bytes(16)), lambda _: None)
    runtime.advance(1)
    answers, refused = list[str](), list[ErrorCode]()

    def create(name: str) -> None:
        controller.run(
            lambda image: create_topics(
                image, [NewTopic(name)], settings, lambda _: runtime.random_bytes(16)
            ),
            lambda results: answers.extend(result.error.name for result in results),
        )

    large = ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="b", name="x", value="x" * 30_000)
    create("a")
    controller.run(
        lambda _: Decision([large] * 200, None), lambda _: None, lambda error, _: refused.append(error)
    )
    assert (answers, refused) == ([], [ErrorCode.KAFKA_STORAGE_ERROR])
    create("a")
    runtime.advance(1)
    assert answers == ["NONE", "TOPIC_ALREADY_EXISTS"]


class Numbered:
    """An operation in steps that names `count` settings of a topic, and what has been committed and answered."""

    def __init__(self, count: int, disk: MemoryDisk | None = None) -> None:
        self.world = World(disk or MemoryDisk())
        self.answers: list[str] = []
        self.groups: list[int] = []  # how many settings were there after each group
        self.world.controller.add_image_listener(lambda image: self.groups.append(count_of(image)))
        self.world.controller.run(lambda image: self.steps(image, count), self.answers.append, self.failed)

    def steps(self, image: MetadataImage, count: int) -> Steps[str]:
        for number in range(count):
            assert count_of(image) == number // STEP_RECORDS * STEP_RECORDS  # of the steps before it
            yield setting(number)
        return f"{count} made"

    def read(self) -> None:
        self.world.controller.run(
            lambda image: Decision([], f"{count_of(image)} seen"), self.answers.append, self.failed
        )

    def failed(self, error: ErrorCode, _message: str) -> None:
        self.answers.append(error.name)


def setting(number: int) -> ConfigRecord:
    return ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="s", name=f"n{number}", value="1")


def count_of(image: MetadataImage) -> int:
    return len(image.topic_configs("s"))


@pytest.mark.parametrize("count", [0, 1, STEP_RECORDS, STEP_RECORDS + 1, 3 * STEP_RECORDS])
def test_an_operation_in_steps_is_committed_in_bounded_groups_and_others_wait(count: int) -> None:
    made = Numbered(count)
    made.read()
    made.read()
    made.world.runtime.run_until_idle()
    assert made.answers == [f"{count} made", *[f"{count} seen"] * 2]
    assert [after - before for before, after in itertools.pairwise([0, *made.groups]) if after > before] == [
        min(STEP_RECORDS, count - begin) for begin in range(0, count, STEP_RECORDS)
    ]


@pytest.mark.parametrize(
    ("count", "then"),
    [(2 * STEP_RECORDS, f"{STEP_RECORDS} seen"), (2 * STEP_RECORDS - 1, "KAFKA_STORAGE_ERROR")],
)
def test_a_step_that_fails_ends_the_operation_and_what_waited_goes_on(count: int, then: str) -> None:
    """It is one between others; or the last one, on top of which the next operation is decided, and fails with it."""
    disk = MemoryDisk()
    made = Numbered(count, disk)
    interruptions: list[int] = []
    made.world.controller.on_interruption(lambda: interruptions.append(len(made.answers)))

    def fill(_image: MetadataImage) -> None:
        disk.fault = lambda operation, _: errno.ENOSPC if operation == "write" else None

    made.world.controller.add_image_listener(fill)
    made.read()
    made.world.runtime.run_until_idle()
    assert made.answers == ["KAFKA_STORAGE_ERROR", then]
    assert len(interruptions) == 1
    disk.fault = None
    assert count_of(World(disk).image) == STEP_RECORDS  # the first step stays


def test_an_operation_that_raises_in_a_later_step_fails_and_what_waited_goes_on() -> None:
    made = Numbered(0)

    def raises(_image: MetadataImage) -> Steps[str]:
        yield from map(setting, range(STEP_RECORDS))
        raise ValueError("a defect")

    def raises_at_once(_image: MetadataImage) -> Decision[str]:
        raise ValueError("a defect")

    made.world.controller.run(raises, made.answers.append, made.failed)
    made.world.controller.run(raises_at_once, made.answers.append, made.failed)
    made.read()
    made.world.runtime.run_until_idle()
    assert made.answers == [
        "0 made",
        "KAFKA_STORAGE_ERROR",
        "KAFKA_STORAGE_ERROR",
        f"{STEP_RECORDS} seen",
    ]


@pytest.mark.parametrize("count", [STEP_RECORDS - 1, STEP_RECORDS, STEP_RECORDS + 1, 2 * STEP_RECORDS])
def test_an_operation_in_steps_is_answered_when_the_work_of_the_listeners_is_done(count: int) -> None:
    held: list[Callable[[], object]] = []
    runtime = VirtualRuntime()
    controller = Controller(LocalMetadataLog(MemoryDisk(), "/m", runtime), held.append)
    controller.open()
    controller.serve()
    answers: list[int] = []

    def steps(_image: MetadataImage) -> Steps[int]:
        yield from map(setting, range(count))
        return count

    controller.run(steps, answers.append)
    runtime.run_until_idle()
    assert answers == []
    (answer,) = held
    answer()
    assert answers == [count]


def test_who_fails_on_an_answer_gets_no_second_one() -> None:
    made = Numbered(STEP_RECORDS)
    answers: list[object] = []

    def fails(answer: object) -> None:
        answers.append(answer)
        raise ValueError("a defect of the caller")

    def failed(error: ErrorCode, _message: str) -> None:
        answers.append(error)

    made.world.controller.run(lambda _: Decision([], "waited"), fails, failed)
    made.world.runtime.run_until_idle()
    assert answers == ["waited"]
    assert made.answers == [f"{STEP_RECORDS} made"]


def test_a_refused_group_leaves_those_in_flight_to_their_own_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log refuses the second one at once; the first fails later, and nothing of either stays."""
    disk = MemoryDisk()
    world = World(disk)
    refused: list[ErrorCode] = []

    def refuse(_records: Sequence[bytes], done: Callable[[Exception | None], object]) -> None:
        done(MetadataError("too large"))

    disk.fault = lambda operation, path: errno.ENOSPC if operation == "write" else None
    world.controller.run(world.create(NewTopic("a")), lambda _: None, lambda error, _: refused.append(error))
    monkeypatch.setattr(world.controller._log, "propose", refuse)
    world.controller.run(add("a", 5), lambda _: None, lambda error, _: refused.append(error))
    monkeypatch.undo()
    world.runtime.run_until_idle()
    assert refused == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    disk.fault = None
    answers: list[str] = []
    world.controller.run(add("a", 5), answers.extend)
    world.controller.run(world.create(NewTopic("a")), answers.extend)
    world.runtime.run_until_idle()
    assert answers == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE"]


def test_a_failing_listener_does_not_stop_the_others() -> None:
    world, answers = World(MemoryDisk()), list[str]()

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room for a directory")

    world.controller.add_listener(fails)
    for name in ("a", "b"):
        world.controller.run(world.create(NewTopic(name)), answers.extend)
        world.runtime.run_until_idle()
    assert answers == ["NONE", "NONE"]


def test_producer_ids_are_never_given_twice() -> None:
    disk = MemoryDisk()
    given: list[int] = []
    for _ in range(3):
        world = World(disk)
        epoch = world.image.brokers[1].broker_epoch
        for _ in range(2):
            world.controller.run(
                lambda image: allocate_block(image, 1, epoch),  # noqa: B023 - decided at once
                lambda block: given.extend(block if isinstance(block, range) else ()),
            )
            world.runtime.run_until_idle()
    assert given == list(range(6 * BLOCK_SIZE))


@pytest.mark.parametrize(("broker_id", "epoch_off"), [(1, -1), (1, 1), (2, 0)])
def test_producer_ids_require_the_broker_epoch(broker_id: int, epoch_off: int) -> None:
    world = World(MemoryDisk())
    answers: list[range | ApiError] = []
    epoch = world.image.brokers[1].broker_epoch + epoch_off
    world.controller.run(lambda image: allocate_block(image, broker_id, epoch), answers.append)
    (api_error,) = answers
    assert isinstance(api_error, ApiError)
    assert api_error.error == ErrorCode.STALE_BROKER_EPOCH
    assert world.image.next_producer_id == 0


def test_a_start_registers_the_broker_and_finalizes_the_features() -> None:
    disk = MemoryDisk()
    first = World(disk).image
    again = World(disk, seed=2).image
    levels = {each.name: each.served for each in FEATURES if each.served}
    assert first.features == again.features == levels
    assert first.configs == {(4, ""): {"min.insync.replicas": "1"}}  # which those replicas need
    epoch = len(levels) + 1
    assert (first.offset, again.offset) == (epoch, epoch + 1)
    assert (first.brokers[1].broker_epoch, again.brokers[1].broker_epoch) == (epoch, epoch + 1)
    assert first.brokers[1].incarnation_id != again.brokers[1].incarnation_id
    assert (again.brokers[1].rack, again.brokers[1].fenced) == ("r1", False)
    assert again.usable_brokers() == [1]
