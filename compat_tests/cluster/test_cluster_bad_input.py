"""Misconfigured nodes and unauthenticated clients of the controller port: each is refused with a reason, and the
cluster is unharmed."""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from compat_tests.harness import raw
from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_nodes import ClusterNode
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import ClusterFactory

pytestmark = pytest.mark.barnabas_only


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One cluster for all tests that leave it unchanged."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), broker_kind, loop=request.config.getoption("--loop"))
    made.start()
    create_topic(made, "topic")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def unharmed(cluster: Cluster) -> Iterator[None]:
    """After each test the cluster serves, no node logged a traceback, and the quorum held at most two elections. On a
    busy machine a node that waits for a third of a second counts as dead and causes an election; an attacker that can
    cause elections causes some in every second."""
    before = cluster.quorum()
    yield
    assert cluster.live == [1, 2, 3]
    after = cluster.quorum()
    assert before is not None
    assert after is not None
    assert after.leader_epoch <= before.leader_epoch + 2, "elections were held"
    count = len(cluster.metadata().partitions)
    PLAIN.produce(cluster.bootstrap, "topic", [Sample(None, b"still")])
    assert len(cluster.metadata().partitions) == count
    for node in cluster.nodes.values():
        assert "Traceback" not in node.log_text()


def _wait_for_text(nodes: list[ClusterNode], *words: str, timeout: float = 60) -> None:
    """Waits until one of the nodes has logged all of the words in one line."""

    def is_logged() -> bool:
        lines = [line for node in nodes for line in node.log_text().splitlines()]
        return any(all(word in line for word in words) for line in lines)

    try:
        eventually(is_logged, timeout)
    except AssertionError:
        logs = "\n".join(node.log_text()[-3000:] for node in nodes)
        raise AssertionError(f"no node logged {words}:\n{logs}") from None


def _bystander(cluster: Cluster) -> ClusterNode:
    """A stopped node: the last one that is not the active controller."""
    node = next(one for one in (3, 2) if one != cluster.active_controller())
    cluster.stop(node)
    return cluster.nodes[node]


def _id(node: ClusterNode) -> int:
    return int(node.settings["node.id"])


def _refused(node: ClusterNode, *words: str) -> None:
    """The node refuses to serve, and logs these words instead of a traceback."""
    node.launch()
    try:
        _wait_for(lambda: not node.alive() or all(word in node.log_text() for word in words), 60)
        stays(lambda: node.stdout_text() == "", 0.3)  # it does not serve
    finally:
        if node.alive():
            node.kill()
    text = node.log_text()
    assert "Traceback" not in text, text
    for word in words:
        assert word in text, text


def _wait_for(reached: Callable[[], bool], timeout: float) -> None:
    with suppress(AssertionError):
        eventually(reached, timeout)


def test_a_node_of_another_cluster(cluster: Cluster, fresh_cluster: ClusterFactory) -> None:
    """A broker whose directory belongs to another cluster."""
    other = fresh_cluster({1: "broker,controller", 4: "broker"}, settings={"min.insync.replicas": "1"})
    outsider = other.nodes[4]
    other_id = other.metadata().cluster_id
    other.stop(4)
    outsider.settings["controller.quorum.voters"] = cluster.nodes[1].settings["controller.quorum.voters"]
    _refused(outsider, other_id, cluster.metadata().cluster_id)


def test_a_voter_of_another_cluster(cluster: Cluster, fresh_cluster: ClusterFactory) -> None:
    """A node with a voter's id whose directory belongs to another cluster."""
    node = _bystander(cluster)
    other = fresh_cluster({_id(node): "broker,controller"}, settings={"min.insync.replicas": "1"})
    outsider = other.nodes[_id(node)]
    other.stop()
    for name in ("controller.quorum.voters", "listeners", "advertised.listeners"):
        outsider.settings[name] = node.settings[name]
    try:
        _refused(outsider, "cluster")
    finally:
        cluster.start(_id(node))


def test_a_broker_id_that_is_taken(cluster: Cluster, fresh_cluster: ClusterFactory) -> None:
    """A second node 2, a broker with its own directory, while the first is alive."""
    second = fresh_cluster({2: "broker"}, start=False).nodes[2]
    second.settings["controller.quorum.voters"] = cluster.nodes[1].settings["controller.quorum.voters"]
    _refused(second, "2")
    assert sorted(cluster.metadata().brokers) == [1, 2, 3]
    assert cluster.metadata().brokers[2] == cluster.addresses[2]


def test_a_voter_id_that_is_taken(cluster: Cluster, fresh_cluster: ClusterFactory) -> None:
    """A copy of a voter's properties with another port and directory, while the voter is alive: not taken for a voter
    with a wiped disk."""
    second = fresh_cluster({2: "broker,controller"}, start=False).nodes[2]
    second.settings["controller.quorum.voters"] = cluster.nodes[1].settings["controller.quorum.voters"]
    _refused(second, "two running nodes have node.id=2", "give one of them another node.id")
    assert "wiped" not in second.log_text()
    _wait_for_text([cluster.nodes[1]], "two running nodes have node.id=2")
    assert cluster.metadata().brokers[2] == cluster.addresses[2]


def test_voter_lists_with_different_addresses(cluster: Cluster) -> None:
    """Nodes log the difference and serve: both addresses may be right."""
    node = _bystander(cluster)
    voters = node.settings["controller.quorum.voters"]
    node.settings["controller.quorum.voters"] = voters.replace("1@127.0.0.1", "1@localhost", 1)
    try:
        cluster.start(_id(node))
        _wait_for_text([node], "controller.quorum.voters names node 1 at 127.0.0.1", "at localhost")
        _wait_for_text(
            [cluster.nodes[1]], "controller.quorum.voters names node 1 at localhost", "at 127.0.0.1"
        )
    finally:
        cluster.stop(_id(node))
        node.settings["controller.quorum.voters"] = voters
        cluster.start(_id(node))


def test_the_quorum_is_described_with_its_current_addresses(fresh_cluster: ClusterFactory) -> None:
    moved = fresh_cluster()
    moved.stop()
    for node in moved.nodes.values():
        voters = node.settings["controller.quorum.voters"]
        node.settings["controller.quorum.voters"] = voters.replace("@127.0.0.1", "@localhost")
    moved.start()
    topic = b"\x13__cluster_metadata"
    body = b"\x02" + topic + b"\x02" + struct.pack(">i", 0) + b"\0\0\0"
    with raw.RawConnection(moved.addresses[1]) as connection:
        answer = connection.ask(raw.request(55, 2, body, flexible=True))
    assert answer.count(b"\x0alocalhost") == 3
    assert b"127.0.0.1" not in answer


def test_a_controller_that_is_no_voter(cluster: Cluster, fresh_cluster: ClusterFactory) -> None:
    outsider = fresh_cluster({4: "broker,controller"}, start=False).nodes[4]
    outsider.settings["controller.quorum.voters"] = cluster.nodes[1].settings["controller.quorum.voters"]
    _refused(outsider, "controller.quorum.voters")


def test_a_wrong_voter_list(cluster: Cluster) -> None:
    """A node that restarts with a list of other voters is refused; with the right list it starts."""
    node = _bystander(cluster)
    voters = node.settings["controller.quorum.voters"]
    node.settings["controller.quorum.voters"] = voters.replace("1@", "7@", 1)
    try:
        _refused(node, "controller.quorum.voters")
    finally:
        node.settings["controller.quorum.voters"] = voters
        cluster.start(_id(node))


def test_no_voter_list(cluster: Cluster, fresh_cluster: ClusterFactory) -> None:
    """A broker that names no controllers."""
    outsider = fresh_cluster({4: "broker"}, start=False).nodes[4]
    del outsider.settings["controller.quorum.voters"]
    _refused(outsider, "controller.quorum")


def test_a_voter_list_with_the_port_of_a_broker(cluster: Cluster, fresh_cluster: ClusterFactory) -> None:
    """The node logs what is wrong, and the node that it connects to logs it once."""
    outsider = fresh_cluster({4: "broker"}, start=False).nodes[4]
    voters = ",".join(f"{node}@{address}" for node, address in cluster.addresses.items())
    outsider.settings["controller.quorum.voters"] = voters
    _refused(outsider, "PLAINTEXT is a listener for clients", "controller.quorum.voters")
    for node in cluster.nodes.values():
        assert "a frame of" not in node.log_text()
        assert node.log_text().count("a node of a cluster calls the listener PLAINTEXT") <= 1


def test_a_damaged_journal(cluster: Cluster) -> None:
    """A flipped bit in the middle of a voter's journal: the voter refuses to start, and starts when its files are
    restored."""
    node = _bystander(cluster)
    folder = node.log_dir / "__cluster_metadata-0"
    journals = sorted((one for one in folder.iterdir() if one.is_file()), key=lambda one: one.stat().st_size)
    kept = cluster.directory / "kept"
    shutil.copytree(folder, kept)
    journal = journals[-1]
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 0x55
    journal.write_bytes(content)
    try:
        _refused(node, journal.name)
    finally:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        shutil.rmtree(kept)
        cluster.start(_id(node))


def test_a_wiped_voter(cluster: Cluster) -> None:
    """The votes that it cast in earlier elections are lost with its disk, so it must not vote under its old id."""
    node = _bystander(cluster)
    kept = cluster.directory / "kept"
    shutil.move(node.log_dir, kept)
    try:
        _refused(node, f"{_id(node)}")
    finally:
        shutil.rmtree(node.log_dir, ignore_errors=True)
        shutil.move(kept, node.log_dir)
        cluster.start(_id(node))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: controller\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        bytes(64),
        b"\xff" * 64,
        struct.pack(">i", 0x7FFFFFFF) + b"x" * 100,
        struct.pack(">i", -5),
        struct.pack("<I", 1 << 31) + b"y" * 100,
        os.urandom(5000),
    ],
    ids=["http", "tls", "zeros", "ones", "oversized", "negative", "oversized-le", "random"],
)
def test_garbage_on_the_controller_port(cluster: Cluster, data: bytes) -> None:
    """The node closes the connection, and allocates nothing for the size that a frame claims."""
    leader = cluster.active_controller()
    memory = cluster.nodes[leader].resident_bytes()
    host, port = cluster.controllers[leader].rsplit(":", 1)
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(data)
            closed = connection.recv(1 << 16)
            while closed:
                closed = connection.recv(1 << 16)
    assert cluster.nodes[leader].resident_bytes() < memory + (20 << 20)


def test_idle_connections_are_closed(cluster: Cluster) -> None:
    """A hundred idle connections are closed, and the nodes' own links stay open."""
    leader = cluster.active_controller()
    host, port = cluster.controllers[leader].rsplit(":", 1)
    opened = [socket.create_connection((host, int(port)), timeout=30) for _ in range(100)]
    try:
        create_topic(cluster, "meanwhile")
        for one in opened:
            assert one.recv(1) == b""
    finally:
        for one in opened:
            one.close()


def test_a_client_on_the_controller_port(cluster: Cluster) -> None:
    """A Kafka client at the wrong port gets an error and is closed, and the log names it."""
    leader = cluster.active_controller()
    with raw.RawConnection(cluster.controllers[leader]) as connection:
        connection.send(raw.request(18, 0, b""))
        while connection.socket.recv(1 << 16):  # it may get an error, and is closed in any case
            pass
    _wait_for_text([cluster.nodes[leader]], "controller", "127.0.0.1")


def test_a_node_without_the_secret(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    """Controllers with a secret accept only nodes that have it."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("a long and well kept secret, 0123456789")
    wrong.write_text("another long and well kept secret, 0123")
    right.chmod(0o600)
    wrong.chmod(0o600)
    name = "barnabas.controller.secret.file"
    guarded = fresh_cluster(settings={name: str(right)})
    create_topic(guarded, "topic")
    assert "barnabas.controller.secret.file" not in guarded.nodes[1].log_text(), "no warning is due"
    outsider = guarded.add(4, "broker", {name: ""})
    _refused(outsider, name)
    outsider.settings[name] = str(wrong)
    _refused(outsider, "secret")
    outsider.settings[name] = str(right)
    outsider.start()
    guarded.wait_until_known()


def test_without_a_secret_there_is_one_warning(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        lines = [line for line in node.log_text().splitlines() if "barnabas.controller.secret.file" in line]
        starts = node.log_text().count("barnabas.server: running on ")
        assert lines, node.log_text()[:2000]
        assert len(lines) <= starts
