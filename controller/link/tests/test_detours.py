"""Nodes that can't reach each other, and a third one that reaches both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from barnabas.controller.link import messages
from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import Hello, encode
from barnabas.controller.link.tests.link_nodes import PORT, LinkedNode, LinkWorld, journalled
from barnabas.controller.link.tests.test_links import Raft, echo
from barnabas.controller.link.tunnel_messages import (
    WINDOW_BYTES,
    TunnelClose,
    TunnelCredit,
    TunnelOpen,
    encode_data,
)


def cut(world: LinkWorld, one: int, other: int) -> None:
    world.network.block(f"n{one}", f"n{other}")
    world.network.block(f"n{other}", f"n{one}")


def is_detour(node: LinkedNode, other: int) -> bool:
    peer = node.links.peer(other)
    return peer is not None and not peer.is_direct


def raft_on(node: LinkedNode) -> Raft:
    """As Raft is put on links that are there already."""
    raft = Raft(node)
    for peer in node.links.peers():
        if peer.identity.is_controller:
            raft.peer_connected(peer.node_id, peer.number)
    return raft


def three(world: LinkWorld) -> tuple[LinkedNode, LinkedNode, LinkedNode]:
    one, two, three_ = (world.started(node_id) for node_id in (1, 2, 3))
    world.run(1)
    return one, two, three_


@pytest.mark.parametrize("secret", [None, b"thirty-two bytes of a secret...."])
def test_voters_that_are_cut_apart_are_linked_by_the_third(secret: bytes | None) -> None:
    world = LinkWorld(secret=secret)
    one, two, relay = three(world)
    rafts = raft_on(one), raft_on(two)
    echo(two.links)
    before = [node.links.peer(other).number for node, other in ((one, 2), (two, 1))]  # type: ignore[union-attr]
    cut(world, 1, 2)
    world.run_until(lambda: one.linked == [3] and two.linked == [3])
    assert world.run_until(lambda: one.linked == [2, 3] and two.linked == [1, 3]) < 1.5
    assert is_detour(one, 2)
    assert is_detour(two, 1)
    assert relay.linked == [1, 2]
    assert relay.links.tunnels.carried == 1
    assert rafts[0].numbers[-1] > before[0]
    assert rafts[1].numbers[-1] > before[1]
    assert one.links.send(2, b"a message")
    assert two.links.send(1, bytes(5 * WINDOW_BYTES))
    answers: list[bytes | None] = []
    one.links.request(2, b"hello", answers.append)
    world.run(0.01)
    assert answers == [b"1:hello"]
    assert rafts[1].received_messages[-1][2] == b"a message"
    assert rafts[0].received_messages[-1][2] == bytes(5 * WINDOW_BYTES)
    events = list(one.events), list(two.events), list(relay.events)
    world.run(60)
    assert (one.events, two.events, relay.events) == events, "it stays"


def test_a_direct_link_takes_its_place() -> None:
    world = LinkWorld()
    one, two, relay = three(world)
    raft = raft_on(one)
    cut(world, 1, 2)
    world.run(6)
    assert is_detour(one, 2)
    world.network.unblock_all()
    assert world.run_until(lambda: one.links.is_linked_directly(2) and two.links.is_linked_directly(1)) < 4
    world.run(1)
    assert relay.links.tunnels.carried == 0
    events = list(one.events), list(two.events)
    world.run(30)
    assert (one.events, two.events) == events
    assert raft.numbers == sorted(raft.numbers)
    assert not any(node.refusals for node in (one, two, relay))


def test_a_broker_that_is_cut_off_from_one_voter() -> None:
    world = LinkWorld()
    one, _, _ = three(world)
    broker = world.started(7)
    world.run(1)
    echo(one.links)
    cut(world, 1, 7)
    world.run_until(lambda: broker.linked == [2, 3])
    assert world.run_until(lambda: broker.linked == [1, 2, 3] and 7 in one.linked) < 1.5
    answers: list[bytes | None] = []
    broker.links.request(1, b"hello", answers.append)
    world.run(0.01)
    assert answers == [b"7:hello"]


def test_no_broker_carries_a_tunnel() -> None:
    world = LinkWorld(voters=2)
    one, two, broker = world.started(1), world.started(2), world.started(7)
    world.run(1)
    cut(world, 1, 2)
    world.run(10)
    assert (one.linked, two.linked) == ([7], [7])
    assert broker.linked == [1, 2]


def test_it_ends_with_either_of_its_links() -> None:
    world = LinkWorld()
    one, two, relay = three(world)
    cut(world, 1, 2)
    world.run(6)
    relay.runtime.end()
    assert world.run_until(lambda: one.linked == [] and two.linked == []) < 0.01
    world.started(3)
    world.run_until(lambda: one.linked == [2, 3] and two.linked == [1, 3], 5)
    two.runtime.end()
    assert world.run_until(lambda: one.linked == [3]) < 0.01
    world.run(10)
    assert one.linked == [3]


def test_it_goes_by_a_way_that_is_there() -> None:
    world = LinkWorld(voters=5)
    nodes = [world.started(node_id) for node_id in range(1, 6)]
    world.run(1)
    for one, other in ((1, 5), (3, 5), (2, 5)):
        cut(world, one, other)
    world.run(8)
    assert all(node.linked == [n for n in range(1, 6) if n != node.node_id] for node in nodes)
    assert [is_detour(nodes[0], other) for other in (2, 3, 4, 5)] == [False, False, False, True]
    nodes[3].runtime.end()
    world.run(5)
    assert nodes[4].linked == [], "a tunnel does not go through a tunnel"


def test_a_node_that_is_gone_is_not_found_by_a_detour() -> None:
    world = LinkWorld()
    one, two, relay = three(world)
    two.runtime.end()
    assert world.run_until(lambda: bool(one.unreachable)) < 0.05
    world.run(20)
    assert one.linked == [3]
    assert all(isinstance(error, ConnectionRefusedError) for _, error in one.unreachable)
    assert relay.links.tunnels.carried == 0
    assert one.events == ["+2", "+3", "-2"]


def test_a_stopped_node_comes_to_no_link_by_a_detour() -> None:
    world = LinkWorld()
    one, two, _ = three(world)
    two.runtime.hold_until(world.world.now + 10)
    world.run(9.9)
    assert one.events == ["+2", "+3", "-2"]
    world.run(1)
    assert one.linked == [2, 3]
    assert one.links.is_linked_directly(2)


def test_one_way(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld()
    one, two, _ = three(world)
    world.network.block("n1", "n2")
    world.run(10)
    assert is_detour(one, 2)
    assert is_detour(two, 1)
    assert "by way of node 3" in caplog.text


@pytest.mark.parametrize("seed", range(15))
def test_whatever_is_cut_the_two_agree_in_the_end(seed: int) -> None:
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
    assert [node.linked for node in nodes] == [[2, 3, 4, 5], [1, 3, 4, 5], [1, 2, 4, 5], [1, 2, 3], [1, 2, 3]]
    for one, other in itertools.combinations((1, 2, 3), 2):
        for sender, receiver in ((one, other), (other, one)):
            assert nodes[sender - 1].links.send(receiver, b"last")
    world.run(1)
    for node_id, raft in rafts.items():
        assert raft.numbers == sorted(raft.numbers)
        others = [other for other in (1, 2, 3) if other != node_id]
        assert sorted(m[0] for m in raft.received_messages if m[2] == b"last") == others
    world.network.unblock_all()
    world.run(10)
    assert all(peer.is_direct for node in nodes for peer in node.links.peers())
    assert not any(node.refusals for node in nodes)


def test_what_waits_in_between_is_bounded() -> None:
    world = LinkWorld()
    one, two, relay = three(world)
    raft = raft_on(two)
    cut(world, 1, 2)
    world.run(6)
    two.runtime.hold_until(world.world.now + 2)
    sent = 0
    while one.links.send(2, bytes(100_000)):
        sent += 1
        world.run(0.001)
        assert sent < 1000
    assert sent > 100
    between = relay.links.peer(2)
    assert between is not None
    assert relay.links.settings.queue_bytes_max - between.connection.room <= 2 * WINDOW_BYTES
    world.run(4)
    assert two.linked == [1, 3]
    assert len([m for m in raft.received_messages if len(m[2]) == 100_000]) == sent


class Stranger:
    """A node of the tests' own, linked with node 3 as `node_id`, which says what it likes about tunnels."""

    def __init__(self, world: LinkWorld, node_id: int) -> None:
        self.node = world.start(world.node(node_id), targets=[("n3", 9093, 3)])
        world.run(1)
        self.closed: list[int] = []
        links = self.node.links
        links.handle(
            messages.TUNNEL_CLOSE,
            lambda _, payload: self.closed.append(messages.decode(payload, TunnelClose).number),
        )
        links.handle(messages.TUNNEL_DATA, lambda *_: None)
        links.handle(messages.TUNNEL_CREDIT, lambda *_: None)

    def say(self, world: LinkWorld, kind: int, content: Any) -> None:
        peer = self.node.links.peer(3)
        assert peer is not None
        peer.send(kind, content if isinstance(content, bytes) else encode(content))
        world.run(0.01)


def test_what_a_relay_is_told_is_checked() -> None:
    world = LinkWorld()
    one, _, relay = three(world)
    other = world.started(8)
    world.run(1)
    broker = Stranger(world, 7)
    number = itertools.count(1, 2)
    for source, target in ((7, 9), (7, 8), (7, 7), (6, 1), (7, 3), (3, 3)):
        opened = next(number)
        broker.say(world, messages.TUNNEL_OPEN, TunnelOpen(opened, source, target))
        assert broker.closed.pop() == opened
        assert relay.links.tunnels.carried == 0
    first, second, third = (next(number) for _ in range(3))
    for each in (first, second, third):
        broker.say(world, messages.TUNNEL_OPEN, TunnelOpen(each, 7, 1))
    assert broker.closed == [third], "two for each pair"
    assert relay.links.tunnels.carried == 2
    broker.say(world, messages.TUNNEL_DATA, encode_data(999, b"to nobody"))
    broker.say(world, messages.TUNNEL_CREDIT, TunnelCredit(first, 10_000))
    broker.say(world, messages.TUNNEL_DATA, encode_data(first, b"no link begins so"))
    assert broker.closed[1:] == [first], "its other end hangs up"
    broker.say(world, messages.TUNNEL_DATA, encode_data(second, PREFACE + bytes(WINDOW_BYTES)))
    assert broker.closed[2:] == [second]
    assert relay.links.tunnels.carried == 0
    assert broker.node.linked == [3]
    assert one.linked == [2, 3, 8]
    assert other.linked == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (messages.TUNNEL_OPEN, b"\xc1"),
        (messages.TUNNEL_OPEN, TunnelOpen(2, 7, 1)),
        (messages.TUNNEL_OPEN, TunnelOpen(-1, 7, 1)),
        (messages.TUNNEL_OPEN, TunnelOpen((1 << 32) + 1, 7, 1)),
        (messages.TUNNEL_DATA, b"abc"),
        (messages.TUNNEL_CREDIT, TunnelCredit(1, -5)),
        (messages.TUNNEL_CREDIT, TunnelCredit(1, 1 << 40)),
        (messages.TUNNEL_CLOSE, b""),
    ],
)
def test_what_makes_no_sense_costs_the_link(kind: int, content: Any) -> None:
    world = LinkWorld()
    three(world)
    broker = Stranger(world, 7)
    broker.say(world, kind, content)
    assert broker.node.events == ["+3", "-3"]
    world.run(1)
    assert broker.node.linked == [3]


def test_a_number_is_used_once() -> None:
    world = LinkWorld()
    three(world)
    broker = Stranger(world, 7)
    broker.say(world, messages.TUNNEL_OPEN, TunnelOpen(1, 7, 1))
    broker.say(world, messages.TUNNEL_OPEN, TunnelOpen(1, 7, 2))
    assert broker.node.events == ["+3", "-3"]


def test_a_release_without_tunnels_hears_of_none() -> None:
    world = LinkWorld(secret=None)
    _, _, relay = three(world)
    heard = bytearray()
    old = world.node(7)

    class Old:
        """Speaks version 1."""

        transport: Any

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            hello = encode_frame(messages.HELLO, encode(Hello(1, 1, "none", bytes(16))), None)
            transport.write(PREFACE + hello + encode_frame(messages.IDENTITY, encode(old.identity), None))

        def data_received(self, data: bytes) -> None:
            heard.extend(data)

        def eof_received(self) -> bool:
            return False

        def connection_lost(self, error: Exception | None) -> None: ...

    caller = Old()
    old.runtime.connect("n3", 9093, lambda: caller, lambda error: pytest.fail(str(error)))
    world.run(0.1)
    assert relay.linked == [1, 2, 7]
    peer = relay.links.peer(7)
    assert peer is not None
    assert peer.version == 1
    broker = Stranger(world, 1 + 7)
    broker.say(world, messages.TUNNEL_OPEN, TunnelOpen(1, 8, 7))
    assert broker.closed == [1]


def test_a_node_that_knows_addresses_alone_learns_whose_they_are() -> None:
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
    assert (
        world.run_until(
            lambda: [node.linked for node in (*nodes, broker)] == [[2, 3, 7], [1, 3, 7], [1, 2, 7], [1, 2, 3]]
        )
        < 3
    )
    assert is_detour(broker, 1)
