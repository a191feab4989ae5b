"""`python -m compat_tests.bench.soak`: one broker under a steady mixed load for two hours, with restarts.

A producer and a consumer of a topic that retention cuts, a producer of one that is compacted, members that join and leave a group,
transactions, topics that come and go; every so many minutes the broker stops, in turns cleanly and by kill -9, and starts again. Memory,
descriptors, size on disk and the latency of a produce are noted each half minute: they should not grow with the broker's age. Of the
first two topics all that was acknowledged has to be there, and each kind of work has to go on in each of the broker's lives.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from compat_tests.bench import driver, latency, prepared
from compat_tests.bench.__main__ import say
from compat_tests.bench.growth.curves import Curves, in_words
from compat_tests.bench.partitions import open_files
from compat_tests.bench.startup import make_brokers
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.harness.topics import create_topic

_RETAINED, _COMPACTED, _GROUPED = "soak-retained", "soak-compacted", "soak-grouped"
_TOPICS = {
    _RETAINED: {"retention.bytes": "67108864", "segment.bytes": "16777216", "file.delete.delay.ms": "1000"},
    _COMPACTED: {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "0.1",
        "file.delete.delay.ms": "1000",
    },
    _GROUPED: {"retention.bytes": "67108864", "segment.bytes": "16777216"},
}
_SETTINGS = {
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.backoff.ms": "5000",
    "group.initial.rebalance.delay.ms": "100",
    "transaction.state.log.num.partitions": "4",
}
_RECORDS = 10  # of 1 KB, in a request of the retained topic
_KEYS = 20_000
_LIFE_MIN_S = 60.0  # in which each kind of work is done
_BEHIND_MAX = 20_000  # records that the reader may be behind when it ends: ten seconds


@dataclass
class Soak:
    """The load. `is_up` is unset while the broker is being restarted; errors count only while it is set."""

    broker: Broker
    is_up: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    latencies: list[float] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    next_offset: int = 0  # of the retained topic: all below are acknowledged
    read_offset: int = 0
    values: dict[int, bytes] = field(default_factory=dict)  # acknowledged last, by key
    unsure: set[int] = field(default_factory=set)  # keys whose last produce was not answered
    _counted: dict[str, int] = field(default_factory=dict)  # at the end of the last life

    def run(self, work: Callable[[], None]) -> threading.Thread:
        """The work again and again in a thread, from the start after an error; the broker may be away meanwhile."""

        def repeat() -> None:
            while not self.is_over.is_set():
                if not self.is_up.wait(1):
                    continue
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - counted, and the work goes on
                    if self.is_up.is_set() and self.broker.alive():
                        self.failures.append(f"{work.__name__}: {error!r}")
                    time.sleep(0.2)

        thread = threading.Thread(target=repeat, name=work.__name__, daemon=True)
        thread.start()
        return thread

    @property
    def goes_on(self) -> bool:
        return self.is_up.is_set() and not self.is_over.is_set()

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    # -- the work

    def produce(self) -> None:
        """200 requests a second, one after the other; each acknowledgement follows the last, or what was not answered."""
        connection = driver.Connection(self.broker.bootstrap, 1 << 16)
        request = prepared.produce(_RETAINED, prepared.batch(_RECORDS, 1000), -1)
        due = time.perf_counter()
        while self.goes_on:
            started = time.perf_counter()
            error, offset = prepared.produced(_RETAINED, connection.ask(request))
            self.latencies.append(time.perf_counter() - started)
            assert error == 0, f"error {error}"
            if offset < self.next_offset:
                self.failures.append(f"offset {offset} was given twice, {self.next_offset} was next")
            self.next_offset = offset + _RECORDS
            self.count("produced", _RECORDS)
            due = max(due + 0.005, started - 0.1)
            time.sleep(max(0.0, due - time.perf_counter()))
        connection.close()

    def consume(self) -> None:
        """Every offset of the retained topic in order, as fast as it is produced."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": "none", "log_level": 2}
        )
        consumer.assign([confluent_kafka.TopicPartition(_RETAINED, 0, self.read_offset)])
        while self.goes_on:
            for message in consumer.consume(500, 1):
                error = message.error()
                if error is not None:
                    if self.goes_on and not error.retriable():
                        self.failures.append(f"read at {self.read_offset}: {error}")
                    continue
                offset = message.offset()
                assert offset is not None
                if offset != self.read_offset:
                    self.failures.append(f"read {offset} after {self.read_offset - 1}")
                self.read_offset = offset + 1
                self.count("consumed")
        consumer.close()

    def compact(self) -> None:
        """New values for keys, in turns."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "linger.ms": 20,
                "log_level": 2,
                "message.timeout.ms": 120_000,
            }
        )
        number = self.counts.get("compacted", 0)
        while self.goes_on:
            sent = {(number + each) % _KEYS: b"%d %b" % (number + each, bytes(200)) for each in range(400)}
            acknowledged: set[int] = set()
            self.unsure |= sent.keys()
            for key, value in sent.items():
                producer.produce(
                    _COMPACTED, value, b"%d" % key, on_delivery=partial(_delivered, acknowledged, key)
                )
            producer.flush(120)
            for key in acknowledged:
                self.values[key] = sent[key]
            self.unsure -= acknowledged
            number += len(sent)
            self.count("compacted", len(sent))
            time.sleep(0.5)

    def group(self) -> None:
        """A member that joins, reads, commits and leaves; two of these threads share a group."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "soak",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "log_level": 2,
            }
        )
        consumer.subscribe([_GROUPED])
        until = time.monotonic() + 10
        while self.goes_on and time.monotonic() < until:
            consumer.poll(0.2)
        consumer.close()
        self.count("members")

    def transact(self) -> None:
        """A transaction of ten records; every fifth is aborted."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.broker.bootstrap, "transactional.id": "soak", "log_level": 2}
        )
        producer.init_transactions(30)
        while self.goes_on:
            producer.begin_transaction()
            for number in range(10):
                producer.produce(_GROUPED, bytes(500), b"%d" % number)
            producer.flush(30)
            if self.counts.get("transactions", 0) % 5 == 4:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            self.count("transactions")
            time.sleep(0.2)

    def come_and_go(self) -> None:
        """A topic of ten partitions that is created, written to and deleted."""
        name = f"soak-{self.counts.get('topics', 0)}-{time.time_ns()}"
        create_topic(self.broker.bootstrap, name, 10)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 2})
        connection = driver.Connection(self.broker.bootstrap, 1 << 16)
        connection.ask(prepared.produce(name, prepared.batch(1, 100)))
        connection.close()
        admin.delete_topics([name])[name].result(30)
        self.count("topics")
        self.is_over.wait(5)

    # -- what is noted

    def restart(self, *, kill: bool) -> float:
        """Seconds until it serves again."""
        self.is_up.clear()
        if kill:
            self.broker.kill()
        else:
            self.broker.stop()
        started = time.perf_counter()
        self.broker.start()
        driver.wait_until_served(self.broker.bootstrap, _COMPACTED)  # its log still begins at 0
        seconds = time.perf_counter() - started
        self.is_up.set()
        return seconds

    def figures(self, cpu_share: float) -> dict[str, float]:
        """Of the time since the last call."""
        found, self.latencies = self.latencies, []
        return {
            "memory, MB": self.broker.resident_bytes() / 1e6,
            "descriptors": open_files(self.broker),
            "on disk, MB": size_of(self.broker.directory) / 1e6,
            "produce 10 KB, acks=all, p50 ms": latency.percentile(found, 0.5) * 1e3 if found else 0.0,
            "produce 10 KB, acks=all, p99 ms": latency.percentile(found, 0.99) * 1e3 if found else 0.0,
            "CPU, % of a core": cpu_share * 100,
        }

    def check_progress(self) -> None:
        """Each kind of work has been done since the last call."""
        kinds = ("produced", "consumed", "compacted", "members", "transactions", "topics")
        for kind in kinds:
            if self.counts.get(kind, 0) <= self._counted.get(kind, 0):
                self.failures.append(f"nothing was {kind} in this life of the broker: {self.counts}")
        self._counted = dict(self.counts)

    def check_compacted(self) -> None:
        """Each key's last acknowledged value is the last in the log, or a later one that was not answered."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": "none", "enable.partition.eof": True}
        )
        consumer.assign([confluent_kafka.TopicPartition(_COMPACTED, 0, confluent_kafka.OFFSET_BEGINNING)])
        last: dict[int, bytes] = {}
        while True:
            message = consumer.poll(30)
            assert message is not None, "the compacted topic does not end"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                break
            last[int(message.key() or b"-1")] = message.value() or b""
        consumer.close()
        for key, value in self.values.items():
            found = last.get(key, b"")
            if found != value and not (key in self.unsure and _number(found) >= _number(value)):
                self.failures.append(f"key {key} has {found[:20]!r}, not {value[:20]!r}")


def _delivered(acknowledged: set[int], key: int, error: object, _message: object) -> None:
    if error is None:
        acknowledged.add(key)


def _number(value: bytes) -> int:
    return int(value.split(b" ", 1)[0] or b"-1")


def size_of(folder: Path) -> int:
    """Bytes of all files below it; files and folders may go meanwhile."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += os.stat(f"{parent}/{file}").st_size
    return total


def main() -> int:
    """Run the load, print a row each half minute and a summary of the broker's lives."""
    parser = argparse.ArgumentParser(description="A steady mixed load with restarts.")
    parser.add_argument("--minutes", type=float, default=120, help="in all (default 120)")
    parser.add_argument("--life", type=float, default=15, help="minutes between restarts (default 15)")
    parser.add_argument("--broker", choices=("Barnabas", "Apache Kafka"), default="Barnabas")
    parser.add_argument("--picture", type=Path, help="also draw the figures over time into this SVG file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as folder:
        broker = make_brokers(Path(folder))[options.broker]
        broker.settings.update(_SETTINGS)
        broker.start()
        try:
            return _run(broker, options)
        finally:
            if broker.alive():
                broker.kill()


def _run(broker: Broker, options: argparse.Namespace) -> int:
    for topic, configs in _TOPICS.items():
        create_topic(broker.bootstrap, topic, configs=configs)
    soak = Soak(broker)
    soak.is_up.set()
    works = (
        soak.produce,
        soak.consume,
        soak.compact,
        soak.group,
        soak.group,
        soak.transact,
        soak.come_and_go,
    )
    threads = [soak.run(work) for work in works]
    curves = Curves(f"{options.broker} over {options.minutes:g} minutes", f"{os.cpu_count()} cores")
    started = born = time.monotonic()
    lives: list[list[dict[str, float]]] = [[]]
    starts: list[float] = []
    while (now := time.monotonic()) - started < options.minutes * 60:
        cpu = cpu_seconds(broker.pid)
        time.sleep(30)
        figures = soak.figures((cpu_seconds(broker.pid) - cpu) / (time.monotonic() - now))
        curves.add(options.broker, (time.monotonic() - started) / 60, figures)
        lives[-1].append(figures)
        say(f"{in_words(figures)}; {soak.counts}")
        for failure in soak.failures[:5]:
            say(failure)
        if time.monotonic() - born > options.life * 60:
            soak.check_progress()
            starts.append(soak.restart(kill=len(lives) % 2 == 0))
            born = time.monotonic()
            lives.append([])
    if time.monotonic() - born > _LIFE_MIN_S:
        soak.check_progress()
    soak.is_over.set()
    for thread in threads:
        thread.join(60)
    if soak.read_offset + _BEHIND_MAX < soak.next_offset:
        soak.failures.append(f"read up to {soak.read_offset} only of {soak.next_offset}")
    soak.check_compacted()
    print(summary(lives))
    print(f"\nstarts, s: {', '.join(f'{each:.2f}' for each in starts)}\n{soak.counts}")
    print(f"{len(soak.failures)} failures{''.join(f'{chr(10)}{each}' for each in soak.failures[:20])}")
    if options.picture is not None:
        options.picture.write_text(curves.picture())
    return 1 if soak.failures else 0


def summary(lives: list[list[dict[str, float]]]) -> str:
    """Of each life: the median of its second to fourth figures, and of its last three."""
    lines = ["| life | " + " | ".join(lives[0][0]) + " |", "|---|" + "---|" * len(lives[0][0])]
    for number, life in enumerate(lives):
        if len(life) < 6:
            continue
        cells = (
            f"{statistics.median(each[name] for each in life[1:4]):.4g} to "
            f"{statistics.median(each[name] for each in life[-3:]):.4g}"
            for name in life[0]
        )
        lines.append(f"| {number + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
