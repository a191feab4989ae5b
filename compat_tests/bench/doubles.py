"""`python -m compat_tests.bench.doubles`: what else a test suite can have in Kafka's place, and Barnabas, in one run.

    --rounds N    of which the table has the medians (default 5)

Barnabas as a process and inside a test's process, franz-go's kfake, librdkafka's mock cluster, and the embedded Kafka of
spring-kafka-test. Each is a process of its own here, with the interpreter or JVM that it lives in; the client is one socket that sends
prepared bytes and checks what is answered, with Produce 9, which all of them have. A double whose toolchain is missing is left out,
with a line that says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from barnabas.testing.ports import free_port
from compat_tests.bench import prepared
from compat_tests.bench.driver import Connection
from compat_tests.bench.report import cell, markdown
from compat_tests.bench.workloads import Measures
from compat_tests.harness.process_usage import cpu_seconds, resident_bytes
from compat_tests.suites.go_module import GoUnavailableError, build_program

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "doubles"
_HERE: Final = Path(__file__).parent
_TOPIC: Final = "t"
_PRODUCE_VERSION: Final = 9
_SMALL: Final = prepared.batch(1, 1000)
_LARGE: Final = prepared.batch(100, 1000)
_REQUESTS: Final = 2000  # of those: 200 MB
_ADDRESS: Final = re.compile(r"(?:127\.0\.0\.1|localhost|\[::\]):(\d+)")

_IN_PROCESS: Final = """\
import signal
from barnabas.testing import Broker
with Broker() as broker:
    print("ready", broker.bootstrap_servers, flush=True)
    signal.pause()
"""
# A mock cluster belongs to a client of librdkafka, and its address stands in that client's metadata.
_MOCK: Final = """\
import signal
from confluent_kafka import Producer
client = Producer({"test.mock.num.brokers": 1, "log_level": 0})
[broker] = client.list_topics(timeout=30).brokers.values()
print(f"ready {broker.host}:{broker.port}", flush=True)
signal.pause()
"""


class UnavailableError(RuntimeError):
    """A double can't be had here; the message says why."""


def _barnabas() -> list[str]:
    return [sys.executable, "-m", "barnabas.cli", "testbroker", "--port", str(free_port())]


def _barnabas_in_process() -> list[str]:
    return [sys.executable, "-c", _IN_PROCESS]


def _librdkafka() -> list[str]:
    return [sys.executable, "-c", _MOCK]


def _kfake() -> list[str]:
    try:
        program = build_program(_HERE / "kfake", CACHE / "kfake")
    except GoUnavailableError as error:
        raise UnavailableError(str(error)) from None
    return [str(program), str(free_port())]


def _embedded() -> list[str]:
    missing = [name for name in ("mvn", "javac") if shutil.which(name) is None]
    if missing:
        raise UnavailableError(f"no {' and no '.join(missing)} on the PATH")
    jars = CACHE / "embedded" / "jars"
    if not jars.is_dir():
        print("fetching spring-kafka-test and its Kafka, a minute or two", flush=True)
        build = [
            "mvn",
            "-q",
            "-B",
            f"-Dmaven.repo.local={ROOT / '.cache' / 'maven'}",
            f"-DoutputDirectory={jars}",
        ]
        subprocess.run(
            [*build, "compile", "dependency:copy-dependencies"],
            cwd=_HERE / "embedded",
            check=True,
            stdin=subprocess.DEVNULL,
        )
    return ["java", "-cp", f"{CACHE / 'embedded' / 'classes'}:{jars}/*", "Embedded"]


DOUBLES: Final[dict[str, Callable[[], list[str]]]] = {
    "Barnabas, a process": _barnabas,
    "Barnabas, in process": _barnabas_in_process,
    "kfake (Go)": _kfake,
    "librdkafka's mock": _librdkafka,
    "spring-kafka-test (JVM)": _embedded,
}


@contextmanager
def _started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            found = None
            for line in process.stdout:
                if line.startswith("ready") and (found := _ADDRESS.search(line)):
                    break
            assert found is not None, f"{command[0]} ended without an address"
            yield process, f"127.0.0.1:{found[1]}"
        finally:
            process.kill()


def _first_produce(address: str) -> None:
    """Until a record in a topic that does not exist yet is acknowledged."""
    request = prepared.produce(_TOPIC, _SMALL, version=_PRODUCE_VERSION)
    deadline = time.perf_counter() + 60
    error = None
    while error != 0:
        assert time.perf_counter() < deadline, error
        connection = Connection(address)
        connection.ask(prepared.metadata(_TOPIC))
        error, _ = prepared.produced(_TOPIC, connection.ask(request))
        connection.close()


def _latencies(address: str, samples: int) -> list[float]:
    """Seconds to the acknowledgement of one record."""
    connection = Connection(address)
    request = prepared.produce(_TOPIC, _SMALL, version=_PRODUCE_VERSION)
    found = []
    for _ in range(samples):
        begin = time.perf_counter()
        answer = connection.ask(request)
        found.append(time.perf_counter() - begin)
        assert prepared.produced(_TOPIC, answer)[0] == 0
    connection.close()
    return found


def _throughput(address: str, requests: int, in_flight: int = 5) -> float:
    """Bytes a second, in batches of 100 records of 1 KB."""
    connection = Connection(address)
    request = prepared.produce(_TOPIC, _LARGE, version=_PRODUCE_VERSION)
    begin = time.perf_counter()
    for sent in range(requests + in_flight):
        if sent >= in_flight:
            assert prepared.produced(_TOPIC, connection.receive())[0] == 0
        if sent < requests:
            connection.send(request)
    seconds = time.perf_counter() - begin
    connection.close()
    return requests * len(_LARGE) / seconds


def _apis(address: str) -> int:
    """How many ApiVersions lists."""
    connection = Connection(address)
    (count,) = struct.unpack_from(">i", connection.ask(prepared.api_versions()), 10)
    connection.close()
    return int(count)


def measure(command: list[str]) -> Measures:
    """One round of one double."""
    begin = time.perf_counter()
    with _started(command) as (process, address):
        _first_produce(address)
        started, started_cpu = time.perf_counter() - begin, cpu_seconds(process.pid)
        time.sleep(1)  # what a start has left to do
        resident = resident_bytes(process.pid)
        _latencies(address, 1000)  # a JVM compiles meanwhile
        latencies = _latencies(address, 2000)
        cpu = cpu_seconds(process.pid)
        rate = _throughput(address, _REQUESTS)
        cpu = cpu_seconds(process.pid) - cpu
        return {
            "APIs served": _apis(address),
            "exec to first acknowledged produce, s": started,
            "the same, CPU-s": started_cpu,
            "memory, idle, MB": resident / 1e6,
            "produce 1 KB, acks=1, p50 ms": statistics.median(latencies) * 1e3,
            "produce 100 x 1 KB a request, MB/s": rate / 1e6,
            "the same, CPU-s/GB": cpu / (_REQUESTS * len(_LARGE)) * 1e9,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="compat_tests.bench.doubles", description="brokers for test suites, side by side"
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    CACHE.mkdir(parents=True, exist_ok=True)
    samples: dict[str, dict[str, list[float]]] = {}
    for name, command_of in DOUBLES.items():
        try:
            measure(command_of())  # compiled byte code, files in the page cache
        except UnavailableError as error:
            print(f"{name} is left out: {error}", flush=True)
        else:
            samples[name] = {}
    for _ in range(rounds):  # in turns, so that what else the machine does is the same for all
        for name, found in samples.items():
            for measured, value in measure(DOUBLES[name]()).items():
                found.setdefault(measured, []).append(value)
    measures = next(iter(samples.values()))
    rows = [
        ("", *samples),
        *((each, *(cell(found[each]) for found in samples.values())) for each in measures),
    ]
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
