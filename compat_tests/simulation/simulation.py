"""One seed: a cluster, clients and faults in one virtual world, and its invariants.

The course: the nodes start and the first topics are created. Clients work while faults happen, at least three within
at least 30 simulated seconds. Then all faults end, clients finish their open requests, and within `HEALS_WITHIN_S`
every partition has its leader and its whole ISR again. Then the checkers (checkers.py) compare the disks and the
history. Everything follows from the seed: `trace` is the same in every run.
"""

from __future__ import annotations

import atexit
import functools
import random
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from barnabas.broker.partitions.replica import REST_S_MAX
from barnabas.controller.config.topic_configs import observers_of
from compat_tests.simulation import checkers
from compat_tests.simulation.admins import Admin
from compat_tests.simulation.config_changers import ConfigChanger
from compat_tests.simulation.consumer_groups import ConsumerGroupMember, Owners
from compat_tests.simulation.consumers import Consumer
from compat_tests.simulation.faults import Faults, Scene
from compat_tests.simulation.groups import Member
from compat_tests.simulation.history import History, Violation
from compat_tests.simulation.nodes import BROKER_PORT, NodeProcess, SimulatedNode, properties_of
from compat_tests.simulation.observers import Observer
from compat_tests.simulation.producers import Producer
from compat_tests.simulation.streams_groups import StreamsGroupMember
from compat_tests.simulation.tasks import Task
from compat_tests.simulation.tiers import Tier
from compat_tests.simulation.tuning import small
from compat_tests.simulation.unauthenticated_followers import UnauthenticatedFollower
from compat_tests.simulation.watch import Watch
from compat_tests.simulation.wire_client import Client
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import Process, VirtualWorld

TURN_S = 0.1  # of CPU time: DESIGN.md's bound; a longer turn is reported
MARK_S = 0.01
TURN_S_MAX = 2.0  # more than a busy machine explains; a longer turn is a violation
NO_TURNS = frozenset(  # these delay no client
    {
        "VirtualRuntime.run_in_thread.<locals>.run",  # in a thread
        "SimulatedNode.start.<locals>.<lambda>",  # recovery, before any port is open
        "SimulatedNode._stopped",  # a clean stop, when the node no longer serves
        "SimulatedNode.stop.<locals>.<lambda>.<locals>.<lambda>",
    }
)
FORMS_WITHIN_S = 20.0
FAULTS_S = 22.0
HEALS_WITHIN_S = 30.0 + REST_S_MAX  # a replica that was hedged out stays away for as long as REST_S_MAX
LASTS_S = 30.0
STEPS_DOWN_S = 1.0  # an active controller that is cut off answers heartbeats for 0.6 s (LEADER_FALLBACK_S)
SHAPES = (  # roles by node id
    ("broker,controller",) * 3,
    ("broker,controller",) * 3,
    ("broker,controller",) * 3 + ("broker",),
    ("broker,controller",) * 3 + ("broker", "broker"),
    ("controller",) * 3 + ("broker",) * 2,
    ("broker,controller",) * 5,
)


@functools.cache
def _secret_file() -> str:
    """The secret of the cluster's nodes; they read it from the real disk, as they read all files of operators."""
    with tempfile.NamedTemporaryFile("w", prefix="simulation-", delete=False) as file:
        file.write("the secret of a simulated cluster\n")
    atexit.register(lambda: Path(file.name).unlink(missing_ok=True))
    return file.name


def name_of_turn(owner: NodeProcess, callback: Callable[[], object], first: Any) -> str:
    """Name of the function that the world has called; `first` of those that call_soon was given."""
    inner: Any = first if callback == owner._turn else callback
    while isinstance(inner, functools.partial):
        inner = inner.func
    return getattr(inner, "__qualname__", type(inner).__qualname__)


WITH_CONSUMER_GROUP: Final = 2  # of each three seeds
WITH_STREAMS_GROUP: Final = 6  # of each eight


class TracedWorld(VirtualWorld):
    """Hashes all events into one number, and knows the owner of the current one. The virtual clock stands still in a
    turn, so the cost of a turn to a node's event loop is measured in CPU time, to MARK_S: reading that clock takes
    longer than most turns do."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, shuffles=True)
        self.trace = 0
        self.current = ""
        self.on_long_turn: Callable[[str, float], object] = lambda _what, _took: None
        self._marked_at = self._mark = 0.0  # wall clock and CPU time at about the beginning of a turn

    def _call(self, owner: Process, callback: Callable[[], object]) -> None:
        self.current = getattr(owner, "host", "network")
        self.trace = zlib.crc32(struct.pack("<d", self.now) + self.current.encode(), self.trace)
        started = time.perf_counter()
        if started - self._marked_at > MARK_S:
            self._marked_at, self._mark = started, time.thread_time()
        node = owner if type(owner) is NodeProcess else None  # isinstance is slow for a Protocol
        first = node._ready[0] if node is not None and node._ready else None
        super()._call(owner, callback)
        if node is not None and time.perf_counter() - started > TURN_S:
            took = time.thread_time() - self._mark
            if took > TURN_S and (what := name_of_turn(node, callback, first)) not in NO_TURNS:
                self.on_long_turn(what, took)


class Simulation:
    """`run` raises Violation; `history.log` has what happened."""

    def __init__(self, seed: int, shape: tuple[str, ...] | None = None, frequent_fault: str = "") -> None:
        self.seed = seed
        self.going_on = True
        self.random = random.Random(seed)
        self.world = TracedWorld(seed)
        self.network = VirtualNetwork(self.world)
        extra = self._choose_properties()
        self.history = History(int(extra["broker.session.timeout.ms"]) / 1000 + STEPS_DOWN_S)
        self.tier = Tier(seed, self.history, lambda: self.world.now, self.should_continue)
        extra.update(self.tier.properties)
        self.watch = Watch(self.history)
        self.watch.current_event = lambda: f"{self.world.now:.3f} {self.world.current}"
        self.shape = shape or self.random.choice(SHAPES)
        voters = [number for number, roles in enumerate(self.shape, 1) if "controller" in roles]
        brokers = sum("broker" in roles for roles in self.shape)
        self.nodes = [
            SimulatedNode(
                number,
                roles,
                self.network,
                random.Random(self.random.random()),
                properties_of(number, roles, voters, brokers, {**extra, "broker.rack": f"r{number % 2}"}),
            )
            for number, roles in enumerate(self.shape, 1)
        ]
        for node in self.nodes:
            node.on_started = self._node_started
            node.on_down = self._node_down
        self.brokers = [node for node in self.nodes if node.is_broker]
        self.client_runtime = VirtualRuntime(
            self.random.randrange(1 << 60), network=self.network, host="clients"
        )
        self.clients: list[Client] = []
        self.consumers: list[Consumer] = []
        self.members: list[Member] = []
        self.producers: list[Producer] = []
        hosts = [*(node.host for node in self.nodes), "clients"]
        self.faults = Faults(
            Scene(
                self.network,
                self.nodes,
                hosts,
                random.Random(self.random.random()),
                self.history,
                lambda delay, callback: self.client_runtime.call_later(delay, callback),
                extra["log.flush.interval.messages"] == "1",
                self.is_whole,
                self.note,
            ),
            frequent_fault,
        )
        self._choose_network()
        self.world.on_killed = self._killed
        self.world.on_long_turn = self._long_turn
        self.errors: list[Exception] = []
        self.world.on_error = self._error

    def _choose_properties(self) -> dict[str, str]:
        chance = self.random
        return {
            "broker.session.timeout.ms": chance.choice(("1500", "3000")),
            "broker.heartbeat.interval.ms": chance.choice(("200", "500")),
            "replica.lag.time.max.ms": chance.choice(("1000", "2500")),
            "replica.fetch.wait.max.ms": "200",
            "barnabas.controller.secret.file": _secret_file(),
            "barnabas.isr.hedge.ms": random.Random(f"hedge {self.seed}").choice(("-1", "2", "10", "100")),
            "log.flush.interval.messages": chance.choice(("1", str((1 << 63) - 1), str((1 << 63) - 1))),
            "metadata.log.max.record.bytes.between.snapshots": chance.choice(("2000", "20971520")),
            "replica.selector.class": chance.choice(
                ("", "org.apache.kafka.common.replica.RackAwareReplicaSelector")
            ),
        }

    def _choose_network(self) -> None:
        chance, slow = random.Random(self.random.random()), self.faults.slow
        base = chance.choice((0.0002, 0.001, 0.01))

        def delay_s(source: str, target: str) -> float:
            seconds = base * (0.5 + chance.random())
            if chance.random() < 0.01:
                seconds *= 20
            return seconds + slow.get((source, target), 0.0)

        cuts = chance.random() < 0.3
        self.network.delay_s = delay_s
        self.network.resets = lambda: chance.random() < 0.3
        if cuts:
            self.network.cuts_pieces = lambda count: (
                chance.randint(1, count) if chance.random() < 0.2 else count
            )

    # -- events

    def note(self, what: str) -> None:
        self.history.log.append(f"{self.world.now:.3f} {what}")

    def _error(self, owner: Process, error: Exception) -> None:
        self.note(f"{getattr(owner, 'host', 'network')} raised {type(error).__name__}: {error}")
        self.errors.append(error)

    def _long_turn(self, what: str, took: float) -> None:
        self.history.count(f"turns of more than {TURN_S} s: {what}")
        if took > TURN_S_MAX:
            self.errors.append(
                Violation(f"{self.watch.current_event()} took {took:.2f} s of CPU time in {what}")
            )

    def _killed(self, owner: Process) -> None:
        for node in self.nodes:
            node.killed_by_disk(owner)

    def _node_started(self, node: SimulatedNode) -> None:
        self.note(f"{node.host} runs (start {node.starts})")

    def _node_down(self, node: SimulatedNode, why: str) -> None:
        self.note(f"{node.host} is down: {why}")
        self.client_runtime.call_later(1.0, node.start_again)

    def is_whole(self) -> bool:
        """Whether the cluster is in service and all replicas but for observers are in sync."""
        return self.is_in_service() and all(
            set(state.replicas).difference(state.isr) <= observers_of(image.topic_configs(topic.name))
            for image in (node.services.controller.image for node in self.nodes)
            for topic in image.topics.values()
            for state in topic.partitions.values()
        )

    def is_in_service(self) -> bool:
        """Whether every broker is in service and every partition has a leader, by the committed metadata, which may still list processes
        that have ended. Replicas that were hedged out may be missing, as long as clients go on."""
        if not all(node.is_ready for node in self.nodes):
            return False
        services = [node.services for node in self.nodes]
        images = [each.controller.image for each in services]
        epochs = {each.node_id: each.log_manager.broker_epoch for each in services}
        offset = max(image.offset for image in images)
        return all(
            image.offset == offset
            and all(
                not each.fenced and each.broker_epoch == epochs[each.broker_id]
                for each in image.brokers.values()
            )
            and all(
                state.leader >= 0 for topic in image.topics.values() for state in topic.partitions.values()
            )
            for image in images
        )

    # -- the course of the simulation

    def run(self) -> None:
        """Runs the seed; see the class."""
        with self.watch.installed(), small(random.Random(self.random.random())):
            for node in self.nodes:
                node.start()
            admin = Admin(
                self.client("setup"),
                self.history,
                [node.node_id for node in self.brokers],
                min(3, len(self.brokers)),
                lambda: True,
            )
            setup = Task(self.client_runtime, self._set_up(admin))
            self._run_until(
                FORMS_WITHIN_S, lambda: setup.is_done and self.is_whole(), "the cluster does not form"
            )
            self._start_clients()
            self._let_faults_happen()
            self.faults.heal()
            self.going_on = False
            self._run_until(HEALS_WITHIN_S, self.is_settled, "the cluster does not heal")
            self._probe()
            self._run_until(HEALS_WITHIN_S, self.is_settled, "the cluster does not heal")
            self._step(max(1.0, LASTS_S - self.world.now))
            self._run_until(
                HEALS_WITHIN_S, lambda: self.is_replicated() and self.is_whole(), "followers do not catch up"
            )
            self._check()

    def client(self, name: str) -> Client:
        client = Client(self.client_runtime, [(node.host, BROKER_PORT) for node in self.brokers], name)
        self.clients.append(client)
        return client

    async def _set_up(self, admin: Admin) -> None:
        await admin.create("safe", 2, self.tier.topics)
        await admin.create("single", 1, self.tier.topics)
        if self.random.random() < 0.3:
            await admin.create("unclean", 1, {"unclean.leader.election.enable": "true", **self.tier.topics})
        if self.random.random() < 0.4:
            await admin.create("expiring", 1, {"retention.ms": "3000", "segment.ms": "1000"})
        if self.random.random() < 0.4:
            compacts = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "700"}
            await admin.create("compacted", 1, compacts)

    def should_continue(self) -> bool:
        return self.going_on

    def _start_clients(self) -> None:
        chance = self.random
        for number in range(5):
            is_idempotent = number < 3
            self.producers.append(
                Producer(
                    self.client(f"p{number}"),
                    self.history,
                    acks=-1 if is_idempotent else (-1, 1, 0)[(self.seed + number) % 3],
                    is_idempotent=is_idempotent,
                    pace_s=chance.choice((0.02, 0.1, 0.3)),
                    should_continue=self.should_continue,
                )
            )
        for number in range(2):
            rack = chance.choice(("", "r0", "r1"))
            self.consumers.append(
                Consumer(
                    self.client(f"c{number}"), self.history, rack=rack, should_continue=self.should_continue
                )
            )
        self.members = [
            Member(
                self.client("m0"),
                self.history,
                "simple",
                is_simple=True,
                should_continue=self.should_continue,
            ),
            *(
                Member(
                    self.client(f"m{number}"),
                    self.history,
                    "team",
                    is_simple=False,
                    should_continue=self.should_continue,
                )
                for number in (1, 2)
            ),
        ]
        groups = ["simple", "team"]
        if self.seed % 3 == WITH_CONSUMER_GROUP:
            groups.append(self._join(ConsumerGroupMember, "assigned", "a"))
        if self.seed % 8 == WITH_STREAMS_GROUP:
            groups.append(self._join(StreamsGroupMember, "streamed", "t"))
        admin = Admin(
            self.client("admin"), self.history, [node.node_id for node in self.brokers],
            min(3, len(self.brokers)), self.should_continue,
        )  # fmt: skip
        changer = ConfigChanger(
            self.client("configs"), self.history, min(3, len(self.brokers)),
            chance.choice((0.03, 0.1, 0.5)), self.should_continue,
        )  # fmt: skip
        impostor = UnauthenticatedFollower(
            self.client("stranger"), self.history, [node.node_id for node in self.brokers],
            chance.choice((0.1, 0.5)), self.should_continue,
        )  # fmt: skip
        observers = [
            Observer(
                self.client(f"o{node.node_id}"),
                self.history,
                (node.host, BROKER_PORT),
                tuple(groups),
                self.should_continue,
            )
            for node in self.brokers
        ]
        works = [
            *(observer.run() for observer in observers),
            *(producer.run() for producer in self.producers),
            *(consumer.run() for consumer in self.consumers),
            *(member.run() for member in self.members),
            admin.run(),
            changer.run(),
            impostor.run(),
        ]
        self.tasks = [Task(self.client_runtime, work) for work in works]

    def _join(self, kind: type[ConsumerGroupMember], group: str, letter: str) -> str:
        """Members of a group for which the broker assigns; returns the group's name."""
        owners = Owners()
        self.members += [
            kind(
                self.client(f"{letter}{number}"),
                self.history,
                group,
                owners,
                should_continue=self.should_continue,
            )
            for number in range(3)
        ]
        return group

    def _probe(self) -> None:
        """Clients are served when the faults have ended."""
        finish = [Task(self.client_runtime, coroutine) for coroutine in checkers.probes(self)]
        self._run_until(
            HEALS_WITHIN_S, lambda: all(task.is_done for task in finish), "clients are not served again"
        )

    def _check(self) -> None:
        checkers.check(self)
        self.tier.check()

    def _let_faults_happen(self) -> None:
        end = self.world.now + FAULTS_S
        while self.world.now < end or self.faults.happened < 3:
            self._step(self.random.choice((0.1, 0.5, 1.0, 2.0, 4.0)) * self.random.uniform(0.5, 1.5))
            self.faults.next()

    def is_settled(self) -> bool:
        """Whether everything is up and in sync, and every client has finished its open requests."""
        return all(task.is_done for task in self.tasks) and self.is_whole()

    def is_replicated(self) -> bool:
        """Whether followers have all records and know it: coordinators may write at any time."""
        partitions = [each for node in self.brokers for each in node.services.partitions.all()]
        ends = {
            (each.topic_id, each.partition): each.log.log_end_offset for each in partitions if each.is_leader
        }
        return all(
            each.log.high_watermark == each.log.log_end_offset == ends.get((each.topic_id, each.partition))
            for each in partitions
        )

    def _run_until(self, seconds: float, is_true: Callable[[], bool], otherwise: str) -> None:
        end = self.world.now + seconds
        while not is_true():
            if self.world.now >= end:
                raise Violation(f"{otherwise} within {seconds:.0f} s: {checkers.state(self)}")
            self._step(0.2)

    def _step(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)
        if self.errors:
            raise self.errors[0]
        if self.watch.violations:
            raise Violation(self.watch.violations[0])
        if self.watch.problems:
            raise Violation(f"a node's log shows a bug: {self.watch.problems[0]}")
