"""`python -m compat_tests.bench.cores`: one node and two under barnabas.cores, on a machine with two cores.

The load is prepared bytes: each connection sends a window of whole Produce requests in one write and reads their answers, which are all as
long as the first. So the driver, which shares the cores, costs little; its own CPU is a row of the table. Half of the connections write to
each of two topics; with one node it leads both, with two each leads one. The two take turns, round by round, each with fresh topics, and the
table has medians with the lowest and the highest. CPU of brokers is that of the nodes' processes from /proc.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests.bench import driver, prepared
from compat_tests.bench.__main__ import say
from compat_tests.bench.report import Results
from compat_tests.bench.workloads import Measures
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.core_nodes import consecutive_ports, nodes_of
from compat_tests.harness.process_usage import cpu_seconds

SHARED_MEMORY = Path("/dev/shm")  # so that the disk is not measured
TOPICS = 2


class Load(NamedTuple):
    """Produce requests: `window` of them are on the way on each of `connections`, for `seconds`."""

    name: str
    value_bytes: int
    acks: int
    connections: int
    window: int
    seconds: float


LOADS: Sequence[Load] = (
    Load("100 B, 5 in flight", 100, 1, 16, 5, 2),  # as many as producers have
    Load("100 B, 32 in flight", 100, 1, 8, 32, 2),
    Load("1 MB, 1 in flight", 1_000_000, 1, 8, 1, 2),
)


class Client(threading.Thread):
    """One connection, which sends from when `begin` is set until the time is over."""

    def __init__(self, address: str, topic: str, load: Load, begin: threading.Event) -> None:
        super().__init__()
        self._topic = topic
        self._begin = begin
        self._request = prepared.produce(topic, prepared.batch(1, load.value_bytes), load.acks)
        self._connection = driver.Connection(address)
        self._answer_bytes = len(self._connection.ask(self._request))
        self._window = load.window
        self._seconds = load.seconds
        self.requests = 0  # that were answered
        self.last = (-1, -1)  # error code and base offset of the last answer

    def run(self) -> None:
        requests = self._request * self._window
        answers = memoryview(bytearray(self._answer_bytes * self._window))
        end = self._connection.socket
        self._begin.wait()
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            end.sendall(requests)
            received = 0
            while received < len(answers):
                count = end.recv_into(answers[received:])
                if not count:
                    raise ConnectionError("the broker closed the connection")
                received += count
            self.requests += self._window
        self.last = prepared.produced(self._topic, answers[-self._answer_bytes :])
        self._connection.close()


class Nodes:
    """One or two nodes, as `barnabas start` runs them."""

    def __init__(self, directory: Path, count: int) -> None:
        port = consecutive_ports(count)
        settings = {"barnabas.cores": str(count), "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        self.broker = BarnabasBroker(directory, settings)
        self.broker.start()
        self.addresses = [f"127.0.0.1:{port + index % count}" for index in range(TOPICS)]
        self.leaders = [1 + index % count for index in range(TOPICS)]
        self.pids = [*nodes_of(self.broker.pid).values()] or [self.broker.pid]
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 2})
        self._made = 0

    def measure(self, load: Load) -> Measures:
        topics = self._topics()
        begin = threading.Event()
        clients = [
            Client(self.addresses[index % TOPICS], topics[index % TOPICS], load, begin)
            for index in range(load.connections)
        ]
        for client in clients:
            client.start()
        cpu, own, started = self._cpu(), time.process_time(), time.perf_counter()
        begin.set()
        for client in clients:
            client.join()
        seconds, own = time.perf_counter() - started, time.process_time() - own
        cpu = self._cpu() - cpu
        assert all(client.last[0] == 0 for client in clients), [client.last for client in clients]
        sent = sum(client.requests for client in clients)
        warm_ups = load.connections
        ends = [max(client.last[1] for client in clients[index::TOPICS]) for index in range(TOPICS)]
        assert sum(ends) + TOPICS == sent + warm_ups, "each record has an offset"
        for future in self._admin.delete_topics(topics).values():
            future.result(30)
        volume = sent * load.value_bytes
        rate = {f"{load.name}, requests/s": sent / seconds}
        if load.value_bytes >= 100_000:
            rate = {f"{load.name}, MB/s": volume / seconds / 1e6}
        return {
            **rate,
            f"{load.name}, us of brokers' CPU a request": cpu / sent * 1e6,
            f"{load.name}, brokers' CPU-s/GB": cpu / volume * 1e9,
            f"{load.name}, cores used by brokers": cpu / seconds,
            f"{load.name}, cores used by the driver": own / seconds,
        }

    def _topics(self) -> list[str]:
        self._made += 1
        names = [f"bench-{self._made}-{index}" for index in range(TOPICS)]
        configs = {"file.delete.delay.ms": "100", "retention.ms": "-1", "max.message.bytes": "2000000"}
        wanted = [
            NewTopic(name, 1, replica_assignment=[[leader]], config=configs)
            for name, leader in zip(names, self.leaders, strict=True)
        ]
        for future in self._admin.create_topics(wanted).values():
            future.result(30)
        for name, address in zip(names, self.addresses, strict=True):
            driver.wait_until_served(address, name)
        return names

    def _cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="compat_tests.bench.cores", description="one node and two, side by side"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds of each load")
    options = parser.parse_args()
    names = {1: "1 node", 2: "2 nodes"}
    results = Results([*names.values()])
    say(f"{os.cpu_count()} cores, Python {platform.python_version()}, {options.rounds} rounds in turns")
    with ExitStack() as stack:
        where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=where)))
        nodes = {count: Nodes(folder / str(count), count) for count in names}
        for each in nodes.values():
            stack.callback(each.broker.stop)
        for number in range(options.rounds + 1):
            for count in sorted(names, reverse=number % 2 == 1):
                for load in LOADS:
                    scaled = load._replace(seconds=load.seconds * options.scale)
                    measures = nodes[count].measure(scaled)
                    if number:  # the first round warms up
                        results.add(names[count], measures)
            say(f"round {number} of {options.rounds}")
    print(results.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
