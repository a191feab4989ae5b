"""Partitioned nodes: those that can't reach each other have no link until the network heals, also when a third one reaches both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import HELLO, IDENTITY, IGNORED, Hello, encode
from barnabas.controller.link.tests.link_nodes import PORT, LinkedNode, LinkWorld, journalled
from barnabas.controller.link.tests.test_links import Raft, echo


def cut(world: LinkWorld, one: int, other: int) -> None:
    world.network.block(f"n{one}", f"n{other}")
    world.network.block(f"n{other}", f"n{one}")


def three(world: LinkWorld) -> tuple[LinkedNode, LinkedNode, LinkedNode]:
    one, two, three_ = (world.started(node_id) for node_id in (1, 2, 3))
    world.run(1)
    return one, two, three_


@pytest.mark.parametrize("secret", [None, b"thirty-two bytes of a secret...."])
def test_partitioned_voters_are_linked_again_when_the_network_heals(secret: bytes | None) -> None:
    world = LinkWorld(secret=secret)
    one, two, other = three(world)
    rafts = Raft(one), Raft(two)
    echo(two.links)
    before = [node.links.peer(linked).number for node, linked in ((one, 2), (two, 1))]  # type: ignore[union-attr]
    cut(world, 1, 2)
    world.run_until(lambda: one.linked == [3] and two.linked == [3])
    world.run(60)
    assert (one.linked, two.linked, other.linked) == ([3], [3], [1, 2])
    assert not one.links.send(2, b"lost")
    world.network.unblock_all()
    assert world.run_until(lambda: one.linked == [2, 3] and two.linked == [1, 3]) < 4
    assert rafts[0].numbers[-1] > before[0]
    assert rafts[1].numbers[-1] > before[1]
    assert one.links.send(2, b"a message")
    assert two.links.send(1, bytes(1_280_000))
    answers: list[bytes | None] = []
    one.links.request(2, b"hello", answers.append)
    world.run(0.01)
    assert answers == [b"1:hello"]
    assert rafts[1].received_messages[-1][2] == b"a message"
    assert rafts[0].received_messages[-1][2] == bytes(1_280_000)
    events = list(one.events), list(two.events), list(other.events)
    world.run(60)
    assert (one.events, two.events, other.events) == events, "the links stay"
    assert not any(node.refusals for node in (one, two, other))


def test_a_broker_that_loses_one_voter_keeps_its_other_links() -> None:
    world = LinkWorld()
    one, _, _ = three(world)
    broker = world.started(7)
    world.run(1)
    cut(world, 1, 7)
    world.run_until(lambda: broker.linked == [2, 3] and one.linked == [2, 3])
    world.run(20)
    assert broker.linked == [2, 3]
    world.network.unblock_all()
    assert world.run_until(lambda: broker.linked == [1, 2, 3] and 7 in one.linked) < 4


def test_voters_that_reach_only_a_common_broker_have_no_link() -> None:
    world = LinkWorld(voters=2)
    one, two, broker = world.started(1), world.started(2), world.started(7)
    world.run(1)
    cut(world, 1, 2)
    world.run(10)
    assert (one.linked, two.linked) == ([7], [7])
    assert broker.linked == [1, 2]


def test_an_ended_node_is_called_again_and_refuses_connections() -> None:
    world = LinkWorld()
    one, two, _ = three(world)
    two.runtime.end()
    calls = one.dialer(2)
    assert world.run_until(lambda: calls.failures > 0) < 0.05
    world.run(20)
    assert one.linked == [3]
    assert isinstance(calls.error, ConnectionRefusedError)
    assert not one.refusals
    assert one.events == ["+2", "+3", "-2"]


def test_a_paused_node_has_no_link_until_it_resumes() -> None:
    world = LinkWorld()
    one, two, _ = three(world)
    two.runtime.hold_until(world.world.now + 10)
    world.run(9.9)
    assert one.events == ["+2", "+3", "-2"]
    world.run(1)
    assert one.linked == [2, 3]


def test_a_network_broken_in_one_direction_ends_the_link() -> None:
    world = LinkWorld()
    one, two, _ = three(world)
    world.network.block("n1", "n2")
    world.run(10)
    assert (one.linked, two.linked) == ([3], [3])
    world.network.unblock_all()
    world.run_until(lambda: one.linked == [2, 3] and two.linked == [1, 3])


@pytest.mark.parametrize("seed", range(15))
def test_after_random_partitions_all_nodes_are_linked(seed: int) -> None:
    world = LinkWorld(seed=seed, shuffles=True)
    random = world.world.random
    world.network.delay_s = lambda _source, _target: random.uniform(0.0001, 0.02)
    world.network.cuts_pieces = lambda size: random.randint(1, size)
    nodes = [world.started(node_id) for node_id in (1, 2, 3, 4, 5)]
    rafts = {node.node_id: Raft(node) for node in nodes if node.node_id < 4}
    for _ in range(8):
        for one, other in itertools.permutations(range(1, 6), 2):
            if random.random() < 0.15:
                world.network.block(f"n{one}", f"n{other}")
        world.run(random.uniform(0, 8))
        world.network.unblock_all()
        if random.random() < 0.7:
            world.run(random.uniform(0, 3))
    cut(world, 1, 2)
    world.run(12)
    assert [node.linked for node in nodes] == [[3, 4, 5], [3, 4, 5], [1, 2, 4, 5], [1, 2, 3], [1, 2, 3]]
    world.network.unblock_all()
    world.run(12)
    assert [node.linked for node in nodes] == [[2, 3, 4, 5], [1, 3, 4, 5], [1, 2, 4, 5], [1, 2, 3], [1, 2, 3]]
    for one, other in itertools.combinations((1, 2, 3), 2):
        for sender, receiver in ((one, other), (other, one)):
            assert nodes[sender - 1].links.send(receiver, b"last")
    world.run(1)
    for node_id, raft in rafts.items():
        assert raft.numbers == sorted(raft.numbers)
        others = [other for other in (1, 2, 3) if other != node_id]
        assert sorted(m[0] for m in raft.received_messages if m[2] == b"last") == others
    assert not any(node.refusals for node in nodes)


@pytest.mark.parametrize("kind", sorted(IGNORED))
@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\x01\x07\x01", bytes(100_000)])
def test_frames_of_earlier_releases_for_forwarded_links_are_dropped(kind: int, content: bytes) -> None:
    world = LinkWorld()
    three(world)
    earlier = world.started(7)
    world.run(1)
    peer = earlier.links.peer(3)
    assert peer is not None
    assert peer.send(kind, content)
    world.run(10)
    assert earlier.events == ["+1", "+2", "+3"]


def test_a_node_of_the_first_protocol_version_is_linked() -> None:
    world = LinkWorld(secret=None)
    _, _, other = three(world)
    old = world.node(7)

    class Old:
        """Speaks version 1."""

        transport: Any

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            hello = encode_frame(HELLO, encode(Hello(1, 1, "none", bytes(16))), None)
            transport.write(PREFACE + hello + encode_frame(IDENTITY, encode(old.identity), None))

        def data_received(self, data: bytes) -> None: ...

        def eof_received(self) -> bool:
            return False

        def connection_lost(self, error: Exception | None) -> None: ...

    caller = Old()
    old.runtime.connect("n3", 9093, lambda: caller, lambda error: pytest.fail(str(error)))
    world.run(0.1)
    assert other.linked == [1, 2, 7]
    peer = other.links.peer(7)
    assert peer is not None
    assert peer.version == 1


def test_nodes_with_addresses_only_are_linked_when_the_network_heals() -> None:
    world = LinkWorld()
    voters = journalled(1, 2, 3)
    targets: list[tuple[str, int, int | None]] = [(f"n{n}", PORT, None) for n in (1, 2, 3)]
    cut(world, 1, 2)
    cut(world, 1, 7)
    nodes = [
        world.start(world.node(n, voter_ids=[], bootstrap=True, journalled=voters), targets=targets)
        for n in (1, 2, 3)
    ]
    broker = world.start(world.node(7, voter_ids=[], bootstrap=True), targets=targets)
    world.run(5)
    assert [node.linked for node in (*nodes, broker)] == [[3], [3, 7], [1, 2, 7], [2, 3]]
    world.network.unblock_all()
    all_linked = [[2, 3, 7], [1, 3, 7], [1, 2, 7], [1, 2, 3]]
    assert world.run_until(lambda: [node.linked for node in (*nodes, broker)] == all_linked) < 4
