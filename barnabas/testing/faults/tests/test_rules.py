"""Rules on a whole broker, seen by a client that speaks frames."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.faults.engine import Faults
from barnabas.testing.faults.shapes import transactional_ids
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

PRODUCE, FETCH, LIST_OFFSETS, METADATA, HEARTBEAT, API_VERSIONS, CREATE_TOPICS = 0, 1, 2, 3, 12, 18, 19
OFFSET_FOR_LEADER_EPOCH, ADD_PARTITIONS_TO_TXN, END_TXN, FIND_COORDINATOR, DESCRIBE_TRANSACTIONS = (
    23,
    24,
    26,
    10,
    65,
)
TRANSACTION = 1  # a key type of FindCoordinator
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR  # what the broker says as long as there is no group
BATCH = build_batch([Record(0, 0, None, b"v")])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        client = RawClient(broker.port)
        topics = [
            CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in ("a", "orders-1")
        ]
        client.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics, timeout_ms=30_000))
        client.socket.close()
        yield broker


@pytest.fixture
def faults(broker: Broker) -> Iterator[Faults]:
    yield broker.faults
    broker.faults.reset()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    client = RawClient(broker.port)
    yield client
    client.socket.close()


def produce(*partitions: tuple[str, int]) -> ProduceRequest:
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=BATCH)])
            for topic, index in partitions
        ],
    )


def codes(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.index): each.error_code
        for topic in answer.responses
        for each in topic.partition_responses
    }


def end_offset(client: RawClient, topic: str, partition: int) -> int:
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    offset: int = client.ask(LIST_OFFSETS, 7, request).topics[0].partitions[0].offset
    return offset


def test_one_partition_fails_and_the_others_are_served(faults: Faults, client: RawClient) -> None:
    before = end_offset(client, "a", 0), end_offset(client, "a", 1)
    rule = faults.on("Produce", topic="a", partition=1).error("NOT_LEADER_OR_FOLLOWER")
    answer = client.ask(PRODUCE, 9, produce(("a", 0), ("a", 1), ("orders-1", 1)))
    assert codes(answer) == {("a", 0): 0, ("a", 1): 6, ("orders-1", 1): 0}
    assert (end_offset(client, "a", 0), end_offset(client, "a", 1)) == (before[0] + 1, before[1])
    rule.remove()
    assert codes(client.ask(PRODUCE, 9, produce(("a", 1)))) == {("a", 1): 0}
    assert rule.hits == 1


def test_an_error_after_the_deed(faults: Faults, client: RawClient) -> None:
    before = end_offset(client, "a", 0)
    faults.on("produce", topic="a").error("REQUEST_TIMED_OUT", served=True)
    assert codes(client.ask(PRODUCE, 9, produce(("a", 0)))) == {("a", 0): ErrorCode.REQUEST_TIMED_OUT}
    assert end_offset(client, "a", 0) == before + 1
    assert codes(client.ask(PRODUCE, 9, produce(("a", 99)))) == {
        ("a", 99): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


def test_which_calls(faults: Faults, client: RawClient) -> None:
    rule = faults.on("Produce", topic="orders-*", nth=2, times=2).error("NOT_ENOUGH_REPLICAS")
    seen = [codes(client.ask(PRODUCE, 9, produce(("orders-1", 0))))["orders-1", 0] for _ in range(5)]
    assert seen == [0, 19, 19, 0, 0]
    assert (rule.calls, rule.hits) == (3, 2)  # one that is spent looks no more
    assert codes(client.ask(PRODUCE, 9, produce(("a", 0)))) == {("a", 0): 0}


def test_rules_in_a_row_are_a_script(faults: Faults, client: RawClient) -> None:
    faults.on("Heartbeat", group="g", times=1).error("REBALANCE_IN_PROGRESS")
    faults.on("Heartbeat", group="g", times=1).error("COORDINATOR_NOT_AVAILABLE")
    beats = [client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")).error_code for _ in range(3)]
    assert beats == [27, 15, NOT_COORDINATOR]


def test_a_rule_for_one_transactional_id(faults: Faults, client: RawClient) -> None:
    rule = faults.on("*", transactional_id="payments-*").error("CONCURRENT_TRANSACTIONS")
    asked = [
        (END_TXN, 5, EndTxnRequest(transactional_id="payments-1")),
        (
            ADD_PARTITIONS_TO_TXN,
            3,
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="payments-1",
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[0])],
            ),
        ),
        (
            FIND_COORDINATOR,
            4,
            FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["payments-1"]),
        ),
        (DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=["payments-1"])),
    ]
    for hits, (key, version, message) in enumerate(asked, 1):
        client.ask(key, version, message)
        assert rule.hits == hits, message
    client.ask(END_TXN, 5, EndTxnRequest(transactional_id="orders-1"))
    assert rule.hits == len(asked)
    of_a_group = FindCoordinatorRequest(key_type=0, coordinator_keys=["payments-1"])
    assert not list(transactional_ids(of_a_group))
    with pytest.raises(ValueError, match="Fetch requests name no transactional ids"):
        faults.on("Fetch", transactional_id="payments-1")


def test_probability_follows_the_seed() -> None:
    def hits(seed: int) -> list[bool]:
        faults = Faults(seed=seed)
        rule = faults.on("Fetch", probability=0.5).close()
        return [rule.counts(faults._random.random) for _ in range(40)]

    assert hits(1) == hits(1) != hits(2)
    assert 5 < sum(hits(1)) < 35


def test_other_clients_and_nodes_are_left_alone(
    faults: Faults, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_node_ids", lambda: [1, 2])
    faults.on("*", client_id="somebody").close()
    faults.on("*", node=2).close()
    assert client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")).error_code == NOT_COORDINATOR
    faults.on("*", client_id="c*").close()
    client.socket.sendall(client.frame(HEARTBEAT, 4, HeartbeatRequest(group_id="g")))
    assert client.is_closed()


def test_closed_before_and_after_serving(broker: Broker, faults: Faults, client: RawClient) -> None:
    before = end_offset(client, "a", 0)
    faults.on("Produce", times=1).close()
    faults.on("Produce", times=1).close(served=True)
    for expected in (before, before + 1):
        other = RawClient(broker.port)
        other.socket.sendall(other.frame(PRODUCE, 9, produce(("a", 0))))
        assert other.is_closed()
        other.socket.close()
        assert end_offset(client, "a", 0) == expected


def test_a_close_comes_behind_what_is_on_its_way(faults: Faults, client: RawClient) -> None:
    faults.on("Heartbeat").close()
    with faults.latency(0.05):
        client.socket.sendall(client.frame(METADATA, 9, MetadataRequest(topics=None)))
        client.socket.sendall(client.frame(HEARTBEAT, 4, HeartbeatRequest(group_id="g")))
        client.socket.sendall(client.frame(METADATA, 9, MetadataRequest(topics=None)))
        assert client.receive(METADATA, 9)[0] == 1
        assert client.is_closed()


@pytest.mark.parametrize(("served", "count"), [(False, 1), (True, 3)])
def test_a_client_that_goes_is_held_no_more(broker: Broker, faults: Faults, served: bool, count: int) -> None:
    rule = faults.on("Metadata").hold(served=served)
    gone = RawClient(broker.port)
    for _ in range(count):
        gone.socket.sendall(gone.frame(METADATA, 9, MetadataRequest(topics=None)))
    rule.wait_held(count)
    gone.socket.close()
    eventually(lambda: not rule.held)


def test_a_client_that_is_named_as_a_follower_is_none(broker: Broker, faults: Faults) -> None:
    rule = faults.on("Fetch").error("NOT_LEADER_OR_FOLLOWER")
    name = b"broker-2-fetcher-0"
    client = RawClient(broker.port)
    frame = client.frame(
        FETCH, 11, FetchRequest(topics=[FetchTopic(topic="a", partitions=[FetchPartition()])])
    )
    head = frame[4:12] + len(name).to_bytes(2, "big") + name
    renamed = head + frame[15:]
    client.socket.sendall(len(renamed).to_bytes(4, "big") + renamed)
    assert client.receive(FETCH, 11)[1].responses[0].partitions[0].error_code == 6
    assert rule.hits == 1
    client.socket.close()


def test_a_truncated_answer(faults: Faults, client: RawClient) -> None:
    faults.on("Metadata").truncate(10)
    frame = client.frame(METADATA, 9, MetadataRequest(topics=None))
    client.socket.sendall(frame + frame)  # the second is not answered
    assert len(client.receive_bytes(10)) == 10
    assert client.is_closed()


def test_held_and_released_in_order(faults: Faults, client: RawClient) -> None:
    rule = faults.on("Produce").hold()
    client.socket.sendall(client.frame(PRODUCE, 9, produce(("a", 0))))
    client.socket.sendall(client.frame(HEARTBEAT, 4, HeartbeatRequest(group_id="g")))
    rule.wait_held()
    client.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)
    client.socket.settimeout(60)
    rule.release()
    assert codes(client.receive(PRODUCE, 9)[1]) == {("a", 0): 0}
    assert client.receive(HEARTBEAT, 4)[1].error_code == NOT_COORDINATOR
    assert codes(client.ask(PRODUCE, 9, produce(("a", 0)))) == {("a", 0): 0}


def test_an_answer_that_is_held_is_of_a_request_that_was_served(
    faults: Faults, client: RawClient, broker: Broker
) -> None:
    before = end_offset(client, "a", 0)
    rule = faults.on("Produce").hold(served=True)
    client.socket.sendall(client.frame(PRODUCE, 9, produce(("a", 0))))
    rule.wait_held()
    other = RawClient(broker.port)
    assert end_offset(other, "a", 0) == before + 1
    other.socket.close()
    rule.release(1)
    assert codes(client.receive(PRODUCE, 9)[1]) == {("a", 0): 0}


def test_an_answer_that_never_comes_holds_up_all_behind_it(faults: Faults, client: RawClient) -> None:
    faults.on("Produce", times=1).drop_answer()
    client.socket.sendall(client.frame(PRODUCE, 9, produce(("a", 0))))
    client.socket.sendall(client.frame(HEARTBEAT, 4, HeartbeatRequest(group_id="g")))
    faults.requests.wait_for("Heartbeat")
    client.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)
    assert faults.requests.of("Produce")[-1].outcome == "dropped"


def test_actions_that_are_said_together(faults: Faults, client: RawClient) -> None:
    with faults.on("Heartbeat", times=1).together() as rule:
        rule.delay(0.01)
        assert client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")).error_code == NOT_COORDINATOR
        rule.error("REBALANCE_IN_PROGRESS")
    assert rule.hits == 0
    assert client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")).error_code == 27


def test_delays_and_the_error_behind_them(faults: Faults, client: RawClient) -> None:
    faults.on("Produce").delay(0.05).error("NOT_LEADER_OR_FOLLOWER")
    assert codes(client.ask(PRODUCE, 9, produce(("a", 0)))) == {("a", 0): 6}
    (recorded,) = faults.requests.of("Produce")
    assert recorded.answered_ms is not None
    assert recorded.answered_ms - recorded.received_ms >= 49


def test_latency_is_that_of_a_line_and_not_of_a_queue(faults: Faults, client: RawClient) -> None:
    with faults.latency(0.5):
        frames = [client.frame(HEARTBEAT, 4, HeartbeatRequest(group_id="g")) for _ in range(20)]
        client.socket.sendall(b"".join(frames))
        assert [client.receive(HEARTBEAT, 4)[0] for _ in range(20)] == list(range(1, 21))
    asked = faults.requests.of("Heartbeat")
    assert all(each.answered_ms and each.answered_ms - each.received_ms >= 499 for each in asked)
    first = asked[0].answered_ms
    assert first is not None
    assert asked[-1].received_ms < first  # a queue would have it wait for nineteen answers
    with faults.latency(bytes_per_second=1000):
        client.ask(METADATA, 9, MetadataRequest(topics=None))
    (metadata,) = faults.requests.of("Metadata")
    assert metadata.answered_ms is not None
    assert metadata.answered_ms - metadata.received_ms >= metadata.answer_size


def test_a_function_answers_or_lets_the_broker(faults: Faults, client: RawClient) -> None:
    def answer(call: Any) -> Any:
        if call.request.group_id != "mine":
            return None
        answer = call.new_answer()
        answer.error_code = 77
        return answer

    faults.on("Heartbeat").answer(answer)
    assert client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="mine")).error_code == 77
    assert client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")).error_code == NOT_COORDINATOR

    def rewrite(_call: Any, answer: Any) -> Any:
        answer.controller_id = 99
        return answer

    faults.on("Metadata").rewrite(rewrite)
    assert client.ask(METADATA, 9, MetadataRequest(topics=None)).controller_id == 99


def test_a_fetch_session_hears_of_a_partition_that_it_did_not_name(faults: Faults, client: RawClient) -> None:
    client.ask(PRODUCE, 9, produce(("a", 0)))
    wanted = [FetchPartition(partition=n, partition_max_bytes=1 << 20) for n in (0, 1)]
    first = FetchRequest(max_wait_ms=0, session_epoch=0, topics=[FetchTopic(topic="a", partitions=wanted)])
    session = client.ask(FETCH, 12, first).session_id
    assert session
    rule = faults.on("Fetch", topic="a", partition=1).error("NOT_LEADER_OR_FOLLOWER")
    next_one = FetchRequest(max_wait_ms=30_000, min_bytes=1 << 20, session_id=session, session_epoch=1)
    (topic,) = client.ask(FETCH, 12, next_one).responses
    errors = {each.partition_index: each.error_code for each in topic.partitions}
    assert errors == {0: 0, 1: 6}
    rule.remove()
    faults.on("Fetch").error("FETCH_SESSION_ID_NOT_FOUND")
    answer = client.ask(FETCH, 12, next_one)
    assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def test_metadata_of_one_topic_fails(faults: Faults, client: RawClient) -> None:
    faults.on("Metadata", topic="a").error("LEADER_NOT_AVAILABLE")
    names = [MetadataRequestTopic(name=name) for name in ("a", "orders-1")]
    for topics in (names, None):
        answer = client.ask(METADATA, 9, MetadataRequest(topics=topics))
        assert {topic.name: topic.error_code for topic in answer.topics} == {"a": 5, "orders-1": 0}


def test_an_answer_without_a_place_for_the_error_is_none(faults: Faults, client: RawClient) -> None:
    faults.on("OffsetForLeaderEpoch").error("NOT_LEADER_OR_FOLLOWER")
    client.socket.sendall(client.frame(OFFSET_FOR_LEADER_EPOCH, 4, OffsetForLeaderEpochRequest()))
    assert client.is_closed()  # and the log says why
    assert faults.requests.of("OffsetForLeaderEpoch")[-1].outcome == "closed"


def test_an_unknown_version_is_told_in_version_0(faults: Faults, client: RawClient) -> None:
    faults.on("ApiVersions").error("UNSUPPORTED_VERSION")
    client.socket.sendall(client.frame(API_VERSIONS, 3, ApiVersionsRequest("test", "1")))
    size = int.from_bytes(client.receive_bytes(4), "big")
    assert client.receive_bytes(size)[4:] == bytes.fromhex("0023 00000000")


def test_what_was_asked_and_answered_is_recorded(faults: Faults, client: RawClient) -> None:
    faults.requests.clear()
    client.ask(PRODUCE, 9, produce(("a", 0)))
    fetch = FetchRequest(
        max_wait_ms=0, topics=[FetchTopic(topic="a", partitions=[FetchPartition(partition_max_bytes=9)])]
    )
    client.ask(FETCH, 12, fetch)
    (recorded,) = faults.requests.of("Produce", topic="a", client_id="c", node=1)
    assert recorded.request.topic_data[0].partition_data[0].records == BATCH
    assert recorded.answer.responses[0].partition_responses[0].error_code == 0
    (fetched,) = faults.requests.wait_for("Fetch", answered=True)
    assert bytes(fetched.answer.responses[0].partitions[0].records)[61:] == BATCH[61:]
    assert "Produce v9 a -> answered" in faults.requests.transcript()[0]
    with pytest.raises(AssertionError, match="0 of 1 requests of JoinGroup came"):
        faults.requests.wait_for("JoinGroup", timeout=0.01)
    with pytest.raises(ValueError, match="no API 'Prodce'"):
        faults.on("Prodce")
    with pytest.raises(ValueError, match="no error"):
        faults.on("Produce").error("NO_SUCH")


def test_waiting_ends_whatever_else_comes(faults: Faults, client: RawClient) -> None:
    waited = threading.Event()

    def wait() -> None:
        with pytest.raises(AssertionError, match=r"came within 0\.2 s"):
            faults.requests.wait_for("JoinGroup", timeout=0.2)
        waited.set()

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(10_000):
        client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
        if waited.is_set():
            break
    thread.join(30)
    assert waited.is_set()


def test_what_has_been_forgotten_takes_no_room(faults: Faults, client: RawClient) -> None:
    rule = faults.on("Metadata").hold(served=True)
    client.socket.sendall(client.frame(METADATA, 9, MetadataRequest(topics=None)))
    rule.wait_held()
    faults.requests.clear()
    rule.release()
    client.receive(METADATA, 9)
    assert (len(faults.requests), faults.requests._bytes) == (0, 0)


def test_in_the_running_loop() -> None:
    async def work() -> None:
        async with Broker() as broker:
            rule = broker.on("Metadata").hold()
            with pytest.raises(RuntimeError, match="await held_async"):
                rule.wait_held()
            with pytest.raises(RuntimeError, match="await arrived"):
                broker.requests.wait_for("Metadata")
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(
                bytes.fromhex("0000000e 0003 0000 0000002a 0000 00000000")
            )  # all topics, in version 0
            await rule.held_async()
            (asked,) = await broker.requests.arrived("Metadata")
            assert asked.correlation_id == 42
            rule.release()
            assert (await reader.readexactly(8))[4:] == (42).to_bytes(4, "big")
            writer.close()
            with pytest.raises(AssertionError, match="0 of 1 requests are held"):
                await rule.held_async(timeout=0.01)

    asyncio.run(work())
