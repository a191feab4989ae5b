"""Leaders, groups, nodes, upkeep and the clock of in-process brokers, as a client meets them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.groups.shard import Shard
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC
from barnabas.testing import Broker
from barnabas.testing.contents import UnknownTopic, image_of
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.steering.groups import UnknownGroup
from barnabas.testing.steering.nodes import UnknownNode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

PRODUCE, METADATA, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 0, 3, 9, 10, 11, 12, 14
BATCH = build_batch([Record(0, 0, None, b"v")])


@pytest.fixture(scope="module")
def one() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def three() -> Iterator[Broker]:
    with Broker(nodes=3) as broker:
        broker.create_topic("t", 1, replication_factor=3)
        yield broker


@pytest.fixture(autouse=True)
def _all_awake(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails with a node asleep or dead does not take the next ones along."""
    yield
    for name in {"one", "three"} & set(request.fixturenames):
        broker = request.getfixturevalue(name)
        for node in broker.nodes:
            broker.resume_node(node.node_id)
            broker.start_node(node.node_id)


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Callable[[Broker, int], RawClient]:
    def to(broker: Broker, node: int = 1) -> RawClient:
        client = RawClient(next(each.port for each in broker.nodes if each.node_id == node))
        request.addfinalizer(client.socket.close)
        return client

    return to


Connect = Callable[..., RawClient]


def produce(client: RawClient) -> int:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=BATCH)])
    answer = client.ask(PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]))
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


class Member:
    """The only member of a group."""

    def __init__(self, client: RawClient, group: str, session_ms: int = 60_000) -> None:
        self.client = client
        self.group = group
        eventually(lambda: client.ask(FIND_COORDINATOR, 1, FindCoordinatorRequest(key=group)).error_code == 0)
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        answer = client.ask(JOIN_GROUP, 5, request)
        while answer.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            request.member_id = answer.member_id
            answer = client.ask(JOIN_GROUP, 5, request)
        assert answer.error_code == 0
        self.member_id, self.generation = answer.member_id, answer.generation_id
        synced = client.ask(
            SYNC_GROUP,
            3,
            SyncGroupRequest(
                group_id=group,
                generation_id=self.generation,
                member_id=self.member_id,
                assignments=[SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"")],
            ),
        )
        assert synced.error_code == 0

    def beat(self) -> int:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        code: int = self.client.ask(HEARTBEAT, 3, request).error_code
        return code


# -- partitions


def test_a_leader_moves_and_the_old_one_says_so(three: Broker, connect: Connect) -> None:
    old = three.partition("t")
    client = connect(three, old.leader)
    assert produce(client) == 0
    three.move_leader("t")
    new = three.partition("t")
    assert new.leader != old.leader
    assert new.leader_epoch == old.leader_epoch + 1
    assert produce(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produce(connect(three, new.leader)) == 0
    three.move_leader("t", node=old.leader)
    assert produce(client) == 0


def test_an_epoch_alone(one: Broker) -> None:
    one.create_topic("e", 1)
    before = one.partition("e")
    one.bump_epoch("e")
    assert one.partition("e").leader_epoch == before.leader_epoch + 1
    assert one.partition("e").leader == before.leader
    one.seed("e", ["goes on"])
    with pytest.raises(ValueError, match="no replica in sync but its leader"):
        one.move_leader("e")
    with pytest.raises(UnknownTopic):
        one.bump_epoch("nowhere")


def test_a_partition_without_a_leader(one: Broker, connect: Connect) -> None:
    one.create_topic("t", 1)
    one.drop_leader("t")
    assert one.partition("t").leader == -1
    assert produce(connect(one)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    one.move_leader("t", node=1)
    assert produce(connect(one)) == 0


def test_an_isr_that_is_too_small_takes_no_produce(three: Broker, connect: Connect) -> None:
    leader = three.partition("t").leader
    client = connect(three, leader)
    three.shrink_isr("t", 0, [leader])
    assert three.partition("t").isr == (leader,)
    assert produce(client) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert three.partition("t").isr == (leader,)
    three.restore_isr()
    eventually(lambda: len(three.partition("t").isr) == 3)
    assert produce(client) == 0
    with pytest.raises(ValueError, match="holds its leader"):
        three.shrink_isr("t", 0, [each for each in (1, 2, 3) if each != leader])


# -- nodes


def test_a_killed_node_is_missed_and_comes_back(three: Broker, connect: Connect) -> None:
    old = three.partition("t").leader
    port = three.nodes[old - 1].port
    client = connect(three, old)
    three.kill_node(old)
    assert client.is_closed()
    eventually(lambda: three.partition("t").leader not in (-1, old))
    three.start_node(old)
    assert three.nodes[old - 1].port == port
    assert produce(connect(three, three.partition("t").leader)) == 0
    eventually(lambda: len(three.partition("t").isr) == 3)


def test_a_stopped_node_hands_over_first(three: Broker) -> None:
    old = three.partition("t").leader
    three.stop_node(old)
    assert three.partition("t").leader not in (-1, old)
    three.start_node(old)
    three.restart_node(old)
    eventually(lambda: len(three.partition("t").isr) == 3)


def test_a_paused_node_answers_later(one: Broker, connect: Connect) -> None:
    client = connect(one)
    client.ask(METADATA, 9, MetadataRequest(topics=None))
    one.pause_node(1)
    late = connect(one)  # the system takes it
    for each in (client, late):
        each.socket.sendall(each.frame(METADATA, 9, MetadataRequest(topics=None)))
        each.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            each.socket.recv(1)
        each.socket.settimeout(60)
    one.resume_node(1)
    for each in (client, late):
        assert each.receive(METADATA, 9)[1].brokers


def test_a_node_that_stands_still_is_given_up(three: Broker, connect: Connect) -> None:
    old = three.partition("t").leader
    three.pause_node(old)
    three.clock.advance(20)
    new = three.partition("t").leader
    assert new not in (-1, old)
    assert produce(connect(three, new)) == 0
    three.resume_node(old)
    eventually(lambda: len(three.partition("t").isr) == 3)


@pytest.mark.parametrize("asleep", [1, 2, 3])
def test_the_others_are_steered_while_one_stands_still(three: Broker, asleep: int) -> None:
    """Also where that one was the active controller, and believes that it still is."""
    three.move_leader("t", node=asleep % 3 + 1)
    three.pause_node(asleep)
    three.clock.advance(5)
    three.move_leader("t")
    assert three.partition("t").leader != asleep
    three.create_topic("meanwhile", 1, replication_factor=1)
    three.delete_topics("meanwhile")
    assert "meanwhile" not in three.topics()
    three.resume_node(asleep)
    eventually(lambda: len(three.partition("t").isr) == 3)


def test_nobody_is_awake() -> None:
    with Broker() as broker:
        broker.pause_node(1)
        with pytest.raises(RuntimeError, match="resume_node"):
            broker.create_topic("t")
        broker.resume_node(1)
        broker.create_topic("t")


def test_a_node_joins_and_leaves(three: Broker, connect: Connect) -> None:
    three.add_node()
    assert [node.node_id for node in three.nodes] == [1, 2, 3, 4]
    brokers = connect(three, 4).ask(METADATA, 9, MetadataRequest(topics=None)).brokers
    assert [each.node_id for each in brokers] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="one of the controllers"):
        three.remove_node(1)
    three.remove_node(4)
    brokers = connect(three, 1).ask(METADATA, 9, MetadataRequest(topics=None)).brokers
    assert [each.node_id for each in brokers] == [1, 2, 3]
    with pytest.raises(UnknownNode):
        three.kill_node(4)


def test_one_node_stays_alone(one: Broker) -> None:
    with pytest.raises(ValueError, match="begin with two or more"):
        one.add_node()


# -- groups


def test_a_member_expires(one: Broker, connect: Connect) -> None:
    member = Member(connect(one), "expires")
    assert member.beat() == 0
    one.expire_member("expires", member.member_id)
    assert member.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(UnknownGroup, match="has no member"):
        one.expire_member("expires", member.member_id)
    with pytest.raises(UnknownGroup, match="no group"):
        one.force_rebalance("nobody")


def test_a_rebalance_is_forced(one: Broker, connect: Connect) -> None:
    member = Member(connect(one), "rebalances")
    one.force_rebalance("rebalances")
    assert member.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_coordinator_loads(one: Broker, connect: Connect) -> None:
    member = Member(connect(one), "loads")
    one.load_coordinator("loads")
    fetch = OffsetFetchRequest(group_id="loads", topics=None)
    assert member.client.ask(OFFSET_FETCH, 5, fetch).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    one.coordinator_loaded("loads")
    assert member.client.ask(OFFSET_FETCH, 5, fetch).error_code == 0
    assert member.beat() == 0
    one.load_coordinator("loads", 300)
    one.clock.advance(200)
    assert member.client.ask(OFFSET_FETCH, 5, fetch).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    one.clock.advance(101)
    assert member.client.ask(OFFSET_FETCH, 5, fetch).error_code == 0


def test_a_coordinator_that_loads_again_ends_only_the_second_time(one: Broker, connect: Connect) -> None:
    member = Member(connect(one), "loads again", session_ms=600_000)
    fetch = OffsetFetchRequest(group_id=member.group, topics=None)
    one.load_coordinator(member.group, 300)
    one.coordinator_loaded(member.group)
    one.load_coordinator(member.group)
    one.clock.advance(301)
    assert member.client.ask(OFFSET_FETCH, 5, fetch).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    one.coordinator_loaded(member.group)
    assert member.client.ask(OFFSET_FETCH, 5, fetch).error_code == 0


def test_a_coordinator_that_really_loads_goes_on(
    three: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was asked for before, or is now: half of a state must not be served."""
    group = "really loads"
    eventually(
        lambda: connect(three).ask(FIND_COORDINATOR, 1, FindCoordinatorRequest(key=group)).error_code == 0
    )
    old = three.coordinator(group)
    client = connect(three, old)

    def error() -> int:
        code: int = client.ask(OFFSET_FETCH, 5, OffsetFetchRequest(group_id=group, topics=None)).error_code
        return code

    three.load_coordinator(group, 300)
    three.move_coordinator(group)
    assert error() == ErrorCode.NOT_COORDINATOR
    loads: list[Callable[[], object]] = []
    is_loaded = threading.Event()
    load = Shard.load

    def load_later(shard: Shard, done: Callable[[Exception | None], object]) -> None:
        def loaded(error: Exception | None) -> None:
            done(error)
            is_loaded.set()

        loop = asyncio.get_running_loop()
        loads.append(lambda: loop.call_soon_threadsafe(partial(load, shard, loaded)))

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "load", load_later)
        index = partition_for(group, len(image_of(three.nodes).topics[GROUP_METADATA_TOPIC].partitions))
        three.move_leader(GROUP_METADATA_TOPIC, index, old)
        eventually(lambda: error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    three.clock.advance(301)
    assert error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    three.coordinator_loaded(group)
    assert error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    three.load_coordinator(group)
    (finish,) = loads
    finish()
    assert is_loaded.wait(10)
    assert error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    three.coordinator_loaded(group)
    assert error() == 0


def test_a_coordinator_moves_and_knows_the_group(three: Broker, connect: Connect) -> None:
    eventually(
        lambda: connect(three).ask(FIND_COORDINATOR, 1, FindCoordinatorRequest(key="moves")).error_code == 0
    )
    old = three.coordinator("moves")
    member = Member(connect(three, old), "moves", session_ms=60_000)
    three.move_coordinator("moves")
    assert member.beat() == ErrorCode.NOT_COORDINATOR
    new = three.coordinator("moves")
    assert new != old
    member.client = connect(three, new)
    assert member.beat() == 0


# -- time and upkeep


def test_sessions_end_without_sleeping(one: Broker, connect: Connect) -> None:
    member = Member(connect(one), "sleeps", session_ms=300_000)
    begun = one.clock.time_ms()
    one.clock.advance(200)
    assert member.beat() == 0  # the session begins anew
    one.clock.advance(200)
    assert member.beat() == 0
    one.clock.advance(301)
    assert member.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.clock.time_ms() - begun >= 701_000


def test_a_reset_is_at_the_machines_time() -> None:
    with Broker() as broker:
        both = [threading.Thread(target=broker.clock.advance, args=(seconds,)) for seconds in (3600, 86_400)]
        for each in both:
            each.start()
        for each in both:
            each.join()
        assert broker.clock.ahead_s == 90_000
        broker.reset()
        assert broker.clock.ahead_s == 0
        broker.seed("t", ["v"])
        assert len(broker.records("t")) == 1


def test_records_expire_without_sleeping(one: Broker) -> None:
    one.create_topic("short", 1, configs={"retention.ms": "3600000", "file.delete.delay.ms": "0"})
    one.seed("short", ["old"])
    one.clock.advance(3500)
    one.seed("short", ["young"])
    one.run_retention("short")
    assert [record.value for record in one.records("short")] == [b"old", b"young"]  # in one segment
    one.clock.advance(2 * 86_400)
    assert one.records("short") == []
    one.seed("short", ["new"])
    assert [record.value for record in one.records("short")] == [b"new"]


def test_compaction_now(one: Broker) -> None:
    one.create_topic("table", 1, configs={"cleanup.policy": "compact"})
    one.seed("table", [("a", "1"), ("b", "1"), ("a", "2"), ("b", None)])
    one.run_compaction("table")
    assert [(record.offset, record.value) for record in one.records("table")] == [(2, b"2"), (3, None)]
    one.seed("table", [("a", "3")])
    one.run_compaction()
    assert [record.offset for record in one.records("table")] == [3, 4]
    with pytest.raises(UnknownTopic):
        one.run_compaction("nothing")


def test_the_cluster_lives_through_a_jump(three: Broker, connect: Connect) -> None:
    before = three.partition("t")
    three.clock.advance(60)
    after = three.partition("t")
    assert (after.leader, len(after.isr)) == (before.leader, 3)
    assert produce(connect(three, after.leader)) == 0
    with pytest.raises(ValueError, match="a cluster goes 10800 s at most"):
        three.clock.advance(86_400)


def test_in_the_running_loop() -> None:
    async def work() -> None:
        async with Broker(nodes=2) as broker:
            await broker.create_topic("t", 1, replication_factor=2)
            old = broker.partition("t").leader
            await broker.move_leader("t")
            assert broker.partition("t").leader != old
            await broker.clock.advance(1)
            with pytest.raises(ValueError, match="can't lead"):
                await broker.move_leader("t", node=9)

    asyncio.run(work())
