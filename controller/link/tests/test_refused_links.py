"""Refused links: the reasons that both operators get, and that other links are unaffected."""

from __future__ import annotations

import logging
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.link import messages
from barnabas.controller.link.connection import LinkSettings
from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import Hello, encode
from barnabas.controller.link.sasl import NewLinkSasl
from barnabas.controller.link.tests.link_nodes import PORT, LinkWorld, directory_of, journalled
from compat_tests.virtual.runtime import VirtualRuntime


class RawClient:
    """Sends what the test gives it, and keeps what it receives."""

    def __init__(self, world: LinkWorld, host: str = "stranger") -> None:
        self.world = world
        self.heard = b""
        self.is_closed = False
        self.transport: Any = None
        runtime = world.network.hosts.get(host)
        if not isinstance(runtime, VirtualRuntime):
            runtime = VirtualRuntime(99, network=world.network, host=host)
        runtime.connect("n1", PORT, lambda: self, lambda error: pytest.fail(str(error)))
        world.world.run_until_idle()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def say(self, content: bytes) -> None:
        self.transport.write(content)
        self.world.world.run_until_idle()


@pytest.mark.parametrize(
    ("node_id", "changes", "words"),
    [
        (
            9,
            {"cluster_id": "AnotherClustersOwnId_1"},
            "node 1 belongs to cluster MkU3OEVBNTcwNTJENDM2Qg and node 9 to AnotherClustersOwnId_1",
        ),
        (
            9,
            {"voter_ids": [1, 2]},
            "node 1 has the voters 1,2,3 (controller.quorum.voters) and node 9 has 1,2",
        ),
        (9, {"voter_ids": []}, "node 9 has no voter list: set controller.quorum.voters"),
        (
            9,
            {"roles": ["broker", "controller"]},
            "node 9 has the controller role and is not among the voters 1,2,3",
        ),
        (9, {"roles": ["spy"]}, "the identity that was sent is not valid"),
        (1, {"roles": ["broker"]}, "two running nodes have node.id=1"),
    ],
)
def test_nodes_that_do_not_belong_are_refused(
    node_id: int, changes: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "barnabas.link")
    world = LinkWorld()
    one, other = world.node(1), world.node(node_id, host="stranger", **changes)
    healthy = [world.start(world.node(2)), world.start(world.node(3))]
    world.start(one)
    world.start(other, targets=[("n1", PORT, None)])
    world.run(20)
    assert words in one.refusals[0].reason
    assert words in other.refusals[0].reason
    assert not one.refusals[0].by_peer
    assert other.refusals[0].by_peer
    assert len(other.refusals) <= 15, "it does not ask all the time"
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and words in record.getMessage()
    ]
    assert len(lines) == 2, "each side says it once"
    assert other.linked == []
    assert [node.linked for node in (one, *healthy)] == [[2, 3], [1, 3], [1, 2]]


def test_a_broker_with_the_id_of_a_voter_is_refused() -> None:
    world = LinkWorld()
    one = world.started(1)
    other = world.start(world.node(3, roles=["broker"]))
    world.run(3)
    assert "node 3 is among the voters 1,2,3 and has no controller role" in one.refusals[0].reason
    assert other.linked == []


def test_another_node_at_a_voters_address_is_refused() -> None:
    world = LinkWorld()
    one = world.started(1)
    broker = world.start(world.node(9), targets=[("n1", PORT, 2)])
    world.run(3)
    assert "names node 2 at this address, and node 1 answers there" in broker.refusals[0].reason
    assert "names node 2 at this address" in one.refusals[0].reason


def test_a_broker_among_the_controller_addresses_is_refused() -> None:
    world = LinkWorld()
    five = world.node(5)
    five.links.listen("", PORT)
    four = world.start(world.node(4), targets=[("n5", PORT, None)])
    world.run(3)
    assert "neither node 5 nor node 4 has the controller role" in four.refusals[0].reason


def test_a_wiped_voter_is_refused() -> None:
    world = LinkWorld()
    one = world.started(1, journalled=journalled(1, 2, 3))
    wiped = world.started(3, directory_id=directory_of(77))
    world.run(3)
    assert "its disk was wiped or replaced" in one.refusals[0].reason
    assert "its disk was wiped or replaced" in wiped.refusals[0].reason
    assert one.linked == []


def test_a_copy_of_a_running_voter_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """With its id and another directory it is not taken for that voter with a new disk."""
    world = LinkWorld()
    one, two = (world.started(n, journalled=journalled(1, 2, 3)) for n in (1, 2))
    three = world.started(3, journalled=journalled(1, 2, 3))
    world.run(1)
    copy = world.start(world.node(3, host="elsewhere", directory_id=directory_of(77)))
    world.run(3)
    said = "two running nodes have node.id=3: the one at n3:"
    for node in (one, two, copy):
        assert node.refusals
        assert all(refused.reason.startswith(said) for refused in node.refusals)
    assert "another has called from elsewhere" in copy.refusals[0].reason
    assert caplog.text.count("refused a link with node 3 there: two running") == 2, "once each"
    assert copy.linked == []
    assert [sorted(node.events) for node in (one, two, three)] == [["+2", "+3"], ["+1", "+3"], ["+1", "+2"]]
    three.links.close()
    world.run(5)
    assert "its disk was wiped or replaced" in one.refusals[-1].reason
    assert "its disk was wiped or replaced" in copy.refusals[-1].reason


def test_a_copy_does_not_end_the_link_of_a_paused_voter() -> None:
    world = LinkWorld()
    one = world.started(1, journalled=journalled(1, 2, 3))
    three = world.started(3, journalled=journalled(1, 2, 3))
    world.run(1)
    three.runtime.hold_until(world.world.now + 0.8)
    world.start(world.node(3, host="elsewhere", directory_id=directory_of(77)), targets=[("n1", PORT, 1)])
    world.run(3)
    assert one.refusals
    assert one.events == ["+3"]


def test_controllers_of_different_clusters_refuse_each_other() -> None:
    """As when two single nodes are to grow together."""
    world = LinkWorld()
    one, two = world.started(1), world.started(2, cluster_id="AnotherClustersOwnId_1")
    world.run(1)
    for node in (one, two):
        assert (
            "both have metadata of their own, and a quorum can begin with that of one"
            in node.refusals[0].reason
        )
        assert "log.dirs names another cluster's directory" in node.refusals[0].reason


def test_a_broker_of_another_cluster_has_another_address_or_directory() -> None:
    world = LinkWorld()
    one, nine = world.started(1), world.started(9, cluster_id="AnotherClustersOwnId_1")
    world.run(1)
    for node in (one, nine):
        assert "both have metadata" not in node.refusals[0].reason
        assert "log.dirs names another cluster's directory" in node.refusals[0].reason


def test_the_second_of_two_nodes_with_one_id_is_refused() -> None:
    world = LinkWorld()
    one, two = world.started(1), world.started(2)
    broker = world.started(9)
    world.run(1)
    second = world.start(world.node(9, host="elsewhere"))
    world.run(3)
    assert [node.linked for node in (one, two)] == [[2, 9], [1, 9]]
    assert broker.linked == [1, 2]
    assert broker.events == ["+1", "+2"]
    assert second.linked == []
    assert "two running nodes have node.id=9" in second.refusals[0].reason
    assert "two running nodes have node.id=9" in one.refusals[0].reason


@pytest.mark.parametrize("low", [False, True])
def test_the_second_of_two_voters_with_one_id_is_refused(low: bool) -> None:
    """Whichever side decides, of the links between them."""
    reused, others = (1, (2, 3)) if low else (3, (1, 2))
    world = LinkWorld()
    nodes = [world.started(node_id) for node_id in (1, 2, 3)]
    world.run(1)
    events = [list(node.events) for node in nodes]
    second = world.start(world.node(reused, host="elsewhere", directory_id=directory_of(9)))
    world.run(5)
    assert second.linked == []
    assert [node.events for node in nodes] == events
    assert "two running nodes" in second.refusals[0].reason
    assert others


def test_a_process_that_does_not_answer_a_probe_is_replaced() -> None:
    world = LinkWorld()
    one, broker = world.started(1), world.started(9)
    world.run(1)
    broker.runtime.end(power_fails=True)
    second = world.start(world.node(9))
    assert world.run_until(lambda: second.linked == [1]) < 1
    assert one.linked == [9]
    assert not one.refusals


def test_different_secrets_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld()
    one = world.started(1)
    for host, secret in (("a", b"another secret altogether"), ("b", None)):
        stranger = world.start(world.node(9, host=host, secret=secret))
        world.run(2)
        assert stranger.linked == []
        words = "barnabas.controller.secret.file"
        assert words in stranger.refusals[0].reason
        assert words in one.refusals[-1].reason
    assert not one.events


def test_without_a_secret_one_line_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld(secret=None)
    world.started(1), world.started(2)
    world.run(1)
    assert caplog.text.count("does not authenticate its callers") == 2
    assert LinkWorld().started(1) is not None
    assert caplog.text.count("does not authenticate its callers") == 2


def test_releases_without_a_common_version_are_refused() -> None:
    world = LinkWorld()
    one = world.started(1)
    client = RawClient(world)
    client.say(PREFACE + encode_frame(messages.HELLO, encode(Hello(7, 9, "secret", bytes(16))), None))
    assert "speaks versions 7 to 9 of the link protocol and the other 1 to 5" in one.refusals[0].reason
    assert b"speaks versions 7 to 9" in client.heard
    assert client.is_closed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\x00\x00\x19\x00\x03\x00\x04\x00\x00\x00\x01\x00\x05admin", "Kafka client"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP client"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS handshake"),
        (b"\x00" * 100, "does not speak the protocol"),
        (PREFACE + b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (
            PREFACE + encode_frame(messages.RAFT, b"vote for me", None),
            "a frame of kind 7 where one of kind 1 is expected",
        ),
        (PREFACE + encode_frame(99, b"", None), "unknown kind 99"),
        (PREFACE + encode_frame(messages.HELLO, b"\xc1", None), "can't be read"),
    ],
)
def test_other_protocols_are_refused(content: bytes, words: str, caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld()
    one, two = world.started(1), world.started(2)
    world.run(1)
    for _ in range(30):
        client = RawClient(world)
        client.say(content)
        assert client.is_closed
    assert one.refusals[0].code == "malformed"
    assert words in one.refusals[0].reason
    assert caplog.text.count(words) == 1, "the same is said once"
    world.run(61)
    RawClient(world).say(content)
    assert "29 times more since" in caplog.text
    assert (one.events, two.events) == (["+2"], ["+1"])


def test_a_kafka_client_gets_an_api_versions_response(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld()
    one = world.started(1)
    client = RawClient(world)
    name = b"\x00\x05admin"
    client.say(struct.pack(">ihhi", 8 + len(name), 18, 4, 77) + name)
    assert client.heard == struct.pack(">iihihhh", 16, 77, 35, 1, 18, 0, 0)
    client.heard = b""
    client.say(struct.pack(">ihhi", 8 + len(name), 18, 0, 78) + name[:3])
    client.say(name[3:])
    assert client.heard == struct.pack(">iihihhh", 16, 78, 0, 1, 18, 0, 0)
    assert not client.is_closed
    world.run(3.1)
    assert client.is_closed
    assert "Kafka client" in one.refusals[0].reason
    impatient = RawClient(world)
    impatient.say(struct.pack(">ihhi", 8 + len(name), 18, 4, 79) + name)
    impatient.say(struct.pack(">ihhi", 8 + len(name), 3, 4, 80) + name)
    assert impatient.is_closed
    assert caplog.text.count("Kafka client") == 1


def test_a_silent_caller_times_out(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld(settings=LinkSettings(handshakes_max=5))
    one = world.started(1)
    idle = [RawClient(world, f"s{n}") for n in range(5)]
    one_too_many = RawClient(world)
    assert one_too_many.is_closed
    assert "too many connections" in caplog.text
    for client in idle:
        client.say(PREFACE[:3])
    assert not any(client.is_closed for client in idle)
    world.run(3.1)
    assert all(client.is_closed for client in idle)
    assert "no link within 3 s" in caplog.text
    world.started(2)
    world.run(1)
    assert one.linked == [2]


def test_open_links_are_bounded() -> None:
    world = LinkWorld(settings=LinkSettings(connections_max=3))
    one = world.started(1)
    for node_id in range(10, 16):
        world.started(node_id)
    world.run(2)
    assert len(one.linked) == 3


def considered(world: LinkWorld) -> RawClient:
    """A process with the id of a broker that is linked with node 1 and paused, so that node 1 probes it."""
    broker = world.started(9)
    world.run(1)
    broker.runtime.hold_until(world.world.now + 2)
    client = RawClient(world)
    hello = encode_frame(messages.HELLO, encode(Hello(1, 1, "none", bytes(16))), None)
    client.say(PREFACE + hello + encode_frame(messages.IDENTITY, encode(world.identity(9)), None))
    return client


@pytest.mark.parametrize("frame_bytes", [100, 60_000, 2_000_000])
def test_a_caller_is_not_read_while_a_probe_decides(frame_bytes: int) -> None:
    world = LinkWorld(secret=None)
    one = world.started(1)
    client = considered(world)
    frame = encode_frame(messages.METADATA, bytes(frame_bytes), None)
    count = 8_000_000 // frame_bytes
    for _ in range(count):
        client.transport.write(frame)
    world.run(0.3)
    assert client.transport.get_write_buffer_size() > count * len(frame) - 300_000
    assert not client.is_closed
    world.run(3)
    assert client.transport.is_closing()
    assert one.linked == [9]


@pytest.mark.parametrize(("frame_bytes", "count"), [(1, 10_000), (6_000, 1_000)])
def test_frames_of_a_caller_held_during_a_probe_are_bounded(frame_bytes: int, count: int) -> None:
    world = LinkWorld(secret=None)
    one = world.started(1)
    client = considered(world)
    # As a transport may bring more after it has been told to pause, and all of it in one piece.
    connection = next(iter(one.links._accepted)).connection
    connection.data_received(encode_frame(messages.METADATA, bytes(frame_bytes), None) * count)
    world.run(0.1)
    assert client.is_closed
    assert b"it sends too much before" in client.heard
    assert one.linked == [9]


def test_frames_held_during_a_probe_are_handled() -> None:
    world = LinkWorld()
    old, two = world.started(1), world.started(2)
    world.run(1)
    heard: list[bytes] = []
    two.links.handle(messages.METADATA, lambda _, payload: heard.append(payload))
    old.runtime.end(power_fails=True)
    said = [bytes([number]) * 50_000 for number in range(100)]
    new = world.start(world.node(1, host="moved"), targets=[])
    new.links.add_listener(lambda peer: [peer.send(messages.METADATA, each) for each in said], lambda _: None)
    two.links.call([("moved", PORT, None)])
    world.run(0.3)
    assert new.linked == [2], "it decides"
    assert (two.events, heard) == (["+1"], [])
    world.run(0.5)
    assert (two.events, heard) == (["+1", "-1", "+1"], said)


def test_a_recorded_link_can_not_be_replayed() -> None:
    world = LinkWorld()
    one = world.node(1)
    recorded: list[bytes] = []
    accept = one.links._accept

    def listening_in(authentication: NewLinkSasl | None) -> Any:
        connection = accept(authentication)
        take = connection.data_received

        def data_received(data: bytes) -> None:
            recorded.append(bytes(data))
            take(data)

        connection.data_received = data_received
        return connection

    one.links._accept = listening_in  # type: ignore[method-assign]
    world.start(one)
    broker = world.started(9)
    world.run(1)
    assert broker.linked == [1]
    broker.runtime.end()
    world.run(1)
    assert one.linked == []
    client = RawClient(world)
    client.say(b"".join(recorded))
    assert client.is_closed
    assert one.refusals[-1].code == "authentication"
    assert one.events == ["+9", "-9"]


@given(
    content=st.lists(
        st.tuples(st.integers(0, 20), st.binary(max_size=60)).map(lambda pair: encode_frame(*pair, None))
        | st.binary(max_size=40)
        | st.just(encode_frame(messages.HELLO, encode(Hello(1, 1, "none", bytes(16))), None)),
        max_size=6,
    ),
    cuts=st.integers(1, 50),
)
def test_garbage_from_callers_does_not_affect_links(content: list[bytes], cuts: int) -> None:
    world = LinkWorld(secret=None)
    one, _ = world.started(1), world.started(2)
    world.run(0.5)
    client = RawClient(world)
    whole = PREFACE + b"".join(content)
    for start in range(0, len(whole), cuts):
        if not client.is_closed:
            client.say(whole[start : start + cuts])
    world.run(3.5)
    assert client.is_closed
    assert one.events == ["+2"]


@given(kind=st.integers(0, 20), payload=st.binary(max_size=60))
def test_garbage_on_an_open_link_closes_at_most_that_link(kind: int, payload: bytes) -> None:
    world = LinkWorld()
    one, _, broker = world.started(1), world.started(2), world.started(9)
    world.run(0.5)
    peer = broker.links.peer(1)
    assert peer is not None
    peer.send(kind, payload)
    world.run(1)
    assert one.events[:2] == ["+2", "+9"]
    assert one.linked == [2, 9]
