"""`python -m compat_tests.bench.partitions`: cost of many partitions, on this broker and on Apache Kafka 4.3.1.

Measures the creation of topics of 1,000 partitions, 10,000 in all; memory and open files per partition; the time of
Metadata for all of them; and the time from exec until every partition is served again, after a clean stop and after
kill -9, with partitions idle and written to. The brokers run one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from compat_tests.bench.startup import make_brokers
from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.raw import RawConnection

_LIST_OFFSETS, _METADATA, _CREATE_TOPICS = 2, 3, 19
_PER_TOPIC = 1000
_TIMEOUT_S = 300


def create_topic(connection: RawConnection, topic: str, partitions: int, replicas: int = 1) -> None:
    """CreateTopics v2, waiting for the answer."""
    wanted = raw.string(topic) + struct.pack(">ihii", partitions, replicas, 0, 0)
    answer = connection.ask(
        raw.request(_CREATE_TOPICS, 2, raw.array([wanted]) + struct.pack(">i?", 60_000, False))
    )
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic))
    assert error == 0, f"{topic} is not created: error {error}"


def is_served(connection: RawConnection, topic: str, partitions: int) -> bool:
    """Whether ListOffsets v1 (latest) is answered without an error for every partition of the topic."""
    asked = raw.array([struct.pack(">iq", number, -1) for number in range(partitions)])
    body = struct.pack(">i", -1) + raw.array([raw.string(topic) + asked])
    answer = connection.ask(raw.request(_LIST_OFFSETS, 1, body))
    start = 4 + 2 + len(topic) + 4
    return all(
        struct.unpack_from(">h", answer, start + number * 22 + 4) == (0,) for number in range(partitions)
    )


def wait_until_served(connection: RawConnection, topics: Sequence[str]) -> None:
    """Return when every partition of the topics answers."""
    deadline = time.perf_counter() + _TIMEOUT_S
    for topic in topics:
        while not is_served(connection, topic, _PER_TOPIC):
            assert time.perf_counter() < deadline, f"{topic} is not served after {_TIMEOUT_S} s"
            time.sleep(0.005)


def write_to_all(connection: RawConnection, topics: Sequence[str], batch: bytes) -> None:
    """One batch into every partition, 500 partitions a request."""
    for topic in topics:
        for first in range(0, _PER_TOPIC, 500):
            answers = raw.produce_many(connection, topic, dict.fromkeys(range(first, first + 500), batch))
            refused = {number: error for number, (error, _) in answers.items() if error}
            assert len(answers) == 500, f"{len(answers)} answers"
            assert not refused, f"{topic}: {refused}"


def metadata_of_all(connection: RawConnection) -> None:
    """Metadata v1 of every topic."""
    connection.ask(raw.request(_METADATA, 1, struct.pack(">i", -1)))


def open_files(broker: Broker) -> int:
    """Descriptors that the broker's process has open."""
    return sum(1 for _ in Path(f"/proc/{broker.pid}/fd").iterdir())


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def start_until_served(broker: Broker, topics: Sequence[str]) -> float:
    """Seconds from exec until every partition answers."""
    started = time.perf_counter()
    broker.start()
    with RawConnection(broker.bootstrap, timeout=_TIMEOUT_S) as connection:
        wait_until_served(connection, topics)
    return time.perf_counter() - started


def restart(broker: Broker, topics: Sequence[str], *, kill: bool = False) -> tuple[float, float]:
    """Seconds of stopping, and of starting until all is served."""
    stopping = seconds(broker.kill if kill else lambda: broker.stop(timeout=_TIMEOUT_S))
    return stopping, start_until_served(broker, topics)


def measure(broker: Broker, topics: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield name and value of every figure. The broker must run, and is stopped at the end."""
    partitions = len(topics) * _PER_TOPIC
    with RawConnection(broker.bootstrap, timeout=_TIMEOUT_S) as connection:
        create_topic(connection, "warm-up", 1)  # memory of the first request does not count for partitions
        metadata_of_all(connection)
        time.sleep(1)
        before = broker.resident_bytes()
        answered: list[float] = []
        created: list[float] = []
        for topic in topics:
            started = time.perf_counter()
            create_topic(connection, topic, _PER_TOPIC)
            answered.append(time.perf_counter() - started)
            wait_until_served(connection, [topic])
            created.append(time.perf_counter() - started)
        yield f"topic of {_PER_TOPIC} created: answered, s", statistics.median(answered)
        yield f"topic of {_PER_TOPIC} created: all served, s", statistics.median(created)
        yield f"the slowest of {len(topics)}, s", max(created)
        time.sleep(1)
        yield (
            "memory per idle partition after creation, KiB",
            (broker.resident_bytes() - before) / partitions / 1024,
        )
        yield "open files, idle", open_files(broker)
        yield (
            "Metadata of all, ms",
            1000 * statistics.median(seconds(lambda: metadata_of_all(connection)) for _ in range(5)),
        )
    stopping, starting = restart(broker, topics)
    yield "clean stop, idle, s", stopping
    yield "clean restart, idle, s", starting
    time.sleep(1)
    yield (
        "memory per idle partition after restart, KiB",
        (broker.resident_bytes() - before) / partitions / 1024,
    )
    yield "unclean restart, idle, s", restart(broker, topics, kill=True)[1]
    batch = raw.good_batch(bytes(100))
    with RawConnection(broker.bootstrap, timeout=_TIMEOUT_S) as connection:
        yield "first record into every partition, s", seconds(lambda: write_to_all(connection, topics, batch))
        yield "open files, written to", open_files(broker)
        yield (
            "second record into every partition, s",
            seconds(lambda: write_to_all(connection, topics, batch)),
        )
    yield "memory per partition written to, KiB", (broker.resident_bytes() - before) / partitions / 1024
    stopping, starting = restart(broker, topics)
    yield "clean stop, written to, s", stopping
    yield "clean restart, written to, s", starting
    yield "clean stop, unchanged, s", restart(broker, topics)[0]
    with RawConnection(broker.bootstrap, timeout=_TIMEOUT_S) as connection:
        write_to_all(connection, topics, batch)
    yield "unclean restart, written to, s", restart(broker, topics, kill=True)[1]
    broker.stop(timeout=_TIMEOUT_S)


def main() -> int:
    """Measure and print the table to standard output."""
    parser = argparse.ArgumentParser(description="What many partitions cost.")
    parser.add_argument(
        "--topics", type=int, default=10, help=f"topics of {_PER_TOPIC} partitions (default 10)"
    )
    parser.add_argument("--only", choices=["barnabas", "apache"], help="one of the brokers alone")
    options = parser.parse_args()
    topics = [f"many-{number}" for number in range(options.topics)]
    table: dict[str, dict[str, float]] = {}
    measured: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-partitions-") as folder:
        for name, broker in make_brokers(Path(folder)).items():
            if options.only is not None and options.only not in name.lower():
                continue
            measured.append(name)
            broker.start()
            try:
                for figure, value in measure(broker, topics):
                    table.setdefault(figure, {})[name] = value
                    print(f"{name}: {figure} {value:.3f}", file=sys.stderr, flush=True)
            finally:
                if broker.alive():
                    broker.kill()
    print(f"{len(topics) * _PER_TOPIC} partitions\n")
    print(f"| | {' | '.join(measured)} |\n|---|{'---|' * len(measured)}")
    for figure, values in table.items():
        print(
            f"| {figure} | {' | '.join(f'{values[name]:.3f}' if name in values else '' for name in measured)} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
