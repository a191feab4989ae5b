"""Several log directories: one fails while the broker runs, is missing at a start, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic, eventually

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
            # the clients that send this version of Fetch do not know the storage error
            eventually(lambda index=index: raw.fetch(connection, "t", 0, index)[0] == NOT_LEADER_OR_FOLLOWER)
            assert raw.produce(connection, "t", raw.good_batch(b"x"), partition=index)[0] == STORAGE_ERROR
        for index in well:
            assert raw.produce(connection, "t", raw.good_batch(value), partition=index) == (0, 1)
            assert raw.fetch(connection, "t", 0, index)[0] == 0
            acknowledged[index] += 1
    assert broker.alive()
    eventually(lambda: {leaders(broker, "t")[index][0] for index in broken} == {-1})
    assert {index for index, (_, offline) in leaders(broker, "t").items() if offline} == set(broken)
    assert describe(broker)[str(two)] == (STORAGE_ERROR, {})
    create_topic(broker.bootstrap, "later", 3, SETTINGS)  # goes where there is a directory
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


@pytest.mark.barnabas_only
def test_the_last_directory_fails(fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    """As Kafka, which calls it a halt: exit code 1, and nothing acknowledged is lost."""
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
