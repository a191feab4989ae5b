"""The systems under test: one broker, the control port of a test broker, or a cluster of three; each with a probe and
a judge."""

from __future__ import annotations

import re
import resource
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient

from barnabas.broker.requests.api_index import SERVED
from barnabas.controller.link.messages import BROKER, Identity
from compat_tests.fuzz.case import Case, Pace
from compat_tests.fuzz.hostile_client import HostileClient
from compat_tests.fuzz.judge import Judge, Verdict
from compat_tests.fuzz.link_client import LinkClient
from compat_tests.fuzz.links import BROKER_ID, prove
from compat_tests.fuzz.probe import TOPIC, Probe, check_everything_is_there
from compat_tests.fuzz.requests import PARTITIONS, TOPICS, World, served_apis, served_ranges, topic_ids
from compat_tests.harness import raw
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker, BrokerFailed
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually

ADDRESS_SPACE_MAX = 4 << 30  # protects the machine's other processes from a broker that allocates too much
SILENT_MAX = 256  # connections that are kept open
METRICS = "barnabas.metrics.listener"
SECRET = b"the secret of a cluster under fuzzing"


def bound_memory() -> None:
    """Limits memory; runs in the child before it becomes the broker."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))


class System:
    """Runs cases one after the other. `brokers`: all that must stay alive; the first one is measured."""

    def __init__(self, brokers: Sequence[Broker], world: World, addresses: Mapping[str, str]) -> None:
        """`addresses`: by the `port` of a case."""
        self.brokers = brokers
        self.broker = brokers[0]
        self.world = world
        self.probe = Probe(self.broker.bootstrap, self.broker.pid)
        if not self.probe.wait_for_rounds(20, 60):
            raise BrokerFailed(f"the probe gets no answer: {self.probe.error!r}")
        self.judge = Judge(brokers, self.probe)
        self._addresses = addresses
        self._silent: list[HostileClient | LinkClient] = []

    def run(self, case: Case) -> Verdict:
        """Sends a case, waits until the broker is idle, judges."""
        verdict = Verdict(f"{case.name} ({'; '.join(case.story)[:200]})", case.size * case.connections)
        for piece in case.prepared:
            with raw.RawConnection(self.broker.bootstrap) as honest:
                honest.socket.sendall(piece)
                honest.receive()
        before = self.judge.begin()
        clients = [self.client(case) for _ in range(case.connections)]
        while not all(client.done.is_set() for client in clients):
            if all(client.done.wait(0.02) for client in clients) or self.judge.is_at_rest():
                break
        self.judge.end(before, verdict)
        for client in clients:
            client.stop()
        if case.pace is Pace.SILENT:
            self._silent += clients
            while len(self._silent) > SILENT_MAX:
                self._silent.pop(0).close()
        fault = self.check(case) if not verdict.faults else ""
        if fault:
            verdict.faults.append(fault)
        return verdict

    def client(self, case: Case) -> HostileClient | LinkClient:
        """A running client that sends the case."""
        return HostileClient(self._addresses[case.port], case.pieces, case.pace)

    def check(self, case: Case) -> str:
        """An additional check after each case: the fault, or an empty string."""
        return ""

    def end(self) -> list[str]:
        """Stops hostile clients and the brokers; returns faults that show only now."""
        for client in self._silent:
            client.close()
        self.probe.stop()
        faults: list[str] = []
        try:
            assert self.probe.error is None, f"the probe failed: {self.probe.error!r}"
            self.still_serves()
            for broker in self.brokers:
                broker.begin_stop()
            codes = [broker.stop() for broker in self.brokers]
            assert not any(codes), f"a clean stop exits with {codes}"
        except (AssertionError, OSError, EOFError) as error:
            faults.append(f"at the end: {type(error).__name__}: {error}")
        finally:
            self.kill()
        return faults

    def kill(self) -> None:
        """Kills the brokers, one of which has failed."""
        self.probe.stop()
        for broker in self.brokers:
            if broker.alive():
                broker.kill()

    def still_serves(self) -> None:
        """Asserts that produce, fetch and groups work, and that all acknowledged records of the probe exist."""
        bootstrap = self.broker.bootstrap
        check_everything_is_there(bootstrap, self.probe.acknowledged)
        create_topics(bootstrap, {"afterwards": {}})
        with raw.RawConnection(bootstrap) as connection:
            assert raw.produce(connection, "afterwards", raw.good_batch(b"value")) == (0, 0)
            assert b"value" in raw.fetch(connection, "afterwards", 0)[2]
            load_coordinator(bootstrap)
            committed = raw.array([bytes(4) + (7).to_bytes(8, "big") + raw.string("")])
            body = raw.string("afterwards") + b"\xff\xff\xff\xff" + raw.string("") + b"\xff" * 8
            body += raw.array([raw.string("afterwards") + committed])
            eventually(lambda: connection.ask(raw.request(8, 2, body))[-2:] == b"\0\0")


class OneBroker(System):
    """A broker with a client listener and a metrics port."""

    def __init__(self, folder: Path, loop: str = "") -> None:
        self._started = time.monotonic()
        broker = BarnabasBroker(folder, {METRICS: "127.0.0.1:0"}, loop=loop)
        broker.preexec = bound_memory
        broker.start()
        try:
            create_topics(broker.bootstrap, {TOPIC: {}, **TOPICS})
            load_coordinator(broker.bootstrap)
            world = World(served_apis(served_ranges(broker.bootstrap)), topic_ids(broker.bootstrap))
            (port,) = re.findall(r"metrics are at http://127\.0\.0\.1:(\d+)/metrics", broker.log_text())
            addresses = {"metrics": f"127.0.0.1:{port}"}
            addresses |= dict.fromkeys(
                ("requests", "repetitions", "large", "pipelined", "worst"), broker.bootstrap
            )
            super().__init__([broker], world, addresses)
        except BaseException:
            broker.kill()
            raise

    def still_serves(self) -> None:
        """Asserts also that the log has grown with time, not with the number of cases."""
        super().still_serves()
        minutes = (time.monotonic() - self._started) / 60
        lines = self.broker.log_text().count("\n")
        assert lines < 500 + 200 * minutes, f"{lines} log lines in {minutes:.1f} minutes"

    def check(self, case: Case) -> str:
        """Metrics are served."""
        if case.port != "metrics":
            return ""
        return answers_http(f"http://{self._addresses['metrics']}/metrics")


class TestBroker(System):
    """`barnabas testbroker`, with its controls over HTTP."""

    __test__ = False  # not a test class

    def __init__(self, folder: Path, loop: str = "") -> None:
        broker = _TestBrokerProcess(folder, loop=loop)
        broker.preexec = bound_memory
        broker.start()
        try:
            create_topics(broker.bootstrap, {TOPIC: {}})
            super().__init__([broker], World([], {}), {"control": broker.control})
        except BaseException:
            broker.kill()
            raise

    def check(self, case: Case) -> str:
        """The control port answers."""
        return answers_http(f"http://{self._addresses['control']}/openapi.json")

    def still_serves(self) -> None:
        """Asserts that all acknowledged records exist."""
        check_everything_is_there(self.broker.bootstrap, self.probe.acknowledged)


class _TestBrokerProcess(BarnabasBroker):
    """A test broker, whose ready line has the address of its control port."""

    control = ""

    def command(self) -> list[str]:
        command = super().command()
        return [*command[: command.index("start")], "testbroker", "--port", str(self._first_port)]

    def _await_ready_line(self, deadline: float) -> dict[str, str]:
        def ready() -> re.Match[str] | None:
            if not self.alive():
                raise BrokerFailed(self._tail())
            return re.match(r"ready (\S+) .* control=http://(\S+)\n", self.stdout_text())

        match = eventually(ready)
        assert match is not None
        self.control = match[2]
        return {"listeners": match[1], "cluster": ""}


class ThreeNodes(System):
    """A cluster with a controller listener and an inter-broker listener; node 1 is measured."""

    def __init__(self, folder: Path, loop: str = "", *, secret: bool = True) -> None:
        settings: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if secret:
            path = folder / "secret"
            path.write_bytes(SECRET)
            path.chmod(0o600)
            settings["barnabas.controller.secret.file"] = str(path)
        self.cluster = Cluster(folder, "barnabas", settings=settings, proxied=True, loop=loop)
        self._open: Cluster | None = self.cluster
        self._peers: list[LinkClient] = []
        self._followers = [0, 0]  # [connections tried, connections authenticated]
        self._secret = SECRET if secret else None
        nodes = [self.cluster.nodes[node] for node in sorted(self.cluster.nodes)]
        for node in nodes:
            assert isinstance(node, BarnabasBroker)
            node.preexec = bound_memory
        self.cluster.start()
        try:
            assignment = [[1, 2, 3]] * PARTITIONS
            create_topic(self.cluster, TOPIC, assignment=assignment)
            for name, configs in TOPICS.items():
                create_topic(self.cluster, name, assignment=assignment, configs=configs)
            bootstrap = nodes[0].bootstrap
            ranges = {key: (entry.advertised_min, entry.max_version) for key, entry in SERVED.items()}
            world = World(served_apis(ranges), topic_ids(bootstrap), (-1, 1, 2, 3))
            listeners = dict(part.split("://") for part in nodes[0].settings["listeners"].split(","))
            addresses = {
                **dict.fromkeys(("inter-broker", "proof", "follower"), listeners["INTERNAL"]),
                **dict.fromkeys(("stranger", "peer", "unguarded"), listeners["CONTROLLER"]),
            }
            self._cluster_id = self.cluster.metadata().cluster_id
            super().__init__(nodes, world, addresses)
        except BaseException:
            self.cluster.close()
            raise

    def client(self, case: Case) -> HostileClient | LinkClient:
        """A client that authenticates first when it plays a peer or a follower."""
        if case.port == "follower":
            self._followers[0] += 1
            return HostileClient(self._addresses[case.port], case.pieces, case.pace, self._prove)
        if case.port not in ("peer", "unguarded"):
            return super().client(case)
        identity = Identity(
            self._cluster_id, BROKER_ID, [BROKER], b"d" * 16, b"i" * 16, sorted(self.cluster.nodes), []
        )
        client = LinkClient(self._addresses[case.port], self._secret, identity, case.pieces)
        self._peers.append(client)
        return client

    def _prove(self, connection: socket.socket) -> None:
        prove(connection, SECRET, self._cluster_id, 1, "INTERNAL")
        self._followers[1] += 1

    def kill(self) -> None:
        """Kills the cluster, once."""
        super().kill()
        cluster, self._open = self._open, None
        if cluster is not None:
            cluster.close()

    def still_serves(self) -> None:
        """Asserts that all acknowledged records exist, that the cluster is whole, and that most peers and followers
        did authenticate."""
        linked = sum(peer.linked for peer in self._peers)
        assert linked >= len(self._peers) // 2, f"{linked} of {len(self._peers)} links were opened"
        tried, proven = self._followers
        assert proven >= tried // 2, f"{proven} of {tried} followers were authenticated"
        check_everything_is_there(self.broker.bootstrap, self.probe.acknowledged)
        self.cluster.wait_until_whole()


SYSTEMS: Mapping[str, Callable[[Path, str], System]] = {
    "requests": OneBroker,
    "repetitions": OneBroker,
    "large": OneBroker,
    "pipelined": OneBroker,
    "worst": OneBroker,
    "metrics": OneBroker,
    "control": TestBroker,
    **dict.fromkeys(("inter-broker", "proof", "follower"), ThreeNodes),
    "stranger": ThreeNodes,
    "peer": ThreeNodes,
    "unguarded": partial(ThreeNodes, secret=False),
}


def create_topics(bootstrap: str, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Creates topics without retention, and waits until they are served."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    made = [
        NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1", **configs})
        for name, configs in topics.items()
    ]
    for done in admin.create_topics(made).values():
        done.result(60)
    with raw.RawConnection(bootstrap) as connection:
        for name in topics:
            eventually(lambda name=name: raw.fetch(connection, name, 0, max_wait_ms=0)[0] == 0)


def load_coordinator(bootstrap: str) -> None:
    """Waits until group requests are served."""
    find = raw.request(10, 0, raw.string("group-0"))
    heartbeat = raw.request(12, 0, raw.string("group-0") + bytes(4) + raw.string("m"))
    with raw.RawConnection(bootstrap) as connection:
        eventually(lambda: connection.ask(find)[:2] == b"\0\0")
        eventually(lambda: connection.ask(heartbeat) == b"\0\x19")  # UNKNOWN_MEMBER_ID


def answers_http(url: str) -> str:
    """The fault, or an empty string."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return "" if answer.status == 200 and answer.read() else f"{url} answers {answer.status}"
    except OSError as error:
        return f"{url} is not answered: {error!r}"
