"""Links between nodes: opening, opening again, messages, requests, and the failure of pending requests."""

from __future__ import annotations

from functools import partial

import pytest

from barnabas.controller.link.connection import LinkSettings
from barnabas.controller.link.links import Links
from barnabas.controller.link.tests.link_nodes import PORT, LinkedNode, LinkWorld, journalled
from barnabas.controller.raft.voters import UNKNOWN_DIRECTORY, Directory, Voter


class Raft:
    """A RaftReceiver that keeps what it is given."""

    def __init__(self, node: LinkedNode) -> None:
        self.received_messages: list[tuple[int, int, bytes]] = []
        self.connected: dict[int, int] = {}
        self.numbers: list[int] = []
        node.links.attach_raft(self)

    def peer_connected(
        self, node_id: int, connection_number: int, directory: Directory = UNKNOWN_DIRECTORY
    ) -> None:
        assert node_id not in self.connected
        self.connected[node_id] = connection_number
        self.numbers.append(connection_number)

    def peer_disconnected(self, node_id: int) -> None:
        del self.connected[node_id]

    def received(self, node_id: int, connection_number: int, message: bytes) -> None:
        assert self.connected[node_id] == connection_number
        self.received_messages.append((node_id, connection_number, message))


def echo(links: Links) -> None:
    links.serve(lambda node_id, payload, reply: reply(b"%d:" % node_id + payload))


@pytest.mark.parametrize("secret", [None, b"thirty-two bytes of a secret...."])
def test_voters_and_brokers_link(secret: bytes | None) -> None:
    world = LinkWorld(secret=secret)
    nodes = [world.started(node_id) for node_id in (1, 2, 3, 4, 5)]
    world.run(0.2)
    assert [node.linked for node in nodes] == [[2, 3, 4, 5], [1, 3, 4, 5], [1, 2, 4, 5], [1, 2, 3], [1, 2, 3]]
    assert all(not node.refusals for node in nodes)
    numbers = [peer.number for peer in nodes[0].links.peers()]
    assert len(set(numbers)) == len(numbers)


def test_different_addresses_of_a_voter_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld()
    same = [Voter(node_id, f"n{node_id}", PORT) for node_id in (1, 2, 3)]
    other = [*same[:2], Voter(3, "n3", 9999)]
    one, two = world.started(1, configured=same), world.started(2, configured=same)
    three, nine = world.started(3, configured=other), world.started(9)
    world.run(1)
    assert [node.linked for node in (one, two, three, nine)] == [[2, 3, 9], [1, 3, 9], [1, 2, 9], [1, 2, 3]]
    said = sorted(record.getMessage() for record in caplog.records)
    text = "{}: its controller.quorum.voters names node 3 at {}, and that of node {} at {}; every node should name the same"
    assert said == [
        text.format(peer, theirs, own, mine) + " addresses"
        for peer, theirs, own, mine in (
            ("node 1", "n3:9093", 3, "n3:9999"),
            ("node 2", "n3:9093", 3, "n3:9999"),
            ("node 3", "n3:9999", 1, "n3:9093"),
            ("node 3", "n3:9999", 2, "n3:9093"),
        )
    ]


@pytest.mark.parametrize("seed", range(20))
def test_simultaneous_calls_result_in_one_link(seed: int) -> None:
    world = LinkWorld(seed=seed, shuffles=True)
    random = world.world.random
    world.network.delay_s = lambda _source, _target: random.uniform(0.0001, 0.02)
    world.network.cuts_pieces = lambda size: random.randint(1, size)
    nodes = [world.started(node_id) for node_id in (1, 2, 3)]
    rafts = [Raft(node) for node in nodes]
    world.run(3)
    assert [node.linked for node in nodes] == [[2, 3], [1, 3], [1, 2]]
    before = [list(node.events) for node in nodes]
    for node in nodes:
        for other in node.linked:
            assert node.links.send(other, b"to %d" % other)
    world.run(3)
    assert [node.events for node in nodes] == before, "the links stay"
    for node, raft in zip(nodes, rafts, strict=True):
        others = [other for other in (1, 2, 3) if other != node.node_id]
        assert sorted(m[::2] for m in raft.received_messages) == [
            (o, b"to %d" % node.node_id) for o in others
        ]
        assert raft.numbers == sorted(raft.numbers)


def test_a_voter_that_comes_back_is_linked_at_once() -> None:
    world = LinkWorld()
    nodes = {node_id: world.started(node_id) for node_id in (1, 2, 3)}
    world.run(1)
    nodes[3].runtime.end()
    assert world.run_until(lambda: nodes[1].linked == [2] and nodes[2].linked == [1]) < 0.01
    # A refused connection is reported at once, and at each attempt.
    calls = nodes[1].dialer(3)
    assert world.run_until(lambda: calls.failures > 0) < 0.05
    assert isinstance(calls.error, ConnectionRefusedError)
    world.run(5)
    assert 8 <= calls.failures <= 30
    back = world.started(3)
    assert world.run_until(lambda: nodes[1].linked == [2, 3] and nodes[2].linked == [1, 3]) < 0.05
    assert back.linked == [1, 2]
    assert nodes[1].events == ["+2", "+3", "-3", "+3"]


def test_a_broker_finds_a_voter_that_comes_back_within_half_a_second() -> None:
    world = LinkWorld()
    world.started(1), world.started(2)
    three, broker = world.started(3), world.started(7)
    world.run(1)
    three.runtime.end()
    world.run(7.3)
    assert broker.linked == [1, 2]
    world.started(3)
    assert world.run_until(lambda: broker.linked == [1, 2, 3]) < 0.65


def test_requests_are_answered_in_any_order_and_end_with_the_link() -> None:
    world = LinkWorld()
    one, two = world.started(1), world.started(2)
    world.run(1)
    waiting = []
    one.links.serve(lambda node_id, payload, reply: waiting.append((node_id, payload, reply)))
    answers: dict[bytes, bytes | None] = {}
    for payload in (b"a", b"b", b"", b"d"):
        two.links.request(1, payload, partial(answers.__setitem__, payload))
    world.run(0.01)
    assert [entry[:2] for entry in waiting] == [(2, b"a"), (2, b"b"), (2, b""), (2, b"d")]
    waiting[2][2](b"third")
    waiting[0][2](b"")
    waiting[3][2](None)
    world.run(0.01)
    assert answers == {b"": b"third", b"a": b"", b"d": None}
    one.runtime.end()
    world.run(0.01)
    assert answers[b"b"] is None
    assert len(answers) == 4
    two.links.request(1, b"late", lambda answer: answers.__setitem__(b"late", answer))
    assert answers[b"late"] is None
    waiting[1][2](b"the link is closed")


def test_what_goes_over_a_link_is_counted_at_both_ends() -> None:
    world = LinkWorld()
    one, two = world.started(1), world.started(2)
    echo(one.links)
    world.run(1)
    sent, received = two.links.traffic, one.links.traffic
    before = [sent.outgoing_bytes, received.incoming_bytes, received.outgoing_bytes, sent.incoming_bytes]
    answers: list[bytes | None] = []
    two.links.request(1, bytes(10_000), answers.append)
    world.run(0.1)
    assert answers == [b"2:" + bytes(10_000)]
    assert (sent.requests, sent.responses) == (1, 1)
    assert (received.requests, received.responses) == (0, 0)
    after = [sent.outgoing_bytes, received.incoming_bytes, received.outgoing_bytes, sent.incoming_bytes]
    out, arrived, back, returned = (new - old for new, old in zip(after, before, strict=True))
    assert out == arrived > 10_000
    assert back == returned > 10_000


def test_a_voter_may_send_requests_to_a_broker() -> None:
    world = LinkWorld()
    one, broker = world.started(1), world.started(9)
    echo(broker.links)
    world.run(1)
    answers: list[bytes | None] = []
    one.links.request(9, b"hello", answers.append)
    world.run(0.01)
    assert answers == [b"1:hello"]


def test_a_handler_that_raises_closes_only_the_link(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld()
    one, two = world.started(1), world.started(2)
    world.run(1)

    def fail(*_: object) -> None:
        raise KeyError("oops")

    one.links.serve(fail)
    answers: list[bytes | None] = []
    two.links.request(1, b"x", answers.append)
    world.run(1)
    assert answers == [None]
    assert "could not be handled" in caplog.text
    assert one.linked == [2]
    assert two.linked == [1]


def test_frames_for_a_peer_that_does_not_read_are_bounded() -> None:
    world = LinkWorld(settings=LinkSettings(queue_bytes_max=1_000_000, requests_max=50))
    one, two = world.started(1), world.started(2)
    raft = Raft(two)
    world.run(1)
    two.runtime.hold_until(world.world.now + 2)
    world.run(0.01)
    sent = 0
    while one.links.send(2, bytes(10_000)):
        sent += 1
        world.run(0.001)
        assert sent < 1000
    assert sent >= 100
    answers: list[bytes | None] = []
    one.links.request(2, bytes(10_000), answers.append)
    assert answers == [None]
    world.run(4)
    assert two.linked == [1]
    assert len(raft.received_messages) == sent
    for _ in range(60):
        two.links.serve(lambda *_: None)
        one.links.request(2, b"", answers.append)
    assert len(answers) == 11


def test_a_link_to_a_silent_peer_closes_and_opens_again() -> None:
    world = LinkWorld()
    one, two = world.started(1), world.started(2)
    world.run(10)
    assert one.events == ["+2"]
    world.network.block("n1", "n2")
    world.network.block("n2", "n1")
    assert 2 < world.run_until(lambda: one.linked == [] and two.linked == []) < 3.5
    world.network.unblock_all()
    assert world.run_until(lambda: one.linked == [2] and two.linked == [1]) < 4


def test_a_node_paused_for_ten_seconds_is_linked_again() -> None:
    world = LinkWorld()
    nodes = [world.started(node_id) for node_id in (1, 2, 3)]
    world.run(1)
    nodes[2].runtime.hold_until(world.world.now + 10)
    world.run(9.9)
    assert nodes[0].linked == [2]
    world.run(0.5)
    assert [node.linked for node in nodes] == [[2, 3], [1, 3], [1, 2]]


def test_after_its_own_pause_a_node_closes_no_link_for_silence() -> None:
    world = LinkWorld()
    one = world.start(world.node(1, settings=LinkSettings(silence_s=60)))
    two = world.started(2)
    for hold_s in (3.0, 4.1, 5.3, 8.7):
        world.run(1)
        two.runtime.hold_until(world.world.now + hold_s)
        world.run(hold_s)
    world.run(2)
    assert (one.events, two.events) == (["+2"], ["+1"])


def test_addresses_without_ids_are_learned() -> None:
    world = LinkWorld()
    targets: list[tuple[str, int, int | None]] = [(f"n{n}", PORT, None) for n in (1, 2, 3)]
    nodes = [world.start(world.node(n, voter_ids=[], bootstrap=True), targets=targets) for n in (1, 2, 3)]
    broker = world.start(world.node(9, voter_ids=[], bootstrap=True), targets=targets)
    world.run(1)
    assert [node.linked for node in nodes] == [[2, 3, 9], [1, 3, 9], [1, 2, 9]]
    assert broker.linked == [1, 2, 3]
    assert nodes[1].links.addresses() == [
        (("n1", PORT), 1, False),
        (("n2", PORT), None, True),
        (("n3", PORT), 3, False),
    ]
    assert not any(node.refusals for node in nodes)


def test_the_same_voter_under_two_addresses_has_one_link() -> None:
    world = LinkWorld()
    world.network.hosts["alias"] = world.started(1).runtime
    broker = world.start(world.node(9), targets=[("n1", PORT, 1), ("alias", PORT, None)])
    world.run(2)
    events = list(broker.events)
    assert broker.linked == [1]
    assert len(events) <= 5
    world.run(20)
    assert broker.events == events


def test_all_nodes_learn_the_leader() -> None:
    world = LinkWorld()
    nodes = {node_id: world.started(node_id) for node_id in (1, 2, 3, 9)}
    changes: list[int] = []
    nodes[9].links.leader.on_change(changes.append)
    world.run(1)
    assert nodes[9].links.active_controller() == -1
    nodes[2].links.leader.announce(4, 2)
    world.run(0.01)
    assert nodes[9].links.active_controller() == 2
    assert nodes[1].links.active_controller() == 2
    nodes[3].links.leader.announce(4, -1)  # it only does not know
    nodes[3].links.leader.announce(3, 3)  # and this was long ago
    world.run(0.01)
    assert changes == [2]
    late = world.started(8)
    world.run(0.1)
    assert late.links.active_controller() == 2
    nodes[2].links.leader.announce(4, -1)
    world.run(0.01)
    nodes[1].links.leader.announce(5, 1)
    world.run(0.01)
    assert changes == [2, -1, 1]


def test_links_of_a_formed_quorum() -> None:
    world = LinkWorld()
    voters = journalled(1, 2, 3)
    nodes = [world.started(node_id, journalled=voters) for node_id in (1, 2, 3)]
    world.run(1)
    assert [node.linked for node in nodes] == [[2, 3], [1, 3], [1, 2]]


@pytest.mark.parametrize("moment_ms", range(1, 40))
def test_no_link_opens_with_an_identity_that_has_changed_since_it_was_sent(moment_ms: int) -> None:
    """Raft counts a voter by the directory that its link names (raft/voters.py)."""
    world = LinkWorld(voters=2, seed=moment_ms, shuffles=True)
    world.network.delay_s = lambda _source, _target: world.world.random.uniform(0.001, 0.01)
    one, two = world.started(1), world.started(2)
    world.run(moment_ms / 1000)
    two.links.set_join_id(b"a joined quorum.")
    for peer in two.links.peers():
        peer.connection.close()
    world.run(1)
    assert (one.linked, two.linked) == ([2], [1])
    assert [peer.identity.join_id for peer in one.links.peers()] == [b"a joined quorum."]
