"""`python -m compat_tests.simulation.slow_replica`: acks=all while one of three replicas is slow, in virtual time.

As compat_tests/bench/slow_replica.py, where no other work of the machine counts: the real nodes run on the simulator's clock, and
a record is due at a fixed rate whatever they do (open loop). Its latency counts from then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from compat_tests.bench.latency import percentile
from compat_tests.bench.report import markdown
from compat_tests.simulation.admins import Admin
from compat_tests.simulation.nodes import BROKER_PORT, SimulatedNode
from compat_tests.simulation.producers import PRODUCE, PRODUCE_VERSION
from compat_tests.simulation.simulation import FORMS_WITHIN_S, Simulation
from compat_tests.simulation.tasks import Task
from compat_tests.simulation.wire_client import Wire

TOPIC: Final = "measured"
DELAY_S: Final = 0.0001  # of a message
WARM_S: Final = 2.0
FIRST_PAUSE_S: Final = 2.5
ANSWERED_WITHIN_S: Final = 60.0
Fault = Callable[["SlowReplica"], None]


class SlowReplica(Simulation):
    """Three nodes, one producer and one fault. `hedge_ms`: barnabas.isr.hedge.ms."""

    def __init__(self, hedge_ms: int, rate: float = 500) -> None:
        self.hedge_ms = hedge_ms
        self.rate = rate
        self.latencies: list[float] = []
        self.added: dict[str, float] = {}  # host -> delay of its messages in s
        super().__init__(1, ("broker,controller",) * 3)

    def _choose_properties(self) -> dict[str, str]:
        return {
            **super()._choose_properties(),
            "broker.session.timeout.ms": "9000",
            "broker.heartbeat.interval.ms": "2000",
            "replica.lag.time.max.ms": "30000",
            "log.flush.interval.messages": str((1 << 63) - 1),
            "barnabas.isr.hedge.ms": str(self.hedge_ms),
        }

    def _choose_network(self) -> None:
        self.network.delay_s = lambda source, target: (
            DELAY_S * self.world.random.uniform(0.5, 1.5)
            + self.added.get(source, 0.0)
            + self.added.get(target, 0.0)
        )

    def measure(self, fault: Fault, seconds: float) -> list[float]:
        """Latencies in s of the records that are due in this time, while the fault is there."""
        with self.watch.installed():
            for node in self.nodes:
                node.start()
            admin = Admin(self.client("setup"), self.history, [1, 2, 3], 3, lambda: True)
            setup = Task(self.client_runtime, admin.create(TOPIC, 3, {}))
            self._run_until(
                FORMS_WITHIN_S, lambda: setup.is_done and self.is_whole(), "the cluster does not form"
            )
            self._step(WARM_S)
            self._choose_partition()
            wire = Wire()
            self.client_runtime.connect(self.node("leader").host, BROKER_PORT, lambda: wire, wire.failed)
            self._step(WARM_S)
            fault(self)
            count = int(seconds * self.rate)
            for number in range(count):
                self.client_runtime.call_later(number / self.rate, lambda: self._produce(wire))
            self._step(seconds)
            self._run_until(
                ANSWERED_WITHIN_S, lambda: len(self.latencies) == count, "records are not acknowledged"
            )
        return self.latencies

    def node(self, role: str) -> SimulatedNode:
        """The partition's leader, the follower that is the active controller, or the other follower."""
        return self._nodes_by_role[role]

    def _choose_partition(self) -> None:
        """One that the active controller does not lead."""
        (active,) = (node for node in self.nodes if node.is_active)
        partitions = active.services.controller.image.topics[TOPIC].partitions
        self.partition = next(index for index, state in partitions.items() if state.leader != active.node_id)
        leader = self.nodes[partitions[self.partition].leader - 1]
        (other,) = (node for node in self.nodes if node not in (active, leader))
        self._nodes_by_role = {"leader": leader, "controller": active, "follower": other}

    def _produce(self, wire: Wire) -> None:
        due = self.world.now
        batch = build_batch([Record(0, self.client_runtime.time_ms(), None, bytes(100))])
        topic_id = self.history.topics[TOPIC].topic_id
        topic = TopicProduceData("", topic_id, [PartitionProduceData(self.partition, batch)])
        result = wire.send(PRODUCE, PRODUCE_VERSION, ProduceRequest(None, -1, 120_000, [topic]))
        result.when_done(lambda: self.latencies.append(self.world.now - due))

    def pause(self, role: str, pause_s: float, period_s: float) -> None:
        """The node stands still for a while in each period."""
        process = self.node(role).process
        assert process is not None

        def again() -> None:
            process.hold_until(self.world.now + pause_s)
            self.client_runtime.call_later(period_s, again)

        self.client_runtime.call_later(min(period_s / 4, FIRST_PAUSE_S), again)


def _slow_network(run: SlowReplica) -> None:
    run.added[run.node("follower").host] = 0.01


FAULTS: Final[Mapping[str, Fault]] = {
    "none": lambda _: None,
    "follower pauses 1 s in 10": lambda run: run.pause("follower", 1.0, 10.0),
    "... and is the active controller": lambda run: run.pause("controller", 1.0, 10.0),
    "follower pauses 0.1 s in 1": lambda run: run.pause("follower", 0.1, 1.0),
    "follower's network +10 ms each way": _slow_network,
    "follower silent for good": lambda run: run.pause("follower", 1e9, 1e9),
    "follower killed": lambda run: run.node("follower").kill(),
    "leader pauses 1 s in 10": lambda run: run.pause("leader", 1.0, 10.0),
}
HEDGES_MS: Final = (-1, 10, 50)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="of each measurement (default 60)")
    options = parser.parse_args()
    rows = [("p50 / p99 / p99.9 ms", *(f"hedge {hedge_ms}" for hedge_ms in HEDGES_MS))]
    for name, fault in FAULTS.items():
        cells = []
        for hedge_ms in HEDGES_MS:
            found = SlowReplica(hedge_ms).measure(fault, options.seconds)
            cells.append(" / ".join(f"{percentile(found, each) * 1e3:.3g}" for each in (0.5, 0.99, 0.999)))
        rows.append((name, *cells))
        print(rows[-1], file=sys.stderr)
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
