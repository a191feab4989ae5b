"""`python -m compat_tests.bench.tier`: tiered topics, on this broker and on Apache Kafka 4.3.1, in one run.

Kafka tiers with LocalTieredStorage, the storage of its own tests, which copies files to a folder; this broker to a folder and to an
S3 server on loopback (versitygw where BARNABAS_VERSITYGW names it, otherwise moto), over HTTP. Each round:

- 1 MB batches into a topic that is not tiered, then into one that is, whose segments are copied meanwhile;
- the CPU of copying: what the broker has used until all is copied, beyond what the same load took without;
- a reader that goes through all from the beginning: from the disk, from the store, and once more.

Last, for this broker alone, a start with a terabyte in the store, of which only the manifests exist, and one without.
MB and GB are 10^6 and 10^9 bytes. Quote the ratios.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave NewTopic out
    AdminClient,
    NewTopic,
)

from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import CHUNK_BYTES, Entry, Manifest, encode
from barnabas.storage.tier.store_config import open_store
from barnabas.testing.ports import free_port
from compat_tests.bench import driver, prepared
from compat_tests.bench.__main__ import say
from compat_tests.bench.report import cell, markdown
from compat_tests.bench.startup import WarmApacheBroker
from compat_tests.bench.workloads import Measures
from compat_tests.harness.apache_broker import local_tiered_storage
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import OffsetSpec
from compat_tests.harness.eventually import eventually
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.harness.s3_servers import moto, properties_of, versitygw

_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    # everything that is read is kept: the second reading is from the cache
    "remote.log.index.file.cache.total.size.bytes": str(4 << 30),
    "remote.fetch.max.wait.ms": "5000",
}
_SEGMENT_BYTES = 64 << 20
_RECORDS = 1000
_BATCH = prepared.batch(_RECORDS, 1000)  # 1 MB
_TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
_PARTITIONS, _ENTRIES, _ENTRY_BYTES = 100, 100, 100 << 20  # a terabyte


@contextmanager
def _topic(broker: Broker, name: str, configs: Mapping[str, str], partitions: int = 1) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    common = {"file.delete.delay.ms": "0", "retention.ms": "-1", "segment.bytes": str(_SEGMENT_BYTES)}
    admin.create_topics([NewTopic(name, partitions, 1, config={**common, **configs})])[name].result(30)
    driver.wait_until_served(broker.bootstrap, name)
    yield name
    admin.delete_topics([name])[name].result(30)


def _earliest_local(broker: Broker, topic: str) -> int:
    # librdkafka has no name for ListOffsets -4: the number of the first local segment says the same.
    folder = broker.log_dir / f"{topic}-0"
    return min(int(path.stem) for path in folder.glob("*.log"))


def _read_through(address: str, topic: str, batches: int) -> float:
    """Read every batch in order, a fetch of 1 MB at a time; seconds taken."""
    connection = driver.Connection(address)
    offset, end = 0, batches * _RECORDS
    started = time.perf_counter()
    while offset < end:
        response = connection.ask(prepared.fetch(topic, offset, len(_BATCH), 5000))
        error = prepared.fetched_error(topic, response)
        assert error == 0, f"error {error}"
        offset += len(response) // len(_BATCH) * _RECORDS
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


def measure(broker: Broker, number: int, batches: int) -> Measures:
    """One round; see the module."""
    volume = batches * len(_BATCH)
    measures: Measures = {}
    with _topic(broker, f"plain-{number}", {}) as topic:
        before = cpu_seconds(broker.pid)
        seconds = driver.produce_many(broker.bootstrap, topic, _BATCH, _RECORDS, batches)
        plain = cpu_seconds(broker.pid) - before
        measures["produce, not tiered, MB/s"] = plain_rate = volume / seconds / 1e6
        before = cpu_seconds(broker.pid)
        warm = volume / _read_through(broker.bootstrap, topic, batches) / 1e6
        measures |= {
            "read from the disk, MB/s": warm,
            "read from the disk, CPU-s/GB": (cpu_seconds(broker.pid) - before) / volume * 1e9,
        }
    with _topic(broker, f"tiered-{number}", _TIERED) as topic:
        before = cpu_seconds(broker.pid)
        seconds = driver.produce_many(broker.bootstrap, topic, _BATCH, _RECORDS, batches)
        measures["produce beside copying, part of the rate without"] = volume / seconds / 1e6 / plain_rate
        eventually(
            lambda: _earliest_local(broker, topic) > (batches - 2 * _SEGMENT_BYTES // len(_BATCH)) * _RECORDS,
            600,
        )
        copying = cpu_seconds(broker.pid) - before - plain
        measures["copying, CPU-s/GB"] = copying / volume * 1e9
        for reading in ("first", "second"):
            before = cpu_seconds(broker.pid)
            rate = volume / _read_through(broker.bootstrap, topic, batches) / 1e6
            measures |= {
                f"{reading} read from the store, part of the disk's rate": rate / warm,
                f"{reading} read from the store, CPU-s/GB": (cpu_seconds(broker.pid) - before) / volume * 1e9,
            }
    return measures


def _brokers(folder: Path, stack: ExitStack) -> dict[str, Broker]:
    program = os.environ.get("BARNABAS_VERSITYGW")
    server = versitygw(os.path.abspath(program), folder / "s3") if program else moto(folder / "s3")
    # as with TLS, where it is the default: SHA-256 would take another 0.9 CPU-s/GB
    s3 = {**properties_of(stack.enter_context(server)), "rsm.config.unsigned.payload": "true"}
    kinds: dict[str, tuple[type[Broker], dict[str, str]]] = {
        "Apache Kafka, folder": (WarmApacheBroker, local_tiered_storage(folder / "apache-store")),
        "Barnabas, folder": (BarnabasBroker, {"rsm.config.url": f"file://{folder / 'store'}"}),
        f"Barnabas, {'versitygw' if program else 'moto'}": (BarnabasBroker, s3),
    }
    return {
        name: kind(
            folder / str(at),
            {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}", **_SETTINGS, **settings},
        )
        for at, (name, (kind, settings)) in enumerate(kinds.items())
    }


def starts(folder: Path, times: int) -> dict[str, list[float]]:
    """Seconds from exec to the first acknowledged record, without tiered segments and with a terabyte of them."""
    url = f"file://{folder / 'sparse-store'}"
    broker = BarnabasBroker(
        folder / "sparse",
        {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}", **_SETTINGS, "rsm.config.url": url},
    )
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic("sparse", _PARTITIONS, 1, config={**_TIERED, "retention.ms": "-1"})])[
            "sparse"
        ].result(30)
        found: dict[str, list[float]] = {
            "100 tiered partitions, empty": [],
            "... with a terabyte in the store": [],
        }
        broker.stop()
        for label, samples in found.items():
            if "terabyte" in label:
                _fill(broker, url)
            for turn in range(times):
                address = broker.bootstrap
                started = time.perf_counter()
                broker.start()
                driver.first_produce(address, f"first-{label[:3]}{turn}", prepared.batch(1, 100))
                samples.append(time.perf_counter() - started)
                if "terabyte" in label:
                    eventually(
                        lambda: set(_starts_of(broker.bootstrap).values()) == {0}, retry_on=(KafkaException,)
                    )
                broker.stop()
        return found
    finally:
        if broker.alive():
            broker.stop()


def _starts_of(bootstrap: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    wanted = {TopicPartition("sparse", partition): OffsetSpec.earliest() for partition in range(_PARTITIONS)}
    return {where.partition: each.result(30).offset for where, each in admin.list_offsets(wanted).items()}


def _fill(broker: BarnabasBroker, url: str) -> None:
    """Make manifests that name segments which do not exist, and let the logs begin behind them."""
    store = open_store({"rsm.config.url": url}, lambda: 0)
    properties = (broker.log_dir / "meta.properties").read_text()
    cluster_id = dict(line.partition("=")[::2] for line in properties.splitlines())["cluster.id"]
    end = _ENTRIES * 1000
    for partition in range(_PARTITIONS):
        folder = broker.log_dir / f"sparse-{partition}"
        topic_id = (folder / "partition.metadata").read_text().split("topic_id: ")[1].strip()
        keys = PartitionKeys(cluster_id, topic_id, partition)
        manifest = Manifest(
            topic_id=topic_id,
            partition=partition,
            number=1,
            leader_epoch=0,
            nonce="0" * 16,
            log_start_offset=0,
            entries=[_entry(number) for number in range(_ENTRIES)],
        )
        store.create(keys.manifest, encode(manifest))
        for path in list(folder.iterdir()):
            if path.stem.isdecimal():
                path.rename(folder / f"{end:020d}{path.suffix}")
        (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    for name, offset in (("recovery-point-offset-checkpoint", end), ("log-start-offset-checkpoint", 0)):
        lines = "".join(f"sparse {partition} {offset}\n" for partition in range(_PARTITIONS))
        (broker.log_dir / name).write_text(f"0\n{_PARTITIONS}\n{lines}")


def _entry(number: int) -> Entry:
    chunks = -(-_ENTRY_BYTES // CHUNK_BYTES)
    return Entry(
        base_offset=number * 1000,
        first_offset=number * 1000,
        last_offset=number * 1000 + 999,
        end_offset=number * 1000 + 1000,
        max_timestamp=1_700_000_000_000 + number,
        log_size=_ENTRY_BYTES,
        aux_sizes=(0, 0, 0, 0, 4 * chunks),
        aux_checksum=0,
        epochs=[(0, number * 1000)],
        name=f"{number * 1000:020d}-0-{number:016x}",
    )


def main() -> int:
    """Run everything and print the table to standard output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each broker (default 3)")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of a topic (default 1000)")
    parser.add_argument(
        "--starts", type=int, default=5, help="starts with and without a terabyte (default 5)"
    )
    options = parser.parse_args()
    samples: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-tier-") as name, ExitStack() as stack:
        folder = Path(name)
        for label, seconds in starts(folder, options.starts).items():
            say(f"exec to first acknowledged produce, {label}: {cell(seconds)} s")
        brokers = _brokers(folder, stack)
        for broker in brokers.values():
            stack.callback(broker.stop)
            broker.start()
        for number in range(options.rounds + 1):
            for name, broker in brokers.items():
                for measure_name, value in measure(broker, number, options.megabytes).items():
                    if number:  # the first one warms up
                        samples.setdefault(measure_name, {}).setdefault(name, []).append(value)
            say(f"round {number} of {options.rounds}")
        rows = [("", *brokers)]
        rows += [(each, *(cell(found[name]) for name in brokers)) for each, found in samples.items()]
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load}\n")
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
