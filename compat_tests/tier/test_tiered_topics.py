"""Tiered topics (KIP-405) as clients see them: records whose segments are in the object store alone are read like any others."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from barnabas.cli import main
from compat_tests.harness import raw
from compat_tests.harness.apache_broker import local_tiered_storage
from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, PLAIN, Read, Sample
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.java_transactions import JavaClients
from compat_tests.harness.loads import PARTITIONS, Load, Reader, librdkafka
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactional_clients import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    READERS,
    ConfluentProducer,
)

OFFSET_OUT_OF_RANGE = 1
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.ms": "1000",  # of the records' timestamps
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
SEGMENTS, RECORDS = 8, 25  # records a segment
ACTIVE, END = (SEGMENTS - 1) * RECORDS, SEGMENTS * RECORDS
SAMPLES = [
    Sample(b"key", f"{number}".encode() * 20, timestamp=1_700_000_000_000 + number // RECORDS * 2000)
    for number in range(END)
]


def _start(fresh_broker: BrokerFactory, kind: str, store: Path) -> Broker:
    of_the_store = local_tiered_storage(store) if kind == "apache" else {"rsm.config.url": f"file://{store}"}
    return fresh_broker({**SETTINGS, **of_the_store})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def tiering(module_broker: BrokerFactory, broker_kind: str, store: Path) -> Broker:
    """A broker that the tests of this module share."""
    return _start(module_broker, broker_kind, store)


@pytest.fixture
def java_clients(java_tools: JavaTools) -> Iterator[JavaClients]:
    clients = JavaClients()
    yield clients
    clients.close()


def _offset(broker: Broker, topic: str, spec: Any, partition: int = 0) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    where = TopicPartition(topic, partition)
    return int(admin.list_offsets({where: spec})[where].result(30).offset)


def _start_of(broker: Broker, topic: str) -> int:
    return _offset(broker, topic, OffsetSpec.earliest())


def _local_segments(broker: Broker, topic: str, partition: int = 0) -> list[int]:
    folder = broker.log_dir / f"{topic}-{partition}"
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def _objects(store: Path, before: set[Path]) -> set[Path]:
    """The log files in the store besides those that were there `before`."""
    # Unlike rglob, a walk goes on where a folder has gone meanwhile.
    found = {Path(folder) / name for folder, _, names in os.walk(store) for name in names}
    return {path for path in found if path.suffix == ".log"} - before


def _filled(broker: Broker, topic: str, configs: Mapping[str, str] | None = None) -> str:
    """A topic whose closed segments are in the store alone."""
    create_topic(broker.bootstrap, topic, 1, {**CONFIGS, **(configs or {})})
    for number in range(SEGMENTS):  # one produce each: a batch never spans two segments
        PLAIN.produce(broker.bootstrap, topic, SAMPLES[number * RECORDS : (number + 1) * RECORDS])
    eventually(
        lambda: _local_segments(broker, topic) == [ACTIVE], message=lambda: _local_segments(broker, topic)
    )
    return topic


IN_TRANSACTIONS = [(0, f"{number}-{index}") for number in range(6) for index in range(3)]
COMMITTED = [each for each in IN_TRANSACTIONS if int(each[1][0]) % 2 == 0]


def _with_transactions(broker: Broker, topic: str) -> str:
    """A topic whose transactions, of which every other was aborted, are in the store alone."""
    # each transaction is written in a second of its own, as the clients send no timestamps
    create_topic(broker.bootstrap, topic, 1, {**CONFIGS, "segment.ms": "1"})
    producer = ConfluentProducer(broker.bootstrap, "tiered")
    producer.initialize()
    for number in range(6):
        producer.begin()
        producer.send(topic, [(0, f"{number}-{index}") for index in range(3)])
        producer.abort() if number % 2 else producer.commit()
    producer.close()
    end = _offset(broker, topic, OffsetSpec.latest())

    def is_tiered() -> bool:
        bases = _local_segments(broker, topic)
        return len(bases) == 1 and bases[0] > end - 6

    eventually(is_tiered, message=lambda: _local_segments(broker, topic))
    return topic


def _change(broker: Broker, topic: str, configs: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def _fetch_error(broker: Broker, topic: str, offset: int) -> int:
    with RawConnection(broker.bootstrap) as connection:
        return raw.fetch(connection, topic, offset)[0]


def test_every_client_reads_all_from_the_beginning(tiering: Broker) -> None:
    topic = _filled(tiering, "all")
    assert _start_of(tiering, topic) == 0
    wanted = [Read(offset, sample) for offset, sample in enumerate(SAMPLES)]
    for client in CLIENTS:
        assert client.consume(tiering.bootstrap, topic, END) == wanted, client.name
        middle = RECORDS + RECORDS // 2
        assert client.consume(tiering.bootstrap, topic, RECORDS, offset=middle) == wanted[middle:][:RECORDS]


def test_committed_reads_leave_out_aborted_transactions(tiering: Broker, java_clients: JavaClients) -> None:
    topic = _with_transactions(tiering, "transactions")
    for read in (*READERS, java_clients.read):
        assert read(tiering.bootstrap, topic, 1, READ_COMMITTED) == COMMITTED
        assert read(tiering.bootstrap, topic, 1, READ_UNCOMMITTED) == IN_TRANSACTIONS


def test_records_are_deleted_into_the_tier(tiering: Broker, store: Path) -> None:
    before = _objects(store, set())
    topic = _filled(tiering, "deleted-records")
    assert len(_objects(store, before)) == SEGMENTS - 1
    admin = AdminClient({"bootstrap.servers": tiering.bootstrap})
    start = 2 * RECORDS + 3
    wanted = TopicPartition(topic, 0, start)
    assert admin.delete_records([wanted])[wanted].result(30).low_watermark == start
    assert _start_of(tiering, topic) == start
    assert _fetch_error(tiering, topic, start - 1) == OFFSET_OUT_OF_RANGE
    found = PLAIN.consume(tiering.bootstrap, topic, END - start, offset=start)
    assert found == [Read(offset, SAMPLES[offset]) for offset in range(start, END)]
    eventually(lambda: len(_objects(store, before)) == SEGMENTS - 3)


def test_retention_removes_from_the_store(tiering: Broker, store: Path) -> None:
    before = _objects(store, set())
    topic = _filled(tiering, "retained")
    size = sum(path.stat().st_size for path in _objects(store, before)) // (SEGMENTS - 1)
    _change(tiering, topic, {"retention.bytes": str(3 * size)})
    eventually(lambda: len(_objects(store, before)) in (2, 3))
    start = eventually(lambda: _start_of(tiering, topic))
    assert start in (END - 3 * RECORDS, END - 4 * RECORDS)
    assert _fetch_error(tiering, topic, start - 1) == OFFSET_OUT_OF_RANGE
    found = PLAIN.consume(tiering.bootstrap, topic, END - start, offset=start)
    assert [each.offset for each in found] == list(range(start, END))


def test_a_deleted_topic_leaves_nothing_in_the_store(tiering: Broker, broker_kind: str, store: Path) -> None:
    """Here an hour later: then its uploads have ended."""
    before = _objects(store, set())
    topic = _filled(tiering, "deleted")
    admin = AdminClient({"bootstrap.servers": tiering.bootstrap})
    topic_ids = {path.relative_to(store).parts[1] for path in _objects(store, before)}
    admin.delete_topics([topic])[topic].result(30)
    if broker_kind == "apache":
        eventually(lambda: not _objects(store, before))
        return
    eventually(lambda: {path.name for path in store.glob("*/deleted/*")} == topic_ids)
    assert len(topic_ids) == 1


def test_what_is_in_the_bucket_is_listed_and_removed_by_name(
    tiering: Broker, broker_kind: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if broker_kind == "apache":
        pytest.skip("a command of this project")
    before = _objects(store, set())
    topic = _filled(tiering, "listed")
    (topic_id,) = {path.relative_to(store).parts[1] for path in _objects(store, before)}
    size = sum(path.stat().st_size for path in _objects(store, before))
    cluster_id = next(iter(_objects(store, before))).relative_to(store).parts[0]
    url = ["--set", f"rsm.config.url=file://{store}"]
    assert main(["tier", "list", *url]) == 0
    line = "\t".join((cluster_id, topic_id, topic, "1", str(SEGMENTS - 1), str(size)))
    assert line in capsys.readouterr().out.splitlines()
    _change(tiering, topic, {"retention.bytes": "123456789"})
    described = store / cluster_id / "topics" / topic_id
    eventually(lambda: json.loads(described.read_text())["configs"].get("retention.bytes") == "123456789")
    remove = ["tier", "remove-unknown", *url, "--bootstrap-server", tiering.bootstrap, "--topic-id"]
    assert main([*remove, topic_id]) == 1, "it exists"
    unknown = topic_id[::-1]
    (store / cluster_id / unknown / "0").mkdir(parents=True)
    (store / cluster_id / unknown / "0" / "manifest").touch()
    assert main([*remove, unknown]) == 0
    assert {path.name for path in store.glob("*/deleted/*")} >= {unknown}
    assert not (store / cluster_id / "deleted" / topic_id).exists()


def test_topics_are_restored_from_the_bucket_alone(
    fresh_broker: BrokerFactory, broker_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if broker_kind == "apache":
        pytest.skip("a command of this project")
    lost = _start(fresh_broker, broker_kind, tmp_path)
    topic = _filled(lost, "restored")
    _with_transactions(lost, "transactions")
    end = _offset(lost, "transactions", OffsetSpec.latest())
    lost.kill()  # and never starts again

    broker = _start(fresh_broker, broker_kind, tmp_path)
    command = ["tier", "restore", "--set", f"rsm.config.url=file://{tmp_path}"]
    command += ["--bootstrap-server", broker.bootstrap]
    assert main(command) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(name, partitions) for name, partitions, _, _ in sorted(lines)] == [
        (topic, "1"),
        ("transactions", "1"),
    ]
    wanted = [Read(offset, sample) for offset, sample in enumerate(SAMPLES[:ACTIVE])]
    for client in CLIENTS:
        assert client.consume(broker.bootstrap, topic, ACTIVE) == wanted, client.name
    restored = _offset(broker, "transactions", OffsetSpec.latest())
    assert end - 2 <= restored <= end  # the last transaction's marker is not there; one that aborts it may be
    for read in READERS:
        assert read(broker.bootstrap, "transactions", 1, READ_COMMITTED) == COMMITTED
        assert read(broker.bootstrap, "transactions", 1, READ_UNCOMMITTED) == IN_TRANSACTIONS

    # It goes on like any other.
    PLAIN.produce(broker.bootstrap, topic, SAMPLES[ACTIVE:])
    broker.restart(kill=True)
    wanted = [Read(offset, sample) for offset, sample in enumerate(SAMPLES)]
    assert PLAIN.consume(broker.bootstrap, topic, END) == wanted
    assert main([*command, "--cluster-id", "other"]) == 1
    assert "there is nothing to restore" in capsys.readouterr().err
    assert main(command) == 1
    assert "--cluster-id" in capsys.readouterr().err  # the store has both clusters by now


def test_a_fetch_over_the_quota_is_empty(
    fresh_broker: BrokerFactory, broker_kind: str, tmp_path: Path
) -> None:
    """KIP-956; the limit is dynamic."""
    broker = _start(fresh_broker, broker_kind, tmp_path)
    topic = _filled(broker, "throttled")

    def limit(bytes_per_second: int) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        name = "remote.log.manager.fetch.max.bytes.per.second"
        entry = ConfigEntry(name, str(bytes_per_second), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    def found(offset: int) -> int:
        with RawConnection(broker.bootstrap) as connection:
            error, _, records = raw.fetch(connection, topic, offset)
            assert error == 0
            return len(records)

    eventually(lambda: found(0) > 0)
    limit(1)
    eventually(lambda: found(0) == 0)
    assert found(ACTIVE) > 0, "what is here is not throttled"
    limit(1 << 40)
    eventually(lambda: found(0) > 0)


def test_the_end_of_tiering_leaves_what_is_here(tiering: Broker, store: Path) -> None:
    """remote.log.delete.on.disable (KIP-950)."""
    before = _objects(store, set())
    topic = _filled(tiering, "disabled")
    with pytest.raises(KafkaException):
        _change(tiering, topic, {"remote.storage.enable": "false"})
    _change(tiering, topic, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
    eventually(lambda: not _objects(store, before))
    eventually(lambda: _start_of(tiering, topic) == ACTIVE)
    assert _fetch_error(tiering, topic, 0) == OFFSET_OUT_OF_RANGE
    found = PLAIN.consume(tiering.bootstrap, topic, RECORDS, offset=ACTIVE)
    assert found == [Read(offset, SAMPLES[offset]) for offset in range(ACTIVE, END)]


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_kills_under_load_lose_nothing_tiered(
    fresh_broker: BrokerFactory, broker_kind: str, tmp_path: Path, kills: int
) -> None:
    """Also where segments were being copied, or removed here, at that moment."""
    seed = int(os.environ.get("BARNABAS_KILL_SEED", "0")) or random.randrange(1 << 30)
    print(f"BARNABAS_KILL_SEED={seed}")
    delays = random.Random(seed)
    broker = _start(fresh_broker, broker_kind, tmp_path)
    configs = {**CONFIGS, "segment.ms": "100"}
    topic = create_topic(broker.bootstrap, "killed", PARTITIONS, configs)
    load = Load(broker, topic, librdkafka(idempotent=True))
    for _ in range(kills):
        acknowledged = len(load.acknowledged)
        copied = len(_objects(tmp_path, set()))
        eventually(
            lambda: len(load.acknowledged) > acknowledged + 20,  # noqa: B023
            30,
            message=lambda: f"{load.sent} sent, failed: {load.failed[:3]}, {broker.log_text()[-3000:]}",
        )
        eventually(lambda: len(_objects(tmp_path, set())) > copied)  # noqa: B023
        time.sleep(delays.random() / 2)  # kill the broker at a random point of its work
        broker.restart(kill=True)
    load.finish()
    assert not load.failed, load.failed[:3]
    for partition in range(PARTITIONS):
        eventually(lambda: len(_local_segments(broker, topic, partition)) == 1)  # noqa: B023
        assert _offset(broker, topic, OffsetSpec.earliest(), partition) == 0
    reader = Reader(broker, topic)
    reader.catch_up()
    assert sorted(load.acknowledged) == list(range(load.sent))
    for partition, values in enumerate(reader.values):
        assert values == list(range(partition, load.sent, PARTITIONS))
