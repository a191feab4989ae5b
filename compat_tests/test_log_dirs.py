"""Several log directories: one fails while the broker runs, is missing at a start, and comes back."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic

STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER = 56, 6
SETTINGS = {"retention.ms": "-1", "segment.bytes": "1048576"}


def describe(broker: Broker) -> dict[str, Any]:
    """log dir -> (error code, {(topic, partition): size})."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        found = admin.describe_log_dirs()
    finally:
        admin.close()
    return {
        each["log_dir"]: (
            each["error_code"],
            {
                (topic["name"], part["partition_index"]): part["partition_size"]
                for topic in each["topics"]
                for part in topic["partitions"]
            },
        )
        for entry in found
        for each in entry["log_dirs"]
    }


def leaders(broker: Broker, topic: str) -> dict[int, tuple[int, list[int]]]:
    """partition -> (leader, offline replicas)."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        (found,) = admin.describe_topics([topic])
    finally:
        admin.close()
    return {
        part["partition_index"]: (part["leader_id"], part["offline_replicas"]) for part in found["partitions"]
    }


def list_offset_error(connection: RawConnection, topic: str, partition: int, timestamp: int) -> int:
    """ListOffsets v1 of one partition: error code."""
    wanted = raw.string(topic) + raw.array([struct.pack(">iq", partition, timestamp)])
    answer = connection.ask(raw.request(2, 1, struct.pack(">i", -1) + raw.array([wanted])))
    (error,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)
    return int(error)


def delete_records_error(connection: RawConnection, topic: str, partition: int, offset: int) -> int:
    """DeleteRecords v0 of one partition: error code."""
    wanted = raw.string(topic) + raw.array([struct.pack(">iq", partition, offset)])
    answer = connection.ask(raw.request(21, 0, raw.array([wanted]) + struct.pack(">i", 5000)))
    (error,) = struct.unpack_from(">h", answer, len(answer) - 2)
    return int(error)


def test_one_directory_fails(fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    broker = fresh_broker({"log.dirs": f"{one},{two}"})
    create_topic(broker.bootstrap, "t", 4, SETTINGS)
    lying = eventually(lambda: describe(broker))
    broken = sorted(index for topic, index in lying[str(two)][1] if topic == "t")
    well = sorted(index for topic, index in lying[str(one)][1] if topic == "t")
    assert len(broken) == len(well) == 2
    value = bytes(300_000)
    acknowledged = dict.fromkeys(range(4), 0)
    with RawConnection(broker.bootstrap) as connection:
        for index in range(4):
            assert raw.produce(connection, "t", raw.good_batch(value), partition=index) == (0, 0)
            acknowledged[index] = 1
        two.rename(tmp_path / "away")
        two.write_text("no directory")  # a new segment can't be made here
        for _ in range(6):
            error, _ = raw.produce(connection, "t", raw.good_batch(value), partition=broken[0])
            if error:
                break
            acknowledged[broken[0]] += 1
        assert error == STORAGE_ERROR
        for index in broken:
            # clients of this Fetch version do not know KAFKA_STORAGE_ERROR
            eventually(lambda index=index: raw.fetch(connection, "t", 0, index)[0] == NOT_LEADER_OR_FOLLOWER)
            assert raw.produce(connection, "t", raw.good_batch(b"x"), partition=index)[0] == STORAGE_ERROR
            for timestamp in (-1, -2, 0):
                assert list_offset_error(connection, "t", index, timestamp) == STORAGE_ERROR
            assert delete_records_error(connection, "t", index, 0) == STORAGE_ERROR
        for index in well:
            assert list_offset_error(connection, "t", index, -1) == 0
            assert delete_records_error(connection, "t", index, 0) == 0
            assert raw.produce(connection, "t", raw.good_batch(value), partition=index) == (0, 1)
            assert raw.fetch(connection, "t", 0, index)[0] == 0
            acknowledged[index] += 1
    assert broker.alive()
    eventually(lambda: {leaders(broker, "t")[index][0] for index in broken} == {-1})
    assert {index for index, (_, offline) in leaders(broker, "t").items() if offline} == set(broken)
    assert describe(broker)[str(two)] == (STORAGE_ERROR, {})
    create_topic(broker.bootstrap, "later", 3, SETTINGS)  # all partitions in the other directory
    assert {index for topic, index in describe(broker)[str(one)][1] if topic == "later"} == {0, 1, 2}

    broker.restart(kill=True)
    assert describe(broker)[str(two)][0] == STORAGE_ERROR
    assert {index for index, (leader, _) in leaders(broker, "t").items() if leader == -1} == set(broken)
    with RawConnection(broker.bootstrap) as connection:
        for index in broken:
            assert raw.produce(connection, "t", raw.good_batch(b"x"), partition=index)[0] == STORAGE_ERROR
        for index in well:
            assert raw.produce(connection, "t", raw.good_batch(b"x"), partition=index) == (0, 2)
            acknowledged[index] += 1

    two.unlink()
    (tmp_path / "away").rename(two)
    broker.restart(kill=True)
    assert describe(broker)[str(two)][0] == 0
    eventually(lambda: {leader for leader, _ in leaders(broker, "t").values()} == {1})
    with RawConnection(broker.bootstrap) as connection:
        for index, count in acknowledged.items():
            error, offset = raw.produce(connection, "t", raw.good_batch(b"again"), partition=index)
            assert (error, offset) == (0, count)
            for offset in range(count):
                assert raw.fetch(connection, "t", offset, index)[0] == 0


def set_up_three(fresh_broker: BrokerFactory, tmp_path: Path) -> tuple[Broker, str, Path, set[int]]:
    """A stopped broker with three directories and a record in each of four partitions of "t"; its log.dirs; a
    directory without the metadata, and the partitions in it."""
    dirs = ",".join(str(tmp_path / name) for name in "pqr")
    broker = fresh_broker({"log.dirs": dirs})
    create_topic(broker.bootstrap, "t", 4, SETTINGS)
    with RawConnection(broker.bootstrap) as connection:
        for index in range(4):
            assert raw.produce(connection, "t", raw.good_batch(b"old"), partition=index) == (0, 0)
    lying = describe(broker)[str(tmp_path / "r")][1]
    broker.stop()
    return broker, dirs, tmp_path / "r", {index for topic, index in lying if topic == "t"}


def assert_all_are_served(broker: Broker, *, offset: int) -> None:
    """Assert that each partition of "t" has its first record and takes another one at `offset`."""
    assert {leader for leader, _ in leaders(broker, "t").values()} == {1}
    with RawConnection(broker.bootstrap) as connection:
        for index in range(4):
            error, _, records = raw.fetch(connection, "t", 0, index)
            assert error == 0
            assert b"old" in records
            assert raw.produce(connection, "t", raw.good_batch(b"new"), partition=index) == (0, offset)


@pytest.mark.barnabas_only
def test_a_directory_is_left_out_and_comes_back(fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    """The partitions of the missing directory have no leader until it is back. Kafka creates empty ones in the other
    directories, leads them from the second start on, and does not start once the directory is back."""
    broker, dirs, left_out, lost = set_up_three(fresh_broker, tmp_path)
    assert lost
    for _ in range(2):
        broker.restart({"log.dirs": dirs.removesuffix(f",{left_out}")})
        assert {index for index, (leader, _) in leaders(broker, "t").items() if leader == -1} == lost
        with RawConnection(broker.bootstrap) as connection:
            for index in lost:
                assert raw.produce(connection, "t", raw.good_batch(b"x"), partition=index)[0] != 0
        for index in lost:
            assert not list(tmp_path.glob(f"[pq]/t-{index}"))
        (warning,) = [line for line in broker.log_text().splitlines() if "is not in log.dirs" in line][-1:]
        assert all(f"t-{index}" in warning for index in lost)
    broker.restart({"log.dirs": dirs})
    assert_all_are_served(broker, offset=1)
    assert not list(tmp_path.rglob("*-stray"))
    broker.stop()
    for path in tmp_path.glob("[qr]/t-*"):
        path.rename(tmp_path / "p" / path.name)
    broker.restart({"log.dirs": str(tmp_path / "p")})  # the directories are removed for good, not their data
    assert_all_are_served(broker, offset=2)


@pytest.mark.barnabas_only
def test_a_replaced_directory_comes_back(fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    broker, _, replaced, lost = set_up_three(fresh_broker, tmp_path)
    replaced.rename(tmp_path / "away")
    broker.start()
    assert {index for index, (leader, _) in leaders(broker, "t").items() if leader == -1} == lost
    broker.stop()
    replaced.rename(tmp_path / "empty")
    (tmp_path / "away").rename(replaced)
    broker.start()
    assert_all_are_served(broker, offset=1)


@pytest.mark.barnabas_only
def test_the_last_directory_fails(fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    """The broker ends with exit code 1, as Kafka halts, and no acknowledged record is lost."""
    one = tmp_path / "one"
    broker = fresh_broker({"log.dirs": str(one)})
    create_topic(broker.bootstrap, "t", 1, SETTINGS)
    acknowledged = 0
    with RawConnection(broker.bootstrap) as connection:
        one.rename(tmp_path / "away")
        one.write_text("no directory")
        for _ in range(6):
            error, _ = raw.produce(connection, "t", raw.good_batch(bytes(300_000)))
            if error:
                break
            acknowledged += 1
        assert error == STORAGE_ERROR
    assert broker.process is not None
    assert broker.process.wait(20) == 1
    assert "has failed" in broker.log_text()
    one.unlink()
    (tmp_path / "away").rename(one)
    broker.start()
    with RawConnection(broker.bootstrap) as connection:
        assert raw.produce(connection, "t", raw.good_batch(b"again")) == (0, acknowledged)


def alter_log_dir(connection: RawConnection, path: str, topic: str, partition: int) -> int:
    """AlterReplicaLogDirs v1 of one partition: error code."""
    topics = raw.array([raw.string(topic) + raw.array([struct.pack(">i", partition)])])
    answer = connection.ask(raw.request(34, 1, raw.array([raw.string(path) + topics])))
    (error,) = struct.unpack_from(">h", answer, len(answer) - 2)
    return int(error)


def test_a_partition_moves_while_it_serves(
    fresh_broker: BrokerFactory, java_tools: JavaTools, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    broker = fresh_broker({"log.dirs": f"{one},{two}"})
    create_topic(broker.bootstrap, "t", 1, SETTINGS)
    source = next(path for path, (_, held) in describe(broker).items() if ("t", 0) in held)
    target = str(two if source == str(one) else one)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def set_rate(bytes_per_second: str) -> None:
        name = "replica.alter.log.dirs.io.max.bytes.per.second"
        rate = ConfigEntry(name, bytes_per_second, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[rate])
        admin.incremental_alter_configs([resource])[resource].result(30)

    set_rate("500000")  # moving 12 MB takes long enough for the tool to show the move
    sent = 0

    def send(connection: RawConnection, size: int) -> None:
        nonlocal sent
        value = b"%08d" % sent + bytes(size)
        assert raw.produce(connection, "t", raw.good_batch(value)) == (0, sent)
        sent += 1

    with RawConnection(broker.bootstrap) as connection:
        for _ in range(40):
            send(connection, 300_000)
        assert alter_log_dir(connection, target, "t", 0) == 0
        shown = java_tools.run("kafka-log-dirs", "--bootstrap-server", broker.bootstrap, "--describe").stdout
        found = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))
        futures = [
            (directory["logDir"], part["offsetLag"])
            for directory in found["brokers"][0]["logDirs"]
            for part in directory["partitions"]
            if part["isFuture"]
        ]
        assert [where for where, lag in futures if lag > 0] == [target]
        set_rate("8000000")
        deadline = time.monotonic() + 60
        while ("t", 0) in describe(broker)[source][1]:  # send while the partition moves
            assert time.monotonic() < deadline
            for _ in range(20):
                send(connection, 1000)
        for _ in range(5):
            send(connection, 1000)
    assert ("t", 0) in describe(broker)[target][1]
    broker.restart(kill=True)
    assert [path for path, (_, held) in describe(broker).items() if ("t", 0) in held] == [target]
    with RawConnection(broker.bootstrap) as connection:
        for offset in range(sent):
            error, _, records = raw.fetch(connection, "t", offset, max_bytes=1000)
            assert error == 0
            assert b"%08d" % offset in records
        send(connection, 10)


@pytest.mark.barnabas_only
def test_a_tiered_partition_moves_with_what_is_not_tiered(
    fresh_broker: BrokerFactory, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    tiering = {
        "remote.log.storage.system.enable": "true",
        "rsm.config.url": f"file://{tmp_path / 'store'}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "200",
    }
    broker = fresh_broker({"log.dirs": f"{one},{two}", **tiering})
    configs = {"remote.storage.enable": "true", "local.retention.bytes": "1", "file.delete.delay.ms": "0"}
    create_topic(broker.bootstrap, "t", 1, {**SETTINGS, **configs})
    source = next(path for path, (_, held) in describe(broker).items() if ("t", 0) in held)
    target = str(two if source == str(one) else one)

    def bases(directory: str) -> list[int]:
        return sorted(int(path.stem) for path in (Path(directory) / "t-0").glob("*.log"))

    with RawConnection(broker.bootstrap) as connection:
        for number in range(20):
            assert raw.produce(connection, "t", raw.good_batch(b"%d" % number + bytes(300_000)))[0] == 0
        eventually(lambda: 0 not in bases(source))
        kept = bases(source)
        assert alter_log_dir(connection, target, "t", 0) == 0
        eventually(lambda: ("t", 0) not in describe(broker)[source][1])
        assert min(bases(target)) >= kept[0] > 0
        for number in range(20, 40):  # it goes on being tiered
            assert raw.produce(connection, "t", raw.good_batch(b"%d" % number + bytes(300_000)))[0] == 0
        eventually(lambda: min(bases(target)) >= 36)
    for _ in range(2):
        with RawConnection(broker.bootstrap) as connection:
            for number in range(40):
                error, _, records = raw.fetch(connection, "t", number, max_bytes=1000, max_wait_ms=5000)
                assert error == 0
                assert b"%d" % number + bytes(10) in records
        broker.restart(kill=True)
