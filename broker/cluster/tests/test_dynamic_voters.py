"""Voters of real nodes: a quorum whose log names them, a node that joins it, and what the tool's requests are answered."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from barnabas.broker.cluster import quorum_member
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.tests.reply import Reply, send
from barnabas.controller.link.quorum_state import QUORUM_STATE
from barnabas.controller.operations.features import KRAFT_VERSION
from barnabas.controller.raft.departure import leave_quorum
from barnabas.controller.raft.files import JOURNAL, SNAPSHOT
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from barnabas.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from barnabas.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import VirtualWorld

FIRST = (1, 2, 3)
STATIC = "controller.quorum.voters=" + ",".join(f"{each}@n{each}:9093" for each in FIRST)
DYNAMIC = "controller.quorum.bootstrap.servers=" + ",".join(f"n{each}:9093" for each in FIRST)
ADD, REMOVE, FEATURES, DESCRIBE = 80, 81, 57, 55


class Controllers:
    """Controllers on hosts n1, n2, ...; the disks outlive the processes."""

    def __init__(self, quorum: str = DYNAMIC) -> None:
        self.network = VirtualNetwork(VirtualWorld(7))
        self.disks: dict[int, MemoryDisk] = {}
        self.runtimes: dict[int, VirtualRuntime] = {}
        self.nodes: dict[int, Node] = {}
        self.ended: list[str] = []
        self.directories: dict[int, bytes] = {}  # those that were described last
        self.starts = 0
        for node_id in FIRST:
            self.start(node_id, quorum)
        self.advance(3)

    def start(self, node_id: int, quorum: str = DYNAMIC, roles: str = "controller") -> Node:
        self.starts += 1
        runtime = VirtualRuntime(self.starts, network=self.network, host=f"n{node_id}")
        runtime.thread_delay_s = lambda: 0.001
        disk = self.disks.setdefault(node_id, MemoryDisk())
        disk.write_descriptor = self.network.send
        listeners = {"controller": f"CONTROLLER://n{node_id}:9093", "broker": f"PLAINTEXT://n{node_id}:9092"}
        settings = [
            "log.dirs=/d",
            f"node.id={node_id}",
            f"process.roles={roles}",
            quorum,
            "listeners=" + ",".join(listeners[role] for role in roles.split(",")),
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ]
        node = Node(
            BrokerConfig.load(None, {}, settings),
            runtime,
            disk,
            on_fatal=partial(self._ended, node_id),
            secret=b"a secret that all of them have",
        )
        self.runtimes[node_id], self.nodes[node_id] = runtime, node
        node.start()
        return node

    def _ended(self, node_id: int, why: str) -> None:
        self.ended.append(f"{node_id}: {why}")

    def kill(self, node_id: int) -> None:
        self.runtimes.pop(node_id).end()
        del self.nodes[node_id]
        self.disks[node_id].revive()

    def advance(self, seconds: float) -> None:
        self.network.world.run_until(self.network.world.now + seconds)

    def active(self) -> int:
        for _ in range(200):
            found = [
                node_id
                for node_id, node in self.nodes.items()
                if hasattr(node, "services") and node.services.controller.is_active
            ]
            if len(found) == 1:
                return found[0]
            self.advance(0.1)
        raise AssertionError(f"no active controller; {self.ended}")

    def ask(self, key: int, version: int, request: Any) -> Any:
        services = self.nodes[self.active()].services
        reply = send(services, key, version, request, Reply())
        for _ in range(100):
            if reply.done:
                break
            self.advance(0.05)
        (answer,) = reply.responses
        return answer

    def directory_id(self, node_id: int) -> bytes:
        return self.nodes[node_id]._kafka_metadata.directory_id

    def add(self, node_id: int, **changed: Any) -> tuple[int, str | None]:
        fields = {
            "cluster_id": None,
            "voter_id": node_id,
            "voter_directory_id": self.directory_id(node_id),
            "listeners": [Listener("CONTROLLER", f"n{node_id}", 9093)],
        }
        answer = self.ask(ADD, 1, AddRaftVoterRequest(**{**fields, **changed}))
        return answer.error_code, answer.error_message

    def remove(self, node_id: int, directory_id: bytes = b"") -> tuple[int, str | None]:
        named = directory_id or self.directory_id(node_id)
        answer = self.ask(REMOVE, 0, RemoveRaftVoterRequest(None, node_id, named))
        return answer.error_code, answer.error_message

    def describe(self) -> tuple[list[int], list[int]]:
        """Voters and observers."""
        topics = [TopicData("__cluster_metadata", [PartitionData(0)])]
        answer = self.ask(DESCRIBE, 2, DescribeQuorumRequest(topics))
        (partition,) = answer.topics[0].partitions
        voters = [each.replica_id for each in partition.current_voters]
        assert [each.node_id for each in answer.nodes] == voters
        self.directories = {
            each.replica_id: each.replica_directory_id
            for each in [*partition.current_voters, *partition.observers]
        }
        return voters, [each.replica_id for each in partition.observers]

    def upgrade(self) -> int:
        updates = [FeatureUpdateKey(feature=KRAFT_VERSION, max_version_level=1)]
        answer = self.ask(FEATURES, 2, UpdateFeaturesRequest(feature_updates=updates))
        self.advance(0.2)
        return int(answer.error_code)


def level(world: Controllers, node_id: int) -> int:
    return world.nodes[node_id].services.controller.image.features.get(KRAFT_VERSION, 0)


def test_an_older_controller_keeps_kraft_version_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would halt at the first entry that names the voters."""
    world = Controllers(STATIC)
    older = next(node_id for node_id in FIRST if node_id != world.active())
    world.kill(older)
    world.advance(1)
    updates = [FeatureUpdateKey(feature=KRAFT_VERSION, max_version_level=1)]
    reason = "The update failed for all features since the following feature had an error: Invalid update version 1 for feature kraft.version. "
    answer = world.ask(FEATURES, 2, UpdateFeaturesRequest(feature_updates=updates))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert (
        answer.error_message
        == f"{reason}controller {older} has not registered, and may not support this feature"
    )
    monkeypatch.setattr(quorum_member, "SUPPORTED_FEATURES", {})
    world.start(older, STATIC)
    world.advance(2)
    answer = world.ask(FEATURES, 2, UpdateFeaturesRequest(feature_updates=updates))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message == f"{reason}Controller {older} does not support this feature."
    monkeypatch.undo()
    world.kill(older)
    world.start(older, STATIC)
    world.advance(2)
    assert world.upgrade() == ErrorCode.NONE


def test_a_node_joins_and_is_added_and_removed() -> None:
    world = Controllers()
    assert [level(world, node_id) for node_id in FIRST] == [1, 1, 1]
    assert world.describe() == ([1, 2, 3], [])
    world.start(4)
    world.advance(1)
    assert world.describe() == ([1, 2, 3], [4])
    assert world.add(4) == (0, "NONE")
    assert world.describe() == ([1, 2, 3, 4], [])
    assert world.directories == {node_id: world.directory_id(node_id) for node_id in (1, 2, 3, 4)}
    assert world.add(4)[0] == ErrorCode.DUPLICATE_VOTER
    active = world.active()
    assert world.remove(active) == (0, "NONE"), "it answers, and resigns"
    assert world.active() != active
    left = [node_id for node_id in (1, 2, 3, 4) if node_id != active]
    world.advance(1)
    assert world.describe() == (left, [active])
    assert world.ended == []


def test_a_restart_knows_its_voters() -> None:
    """Also of a node that was removed, and of one whose address is in no configuration."""
    world = Controllers()
    world.start(4)
    world.advance(1)
    assert world.add(4) == (0, "NONE")
    removed = next(node_id for node_id in FIRST if node_id != world.active())
    assert world.remove(removed) == (0, "NONE")
    world.advance(1)
    for node_id in list(world.nodes):
        world.kill(node_id)
    for node_id in (1, 2, 3, 4):
        world.start(node_id)
    world.advance(2)
    voters = [node_id for node_id in (1, 2, 3, 4) if node_id != removed]
    assert world.describe() == (voters, [removed])
    world.kill(removed)
    world.kill(next(node_id for node_id in voters if node_id != 4))
    world.advance(2)
    assert world.describe() == (voters, []), "two of three are a majority"


def test_a_static_quorum_is_upgraded() -> None:
    world = Controllers(STATIC)
    assert world.describe() == ([1, 2, 3], [])
    assert world.add(1)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert world.remove(1)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert world.upgrade() == ErrorCode.NONE
    assert world.upgrade() == ErrorCode.NONE
    assert [level(world, node_id) for node_id in FIRST] == [1, 1, 1]
    world.start(4)
    world.advance(2)
    assert world.describe() == ([1, 2, 3], [4])
    assert world.add(4) == (0, "NONE")
    down = [FeatureUpdateKey(feature=KRAFT_VERSION, max_version_level=0, upgrade_type=3)]
    answer = world.ask(FEATURES, 2, UpdateFeaturesRequest(feature_updates=down))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message.endswith("kraft.version. Can't downgrade the version of this feature.")
    for node_id in list(world.nodes):
        world.kill(node_id)
    for node_id in FIRST:
        world.start(node_id, STATIC)
    world.start(4)
    world.advance(2)
    assert world.describe() == ([1, 2, 3, 4], []), "the log names them, and not the configuration"


def test_a_static_quorum_takes_no_more_controllers() -> None:
    world = Controllers(STATIC)
    world.start(4)
    world.advance(3)
    assert world.describe() == ([1, 2, 3], [])
    assert not hasattr(world.nodes[4], "services")


def test_a_lost_disk_is_a_new_directory() -> None:
    world = Controllers()
    lost = next(node_id for node_id in FIRST if node_id != world.active())
    old = world.directory_id(lost)
    world.kill(lost)
    del world.disks[lost]
    world.start(lost)
    world.advance(2)
    assert world.describe()[0] == [1, 2, 3], "the voter with the old directory"
    assert world.add(lost)[0] == ErrorCode.DUPLICATE_VOTER
    other = next(node_id for node_id in FIRST if node_id not in (lost, world.active()))
    world.kill(other)
    world.advance(5)
    active = [node for node in world.nodes.values() if node.services.controller.is_active]
    assert active == [], "it does not count"
    world.start(other)
    world.advance(2)
    assert world.remove(lost, old) == (0, "NONE")
    world.advance(2)
    assert world.add(lost) == (0, "NONE")
    assert world.describe() == ([1, 2, 3], [])


def test_a_voter_without_its_metadata_does_not_join() -> None:
    """`__cluster_metadata-0` was removed, and meta.properties, with the id of the directory, was not."""
    world = Controllers()
    lost = next(node_id for node_id in FIRST if node_id != world.active())
    directory_id = world.directory_id(lost)
    world.kill(lost)
    for name in (QUORUM_STATE, JOURNAL, SNAPSHOT):
        world.disks[lost].remove(f"/d/__cluster_metadata-0/barnabas/{name}")
    world.start(lost)
    world.advance(2)
    (ended,) = world.ended
    assert "this node is a voter with this metadata directory" in ended
    world.kill(lost)
    assert world.remove(lost, directory_id) == (0, "NONE")
    world.start(lost)
    world.advance(2)
    assert world.directory_id(lost) == directory_id
    assert world.add(lost) == (0, "NONE")
    assert world.describe() == ([1, 2, 3], [])
    for node_id in FIRST:
        world.kill(node_id)
    for node_id in FIRST:
        world.start(node_id)
    assert world.active()
    world.kill(next(node_id for node_id in FIRST if node_id != lost))
    world.advance(3)
    assert world.active(), "it is counted again"


def test_a_broker_calls_voters_that_were_added_later() -> None:
    world = Controllers()
    world.start(9, roles="broker")
    world.advance(2)
    for node_id in (4, 5):
        world.start(node_id)
        world.advance(1)
        assert world.add(node_id) == (0, "NONE")
    for node_id in FIRST:
        world.remove(node_id)
        world.advance(1)
    for node_id in FIRST:
        world.kill(node_id)
    world.advance(2)
    assert world.describe()[0] == [4, 5]
    links = world.nodes[9]._member.links  # type: ignore[union-attr]
    assert links.is_linked(4)
    assert links.is_linked(5)
    assert links.active_controller() in (4, 5)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (
            {"cluster_id": "other"},
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            'The given id "other" doesn\'t match the cluster id',
        ),
        ({"voter_id": -1}, ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter"),
        ({"voter_directory_id": bytes(16)}, ErrorCode.INVALID_REQUEST, "didn't include a valid voter"),
        (
            {"listeners": [Listener("X", "h", 1)]},
            ErrorCode.INVALID_REQUEST,
            "Add voter request didn't include the endpoint (Endpoints(endpoints={ListenerName(X)=h/<unresolved>:1})) for the "
            "default listener ListenerName(CONTROLLER)",
        ),
        ({"listeners": [Listener("CONTROLLER", "h", 1)] * 200}, ErrorCode.INVALID_REQUEST, "didn't include"),
        (
            {"voter_directory_id": b"x" * 16},
            ErrorCode.REQUEST_TIMED_OUT,
            "New voter ReplicaKey(id=4, directoryId=eHh4eHh4eHh4eHh4eHh4eA) is not ready to receive requests",
        ),
        ({"voter_id": 77}, ErrorCode.REQUEST_TIMED_OUT, "is not ready to receive requests"),
    ],
)
def test_what_can_not_be_added(changed: dict[str, Any], error: ErrorCode, words: str) -> None:
    world = Controllers()
    world.start(4)
    world.advance(1)
    code, text = world.add(4, **changed)
    assert code == error
    assert text is not None
    assert words in text
    assert world.describe() == ([1, 2, 3], [4])


def test_what_can_not_be_removed() -> None:
    world = Controllers()
    assert world.remove(1, bytes(16)) == (
        ErrorCode.INVALID_REQUEST,
        "Remove voter request didn't include a valid voter",
    )
    code, text = world.remove(1, b"x" * 16)
    assert code == ErrorCode.VOTER_NOT_FOUND
    assert text is not None
    assert text.startswith(
        "Cannot remove voter ReplicaKey(id=1, directoryId=eHh4eHh4eHh4eHh4eHh4eA) from the set of voters ["
    )
    for node_id in (1, 2):
        assert world.remove(node_id)[0] == ErrorCode.NONE
        world.advance(1)
    assert world.remove(3)[0] == ErrorCode.VOTER_NOT_FOUND, "the last one"


def test_an_answer_may_come_before_the_commit() -> None:
    world = Controllers()
    world.start(4)
    world.advance(1)
    active = world.active()
    for other in FIRST:
        if other != active:
            world.network.block(f"n{active}", f"n{other}")
    services = world.nodes[active].services
    request = AddRaftVoterRequest(
        None, 0, 4, world.directory_id(4), [Listener("CONTROLLER", "n4", 9093)], ack_when_committed=False
    )
    reply = send(services, ADD, 1, request, Reply())
    world.advance(0.01)
    assert reply.answer.error_code == 0


def test_a_new_quorum_of_one_survivor_names_its_voters_again() -> None:
    """`barnabas leave-quorum` on one node, and empty metadata on the others."""
    world = Controllers()
    world.start(4)
    world.advance(1)
    assert world.add(4) == (0, "NONE")
    world.advance(1)
    for node_id in list(world.nodes):
        world.kill(node_id)
    directory = "/d/__cluster_metadata-0/barnabas"
    leave_quorum(world.disks[4], directory, QUORUM_STATE)
    for node_id in FIRST:
        for name in (QUORUM_STATE, JOURNAL, SNAPSHOT):
            world.disks[node_id].remove(f"{directory}/{name}")
    servers = DYNAMIC.replace("n1:9093", "n4:9093")
    for node_id in (2, 3, 4):
        world.start(node_id, servers)
    world.advance(3)
    assert world.describe() == ([2, 3, 4], [])
    world.start(1, servers)
    world.advance(1)
    assert world.describe() == ([2, 3, 4], [1])
    assert world.add(1) == (0, "NONE")
    assert world.ended == []


def test_one_change_at_a_time() -> None:
    world = Controllers()
    world.start(4)
    world.start(5)
    world.advance(1)
    active = world.active()
    for other in FIRST:
        if other != active:
            world.network.block(f"n{active}", f"n{other}")
    services = world.nodes[active].services

    def add(node_id: int) -> Reply:
        listeners = [Listener("CONTROLLER", f"n{node_id}", 9093)]
        request = AddRaftVoterRequest(None, 0, node_id, world.directory_id(node_id), listeners)
        return send(services, ADD, 1, request, Reply())

    first, second = add(4), add(5)
    assert second.answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert second.answer.error_message == (
        "Request timed out waiting for leader to handle previous voter change request"
    )
    world.advance(0.2)
    assert not first.done, "two of four have it"
    third = add(5)
    assert third.answer.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_node_that_is_behind_is_not_added() -> None:
    world = Controllers()
    world.start(4)
    world.advance(1)
    active = world.active()
    raft = world.nodes[active]._member.raft  # type: ignore[union-attr]
    assert raft is not None
    world.network.block(f"n{active}", "n4")
    world.upgrade()
    updates = [FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=2)]
    assert world.ask(FEATURES, 2, UpdateFeaturesRequest(feature_updates=updates)).error_code == 0
    assert raft.observer_directory(4), "its link has not broken yet"
    code, text = world.add(4)
    assert code == ErrorCode.REQUEST_TIMED_OUT
    assert text is not None
    assert text.endswith("since it is lagging behind")
