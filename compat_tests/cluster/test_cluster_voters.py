"""Controllers that are added and removed while a cluster runs, with Kafka's tool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from random import Random

import pytest

from barnabas.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from barnabas.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from barnabas.wire.uuids import uuid_from_string
from compat_tests.conform.client import Connection, ConnectionClosed, NoAnswer
from compat_tests.harness.cluster import COMBINED, Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_tools import JavaTools


@pytest.fixture
def cluster(broker_kind: str, tmp_path: Path, java_tools: JavaTools) -> Iterator[Cluster]:
    if broker_kind not in ("barnabas", "apache"):
        pytest.skip("needs a cluster of its own")
    made = Cluster(tmp_path, broker_kind, tools=java_tools, dynamic=True)
    made.start()
    yield made
    made.close()


class Quorum:
    """Kafka's tool on a cluster."""

    def __init__(self, cluster: Cluster, tools: JavaTools) -> None:
        self.cluster = cluster
        self.tools = tools

    def _run(self, *arguments: str, status: int | None = 0) -> str:
        where = ("--bootstrap-server", self.cluster.bootstrap)
        return self.tools.run("kafka-metadata-quorum", *where, *arguments, status=status).output

    def rows(self) -> set[tuple[int, str, str]]:
        """(node id, directory id, status) of `describe --replication`. Kafka goes on listing a directory that was lost."""
        head, *lines = self._run("describe", "--replication").strip().splitlines()
        columns = [each.strip() for each in head.split("\t")]
        found = set()
        for line in lines:
            row = dict(zip(columns, (each.strip() for each in line.split("\t")), strict=False))
            found.add((int(row["NodeId"]), row["DirectoryId"], row["Status"]))
        return found

    def voters(self) -> list[int]:
        """Of `describe --status`."""
        text = self._run("describe", "--status")
        line = re.search(r"^CurrentVoters: +(.*)$", text, re.MULTILINE)
        assert line is not None, text
        return sorted(int(number) for number in re.findall(r'"id": (\d+)', line[1]))

    def add(self, node: int, *, status: int = 0) -> str:
        properties = self.cluster.nodes[node].directory / "server.properties"
        config = ("--command-config", str(properties))
        return self._run(*config, "add-controller", status=status)

    def remove(self, node: int, directory_id: str, *, status: int | None = 0) -> str:
        named = ("--controller-id", str(node), f"--controller-directory-id={directory_id}")
        return self._run("remove-controller", *named, status=status)


def directory_of(cluster: Cluster, node: int) -> str:
    text = (cluster.nodes[node].log_dir / "meta.properties").read_text()
    found = re.search(r"^directory.id=(.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1].replace("\\", "")


def test_voters_are_added_and_removed(cluster: Cluster, java_tools: JavaTools) -> None:
    quorum = Quorum(cluster, java_tools)
    features = java_tools.run("kafka-features", "--bootstrap-server", cluster.bootstrap, "describe").stdout
    assert re.search(r"Feature: kraft.version.*FinalizedVersionLevel: 1", features)
    assert eventually(lambda: quorum.voters() == [1, 2, 3])
    assert {(node, directory) for node, directory, _ in quorum.rows()} == {
        (node, directory_of(cluster, node)) for node in (1, 2, 3)
    }
    create_topic(cluster, "before")

    cluster.add(4, COMBINED)
    cluster.start(4)
    eventually(lambda: (4, directory_of(cluster, 4), "Observer") in quorum.rows())
    assert "VoterNotFoundException" in quorum.remove(4, directory_of(cluster, 4), status=1)
    added = eventually(lambda: _added(quorum, 4))
    assert f"Added controller 4 with directory id {directory_of(cluster, 4)} and endpoints: " in added
    assert "DuplicateVoterException" in quorum.add(4, status=1)
    assert quorum.voters() == [1, 2, 3, 4]

    active = cluster.active_controller()
    cluster.kill(active)
    others = [node for node in (1, 2, 3, 4) if node != active]
    cluster.active_controller()
    wrong = quorum.remove(active, directory_of(cluster, others[0]), status=1)
    assert "VoterNotFoundException" in wrong
    removed = quorum.remove(active, directory_of(cluster, active))
    assert f"Removed  KRaft controller {active} with directory id {directory_of(cluster, active)}" in removed
    assert quorum.voters() == others

    # Two of the three that are left are a majority, though two of the first four have been killed.
    second = next(node for node in others if node != cluster.active_controller())
    cluster.kill(second)
    create_topic(cluster, "between", replicas=2)
    cluster.start(active, second)
    eventually(lambda: (active, directory_of(cluster, active), "Observer") in quorum.rows())

    leader = cluster.active_controller()
    output = quorum.remove(leader, directory_of(cluster, leader), status=None)
    # A broker that loses its link to the leader before the answer asks again, like Kafka's.
    assert "Removed  KRaft controller" in output or "VoterNotFoundException" in output
    eventually(lambda: cluster.active_controller() != leader)
    left = [node for node in others if node != leader]
    assert eventually(lambda: quorum.voters() == left)
    create_topic(cluster, "after")

    cluster.kill(*cluster.live)
    cluster.start()
    assert eventually(lambda: quorum.voters() == left)
    cluster.wait_until_whole()
    assert {name for name, _ in cluster.metadata().partitions} >= {"before", "between", "after"}


def test_a_voter_whose_disk_is_lost_is_replaced(cluster: Cluster, java_tools: JavaTools) -> None:
    quorum = Quorum(cluster, java_tools)
    lost = next(node for node in (1, 2, 3) if node != cluster.active_controller())
    old = directory_of(cluster, lost)
    cluster.kill(lost)
    quorum.remove(lost, old)
    cluster.wipe(lost)
    if cluster.kind == "apache":
        cluster.nodes[lost].format_arguments = ("--no-initial-controllers",)  # type: ignore[union-attr]
    cluster.start(lost)
    new = directory_of(cluster, lost)
    assert new != old
    eventually(lambda: (lost, new, "Observer") in quorum.rows())
    assert "VoterNotFoundException" in quorum.remove(lost, old, status=1)
    eventually(lambda: _added(quorum, lost))
    assert quorum.voters() == [1, 2, 3]
    assert (lost, new, "Follower") in quorum.rows()


def _added(quorum: Quorum, node: int) -> str:
    """The output of a success; empty while the node is behind."""
    config = ("--command-config", str(quorum.cluster.nodes[node].directory / "server.properties"))
    where = ("--bootstrap-server", quorum.cluster.bootstrap)
    found = quorum.tools.run("kafka-metadata-quorum", *where, *config, "add-controller", status=None)
    return found.output if found.status == 0 else ""


def test_voters_change_while_nodes_are_killed(cluster: Cluster) -> None:
    """Whatever a killed node leaves undone, a change is made or not, never another one."""
    random = Random(3)
    cluster.add(4, COMBINED)
    cluster.start(4)
    for number in range(6):
        before = voters_of(cluster)
        missing = [node for node in (1, 2, 3, 4) if node not in before]
        node = missing[0] if missing else random.choice(sorted(before))
        request = change_of(cluster, node, adds=bool(missing))
        victim = random.choice(cluster.live)
        asked = random.choice([each for each in cluster.live if each != victim])
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(ask, cluster, asked, request)
            wait({answer}, random.random() * 0.02)
            cluster.kill(victim)
            answer.result()
        cluster.active_controller()
        assert voters_of(cluster) in (before, before ^ {node})
        cluster.start(victim)
        eventually(lambda request=request, after=before ^ {node}: is_made(cluster, request, after))
        create_topic(cluster, f"t{number}", replicas=3)
    cluster.wait_until_whole()
    assert {name for name, _ in cluster.metadata().partitions} == {f"t{number}" for number in range(6)}


def voters_of(cluster: Cluster) -> set[int]:
    def found() -> set[int]:
        view = cluster.quorum()
        return set() if view is None else set(view.voters)

    return eventually(found)


def change_of(cluster: Cluster, node: int, *, adds: bool) -> AddRaftVoterRequest | RemoveRaftVoterRequest:
    directory_id = uuid_from_string(directory_of(cluster, node))
    if not adds:
        return RemoveRaftVoterRequest(None, node, directory_id)
    host, port = cluster.controllers[node].split(":")
    return AddRaftVoterRequest(None, 5000, node, directory_id, [Listener("CONTROLLER", host, int(port))])


def ask(cluster: Cluster, broker: int, request: object) -> int | None:
    """The error code; None without an answer."""
    host, port = cluster.addresses[broker].split(":")
    try:
        connection = Connection(host, int(port))
        try:
            error: int = connection.ask(request, 0, 20).error_code
        finally:
            connection.close()
    except (OSError, ConnectionClosed, NoAnswer):
        return None
    return error


def is_made(cluster: Cluster, request: object, after: set[int]) -> bool:
    """Whether the change has been made, now or before."""
    if voters_of(cluster) != after:
        ask(cluster, cluster.live[0], request)
    return voters_of(cluster) == after


def test_a_static_quorum_is_raised(broker_kind: str, tmp_path: Path, java_tools: JavaTools) -> None:
    """Its nodes go on naming the voters in their properties; the log decides."""
    if broker_kind not in ("barnabas", "apache"):
        pytest.skip("needs a cluster of its own")
    cluster = Cluster(tmp_path, broker_kind, tools=java_tools)
    try:
        cluster.start()
        quorum = Quorum(cluster, java_tools)
        refused = quorum.remove(1, "AAAAAAAAAAAAAAAAAAAAAQ", status=1)
        assert "UnsupportedVersionException" in refused
        where = ("--bootstrap-server", cluster.bootstrap)
        raised = ("kafka-features", *where, "upgrade", "--feature", "kraft.version=1")
        # Kafka refuses until each voter has sent the versions that it supports.
        eventually(lambda: java_tools.run(*raised, status=None).status == 0)
        cluster.dynamic = True
        cluster.add(4, COMBINED)
        cluster.start(4)
        eventually(lambda: (4, directory_of(cluster, 4), "Observer") in quorum.rows())
        eventually(lambda: _added(quorum, 4))
        first = directory_of(cluster, 1)
        eventually(lambda: is_made(cluster, change_of(cluster, 1, adds=False), {2, 3, 4}))
        cluster.stop()
        cluster.start()
        assert eventually(lambda: quorum.voters() == [2, 3, 4])
        eventually(lambda: (1, first, "Observer") in quorum.rows())
    finally:
        cluster.close()
