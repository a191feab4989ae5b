"""Apache Kafka's cleaner on a log, and ours on a copy of it, leave the same segments, the same batches, field by field,
the same records and the same index of aborted transactions.

Kafka writes the log (idempotent, transactional, all codecs, tombstones), the test copies its directory, and both clean;
four times, so that delete horizons are set and pass.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from barnabas.storage.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.storage.disk.disk import RealDisk
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import iterate_headers
from barnabas.wire.records import Record, build_batch, iterate_records
from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.confluent_admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.raw import RawConnection, produce
from compat_tests.harness.topics import create_topic
from compat_tests.virtual.runtime import VirtualRuntime

pytestmark = pytest.mark.barnabas_only  # it starts both brokers' cleaners itself

TOPIC = "compacted"
DELETE_RETENTION_MS = 1000
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1.0",  # no cleaning until the test lowers it
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "segment.ms": "1000",  # by the records' times, which the test chooses
    "message.timestamp.after.max.ms": str(1 << 40),
    "index.interval.bytes": "300",
}
CHECKPOINT = "cleaner-offset-checkpoint"


class Kafka:
    """Apache Kafka with one compacted partition, to which the test sends records."""

    def __init__(self, directory: Path, tools: JavaTools) -> None:
        self.broker = ApacheBroker(directory, {"log.cleaner.backoff.ms": "50"}, tools)
        self.broker.start()
        create_topic(self.broker.bootstrap, TOPIC, configs=CONFIGS)
        self.clock = int(time.time() * 1000)
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        self._connection = RawConnection(self.broker.bootstrap)
        self._sequences: dict[int, int] = {}
        self._transactional = {
            name: Producer(
                {"bootstrap.servers": self.broker.bootstrap, "transactional.id": name, "linger.ms": 50}
            )
            for name in ("first", "second")
        }
        for producer in self._transactional.values():
            producer.init_transactions()

    def send(
        self, *records: tuple[bytes, bytes | None], codec: Codec = Codec.NONE, producer: int = -1
    ) -> None:
        """One batch; times a few ms apart."""
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(records)
        batch = build_batch(
            [
                Record(i, self.clock + 3 * i % 7, key, value, [(f"h{i}", b"x" * i), ("null", None)])
                for i, (key, value) in enumerate(records)
            ],
            codec=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
        )
        assert produce(self._connection, TOPIC, batch)[0] == 0

    def transaction(self, name: str, *records: tuple[bytes, bytes | None], commit: bool) -> None:
        producer = self._transactional[name]
        producer.begin_transaction()
        for key, value in records:
            producer.produce(TOPIC, value, key, timestamp=self.clock)
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()

    def roll(self) -> None:
        """The next batch begins a segment."""
        self.clock += 5000

    @property
    def partition(self) -> Path:
        return self.broker.log_dir / f"{TOPIC}-0"

    def clean(self) -> None:
        """Have the cleaner clean everything below the active segment."""
        active = max(int(path.stem) for path in self.partition.glob("*.log"))
        self._configure("min.cleanable.dirty.ratio", "0.0")
        eventually(lambda: self._clean_up_to() >= active)
        eventually(lambda: not list(self.partition.glob("*.swap")))
        self._configure("min.cleanable.dirty.ratio", "1.0")

    def _clean_up_to(self) -> int:
        path = self.broker.log_dir / CHECKPOINT
        found = re.search(rf"^{TOPIC} 0 (\d+)$", path.read_text() if path.exists() else "", re.MULTILINE)
        return int(found[1]) if found else 0

    def _configure(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.fixture
def kafka(tmp_path: Path, java_tools: JavaTools) -> Iterator[Kafka]:
    made = Kafka(tmp_path / "apache", java_tools)
    yield made
    made.broker.kill()


def copy_of(kafka: Kafka, target: Path) -> None:
    """The compacted partition and the cleaner's checkpoint, as they are now."""
    target.mkdir()
    shutil.copytree(kafka.partition, target / kafka.partition.name)
    if (kafka.broker.log_dir / CHECKPOINT).exists():
        shutil.copy(kafka.broker.log_dir / CHECKPOINT, target)


def clean_copy(directory: Path) -> None:
    """Run our cleaner on the copy, as after a crash of the broker that wrote it."""
    runtime = VirtualRuntime(start_ms=int(time.time() * 1000))
    disk = RealDisk()
    manager = LogManager(disk, [str(directory)], runtime)
    manager.open()
    log = manager.get(TOPIC, 0)
    assert log is not None
    log.end_replication()
    log.update_config(LogConfig.from_properties({**CONFIGS, "min.cleanable.dirty.ratio": "0.0"}))
    cleaner = LogCleaner(manager, disk, runtime, CleanerSettings(backoff_ms=1))
    cleaner.start()
    runtime.advance(1)
    cleaner.stop()
    manager.close()


def contents(partition: Path) -> dict[str, list[Any]]:
    """Per segment: header fields and records of every batch; bytes of the index of aborted transactions.

    Compressed bytes, with their length and CRC, and the exact delete horizon may differ and are left out.
    """
    found: dict[str, list[Any]] = {}
    for path in sorted(partition.glob("*.log")):
        data = path.read_bytes()
        batches: list[Any] = []
        for position, header in iterate_headers(data):
            fields = msgspec.structs.asdict(header)
            horizon = header.delete_horizon_ms
            if horizon is not None:
                fields["base_timestamp"] = "delete horizon"
            if horizon is not None or header.codec != Codec.NONE:
                fields["batch_length"] = fields["crc"] = "any"
            batches.append((fields, list(iterate_records(data[position : position + header.size]))))
        index = path.with_suffix(".txnindex")
        found[path.name] = [batches, index.read_bytes() if index.exists() else b""]
    return found


def check(kafka: Kafka, round_number: int, tmp_path: Path, tools: JavaTools) -> int:
    """Clean both logs and compare them; return the number of records left. Kafka's own tool reads our files."""
    copy = tmp_path / f"copy {round_number}"
    copy_of(kafka, copy)
    clean_copy(copy)
    kafka.clean()
    ours, theirs = contents(copy / f"{TOPIC}-0"), contents(kafka.partition)
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name] == theirs[name], name
    assert (
        copy / CHECKPOINT
    ).read_text() == f"0\n1\n{TOPIC} 0 {max(int(Path(name).stem) for name in ours)}\n"
    files = [
        str(path)
        for path in (copy / f"{TOPIC}-0").iterdir()
        if path.suffix in (".log", ".index", ".timeindex")
    ]
    dumped = tools.run("kafka-dump-log", "--deep-iteration", "--files", ",".join(files)).output
    assert "isvalid: false" not in dumped
    assert not re.search("Mismatches in|corrupt|out of order", dumped, re.IGNORECASE)
    # the tool reports an empty batch, which has a timestamp but no records, as a mismatch with the time index
    assert set(re.findall(r"log timestamp: (-?\d+)", dumped)) <= {"-1"}
    return sum(len(records) for batches, _ in ours.values() for _, records in batches)


def first_round(kafka: Kafka) -> None:
    for number, codec in enumerate(Codec):
        kafka.send(
            *[(b"k%d" % i, b"%d-%d" % (number, i) * 10) for i in range(8)], codec=codec, producer=100 + number
        )
        kafka.send((b"k%d" % number, b"alone"), codec=codec)
    kafka.roll()
    kafka.send((b"k1", b"a"), (b"k1", b"b"), (b"k2", None), (b"k3", b"c"), codec=Codec.LZ4, producer=100)
    kafka.transaction("first", (b"t1", b"committed"), (b"k4", b"t"), commit=True)
    kafka.transaction("second", (b"t2", b"aborted"), (b"k5", b"never"), commit=False)
    kafka.roll()
    kafka.send((b"k6", None), codec=Codec.ZSTD)
    kafka.send((b"k7", b"x" * 5000))
    kafka.transaction("second", (b"t2", b"committed after all"), commit=True)
    kafka.roll()
    kafka.send((b"active", b"1"))


def second_round(kafka: Kafka) -> None:
    kafka.transaction("first", (b"t1", None), (b"long key " * 20, b"v"), commit=True)
    kafka.transaction("second", (b"k7", b"aborted"), commit=False)
    kafka.roll()
    kafka.send((b"k0", b"new"), (b"k3", None), codec=Codec.GZIP, producer=101)
    kafka.send((b"long key " * 20, b"w"), codec=Codec.SNAPPY)
    kafka.roll()
    kafka.send((b"active", b"2"))


def later_round(kafka: Kafka) -> None:
    kafka.roll()
    kafka.send((b"k7", b"last"), producer=100)
    kafka.roll()
    kafka.send((b"active", b"3"))


def test_both_cleaners_leave_the_same(kafka: Kafka, tmp_path: Path, java_tools: JavaTools) -> None:
    rounds: list[Callable[[Kafka], None]] = [first_round, second_round, later_round, later_round]
    left = []
    for number, write in enumerate(rounds):
        write(kafka)
        time.sleep(DELETE_RETENTION_MS / 1000)  # then all delete horizons set so far have passed for both
        left.append(check(kafka, number, tmp_path, java_tools))
    assert left[-1] < left[0]
