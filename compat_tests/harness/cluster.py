"""A cluster of nodes as subprocesses on this machine: one interface over this broker and Apache Kafka.

    cluster = Cluster(folder, "barnabas")              # three combined nodes; `roles` says otherwise
    cluster.start()
    cluster.kill(cluster.leader("topic", 0))

Ports are chosen once and stay. `proxied=True` puts proxies that can cut connections (cluster_proxy.py) before the
inter-broker and the controller listeners; clients always connect to a node directly. A node is addressed by its id.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from barnabas.testing.ports import free_port
from compat_tests.harness import cluster_view
from compat_tests.harness.broker import BrokerFailed
from compat_tests.harness.cluster_nodes import ApacheNode, BarnabasNode, ClusterNode, properties_of
from compat_tests.harness.cluster_proxy import Network
from compat_tests.harness.cluster_view import MetadataView, PartitionView, QuorumView
from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.metrics import metrics

COMBINED = "broker,controller"
THREE: Mapping[int, str] = {1: COMBINED, 2: COMBINED, 3: COMBINED}


class Cluster:
    """Nodes by id; `roles`: node id -> process.roles. `node_settings` of one node override the `settings` of all."""

    def __init__(
        self,
        directory: Path,
        kind: str,
        roles: Mapping[int, str] = THREE,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        *,
        proxied: bool = False,
        tools: JavaTools | None = None,
        loop: str = "",
        apache_node: type[ApacheNode] = ApacheNode,
        dynamic: bool = False,
    ) -> None:
        """`dynamic`: of nodes added from now on, the configuration names addresses of controllers only."""
        self.directory = directory
        self.kind = kind
        self.network = Network(self._pids) if proxied else None
        self.on_close: list[Callable[[], object]] = []  # called before the nodes are killed
        self.nodes: dict[int, ClusterNode] = {}
        self.addresses: dict[int, str] = {}  # each broker's address for clients
        self.controllers: dict[int, str] = {}  # the voters' own CONTROLLER listeners
        self._suspended: set[int] = set()
        self._tools = tools
        self._loop = loop
        self._apache_node = apache_node
        self.dynamic = dynamic
        self._cluster_id = _random_uuid()
        self._settings = dict(settings or {})
        self._voters: dict[int, str] = {}
        for node, role in roles.items():
            if "controller" in role:
                self.controllers[node] = f"127.0.0.1:{free_port()}"
                self._voters[node] = self._before(node, self.controllers[node])
        self._first_directories = {node: _random_uuid() for node in self._voters}
        for node, role in roles.items():
            self.add(node, role, (node_settings or {}).get(node))

    def add(self, node: int, role: str, settings: Mapping[str, str] | None = None) -> ClusterNode:
        """A further node, not started."""
        listeners: dict[str, str] = {}
        advertised: dict[str, str] = {}
        if "broker" in role:
            listeners["PLAINTEXT"] = self.addresses[node] = f"127.0.0.1:{free_port()}"
            advertised["PLAINTEXT"] = listeners["PLAINTEXT"]
            if self.network is not None:
                listeners["INTERNAL"] = f"127.0.0.1:{free_port()}"
                advertised["INTERNAL"] = self._before(node, listeners["INTERNAL"])
        if "controller" in role:
            if node not in self.controllers:
                self.controllers[node] = f"127.0.0.1:{free_port()}"
            listeners["CONTROLLER"] = self.controllers[node]
        folder = self.directory / f"node-{node}"
        inter_broker = "INTERNAL" if self.network is not None else "PLAINTEXT"
        properties = {
            **properties_of(node, role, folder / "data", listeners, advertised, self._voters, inter_broker),
            **self._settings,
            **(settings or {}),
        }
        if self.dynamic:
            del properties["controller.quorum.voters"]
            properties["controller.quorum.bootstrap.servers"] = ",".join(self._voters.values())
        made: ClusterNode
        if self.kind == "apache":
            made = self._apache_node(folder, properties, self._cluster_id, self._tools)
            if self.dynamic:
                made.format_arguments = self._formatting(node)
        else:
            made = BarnabasNode(folder, properties, self._loop)
        made.listeners = {name: address for name, address in listeners.items() if name == "PLAINTEXT"}
        if not made.listeners:
            made.listeners = dict(listeners)
        self.nodes[node] = made
        return made

    def _formatting(self, node: int) -> tuple[str, ...]:
        """Arguments of kafka-storage: the first voters, or that this node is none."""
        if node not in self._voters:
            return ("--no-initial-controllers",)
        first = (f"{id_}@{address}:{self._first_directories[id_]}" for id_, address in self._voters.items())
        return ("--initial-controllers", ",".join(first))

    @property
    def bootstrap(self) -> str:
        """Every broker's address, whether it runs or not."""
        return ",".join(self.addresses.values())

    @property
    def live(self) -> list[int]:
        """Brokers that run and are not suspended."""
        return [node for node in self.addresses if self.nodes[node].alive() and node not in self._suspended]

    def start(self, *nodes: int, whole: bool = True) -> None:
        """Start all nodes (or these) together; `whole`: then wait until every broker knows all that run."""
        chosen = list(nodes or self.nodes)
        for node in chosen:
            self.nodes[node].launch()
        for node in chosen:
            self.nodes[node].wait()
        if whole:
            self.wait_until_known()

    def stop(self, *nodes: int, timeout: float = 60) -> None:
        """SIGTERM to all (or these), all at once; BrokerFailed when one does not end in time or ends badly."""
        chosen = [self.nodes[node] for node in nodes or self.nodes if self.nodes[node].alive()]
        for one in chosen:
            one.begin_stop()
        for one in chosen:
            code = one.stop(timeout)
            if code not in (0, 143):  # 143: a JVM that got SIGTERM
                raise BrokerFailed(
                    f"node {one.settings['node.id']} ended with {code}\n{one.log_text()[-6000:]}"
                )

    def kill(self, *nodes: int) -> None:
        """kill -9, all of them before any is waited for."""
        for node in nodes:
            os.kill(self.nodes[node].pid, signal.SIGKILL)
            self._suspended.discard(node)
        for node in nodes:
            self.nodes[node].kill()

    def restart(self, node: int) -> None:
        """A clean stop and a start, waited for until all brokers know each other again."""
        self.stop(node)
        self.start(node)

    def suspend(self, node: int) -> None:
        """SIGSTOP: the process is suspended, its connections stay open."""
        os.kill(self.nodes[node].pid, signal.SIGSTOP)
        self._suspended.add(node)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        os.kill(self.nodes[node].pid, signal.SIGCONT)
        self._suspended.discard(node)

    def wipe(self, node: int) -> None:
        """Remove a stopped node's data directory."""
        assert not self.nodes[node].alive()
        shutil.rmtree(self.nodes[node].log_dir)

    def stalls(self) -> dict[int, tuple[int, float, float]]:
        """Running brokers -> number of event loop stalls (more than 0.1 s), the longest in s, and the most processor time
        of one stall."""
        found = {}
        for node in self.live:
            values = metrics(self.nodes[node])
            found[node] = (
                round(values["barnabas_event_loop_stalls_total", ""]),
                values["barnabas_event_loop_longest_stall_seconds", ""],
                values["barnabas_event_loop_longest_busy_seconds", ""],
            )
        return found

    def close(self) -> None:
        """Call `on_close`, kill the processes that still run and close the proxies."""
        for call in self.on_close:
            call()
        self.kill(*(node for node, one in self.nodes.items() if one.alive()))
        if self.network is not None:
            self.network.close()

    def metadata(self, node: int | None = None) -> MetadataView:
        """Metadata from a node, by default from the first that answers."""
        return cluster_view.metadata(self.addresses[node]) if node is not None else self._first_answer()

    def partition(self, topic: str, partition: int) -> PartitionView:
        """A partition's state, from the first node that answers."""
        return self.metadata().partitions[topic, partition]

    def leader(self, topic: str, partition: int = 0, timeout: float = 60) -> int:
        """Wait for a running leader of the partition; return its node id."""

        def found() -> int:
            view = self.metadata().partitions.get((topic, partition))
            return view.leader if view is not None and view.leader in self.live else 0

        return eventually(found, timeout)

    def quorum(self) -> QuorumView | None:
        """The metadata quorum, from the first broker that answers."""
        for node in self.live:
            try:
                found = cluster_view.quorum(self.addresses[node])
            except (OSError, EOFError):
                continue
            if found is not None:
                return found
        return None

    def active_controller(self, timeout: float = 60) -> int:
        """Wait for a running leader of the metadata quorum; return its node id."""

        def found() -> int:
            view = self.quorum()
            if view is None or view.leader_id in self._suspended:
                return 0
            return view.leader_id if self.nodes[view.leader_id].alive() else 0

        return eventually(found, timeout)

    def wait_until_known(self, timeout: float = 60) -> None:
        """Wait until every broker that runs lists exactly those that run."""

        def known() -> bool:
            live = self.live
            return all(sorted(self._brokers_of(node)) == sorted(live) for node in live)

        self._await(known, timeout, "the brokers do not know each other")

    def wait_until_led(self, topic: str, partition: int = 0, timeout: float = 60) -> None:
        """Wait until every broker that runs names a running leader of the partition: librdkafka asks the one that it knows for ever."""

        def led() -> bool:
            views = [cluster_view.metadata(self.addresses[node]).partitions for node in self.live]
            return all(
                (topic, partition) in view and view[topic, partition].leader in self.live for view in views
            )

        self._await(led, timeout, f"not every broker knows who leads {topic}-{partition}")

    def wait_until_whole(self, timeout: float = 60) -> None:
        """Wait until every broker sees every partition with a leader and all replicas in sync."""

        def whole() -> bool:
            try:
                views = [cluster_view.metadata(self.addresses[node]) for node in self.live]
            except (OSError, EOFError):
                return False
            return all(one.whole for view in views for one in view.partitions.values())

        self._await(whole, timeout, "not every replica is in sync")

    def _await(self, reached: object, timeout: float, what: str) -> None:
        assert callable(reached)
        try:
            eventually(reached, timeout)
        except AssertionError:
            tails = "\n".join(f"--- node {id_}: {one.log_text()[-2500:]}" for id_, one in self.nodes.items())
            raise BrokerFailed(f"{what} after {timeout} s: {self._state()}\n{tails}") from None

    def _state(self) -> object:
        try:
            return self.metadata()
        except AssertionError as error:
            return error

    def _brokers_of(self, node: int) -> Iterable[int]:
        try:
            return cluster_view.metadata(self.addresses[node]).brokers
        except (OSError, EOFError):
            return ()

    def _first_answer(self, timeout: float = 60) -> MetadataView:
        def ask() -> MetadataView | None:
            for node in self.live:
                try:
                    return cluster_view.metadata(self.addresses[node])
                except (OSError, EOFError):
                    continue
            return None

        answer = eventually(ask, timeout)
        assert answer is not None
        return answer

    def _before(self, node: int, address: str) -> str:
        if self.network is None:
            return address
        return f"127.0.0.1:{self.network.front(node, int(address.rsplit(':', 1)[1]))}"

    def _pids(self) -> dict[int, int]:
        return {node: one.pid for node, one in self.nodes.items() if one.alive()}


def _random_uuid() -> str:
    """As Kafka writes it; one that begins with a dash would be taken for an option."""
    text = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    return _random_uuid() if text.startswith("-") else text
