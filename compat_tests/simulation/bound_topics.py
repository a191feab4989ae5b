"""One seed of a topic bound to core NATS: leaders move and die, partitions move, connections to the server break.

Invariants: each message that the server accepted is in the log exactly once, or was published in a time that a broker
logged as a gap. Messages of one subject are in the order in which they were published, except for
messages of a gap that another broker received after all. Identical messages are in the log as often as they were sent,
except for those of gaps.
"""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import NamedTuple

from barnabas.wire.records import iterate_records
from compat_tests.simulation import checkers
from compat_tests.simulation.admins import Admin, reassign
from compat_tests.simulation.history import Violation
from compat_tests.simulation.nats_server import HOST, PORT, SimulatedNats
from compat_tests.simulation.simulation import FORMS_WITHIN_S, HEALS_WITHIN_S, Simulation
from compat_tests.simulation.tasks import Task, sleep
from compat_tests.simulation.tuning import small

TOPIC, PARTITIONS, SUBJECTS = "bound", 2, 5
PUBLISHES_FOR_S = 25.0
ALIKE, ALIKE_SUBJECTS, ALIKE_FOR = b"alike ", 3, 200
SPREAD_MS = 200.0  # a message has reached all subscribers after less
SHAPE = ("broker,controller",) * 3 + ("broker",)
_GAP = re.compile(rf"topic {TOPIC}: messages published from (\S+) to (\S+) \(")


class Gap(NamedTuple):
    """A gap as a broker logged it, in ms."""

    begin: float
    end: float


class _GapLog(logging.Handler):
    """Collects the gaps that brokers log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.gaps: list[Gap] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = _GAP.match(record.getMessage())
        if found is not None:
            begin, end = (datetime.fromisoformat(time).timestamp() * 1000 for time in found.groups())
            self.gaps.append(Gap(begin, end))


class BoundTopicSimulation(Simulation):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, SHAPE)
        self.tasks: list[Task] = []
        self.server = SimulatedNats(seed, self.network)
        self.published: dict[bytes, float] = {}  # when, in ms
        self.alike: dict[tuple[bytes, bytes], list[float]] = {}  # identical messages by subject and payload
        self.gaps = _GapLog()
        for node in self.nodes:  # gaps carry the times of the brokers' clocks
            node.wall_offset_ms = 0

    def _choose_properties(self) -> dict[str, str]:
        return {
            **super()._choose_properties(),
            "nats.servers": f"nats://{HOST}:{PORT}",
            "log.flush.interval.messages": str((1 << 63) - 1),
        }

    # -- the course of the simulation

    def run(self) -> None:
        log = logging.getLogger("barnabas.nats")
        log.addHandler(self.gaps)
        try:
            with self.watch.installed(), small(random.Random(self.random.random())):
                self._run()
        finally:
            log.removeHandler(self.gaps)

    def _run(self) -> None:
        for node in self.nodes:
            node.start()
        nodes = [node.node_id for node in self.brokers]
        admin = Admin(self.client("setup"), self.history, nodes, 3, lambda: True)
        configs = {"nats.subjects": "b.>", "min.insync.replicas": "2"}
        setup = Task(self.client_runtime, admin.create(TOPIC, PARTITIONS, configs))
        self._run_until(
            FORMS_WITHIN_S, lambda: setup.is_done and self.is_whole(), "the cluster does not form"
        )
        self._step(2.0)
        self.tasks = [Task(self.client_runtime, each) for each in (self._publish(), self._move())]
        end = self.world.now + PUBLISHES_FOR_S
        while self.world.now < end:
            self._step(self.random.choice((0.1, 0.5, 1.0, 2.0, 4.0)))
            self.random.choice(self._faults())()
        self.faults.heal()
        self._run_until(HEALS_WITHIN_S, self.is_whole, "the cluster does not heal")
        self._step(5.0)
        self.going_on = False
        self._run_until(HEALS_WITHIN_S, self.is_settled, "the cluster does not heal")
        self._step(5.0)
        self._run_until(HEALS_WITHIN_S, self.is_replicated, "followers do not catch up")
        self._check()

    def _faults(self) -> list[Callable[[], object]]:
        faults = self.faults
        return [
            self._end_leader, self._end_leader, faults._kill, faults._stop_cleanly, faults._pause, faults._cut_pair,
            self._break_connection, self._break_connection, self._lose_server, lambda: None,
        ]  # fmt: skip

    def _end_leader(self) -> None:
        """Ends the leader as soon as all replicas are in sync."""
        if not self.is_whole():
            return
        image = self.brokers[0].services.controller.image
        leader = image.topics[TOPIC].partitions[self.random.randrange(PARTITIONS)].leader
        (node,) = [each for each in self.nodes if each.node_id == leader]
        self.note(f"{node.host} ends, just when all are in sync")
        self.history.count("leaders that end when all are in sync")
        (node.stop if self.random.random() < 0.5 else node.kill)()
        self.client_runtime.call_later(self.random.uniform(0.1, 3.0), node.start_again)

    def _break_connection(self) -> None:
        node = self.random.choice(self.brokers)
        self.note(f"the connection of {node.host} to NATS breaks")
        self.history.count("connections to NATS that break")
        self.network.reset(node.host, HOST)
        self.network.reset(HOST, node.host)

    def _lose_server(self) -> None:
        """Cuts one broker off from the server for a while; the broker notices."""
        node, seconds = self.random.choice(self.brokers), self.random.choice((0.5, 3.0, 8.0))
        self.note(f"{node.host} does not reach NATS for {seconds} s")
        self.history.count("brokers that do not reach NATS")
        self._break_connection_of(node.host, seconds)

    def _break_connection_of(self, host: str, seconds: float) -> None:
        network = self.network
        for pair in ((host, HOST), (HOST, host)):
            network.reset(*pair)
            network.block(*pair)
            self.client_runtime.call_later(seconds, partial(network.unblock, *pair))

    async def _publish(self) -> None:
        number = 0
        runtime = self.server.runtime
        while self.going_on:
            for _ in range(self.random.randint(1, 5)):
                payload = b"%d" % number
                self.published[payload] = runtime.time_ms()
                self.server.publish(b"b.%d" % (number % SUBJECTS), payload)
                number += 1
                if self.server.random.random() < 0.5:
                    self._publish_alike(number)
            await sleep(self.client_runtime, self.random.choice((0.005, 0.02, 0.1)))

    def _publish_alike(self, number: int) -> None:
        """One of many identical messages; after a while they are others, so that a gap hides few of them."""
        message = b"b.alike.%d" % (number % ALIKE_SUBJECTS), ALIKE + b"%d" % (number // ALIKE_FOR)
        self.alike.setdefault(message, []).append(self.server.runtime.time_ms())
        self.server.publish(*message)

    async def _move(self) -> None:
        """Partitions move to other brokers."""
        client = self.client("moves")
        while self.going_on:
            await client.pause(self.random.choice((1.0, 3.0)))
            if not self.is_whole():
                continue
            replicas = client.random.sample(
                [node.node_id for node in self.brokers], client.random.choice((2, 3))
            )
            partition = client.random.randrange(PARTITIONS)
            if await reassign(client, TOPIC, partition, replicas):
                self.note(f"{TOPIC}-{partition} moves to {replicas}")
                self.history.count("moves of bound partitions")

    # -- invariants

    def _is_in_gap(self, time_ms: float) -> bool:
        """Compares with gaps widened to whole milliseconds, the resolution of the log."""
        return any(gap.begin - 1 - SPREAD_MS <= time_ms <= gap.end + 1 for gap in self.gaps.gaps)

    def _check(self) -> None:
        counts: dict[bytes, int] = {}
        alike: Counter[tuple[bytes, bytes]] = Counter()
        image = self.brokers[0].services.controller.image
        topic = image.topics[TOPIC]
        for index, state in topic.partitions.items():
            (node,) = [each for each in self.nodes if each.node_id == state.leader]
            last: dict[bytes, int] = {}
            for _, data in checkers._held(node.node, topic.topic_id, index):
                for record in iterate_records(data):
                    value, subject = bytes(record.value or b""), bytes(record.key or b"")
                    if value.startswith(ALIKE):
                        alike[subject, value] += 1
                        continue
                    counts[value] = counts.get(value, 0) + 1
                    if last.get(subject, -1) >= int(value) and counts[value] == 1:
                        if not self._is_in_gap(self.published[value]):
                            raise Violation(f"{value!r} of {subject!r} comes after {last[subject]}")
                        self.history.count("messages of gaps that come late")
                    last[subject] = max(int(value), last.get(subject, -1))
        twice = [
            value
            for value, count in counts.items()
            if count > 1 and not self._is_in_gap(self.published[value])
        ]
        if twice:
            raise Violation(f"{len(twice)} messages are in the log twice: {twice[:5]}")
        self._check_alike(alike)
        missing = {value: at for value, at in self.published.items() if value not in counts}
        silent = {value: at for value, at in missing.items() if not self._is_in_gap(at)}
        self.history.count("messages published", len(self.published))
        self.history.count("messages stored twice in gaps", sum(count > 1 for count in counts.values()))
        self.history.count("messages missing in gaps", len(missing) - len(silent))
        self.history.count("gaps", len(self.gaps.gaps))
        if silent:
            first, at = next(iter(silent.items()))
            start = self.server.runtime.time_ms() - self.world.now * 1000
            raise Violation(
                f"{len(silent)} of {len(missing)} missing messages are outside of gaps; the first is {first!r}, published at "
                f"{(at - start) / 1000:.3f}; gaps "
                f"{[((gap.begin - start) / 1000, (gap.end - start) / 1000) for gap in self.gaps.gaps]}"
            )

    def _check_alike(self, counts: Counter[tuple[bytes, bytes]]) -> None:
        for message, published in self.alike.items():
            least = sum(not self._is_in_gap(time_ms) for time_ms in published)
            most = 2 * len(published) - least
            if not least <= counts[message] <= most:
                raise Violation(
                    f"{message} was published {len(published)} times, {least} of them outside of gaps, and is in the log "
                    f"{counts[message]} times"
                )
            self.history.count("identical messages published", len(published))
            self.history.count(
                "identical messages too many in gaps", max(0, counts[message] - len(published))
            )
