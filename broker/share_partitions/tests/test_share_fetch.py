"""ShareFetch and ShareAcknowledge of a whole node: waiting, sessions, locks, restarts, and a coordinator that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.requests.context import Outcome, RawResponse
from barnabas.broker.share_partitions import fetch, reader
from barnabas.broker.share_partitions.manager import LedSharePartition
from barnabas.broker.share_partitions.share_partition import SharePartition
from barnabas.broker.tests.one_node import OneNode
from barnabas.broker.tests.reply import Reply, as_received, send
from barnabas.controller.metadata.image import GROUP_RESOURCE
from barnabas.runtime import slices
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import incremental_alter_configs as altering
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state_summary as summarizing
from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from barnabas.wire.records import Record, build_batch
from barnabas.wire.registry import request_type, response_type

SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79
ACCEPT, RELEASE, RENEW = 1, 2, 4
UPGRADE, SAFE_DOWNGRADE = 1, 2
NOW = 1_700_000_000_000
NewWorld = Callable[..., "World"]
SETTINGS = ("share.coordinator.state.topic.num.partitions=2",)


class World:
    """A node with one topic, and the state of one share group."""

    def __init__(self, directory: Path, *settings: str, start: int = 0, partitions: int = 2) -> None:
        self.node = OneNode(f"log.dirs={directory}", *SETTINGS, *settings)
        self.runtime = self.node.runtime
        self.partitions = partitions
        self.topic_id = self.node.create("orders", partitions)
        self.initialize(start)

    @property
    def services(self) -> Any:
        return self.node.node.services

    def initialize(self, start: int = 0, group: str = "g", state_epoch: int = 0) -> None:
        self.node.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[f"{group}:{'A' * 22}:0"]))
        for index in range(self.partitions):
            wanted = initializing.PartitionData(index, state_epoch, start)
            request = initializing.InitializeShareGroupStateRequest(
                group, [initializing.InitializeStateData(self.topic_id, [wanted])]
            )
            assert self.node.ask(request).results[0].partitions[0].error_code == 0

    def configure(self, group: str = "g", **configs: str) -> None:
        changes = [
            altering.AlterableConfig(name.replace("_", "."), 0, value) for name, value in configs.items()
        ]
        resource = altering.AlterConfigsResource(GROUP_RESOURCE, group, changes)
        answer = self.node.ask(altering.IncrementalAlterConfigsRequest([resource]))
        assert answer.responses[0].error_code == 0

    def set_share_version(self, level: int) -> None:
        update = FeatureUpdateKey("share.version", level, upgrade_type=UPGRADE if level else SAFE_DOWNGRADE)
        assert self.node.ask(UpdateFeaturesRequest(feature_updates=[update])).error_code == 0

    def produce(self, *values: bytes, partition: int = 0) -> None:
        """Records that are two hours old."""
        time_ms = self.runtime.time_ms() - 2 * 3_600_000
        batch = build_batch([Record(index, time_ms, None, value) for index, value in enumerate(values)])
        data = PartitionProduceData(partition, batch)
        request = ProduceRequest(None, -1, 1000, [TopicProduceData("orders", partition_data=[data])])
        answer = self.node.ask(request, 9).responses[0].partition_responses[0]
        assert answer.error_code == 0

    def summary(self) -> Any:
        wanted = summarizing.PartitionData(0, -1)
        request = summarizing.ReadShareGroupStateSummaryRequest(
            "g", [summarizing.ReadStateSummaryData(self.topic_id, [wanted])]
        )
        return self.node.ask(request).results[0].partitions[0]

    def partition(self, index: int) -> Any:
        """The partition."""
        return self.services.partitions.get("orders", index)

    def led(self, index: int = 0) -> LedSharePartition:
        found = self.services.share_partitions.find("g", self.topic_id, index)
        assert isinstance(found, LedSharePartition)
        return found


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """World(settings, start=..., partitions=...)."""
    worlds: list[World] = []

    def make(*settings: str, **fields: int) -> World:
        worlds.append(World(tmp_path, *settings, **fields))
        return worlds[-1]

    yield make
    for world in worlds:
        world.node.node.stop()


class Member:
    """A member of the group, with its connection."""

    def __init__(self, world: World, name: str = "m", group: str = "g") -> None:
        self.world = world
        self.name = name
        self.group = group
        self.epoch = 0
        self.connection = Reply()

    def request(self, *acknowledged: tuple[int, int, int], **fields: Any) -> fetching.ShareFetchRequest:
        batches = [fetching.AcknowledgementBatch(first, last, [kind]) for first, last, kind in acknowledged]
        named = [fetching.FetchPartition(0, batches)]
        named += [fetching.FetchPartition(index) for index in range(1, fields.pop("partitions", 1))]
        topics = [fetching.FetchTopic(self.world.topic_id, named)]
        wanted: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": topics,
        }
        self.epoch += 1
        return fetching.ShareFetchRequest(**(wanted | fields))

    def send(self, *acknowledged: tuple[int, int, int], **fields: Any) -> Reply:
        """As a connection does: its replies have one peer."""
        reply = Reply()
        reply.peer = self.connection.peer
        received = as_received(request_type(SHARE_FETCH), 2, self.request(*acknowledged, **fields))
        send(self.world.services, SHARE_FETCH, 2, received, reply)
        self.world.runtime.advance(0)
        return reply

    def fetch(self, *acknowledged: tuple[int, int, int], **fields: Any) -> Any:
        return answer_of(self.send(*acknowledged, **fields))

    def acquired(self, *acknowledged: tuple[int, int, int], **fields: Any) -> list[tuple[int, int, int]]:
        return ranges(self.fetch(*acknowledged, **fields))

    def acknowledge(self, first: int, last: int, kind: int = ACCEPT, epoch: int | None = None) -> Any:
        batch = acknowledging.AcknowledgementBatch(first, last, [kind])
        partition = acknowledging.AcknowledgePartition(0, [batch])
        request = acknowledging.ShareAcknowledgeRequest(
            self.group,
            self.name,
            self.epoch if epoch is None else epoch,
            False,
            [acknowledging.AcknowledgeTopic(self.world.topic_id, [partition])],
        )
        self.epoch += 1
        answer = self.world.node.ask(request)
        return answer.responses[0].partitions[0] if answer.responses else answer

    def disconnect(self) -> None:
        self.connection.peer.closed()


def answer_of(reply: Reply) -> Any:
    (response,) = reply.responses
    if isinstance(response, RawResponse):
        return response_type(SHARE_FETCH).decode(2, response.body)[0]
    assert not isinstance(response, Outcome)
    return response


def ranges(answer: Any) -> list[tuple[int, int, int]]:
    return [
        (each.first_offset, each.last_offset, each.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for each in partition.acquired_records
    ]


def test_records_are_fetched_once_and_the_position_is_kept(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a", b"b")
    member = Member(world)
    answer = member.fetch()
    assert ranges(answer) == [(0, 1, 1)]
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert bytes(answer.responses[0].partitions[0].records)[:8] == bytes(8)
    assert Member(world, "n").acquired() == []
    assert member.acknowledge(0, 0).error_code == 0
    assert (world.summary().start_offset, world.summary().delivery_complete_count) == (0, 1)
    member.acknowledge(1, 1)
    world.node.restart()
    assert Member(world).acquired() == []


def test_what_is_not_acknowledged_comes_again_after_a_restart(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a", b"b", b"c")
    member = Member(world)
    member.fetch()
    member.acknowledge(1, 1)
    world.node.restart()
    assert Member(world).acquired() == [(0, 0, 1), (2, 2, 1)]


def test_a_fetch_waits_for_records(new_world: NewWorld) -> None:
    world = new_world()
    reply = Member(world).send(max_wait_ms=500)
    assert not reply.done
    world.produce(b"a")
    world.runtime.advance(0)
    assert ranges(answer_of(reply)) == [(0, 0, 1)]
    assert not world.services.purgatory.waiting


def test_a_fetch_waits_for_so_many_bytes_or_so_long(new_world: NewWorld) -> None:
    world = new_world()
    reply = Member(world).send(max_wait_ms=500, min_bytes=100_000)
    world.produce(b"a")
    world.runtime.advance(0.4)
    assert not reply.done
    world.runtime.advance(0.2)
    assert ranges(answer_of(reply)) == [(0, 0, 1)]


def test_a_fetch_waits_for_records_that_are_released(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a")
    first = Member(world, "m")
    first.fetch()
    reply = Member(world, "n").send(max_wait_ms=500)
    assert not reply.done
    first.acknowledge(0, 0, RELEASE)
    world.runtime.advance(0)
    assert ranges(answer_of(reply)) == [(0, 0, 2)]


def test_a_client_that_goes_while_it_waits_acquires_nothing(new_world: NewWorld) -> None:
    world = new_world()
    reply = Member(world).send(max_wait_ms=500)
    assert reply.disconnected is not None
    reply.disconnected()
    world.produce(b"a")
    assert Member(world, "n").acquired() == [(0, 0, 1)]
    assert not world.services.purgatory.waiting


def test_locks_expire(new_world: NewWorld) -> None:
    world = new_world(
        "group.share.min.record.lock.duration.ms=1000", "group.share.record.lock.duration.ms=2000"
    )
    world.produce(b"a")
    Member(world, "m").fetch()
    world.runtime.advance(1.9)
    other = Member(world, "n")
    assert other.acquired() == []
    reply = other.send(max_wait_ms=1000)
    world.runtime.advance(0.2)
    assert ranges(answer_of(reply)) == [(0, 0, 2)]
    assert other.acknowledge(0, 0).error_code == 0


def test_a_session_ends_with_its_connection(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a")
    member = Member(world)
    member.fetch()
    assert len(world.services.share_partitions.sessions) == 1
    member.disconnect()
    assert len(world.services.share_partitions.sessions) == 0
    assert Member(world, "n").acquired() == [(0, 0, 2)]


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_next_member_of_a_group_without_members_begins_where_it_was_reset_to(
    new_world: NewWorld, is_cut: bool
) -> None:
    world = new_world()
    world.produce(b"a", b"b")
    first, second = Member(world), Member(world, "n")
    first.fetch()
    second.fetch(max_wait_ms=0)
    first.acknowledge(0, 1)
    leaving = (first, second)
    for member in leaving:
        assert world.led().is_valid, "there is a member left"
        if is_cut:
            member.disconnect()
            world.runtime.advance(0)
        else:
            member.fetch(share_session_epoch=-1, topics=[])
    world.initialize(0)
    assert Member(world).acquired() == [(0, 1, 1)]


def test_there_are_not_too_many_sessions(new_world: NewWorld) -> None:
    world = new_world("group.share.max.share.sessions=1")
    Member(world, "m").fetch()
    reply = Member(world, "n").send(max_wait_ms=100)
    assert not reply.done
    world.runtime.advance(0.2)
    assert answer_of(reply).error_code == E.SHARE_SESSION_LIMIT_REACHED
    assert Member(world, "m").fetch().error_code == 0, "a member's new session replaces its old one"


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ("earliest", [(0, 0, 1)]),
        ("latest", []),
        ("by_duration:PT1H", []),
        ("by_duration:PT2H30M", [(0, 0, 1)]),
    ],
)
def test_a_group_without_a_position_begins_where_its_config_says(
    new_world: NewWorld, reset: str, expected: list[tuple[int, int, int]]
) -> None:
    world = new_world(start=-1)
    world.configure(share_auto_offset_reset=reset)
    world.produce(b"a")
    world.runtime.advance(0)
    reply = Member(world).send(max_wait_ms=10)
    world.runtime.advance(0.1)
    assert ranges(answer_of(reply)) == expected


def test_a_look_up_in_the_object_store_holds_back_no_other_group(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(start=-1)
    world.initialize(-1, "h")
    for group in ("g", "h"):
        world.configure(group, share_auto_offset_reset="by_duration:PT2H30M")
    world.produce(b"a")
    world.produce(b"b", partition=1)
    log = world.partition(1).log
    look_up, run_in_thread = type(log).timestamp_lookup, world.runtime.run_in_thread

    def read_store() -> None:
        """In a thread, which never ends."""

    def wait_or_look_up(self: Any, time_ms: int) -> Any:
        if self is log:
            yield read_store
        return (yield from look_up(self, time_ms))

    def run_or_hang(work: Any, done: Any, **options: bool) -> None:
        if work is not read_store:
            run_in_thread(work, done, **options)

    monkeypatch.setattr(type(log), "timestamp_lookup", wait_or_look_up)
    monkeypatch.setattr(world.runtime, "run_in_thread", run_or_hang, raising=False)
    Member(world).send(partitions=2)
    reply = Member(world, group="h").send(max_wait_ms=60_000)
    world.runtime.advance(1)
    assert ranges(answer_of(reply)) == [(0, 0, 1)]


def test_a_group_that_was_not_initialized_gets_an_error(new_world: NewWorld) -> None:
    world = new_world()
    reply = Member(world, group="other").send(max_wait_ms=500)
    (partition,) = answer_of(reply).responses[0].partitions
    assert partition.error_code == E.UNKNOWN_SERVER_ERROR


def test_group_configs_count_at_once_and_within_the_brokers_bounds(new_world: NewWorld) -> None:
    world = new_world()
    world.configure(share_record_lock_duration_ms="20000")
    assert Member(world).fetch().acquisition_lock_timeout_ms == 20_000


def test_deleted_records_are_passed_over(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a", b"b")
    world.produce(b"c")
    member = Member(world)
    member.fetch()
    partition = world.services.partitions.get("orders", 0)
    partition.log.increment_log_start_offset(2)
    partition.interrupt_waiters()
    assert member.acknowledge(0, 1).error_code == 0, "what is gone needs no acknowledgement"
    assert member.acknowledge(2, 2).error_code == 0
    assert world.summary().start_offset == 2


def test_a_deleted_topic_ends_the_wait_and_its_state_is_deleted(new_world: NewWorld) -> None:
    world = new_world()
    reply = Member(world).send(max_wait_ms=500)
    assert any(shard.summary() for shard in world.services.share_coordinator.shards.loaded())
    world.node.ask(DeleteTopicsRequest([DeleteTopicState("orders")], timeout_ms=1000))
    world.runtime.advance(0.1)
    (partition,) = answer_of(reply).responses[0].partitions
    assert partition.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert not any(shard.summary() for shard in world.services.share_coordinator.shards.loaded())


def test_a_failed_write_takes_the_acknowledgement_back(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a")
    member = Member(world)
    member.fetch()
    coordinator = world.services.share_coordinator
    coordinator.shards.stop()
    batch = acknowledging.AcknowledgementBatch(0, 0, [ACCEPT])
    request = acknowledging.ShareAcknowledgeRequest(
        "g",
        "m",
        member.epoch,
        False,
        [acknowledging.AcknowledgeTopic(world.topic_id, [acknowledging.AcknowledgePartition(0, [batch])])],
    )
    reply = send(world.services, 79, 2, as_received(request_type(79), 2, request))
    assert not reply.done
    world.runtime.advance(20)
    assert reply.answer.responses[0].partitions[0].error_code == E.COORDINATOR_NOT_AVAILABLE
    coordinator.shards.metadata_changed(coordinator.topic.image())
    world.runtime.advance(0)
    member.epoch += 1
    assert member.acknowledge(0, 0).error_code == 0


def test_a_leader_that_is_fenced_drops_the_share_partition(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a")
    member = Member(world)
    member.fetch()
    led = world.led()
    world.services.share_coordinator.read(led.key, led.leader_epoch + 1, lambda _: None)
    assert member.acknowledge(0, 0).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert world.services.share_partitions.find("g", world.topic_id, 0) is None


def test_a_connection_with_many_sessions_ends_in_slices(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world()
    members = [Member(world, f"m{number}") for number in range(3)]
    for member in members:
        member.connection = members[0].connection
        world.produce(b"a")
        member.fetch()
    monkeypatch.setattr(slices, "TURN_S", 0.0)
    state = world.led().state
    assert state is not None
    members[0].disconnect()
    assert len(world.services.share_partitions.sessions) == 0
    assert [run.member_id for run in state.runs()] == ["", "m1", "m2"], "one in the first turn"
    again = Member(world, "m2").send()
    assert ranges(answer_of(again)) == [(0, 0, 2), (1, 1, 2), (2, 2, 2)]
    assert [run.member_id for run in world.led().state.runs()] == ["m2"] * 3, "what it had before is released"  # type: ignore[union-attr]


def test_an_acknowledgement_that_ends_late_leaves_the_next_session_alone(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a")
    world.produce(b"b")
    member = Member(world)
    assert member.acquired(max_records=1) == [(0, 0, 1)]
    coordinator = world.services.share_coordinator
    coordinator.shards.stop()
    last = member.send((0, 0, ACCEPT), share_session_epoch=-1, max_records=0)
    assert not last.done
    successor = Member(world)
    assert successor.acquired(max_records=1) == [(1, 1, 1)]
    coordinator.shards.metadata_changed(coordinator.topic.image())
    world.runtime.advance(20)
    assert answer_of(last).responses[0].partitions[0].acknowledge_error_code == 0
    assert len(world.services.share_partitions.sessions) == 1
    assert Member(world, "n").acquired() == [], "the successor keeps what it has"
    assert successor.acknowledge(1, 1).error_code == 0


def test_a_group_without_sessions_has_its_state_loaded_again(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a", b"b")
    member = Member(world)
    member.fetch()
    member.disconnect()
    world.runtime.advance(0)
    world.initialize(start=1, state_epoch=1)  # as AlterShareGroupOffsets does
    assert Member(world).acquired() == [(1, 1, 1)]


def test_a_session_has_no_more_partitions_than_a_request_may_name(new_world: NewWorld) -> None:
    world = new_world()
    member = Member(world)
    for first, error in ((0, E.NONE), (9_000, E.SHARE_SESSION_LIMIT_REACHED)):
        partitions = [fetching.FetchPartition(index) for index in range(first, first + 9_000)]
        topics = [fetching.FetchTopic(world.topic_id, partitions)]
        reply = member.send(topics=topics, max_records=0)
        assert answer_of(reply).error_code == error
    assert len(world.services.share_partitions.sessions) == 0


@pytest.mark.parametrize("failure", [OSError("bad sector"), StorageError(E.KAFKA_STORAGE_ERROR, "no")])
def test_a_read_error_is_answered_and_leaves_the_locks(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    world = new_world()
    world.produce(b"a")
    member = Member(world)
    assert member.acquired() == [(0, 0, 1)]
    world.produce(b"b")
    partition = world.services.partitions.get("orders", 0)

    def read(*_args: Any, **_fields: Any) -> Any:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(type(partition.log), "read", read)
        reply = member.send(max_wait_ms=500, partitions=2)
        (answer,) = answer_of(reply).responses[0].partitions
        assert answer.error_code == E.KAFKA_STORAGE_ERROR
    assert member.acknowledge(0, 0).error_code == 0
    assert member.acquired() == [(1, 1, 1)]


def test_a_wake_looks_only_at_what_has_changed(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(partitions=20)
    member = Member(world)
    member.fetch(partitions=20)
    reply = member.send(max_wait_ms=500, min_bytes=500)
    looks: list[SharePartition] = []
    can_acquire = SharePartition.can_acquire

    def look(state: SharePartition, limits: Any) -> bool:
        looks.append(state)
        return can_acquire(state, limits)

    monkeypatch.setattr(SharePartition, "can_acquire", look)
    world.produce(b"a" * 300, partition=7)
    world.runtime.advance(0)
    assert looks == [], "not enough"
    world.produce(b"a" * 300, partition=7)
    world.runtime.advance(0)
    assert ranges(answer_of(reply)) == [(0, 1, 1)]
    assert looks == [world.led(7).state]


def test_a_fetch_of_many_partitions_is_served_in_slices(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(partitions=5)
    for index in range(5):
        world.produce(b"a", partition=index)
    member = Member(world)
    member.fetch(partitions=5, max_records=0)
    monkeypatch.setattr(slices, "TURN_S", 0.0)
    assert len(ranges(member.fetch())) == 5
    reply = member.send(max_wait_ms=500)
    world.produce(b"b", partition=3)
    world.runtime.advance(0)
    assert ranges(answer_of(reply)) == [(1, 1, 1)]
    for index in range(5):
        assert not world.led(index).waiters
        assert not world.led(index).partition.fetch_waiters


def test_a_client_that_goes_while_a_thread_reads_leaves_nothing(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(partitions=3)
    for index in range(3):
        world.produce(b"a", partition=index)
    reply = Member(world).send(max_wait_ms=500, min_bytes=1000, partitions=3)
    world.runtime.thread_delay_s = lambda: 0.1
    read_batches = reader.read_batches

    def read(*args: Any, wait: bool, **fields: Any) -> Any:
        if not reply.closed:
            raise WouldWait(lambda: None)
        return read_batches(*args, wait=wait, **fields)

    monkeypatch.setattr(fetch, "read_batches", read)
    world.produce(b"a" * 1000)
    reply.closed = True
    assert reply.disconnected is not None
    reply.disconnected()
    world.runtime.advance(1)
    for index in range(3):
        assert not world.led(index).waiters
        assert not world.led(index).partition.fetch_waiters
    assert not world.services.purgatory.waiting


def test_what_is_in_remote_storage_alone_is_held_back_by_its_quota(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world()
    member = Member(world)
    world.produce(b"a")
    world.produce(b"b")
    remote = SimpleNamespace(is_over_quota=True)
    log = world.partition(0).log
    monkeypatch.setattr(type(log), "local_log_start_offset", property(lambda _: 1))
    monkeypatch.setattr(log, "remote", remote)
    assert member.acquired() == []
    remote.is_over_quota = False
    assert member.acquired(max_records=1) == [(0, 0, 1)]
    remote.is_over_quota = True
    assert member.acquired() == [(1, 1, 1)]  # it is here


def test_enough_bytes_of_several_partitions_are_enough(new_world: NewWorld) -> None:
    world = new_world()
    reply = Member(world).send(max_wait_ms=500, min_bytes=500, partitions=2)
    world.produce(b"a" * 300)
    world.runtime.advance(0.1)
    assert not reply.done
    world.produce(b"a" * 300, partition=1)
    world.runtime.advance(0)
    assert ranges(answer_of(reply)) == [(0, 0, 1), (0, 0, 1)]


def test_a_shorter_lock_expires_before_those_that_are_longer(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a")
    world.produce(b"b")
    Member(world, "m").acquired(max_records=1)
    world.configure(share_record_lock_duration_ms="15000")
    Member(world, "n").acquired()
    world.runtime.advance(15.1)
    assert Member(world, "o").acquired() == [(1, 1, 2)]


def abort(world: World, *sizes: int) -> None:
    """One transaction after the other of this many batches of a record each."""
    partition = world.services.partitions.get("orders", 0)
    sequence = 0
    for size in sizes:
        verification = partition.begin_verification(7, 0, sequence, supports_epoch_bump=False)
        for _ in range(size):
            value = [Record(0, NOW, None, b"x")]
            batch = build_batch(
                value, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
            )
            partition.append(batch, verification=verification)
            sequence += 1
        partition.append_marker(
            7, 0, commit=False, coordinator_epoch=0, transaction_version=0, done=lambda _: None
        )


def read_committed(new_world: NewWorld) -> World:
    world = new_world()
    world.configure(share_isolation_level="read_committed")
    return world


def test_a_fetch_does_not_wait_behind_aborted_records(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = read_committed(new_world)
    abort(world, 9)
    world.produce(b"a")
    monkeypatch.setattr(fetch, "BATCHES_MAX", 4)
    reply = Member(world).send(max_wait_ms=500)
    assert ranges(answer_of(reply)) == [(9, 10, 1)], "with the marker"


def test_very_many_aborted_transactions_are_read_in_parts(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = read_committed(new_world)
    abort(world, *[1] * 9)
    monkeypatch.setattr(reader, "ABORTED_MAX", 2)
    member = Member(world)
    assert member.acquired() == [(1, 1, 1), (3, 3, 1)], "markers"
    assert member.acquired() == [(5, 5, 1)]


@pytest.mark.parametrize("failure", [None, StorageError(E.KAFKA_STORAGE_ERROR, "no")])
def test_aborted_transactions_are_read_by_a_thread_where_the_disk_is_needed(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, failure: Exception | None
) -> None:
    world = read_committed(new_world)
    abort(world, 3)
    world.produce(b"a")
    partition = world.services.partitions.get("orders", 0)
    collect = partition.log.producers.collect_aborted
    loaded: list[bool] = []

    def cold(start: int, end: int, limit: int | None = None, *, wait: bool = True) -> Any:
        assert not wait, "the loop does not wait for the disk"
        if not loaded:
            raise WouldWait(lambda: loaded.append(True))
        if failure is not None:
            raise failure
        return collect(start, end, limit, wait=wait)

    monkeypatch.setattr(type(partition.log.producers), "collect_aborted", staticmethod(cold))
    answer = answer_of(Member(world).send(max_wait_ms=500))
    assert loaded
    if failure is None:
        assert ranges(answer) == [(3, 4, 1)]
    else:
        assert answer.responses[0].partitions[0].error_code == E.KAFKA_STORAGE_ERROR


def test_aborted_transactions_are_left_out_where_the_group_wants_that(new_world: NewWorld) -> None:
    world = new_world()
    world.configure(share_isolation_level="read_committed")
    partition = world.services.partitions.get("orders", 0)
    values = [Record(index, NOW, None, b"x") for index in range(2)]
    aborted = build_batch(values, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    verification = partition.begin_verification(7, 0, 0, supports_epoch_bump=False)
    partition.append(aborted, verification=verification)
    world.produce(b"a")
    assert Member(world).acquired() == [], "the transaction is open"
    partition.append_marker(
        7, 0, commit=False, coordinator_epoch=0, transaction_version=0, done=lambda _: None
    )
    assert Member(world, "n").acquired() == [(2, 3, 1)]


def test_while_share_groups_are_switched_off_nothing_is_served_and_sessions_end(new_world: NewWorld) -> None:
    world = new_world()
    world.produce(b"a")
    member = Member(world)
    assert member.acquired() == [(0, 0, 1)]
    world.set_share_version(0)
    assert member.fetch(share_session_epoch=1).error_code == E.UNSUPPORTED_VERSION
    assert member.fetch(group_id=None).error_code == E.UNSUPPORTED_VERSION
    assert member.acknowledge(0, 0, epoch=1).error_code == E.UNSUPPORTED_VERSION
    world.set_share_version(1)
    assert member.fetch(share_session_epoch=1).error_code == E.SHARE_SESSION_NOT_FOUND
    assert Member(world, "n").acquired() == [(0, 0, 2)]


def test_a_member_that_goes_while_its_acknowledgement_is_written_leaves_no_share_partition(
    new_world: NewWorld,
) -> None:
    """Those would keep a state that an administrator has replaced since."""
    world = new_world()
    world.produce(b"a", b"b")
    member = Member(world)
    member.fetch(partitions=2)
    coordinator = world.services.share_coordinator
    coordinator.shards.stop()
    reply = member.send((0, 0, ACCEPT), partitions=2)
    assert not reply.done
    reply.closed = True
    member.disconnect()
    world.runtime.advance(0)
    coordinator.shards.metadata_changed(coordinator.topic.image())
    world.runtime.advance(60)
    found = world.services.share_partitions.find
    assert [found("g", world.topic_id, index) for index in range(2)] == [None, None]
    world.produce(b"a", b"b", b"c", b"d", partition=1)
    world.initialize(start=3, state_epoch=1)  # as AlterShareGroupOffsets does
    assert Member(world, "n").acquired(partitions=2) == [(3, 3, 1)]


def test_a_lock_whose_acknowledgement_was_not_written_expires_in_time(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world("group.share.record.lock.duration.ms=30000")
    for value in (b"a", b"b", b"c"):
        world.produce(value)
    names = ("a", "b", "c")
    for name, index, pause_s in zip(names, range(3), (8, 21, 0), strict=True):
        assert Member(world, name).acquired(max_records=1) == [(index, index, 1)]
        world.runtime.advance(pause_s)  # the locks end at 30, 38 and 59 s
    writer = world.led()._writer
    held: list[Callable[[E], object]] = []
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write", lambda start, count, batches, done: held.append(done))
        batch = acknowledging.AcknowledgementBatch(1, 1, [ACCEPT])
        partition = acknowledging.AcknowledgePartition(0, [batch])
        topic = acknowledging.AcknowledgeTopic(world.topic_id, [partition])
        request = acknowledging.ShareAcknowledgeRequest("g", "b", 1, False, [topic])
        send(world.services, SHARE_ACKNOWLEDGE, 2, as_received(request_type(SHARE_ACKNOWLEDGE), 2, request))
    world.runtime.advance(3)
    (failed,) = held
    failed(E.COORDINATOR_NOT_AVAILABLE)
    world.runtime.advance(8)
    assert Member(world, "d").acquired() == [(0, 0, 2), (1, 1, 2)]


def test_a_renewed_lock_may_be_shorter(new_world: NewWorld) -> None:
    world = new_world("group.share.record.lock.duration.ms=60000")
    world.produce(b"a")
    member = Member(world)
    assert member.acquired() == [(0, 0, 1)]
    world.configure(share_record_lock_duration_ms="15000")
    world.runtime.advance(5)
    nothing = {"max_records": 0, "max_bytes": 0, "min_bytes": 0, "max_wait_ms": 0}
    answer = member.fetch((0, 0, RENEW), is_renew_ack=True, **nothing)
    assert answer.acquisition_lock_timeout_ms == 15_000
    assert answer.responses[0].partitions[0].acknowledge_error_code == 0
    world.runtime.advance(16)
    assert Member(world, "d").acquired() == [(0, 0, 2)]


def test_a_fetch_does_not_wait_for_more_than_it_may_read(new_world: NewWorld) -> None:
    world = new_world(
        "group.share.min.partition.max.record.locks=100", "group.share.partition.max.record.locks=100"
    )
    for _ in range(20):
        world.produce(*[b"x" * 100] * 100)
    assert Member(world).send(min_bytes=50_000, max_wait_ms=5000).done, "of 200 KB it may lock 10"
    for _ in range(8):
        world.produce(b"x" * 300_000, partition=1)
    other = Member(world, "n")
    assert other.send(min_bytes=1 << 20, max_bytes=1 << 20, max_wait_ms=5000, partitions=2).done


def test_what_did_not_fit_is_looked_at_again(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another member has acquired what did."""
    world = new_world()
    for partition in range(2):
        world.produce(b"x" * 700_000, partition=partition)
    Member(world, "w").fetch(max_records=0, partitions=2)
    monkeypatch.setattr(slices, "TURN_S", 0.0)
    replies = []
    for member in (Member(world, "a"), Member(world, "b")):
        reply = Reply()
        reply.peer = member.connection.peer
        request = member.request(partitions=2, max_bytes=1 << 20, max_wait_ms=5000)
        send(world.services, SHARE_FETCH, 2, as_received(request_type(SHARE_FETCH), 2, request), reply)
        replies.append(reply)
    world.runtime.advance(1)
    assert [ranges(answer_of(reply)) for reply in replies] == [[(0, 0, 1)], [(0, 0, 1)]]


def in_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[bool], list[Callable[[], object]]]:
    """Has the first partition's log in the object store alone, until the second list's function is called: whether threads of the
    store were asked, and what they will say."""
    log = world.partition(0).log
    read, asked = type(log).read, []
    ended: list[Callable[[], object]] = []
    is_here: list[bool] = []

    def read_or_wait(self: Any, *args: Any, **options: Any) -> Any:
        if self is log and not is_here:
            raise WouldWait(lambda: None, is_remote=True)
        return read(self, *args, **options)

    def run_in_thread(_work: Any, done: Any, *, remote: bool = False, background: bool = False) -> None:
        def end() -> None:
            is_here.append(True)
            done(None, None)

        asked.append(remote)
        ended.append(end)

    monkeypatch.setattr(type(log), "read", read_or_wait)
    monkeypatch.setattr(world.runtime, "run_in_thread", run_in_thread, raising=False)
    return asked, ended


def test_what_is_in_the_object_store_is_read_by_a_thread_of_it(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world()
    world.produce(b"a")
    member = Member(world)
    asked, ended = in_the_store(world, monkeypatch)
    reply = member.send(max_wait_ms=5000)
    world.produce(b"b")
    assert not reply.done
    assert asked == [True], "one thread reads, whatever else comes"
    ended[0]()
    world.runtime.advance(0)
    assert ranges(answer_of(reply)) == [(0, 1, 1)]


def test_a_fetch_does_not_wait_for_the_object_store(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world()
    world.produce(b"a")
    world.produce(b"b", partition=1)
    member = Member(world)
    in_the_store(world, monkeypatch)
    assert member.acquired(max_wait_ms=5000, partitions=2) == [(0, 0, 1)], "of the other partition"
    reply = member.send(max_wait_ms=500, partitions=2)
    world.runtime.advance(1)
    assert ranges(answer_of(reply)) == []
