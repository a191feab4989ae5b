"""Latency of a small produce while another client sends the most expensive known requests without a pause.

The hostile client (`python -m compat_tests.bench.hostile HOST:PORT`) is a process of its own, so that building and
sending its requests does not slow down the measuring client. Its requests are those of compat_tests/fuzz/worst.py.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from confluent_kafka.admin import AdminClient

from compat_tests.bench import driver, latency, prepared
from compat_tests.bench.driver import Connection
from compat_tests.bench.workloads import Measures, topic_of
from compat_tests.fuzz.worst import WORST
from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.process_usage import cpu_seconds

# Requests that both brokers serve; each is among the most expensive of its kind for one of the two.
REQUESTS = (
    "wide batch far ahead",
    "wide batch, compacted",
    "wide batch, recompressed",
    "bomb looked up, zstd",
    "bomb looked up, gzip",
    "wide batch looked up",
    "topic described 10,000 times",
    "broker described 10,000 times",
    "metadata of 50,000 unknown names",
    "20,000 requests in one write",
)
TOPICS = {
    "fuzz-plain": {},
    "fuzz-compacted": {"cleanup.policy": "compact"},
    "fuzz-packed": {"compression.type": "gzip"},
}
PERIOD_S = 0.02  # between two small produces
_KILOBYTE = prepared.batch(1, 1000)
_SECONDS_MAX = 60.0  # of one measurement, even if the hostile client has not sent all its requests
_ANSWER_MAX = 256 << 20  # what a hostile client reads at once


def beside(broker: Broker, seconds: float) -> Measures:
    """Produces of 1 KB, acks=1, at a fixed rate, each counted from the moment at which it was due."""
    create_topics(broker.bootstrap)
    with topic_of(broker) as topic, hostile_client(broker.bootstrap) as done:
        samples = scheduled(broker.bootstrap, topic, seconds, lambda: all(name in done for name in REQUESTS))
    return {
        "produce 1 KB beside hostile requests, p50 ms": latency.percentile(samples, 0.5) * 1e3,
        "produce 1 KB beside hostile requests, p99 ms": latency.percentile(samples, 0.99) * 1e3,
        "produce 1 KB beside hostile requests, worst ms": max(samples) * 1e3,
    }


def wait_for_rest(brokers: Iterable[Broker], timeout_s: float = 120) -> None:
    """Wait until all brokers are idle; a JVM may work on earlier requests for a long time."""
    wait_until_idle([broker.pid for broker in brokers], timeout_s)


def wait_until_idle(pids: Sequence[int], timeout_s: float = 120) -> None:
    """Wait until the processes together take less than a tenth of a core."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = sum(map(cpu_seconds, pids))
        time.sleep(1)
        if sum(map(cpu_seconds, pids)) - before < 0.1:
            return


def scheduled(address: str, topic: str, seconds: float, enough: Callable[[], bool]) -> list[float]:
    """Seconds from the time at which each produce was due, even if it had to wait for the one before; runs at least that
    long, and until `enough()`."""
    connection = Connection(address)
    request = prepared.produce(topic, _KILOBYTE)
    latencies: list[float] = []
    started = time.perf_counter()
    for number in count():
        due = started + number * PERIOD_S
        time.sleep(max(0.0, due - time.perf_counter()))
        while prepared.produced(topic, connection.ask(request))[0] != 0:
            assert time.perf_counter() < due + _SECONDS_MAX, "a produce is refused again and again"
            time.sleep(PERIOD_S)  # as when a broker was fenced; a producer sends it again
        latencies.append(time.perf_counter() - due)
        if due > started + seconds and (enough() or due > started + _SECONDS_MAX):
            break
    connection.close()
    return latencies


@contextmanager
def hostile_client(address: str) -> Iterator[Counter[str]]:
    """Run the hostile client; yields how often each of its requests was completed."""
    done: Counter[str] = Counter()
    command = [sys.executable, "-m", "compat_tests.bench.hostile", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        output = process.stdout
        assert output is not None
        assert output.readline() == "ready\n"
        threading.Thread(target=lambda: _tally(done, output), daemon=True).start()
        yield done
    finally:
        process.terminate()
        process.wait()


def _tally(done: Counter[str], lines: Iterable[str]) -> None:
    for line in lines:
        done[line.strip()] += 1


def create_topics(address: str) -> None:
    """Create the topics of the requests that do not exist yet."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    known = admin.list_topics(timeout=30).topics
    missing = {name: configs for name, configs in TOPICS.items() if name not in known}
    if missing:
        made = [
            NewTopic(name, 1, 1, config={"retention.ms": "-1", **configs})
            for name, configs in missing.items()
        ]
        for one in admin.create_topics(made).values():
            one.result(60)
        for name in missing:
            driver.wait_until_served(address, name)


def attack(address: str) -> None:
    """Send the requests repeatedly until the process is ended."""
    cases = {name: WORST[name]() for name in REQUESTS}
    for case in cases.values():
        for piece in case.prepared:
            _send(address, [piece])
    print("ready", flush=True)
    while True:
        for name, case in cases.items():
            _send(address, case.pieces)
            print(name, flush=True)


def _send(address: str, pieces: list[bytes]) -> None:
    """On a connection of their own; each is answered, or the connection is closed."""
    connection = Connection(address, _ANSWER_MAX)
    try:
        for start in range(0, len(pieces), 1000):
            some = pieces[start : start + 1000]
            connection.send(b"".join(some))
            for _ in some:
                connection.receive()
    except OSError:
        pass
    finally:
        connection.close()


if __name__ == "__main__":
    attack(sys.argv[1])
