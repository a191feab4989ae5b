"""The broker inside this process: what clients see of it, what tests see of it, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.topic import partition_for
from barnabas.testing import Broker
from barnabas.testing.contents import StoredRecord, UnknownTopic
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.operations import RequestFailed, when
from barnabas.testing.ports import free_port
from barnabas.testing.seeding import partition_for_key
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch, iterate_records
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

FRESH_BROKERS = int(os.environ.get("BARNABAS_FRESH_BROKERS", "60"))
METADATA, PRODUCE, FETCH, OFFSET_COMMIT, FIND_COORDINATOR, INIT_PRODUCER_ID = 3, 0, 1, 8, 10, 22
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def exchange(port: int, value: bytes) -> bytes | None:
    """As a client does it: have a topic made, produce to it, read it back."""
    client = RawClient(port)
    try:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="made")], allow_auto_topic_creation=True)
        while client.ask(METADATA, 4, request).topics[0].error_code:
            pass
        batch = build_batch([Record(0, 1, None, value)])
        partition = PartitionProduceData(index=0, records=batch)
        topics = [TopicProduceData(name="made", partition_data=[partition])]
        answer = client.ask(PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics))
        produced = answer.responses[0].partition_responses[0]
        assert produced.error_code == ErrorCode.NONE
        wanted = FetchPartition(
            partition=0, fetch_offset=produced.base_offset, partition_max_bytes=10_000_000
        )
        fetch = FetchRequest(
            max_bytes=10_000_000, min_bytes=1, topics=[FetchTopic(topic="made", partitions=[wanted])]
        )
        fetched = client.ask(FETCH, 12, fetch).responses[0].partitions[0]
        return next(iter(iterate_records(bytes(fetched.records)))).value
    finally:
        client.socket.close()


def commit(broker: Broker, group: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="made", partitions=[partition])
    client = RawClient(broker.port)
    try:
        from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest

        while client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key=group)).error_code:
            pass
        request = OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        )
        while client.ask(OFFSET_COMMIT, 7, request).topics[0].partitions[0].error_code:
            pass
    finally:
        client.socket.close()


def values(records: list[StoredRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def new_threads(before: Iterable[threading.Thread]) -> set[threading.Thread]:
    """Those that there were not before: of the others some, which tests before it have left, may end at any time."""
    return set(threading.enumerate()).difference(before)


def resident_bytes() -> int:
    """This process's memory; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


# -- clients


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_is_produced_is_fetched(loop: str, size: int) -> None:
    with Broker({"barnabas.event.loop": loop, "message.max.bytes": 5_000_000}) as broker:
        assert exchange(broker.port, b"v" * size) == b"v" * size
        assert values(broker.records("made")) == [b"v" * size]


@LOOPS
def test_it_lives_in_the_running_loop(run: Callable[[Any], None]) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        async with Broker() as broker:
            assert await asyncio.to_thread(exchange, broker.port, b"v") == b"v"
            broker.create_topic("orders", 2)
            broker.seed("orders", [b"1", b"2"])
            assert values(broker.records("orders")) == [b"1", b"2"]
            broker.reset()
            assert broker.topics() == {}
        assert asyncio.all_tasks() == before
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", broker.port))

    run(main())


def test_two_live_side_by_side() -> None:
    with Broker() as one, Broker() as other:
        exchange(one.port, b"v")
        assert one.topics() == {"made": 1}
        assert other.topics() == {}


def test_properties_are_the_broker_s() -> None:
    with Broker({"num.partitions": 3, "auto.create.topics.enable": False}) as broker:
        broker.create_topic("three")
        assert broker.topics() == {"three": 3}
        client = RawClient(broker.port)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="other")], allow_auto_topic_creation=True)
        answer = client.ask(METADATA, 4, request)
        client.socket.close()
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- a cluster


def test_a_cluster_forms_and_survives_a_node() -> None:
    with Broker(nodes=3) as broker:
        assert len(set(broker.bootstrap_servers.split(","))) == 3
        broker.create_topic("made", 3)
        broker.seed("made", [("k", "before")])
        before = [node.port for node in broker.nodes]
        broker.call(broker.nodes[0].drop)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", before[0]))
        loop = broker.loop
        broker.call(lambda: broker.nodes[0].start(loop))
        broker.wait_until_ready()
        assert [node.port for node in broker.nodes] == before
        broker.seed("made", [("k", "after")])
        assert values(broker.records("made")) == [b"before", b"after"]


def test_a_cluster_goes_back_to_a_snapshot() -> None:
    with Broker(nodes=3) as broker:
        broker.create_topic("made", 2)
        broker.seed("made", [b"1", b"2", b"3"])
        snapshot = broker.snapshot()
        broker.seed("made", [b"4"])
        broker.restore(snapshot)
        assert values(broker.records("made")) == [b"1", b"3", b"2"]
        broker.reset()
        assert broker.topics() == {}


# -- what tests put in and look at


def test_records_are_seeded_in_every_form(tmp_path: Path) -> None:
    lines = [
        {"value": "from a file", "key": "k", "headers": {"h": "1"}, "timestamp": 7, "partition": 1},
        {"no": "record"},
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    with Broker() as broker:
        broker.create_topic("made", 2)
        broker.seed("made", [b"bytes", "text", ("k", None), {"value": {"a": 1}, "partition": 1}])
        broker.seed("made", path)
        first = broker.records("made", 0)
        second = broker.records("made", 1)
    assert values(first + second).count(None) == 1
    assert {b"bytes", b"text", b'{"a":1}', b'{"no": "record"}'} <= set(values(first + second))
    from_file = next(record for record in second if record.value == b"from a file")
    assert (from_file.key, from_file.headers, from_file.timestamp) == (b"k", (("h", b"1"),), 7)


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"value": 1}\n{"value":\n')
    with Broker() as broker, pytest.raises(ValueError, match=r"records\.jsonl, line 2"):
        broker.seed("made", path)


def test_one_record_is_given_back_as_it_is_stored() -> None:
    with Broker() as broker:
        broker.produce("made", "first")
        record = broker.produce("made", "second", "key", headers=[("h", None)], timestamp=9)
    assert record == StoredRecord("made", 0, 1, 9, b"key", b"second", (("h", None),))


@given(st.binary(max_size=40), st.integers(1, 50))
def test_keys_go_where_kafka_s_producers_put_them(key: bytes, count: int) -> None:
    from kafka.partitioner.default import murmur2

    assert partition_for_key(key, count) == (murmur2(key) & 0x7FFFFFFF) % count


def test_groups_and_configs_are_there_to_look_at() -> None:
    with Broker({"offsets.topic.num.partitions": 2}) as broker:
        exchange(broker.port, b"v")
        assert broker.group("readers") is None
        commit(broker, "readers", 1)
        group = broker.group("readers")
        assert group is not None
        assert (group.state, group.offsets, group.members) == ("Empty", {("made", 0): 1}, ())
        assert broker.groups() == ["readers"]
        assert broker.effective_config("made")["cleanup.policy"] == "delete"
        broker.create_topic("compacted", configs={"cleanup.policy": "compact"})
        assert broker.effective_config("compacted")["cleanup.policy"] == "compact"
        with pytest.raises(UnknownTopic, match="there is no topic 'none'"):
            broker.records("none")
        assert partition_for("readers", 2) in (0, 1)


def test_what_the_broker_refuses_is_an_error() -> None:
    with Broker() as broker:
        broker.create_topic("made")
        with pytest.raises(RequestFailed, match="TOPIC_ALREADY_EXISTS"):
            broker.create_topic("made")
        with pytest.raises(RequestFailed, match="INVALID_REPLICATION_FACTOR"):
            broker.create_topic("wide", replication_factor=2)
        with pytest.raises(RequestFailed, match="MESSAGE_TOO_LARGE"):
            broker.seed("made", [b"v" * 2_000_000])
        broker.delete_topics("made", "never was")
        assert broker.topics() == {}


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_goes_wrong_some_turns_later_is_an_error(nodes: int) -> None:
    with Broker(nodes=nodes) as broker:
        with pytest.raises(ValueError, match="no partition 7"):
            broker.seed("made", [{"value": "v", "partition": 7}])
        assert broker.topics() == {"made": 1}


def test_who_waits_for_a_node_is_told_that_none_runs() -> None:
    with Broker(nodes=2) as broker:

        def look() -> bool:
            waits.set()
            return False

        waits = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(broker.wait, lambda done: when(broker.nodes, look, lambda: None, done))
            waits.wait()
            for node in (1, 2):
                broker.kill_node(node)
            with pytest.raises(RuntimeError, match="no node"):
                waiting.result()


def test_memory_of_a_deleted_topic_is_given_back() -> None:
    with Broker() as broker:
        broker.seed("made", [b"v" * 1_000_000] * 5)
        store: Any = broker.nodes[0].disk
        assert store.bytes_count() > 5_000_000
        broker.delete_topics("made")
        eventually(lambda: broker.call(store.bytes_count) <= 1_000_000)


# -- its state as a whole


def test_a_reset_leaves_nothing() -> None:
    with Broker() as broker:
        exchange(broker.port, b"v")
        commit(broker, "readers", 1)
        client = RawClient(broker.port)
        first = client.ask(INIT_PRODUCER_ID, 1, InitProducerIdRequest()).producer_id
        port = broker.port
        broker.reset()
        assert client.is_closed()
        client.socket.close()
        assert broker.port == port
        assert (broker.topics(), broker.groups()) == ({}, [])
        client = RawClient(port)
        assert client.ask(INIT_PRODUCER_ID, 1, InitProducerIdRequest()).producer_id == first
        client.socket.close()
        assert exchange(port, b"again") == b"again"
        assert [record.offset for record in broker.records("made")] == [0]


def test_nodes_of_a_cluster_prove_that_they_belong_to_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "barnabas"), Broker(nodes=2) as broker:
        broker.seed("made", [b"v"])
    assert caplog.records
    assert "asks nobody for a proof" not in caplog.text


def test_a_snapshot_is_put_back_as_often_as_one_likes() -> None:
    with Broker() as broker:
        exchange(broker.port, b"kept")
        commit(broker, "readers", 1)
        snapshot = broker.snapshot()
        for _ in range(2):
            exchange(broker.port, b"dropped")
            broker.create_topic("dropped")
            broker.restore(snapshot)
            assert broker.topics() == {"made": 1}
            assert values(broker.records("made")) == [b"kept"]
    with Broker(snapshot=snapshot) as other:
        group = other.group("readers")
        assert group is not None
        assert group.offsets == {("made", 0): 1}
        assert exchange(other.port, b"new") == b"new"


def test_a_snapshot_that_does_not_fit_is_refused() -> None:
    with Broker(nodes=2) as broker:
        two = broker.snapshot()
    with Broker() as broker:
        broker.seed("made", [b"kept"])
        with pytest.raises(ValueError, match="a snapshot of 2 nodes can't be restored by 1"):
            broker.restore(two)
        assert values(broker.records("made")) == [b"kept"]


def test_a_directory_is_found_again(tmp_path: Path) -> None:
    with Broker(directory=tmp_path) as broker:
        exchange(broker.port, b"kept")
    assert (tmp_path / "made-0" / "00000000000000000000.log").stat().st_size > 0
    with Broker(directory=tmp_path) as broker:
        assert values(broker.records("made")) == [b"kept"]
        snapshot = broker.snapshot()
        broker.reset()
        assert broker.topics() == {}
    with Broker(snapshot=snapshot) as broker:
        assert values(broker.records("made")) == [b"kept"]


# -- the end of it


@pytest.mark.parametrize("nodes", [1, 2])
def test_it_starts_again_after_its_end(nodes: int) -> None:
    broker = Broker(nodes=nodes)
    for count in (1, 2):
        with broker:
            address = broker.bootstrap_servers
            broker.seed("made", [b"v"])
            assert len(broker.records("made")) == count
            broker.clock.advance(1)
    assert broker.bootstrap_servers == address


@pytest.mark.own_process
def test_a_start_that_fails_leaves_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        gc.collect()  # what tests before it have left is theirs
        before, threads = descriptors(), threading.enumerate()
        broker = Broker(port=taken.getsockname()[1])

        async def start_beside_a_loop() -> None:
            broker.start()

        with pytest.raises(OSError, match="in use"):
            broker.start()
        with pytest.raises(OSError, match="in use"):
            asyncio.run(start_beside_a_loop())
        assert descriptors() <= before
        assert not new_threads(threads)


@pytest.mark.own_process
def test_fresh_brokers_leave_nothing() -> None:
    """As many as a large suite makes: descriptors, threads, objects and memory stay what they were."""

    def one() -> None:
        with Broker() as broker:
            broker.create_topic("made")
            broker.seed("made", [b"v" * 900_000])
            client = RawClient(broker.port)
            client.ask(METADATA, 4, MetadataRequest(topics=[]))
            client.socket.close()

    def state() -> tuple[int, int, int]:
        gc.collect()
        return descriptors(), len(gc.get_objects()), resident_bytes()

    for _ in range(5):
        one()
    before, threads = state(), threading.enumerate()
    for _ in range(FRESH_BROKERS):
        one()
    after = state()
    assert not new_threads(threads)
    assert after[0] <= before[0], "descriptors stay"
    assert after[1] - before[1] < 1000, "objects stay"
    assert after[2] - before[2] < FRESH_BROKERS * 300_000 + 8_000_000, "memory stays"


@pytest.mark.own_process
@LOOPS
def test_nothing_stays_in_a_loop_that_goes_on(run: Callable[[Any], None]) -> None:
    async def main() -> None:
        # one thread: a pool of several begins another one when the first has not quite got to waiting again
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

        async def one(nodes: int = 1) -> None:
            async with Broker(nodes=nodes) as broker:
                await broker.seed("made", [b"v"])
                await broker.reset()
                if nodes == 1:
                    await asyncio.to_thread(exchange, broker.port, b"v")

        await one()
        free_port()  # the file of claims stays open
        gc.collect()
        before, threads, tasks = descriptors(), threading.enumerate(), asyncio.all_tasks()
        for _ in range(5):
            await one()
        await one(3)
        gc.collect()
        assert descriptors() <= before
        assert not new_threads(threads)
        assert asyncio.all_tasks() == tasks

    run(main())


def test_importing_it_loads_nothing() -> None:
    code = (
        "import sys; import barnabas.testing, barnabas.testing.pytest_plugin; "
        "print(sorted(name for name in sys.modules if name.startswith('barnabas') or name in ('msgspec', 'asyncio')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['barnabas', 'barnabas.testing', 'barnabas.testing.pytest_plugin']"


# -- a client that holds up its own broker


def test_a_client_that_holds_up_its_broker_is_named() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = RawClient(broker.port)
            client.socket.settimeout(10)
            while not told:  # a client whose patience ends with the warning
                client.socket.settimeout(0.5)
                try:
                    client.ask(METADATA, 4, MetadataRequest(topics=[]))
                except TimeoutError:
                    continue
            client.socket.close()

    told: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn_explicit", lambda *arguments: told.append(arguments))
        asyncio.run(main())
    [(text, category, path, _)] = told
    assert category.__name__ == "BrokerBlocked"
    assert path == __file__
    assert "client.ask(METADATA" in text
