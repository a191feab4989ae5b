"""`python -m compat_tests.bench.in_process` (`make bench-testing`): what `barnabas.testing.Broker` costs a test suite.

Each figure is the median of several tries, as elapsed time and as CPU time of this process; on a busy machine only the
CPU time is meaningful. Starts are measured in interpreters of their own; the client is a plain socket with prepared
bytes, so that its own cost does not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from compat_tests.bench import prepared

_TOPIC = "t"
# Times the import of barnabas.testing to the first acknowledged produce: seconds, CPU seconds, bytes before and after.
_CHILD = """
import sys, time
if sys.argv[1] == "warm":
    import asyncio
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before = resident()
begin, cpu = time.perf_counter(), time.process_time()
from barnabas.testing import Broker
with Broker() as broker:
    import socket
    client = socket.socket()
    client.connect(("127.0.0.1", broker.port))
    for frame in sys.argv[2:]:
        client.sendall(bytes.fromhex(frame))
        size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
        answer = client.recv(size, socket.MSG_WAITALL)
    print([time.perf_counter() - begin, time.process_time() - cpu, before, resident()])
"""


def _frames() -> list[bytes]:
    return [
        prepared.metadata(_TOPIC),
        prepared.produce(_TOPIC, prepared.batch(1, 100)),
    ]


def _ask(port: int, frames: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        for frame in frames:
            client.sendall(frame)
            size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
            answer = client.recv(size, socket.MSG_WAITALL)
    error, _ = prepared.produced(_TOPIC, size.to_bytes(4, "big") + answer)
    assert error == 0, error


def starts(kind: str, count: int) -> list[list[float]]:
    """Each: seconds, CPU seconds, resident bytes before and after."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _CHILD, kind, *(frame.hex() for frame in _frames())]
    found = []
    for _ in range(count + 1):
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found.append(json.loads(done.stdout))
    return found[1:]  # the first start may have compiled byte code


def timed(work: Callable[[], object], count: int) -> tuple[list[float], list[float]]:
    """Seconds and CPU seconds of each time."""
    seconds, cpu = [], []
    for _ in range(count):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
    return seconds, cpu


def _line(what: str, seconds: list[float], cpu: list[float]) -> None:
    print(
        f"{what:<62}{statistics.median(seconds) * 1e3:8.1f} ms{min(seconds) * 1e3:8.1f} ms"
        f"{statistics.median(cpu) * 1e3:8.1f} ms",
        flush=True,
    )


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leaks(count: int) -> None:
    """Fresh brokers, one after the other, each with a topic, records and a client."""
    from barnabas.testing import Broker

    def one() -> None:
        with Broker() as broker:
            _ask(broker.port, _frames())

    def state() -> tuple[int, int, int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(gc.get_objects()), _resident()

    for _ in range(20):
        one()
    before = state()
    begin = time.perf_counter()
    for _ in range(count):
        one()
    seconds = time.perf_counter() - begin
    after = state()
    names = ("descriptors", "threads", "objects")
    counts = ", ".join(f"{name} {a} -> {b}" for name, a, b in zip(names, before, after, strict=False))
    print(
        f"\n{count} fresh brokers in {seconds:.1f} s: {counts}, memory {before[3] / 1e6:.1f} -> {after[3] / 1e6:.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument(
        "--brokers", type=int, default=500, help="fresh ones in one process, to see what stays"
    )
    arguments = parser.parse_args()

    print(f"{'':<62}{'median':>11}{'best':>11}{'CPU':>11}")
    memory = []
    for kind, what in (
        ("warm", "import to first acknowledged produce, asyncio imported before"),
        ("cold", "import to first acknowledged produce, cold interpreter"),
    ):
        found = starts(kind, arguments.tries)
        memory += [after - before for _, _, before, after in found] if kind == "warm" else []
        _line(what, [each[0] for each in found], [each[1] for each in found])

    from barnabas.testing import Broker

    frames = _frames()

    def fresh(nodes: int = 1) -> None:
        with Broker(nodes=nodes) as broker:
            if nodes == 1:
                _ask(broker.port, frames)

    _line("fresh broker, first acknowledged produce, stopped", *timed(fresh, arguments.tries))
    _line("fresh cluster of three, ready, stopped", *timed(lambda: fresh(3), arguments.tries))
    with Broker() as broker:

        def used() -> None:
            for number in range(5):
                broker.create_topic(f"topic-{number}", 3)
                broker.seed(f"topic-{number}", [b"v" * 100] * 100)

        seconds, cpu = [], []
        for _ in range(arguments.tries):
            used()
            one = timed(broker.reset, 1)
            seconds += one[0]
            cpu += one[1]
        _line("reset, of 5 topics with 15 partitions", seconds, cpu)
        used()
        snapshot = broker.snapshot()
        _line(
            "restore of the same from a snapshot",
            *timed(lambda: broker.restore(snapshot), arguments.tries),
        )
    with Broker(nodes=3) as cluster:
        seconds, cpu = [], []
        for _ in range(arguments.tries):
            cluster.create_topic("topic", 3)
            cluster.seed("topic", [b"v" * 100] * 100)
            one = timed(cluster.reset, 1)
            seconds += one[0]
            cpu += one[1]
        _line("reset of a cluster of three", seconds, cpu)
    print(f"\nmemory that import and broker add: {statistics.median(memory) / 1e6:.1f} MB")
    leaks(arguments.brokers)


if __name__ == "__main__":
    main()
