"""Brokers that prove to each other who they are, and strangers that pose as one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from barnabas.broker.cluster.inter_broker_authentication import (
    TOKEN_BYTES_MAX,
    AuthenticationRefused,
    Handshake,
    Hello,
    InterBrokerAuthentication,
)
from barnabas.broker.cluster.peer_client import InterBrokerClient
from barnabas.broker.requests.context import RequestContext
from barnabas.broker.requests.dispatch import Dispatcher
from barnabas.broker.requests.large_requests import LARGE_BODY_BYTES
from barnabas.broker.requests.registry import AUTHENTICATE_BROKER
from barnabas.broker.security.caller import ANONYMOUS, Caller
from barnabas.broker.tests.leader import TOPIC_ID, Leader
from barnabas.broker.tests.replicas import Replicas
from barnabas.broker.tests.reply import Reply
from barnabas.controller.link.auth import INTER_BROKER_LISTENER, seals
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.wire.messages.sasl_authenticate import SASL_AUTHENTICATE_RESPONSE, SaslAuthenticateRequest
from barnabas.wire.primitives import DecodeError
from barnabas.wire.schema_parser import parse_file
from compat_tests.virtual.runtime import VirtualRuntime

SECRET = b"a secret that all nodes have"
FOLLOWER, LEADER = 2, 1


# -- the proof


class Broker:
    """One side. Its metadata knows broker 2 in epoch 7."""

    def __init__(self, broker_id: int, *, secret: bytes = SECRET, **fields: Any) -> None:
        self.runtime = VirtualRuntime(broker_id + 10)
        image = MetadataImage()
        image.brokers[FOLLOWER] = BrokerRegistration(FOLLOWER, 7, bytes(16), [], {}, None, fenced=False)
        self.side = InterBrokerAuthentication(
            self.runtime,
            secret,
            cluster_id=fields.get("cluster_id", "c"),
            broker_id=broker_id,
            broker_epoch=lambda: fields.get("epoch", 7),
            listener=fields.get("listener", "INTERNAL"),
            image=lambda: image,
        )

    def serve(self, call: Reply, token: bytes, listener: str = "INTERNAL") -> Any:
        services: Any = None
        caller = Caller(ANONYMOUS, listener, "10.0.0.9")
        context = RequestContext(services, call, AUTHENTICATE_BROKER, 0, 1, "broker-2", caller)
        return self.side.serve(context, SaslAuthenticateRequest(memoryview(token)))  # type: ignore[arg-type]  # as it is decoded


def greet(follower: Broker, leader: Broker, call: Reply) -> tuple[bytes, Handshake]:
    """(the follower's hello, the follower's side of the handshake)."""
    hello = follower.side.hello(LEADER)
    return hello, follower.side.greeted(LEADER, hello, leader.serve(call, hello).auth_bytes)


def test_both_sides_prove_that_they_know_the_secret() -> None:
    follower, leader, call = Broker(FOLLOWER), Broker(LEADER), Reply()
    _, handshake = greet(follower, leader, call)
    assert call.peer.broker_id == -1, "a hello proves nothing"
    answer = leader.serve(call, handshake.prove())
    assert (answer.error_code, call.peer.broker_id) == (0, FOLLOWER)
    handshake.verify(answer.auth_bytes)


@pytest.mark.parametrize(
    ("fields", "error", "word"),
    [
        (
            {"secret": b"another secret altogether"},
            E.CLUSTER_AUTHORIZATION_FAILED,
            "barnabas.controller.secret.file",
        ),
        ({"secret": b""}, E.CLUSTER_AUTHORIZATION_FAILED, "barnabas.controller.secret.file"),
        ({"epoch": 6}, E.STALE_BROKER_EPOCH, "broker epoch 7"),
    ],
)
def test_peers_that_are_refused(
    fields: dict[str, Any], error: E, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    follower, leader = Broker(FOLLOWER, **fields), Broker(LEADER)
    for _ in range(3):
        call = Reply()
        _, handshake = greet(follower, leader, call)
        answer = leader.serve(call, handshake.prove())
        assert (answer.error_code, call.peer.broker_id) == (error, -1)
        assert word in answer.error_message
        with pytest.raises(AuthenticationRefused):
            handshake.verify(answer.auth_bytes)
    (line,) = caplog.records  # once a minute for each host
    assert "10.0.0.9" in line.getMessage()


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"cluster_id": "other"}, "cluster"),
        ({"peer_id": 3}, "calls broker 3, and this is broker 1"),
        ({"broker_id": LEADER}, "node.id=1"),
        ({"listener": "PLAINTEXT"}, "it names listener PLAINTEXT for a connection to listener INTERNAL"),
    ],
)
def test_the_fields_of_a_hello_are_checked(changed: dict[str, Any], word: str) -> None:
    """By one who knows the secret: it is not taken for another broker, nor on another listener."""
    leader, call = Broker(LEADER), Reply()
    hello = Hello("c", FOLLOWER, 7, LEADER, "INTERNAL", bytes(16))
    token = msgspec.msgpack.encode(msgspec.structs.replace(hello, **changed))
    answer = leader.serve(call, token)
    sending, _ = _seals(token, answer.auth_bytes)
    refused = leader.serve(call, sending.next(b"", b""))
    assert (refused.error_code, call.peer.broker_id) == (E.CLUSTER_AUTHORIZATION_FAILED, -1)
    assert word in refused.error_message


def _seals(dialer: bytes, listener: bytes) -> Any:
    return seals(SECRET, dialer, listener, dialed=True, purpose=INTER_BROKER_LISTENER)


def test_a_proof_counts_on_the_listener_that_it_names_alone() -> None:
    follower, leader, call = Broker(FOLLOWER), Broker(LEADER), Reply()
    hello = follower.side.hello(LEADER)
    token = leader.serve(call, hello, listener="PUBLIC").auth_bytes
    with pytest.raises(AuthenticationRefused, match="it names listener PUBLIC"):
        follower.side.greeted(LEADER, hello, token)
    sending, _ = _seals(hello, token)
    answer = leader.serve(call, sending.next(b"", b""), listener="PUBLIC")
    assert (answer.error_code, call.peer.broker_id) == (E.CLUSTER_AUTHORIZATION_FAILED, -1)


def test_brokers_change_their_listener_one_after_the_other() -> None:
    """A broker that connects to another listener than this one's own is authenticated there."""
    follower, leader, call = Broker(FOLLOWER, listener="TLS"), Broker(LEADER), Reply()
    hello = follower.side.hello(LEADER)
    handshake = follower.side.greeted(LEADER, hello, leader.serve(call, hello, listener="TLS").auth_bytes)
    answer = leader.serve(call, handshake.prove(), listener="TLS")
    assert (answer.error_code, call.peer.broker_id) == (0, FOLLOWER)
    handshake.verify(answer.auth_bytes)


def test_a_recorded_proof_is_refused() -> None:
    follower, leader, call = Broker(FOLLOWER), Broker(LEADER), Reply()
    hello, handshake = greet(follower, leader, call)
    proof = handshake.prove()
    answered = leader.serve(call, proof)
    for listener, tokens in (
        (leader, (hello, proof)),  # again
        (Broker(3), (hello, proof)),  # to another broker
        (leader, (hello, answered.auth_bytes)),  # what the leader itself has said
    ):
        replayed = Reply()
        listener.serve(replayed, tokens[0])
        answer = listener.serve(replayed, tokens[1])
        assert (answer.error_code, replayed.peer.broker_id) == (E.CLUSTER_AUTHORIZATION_FAILED, -1)


def test_a_proof_of_a_controller_link_does_not_fit() -> None:
    follower, leader, call = Broker(FOLLOWER), Broker(LEADER), Reply()
    hello = follower.side.hello(LEADER)
    answer = leader.serve(call, hello)
    sending, _ = seals(SECRET, hello, answer.auth_bytes, dialed=True)
    assert leader.serve(call, sending.next(b"", b"")).error_code == E.CLUSTER_AUTHORIZATION_FAILED


def test_a_follower_does_not_fetch_from_a_stranger() -> None:
    follower, stranger, call = Broker(FOLLOWER), Broker(LEADER, secret=b"not the cluster's secret"), Reply()
    _, handshake = greet(follower, stranger, call)
    with pytest.raises(AuthenticationRefused):
        handshake.verify(bytes(16))
    hello = follower.side.hello(LEADER)
    other = msgspec.msgpack.encode(Hello("c", 3, 7, FOLLOWER, "INTERNAL", bytes(16)))
    with pytest.raises(AuthenticationRefused, match="broker 3 answers where broker 1 is registered"):
        follower.side.greeted(LEADER, hello, other)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\xc1",
        b"\x96" * 900,
        bytes(TOKEN_BYTES_MAX + 1),
        msgspec.msgpack.encode(("c", 2, 7, 1, "INTERNAL", bytes(15))),
        msgspec.msgpack.encode(("c", -2, 7, 1, "INTERNAL", bytes(16))),
        msgspec.msgpack.encode(("c", 2, -1, 1, "INTERNAL", bytes(16))),
        msgspec.msgpack.encode(("c", 2, 1 << 63, 1, "INTERNAL" * 200, bytes(16))),
    ],
)
def test_a_malformed_hello_closes_the_connection(token: bytes) -> None:
    call = Reply()
    with pytest.raises(DecodeError):
        Broker(LEADER).serve(call, token)
    assert call.peer.broker_id == -1


def test_a_connection_is_authenticated_once() -> None:
    follower, leader, call = Broker(FOLLOWER), Broker(LEADER), Reply()
    hello, handshake = greet(follower, leader, call)
    leader.serve(call, handshake.prove())
    with pytest.raises(DecodeError):
        leader.serve(call, hello)


# -- the client's side of a connection


class Listener:
    """A broker that answers hellos and proofs. `says`: what it answers each step with, of what is right."""

    def __init__(
        self, broker: Broker, says: Callable[[int, bytes], bytes | None] = lambda _, token: token
    ) -> None:
        self.broker = broker
        self.says = says
        self.is_silent = False
        self.connections: list[Listening] = []
        self.runtime = VirtualRuntime()
        self.server = self.runtime.listen("127.0.0.1", 0, lambda: Listening(self))
        self.connected: list[float] = []
        self.lost: list[str] = []
        self.client = InterBrokerClient(
            self.runtime,
            "broker-2-fetcher-0",
            lambda: ("127.0.0.1", self.server.port),
            lambda: self.connected.append(self.runtime.monotonic()),
            self.lost.append,
            authentication=Broker(FOLLOWER).side,
            broker_id=LEADER,
            timeout_s=5,
        )
        self.client.open()
        self.runtime.advance(0)


class Listening:
    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.call = Reply()
        self.steps = 0
        self.data = b""
        self.is_lost = False
        listener.connections.append(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.listener.is_silent:
            return
        while len(self.data) >= 4 and len(self.data) >= 4 + int.from_bytes(self.data[:4], "big"):
            size = int.from_bytes(self.data[:4], "big")
            frame, self.data = self.data[4 : 4 + size], self.data[4 + size :]
            self.serve(frame)

    def serve(self, frame: bytes) -> None:
        assert int.from_bytes(frame[:2], "big") == AUTHENTICATE_BROKER, "before it is authenticated"
        name = int.from_bytes(frame[8:10], "big")
        answer = self.listener.broker.serve(self.call, frame[10 + name + 4 :])
        self.steps += 1
        token = self.listener.says(self.steps, bytes(answer.auth_bytes))
        if token is None:
            self.transport.close()
            return
        answer.auth_bytes = token
        body = b"".join(SASL_AUTHENTICATE_RESPONSE.encode(0, answer))  # type: ignore[arg-type]  # all bytes
        self.transport.write((4 + len(body)).to_bytes(4, "big") + frame[4:8] + body)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


def test_a_client_is_connected_once_both_sides_are_authenticated() -> None:
    listener = Listener(Broker(LEADER))
    (connection,) = listener.connections
    assert (connection.steps, connection.call.peer.broker_id) == (2, FOLLOWER)
    assert len(listener.connected) == 1
    assert listener.client.is_connected
    connection.transport.close()
    listener.runtime.advance(1)
    assert len(listener.connected) == len(listener.connections) == 2
    assert len(listener.lost) == 1


@pytest.mark.parametrize(
    ("broker", "says"),
    [
        (Broker(LEADER, secret=b"another secret altogether"), None),
        (Broker(LEADER), lambda step, token: token if step == 1 else bytes(16)),
        (Broker(LEADER), lambda step, token: token if step == 1 else None),
        (Broker(LEADER), lambda step, token: b"no hello"),
        (Broker(LEADER), lambda step, token: None),
        (Broker(3), None),
    ],
    ids=[
        "another secret",
        "no proof",
        "closed at the proof",
        "no hello",
        "closed at the hello",
        "another broker",
    ],
)
def test_a_client_uses_no_connection_that_is_not_authenticated(
    broker: Broker, says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(broker, says or (lambda _, token: token))
    listener.runtime.advance(60)
    assert (listener.connected, listener.lost) == ([], [])
    assert 50 < len(listener.connections) < 150, "attempts become rare"
    assert all(connection.is_lost for connection in listener.connections[:-1])
    listener.says = lambda _, token: token
    listener.broker = Broker(LEADER)
    listener.runtime.advance(2)
    assert len(listener.connected) == 1


def test_reconnecting_to_a_broker_that_never_answered_is_delayed() -> None:
    listener = Listener(Broker(LEADER))
    for _ in range(60):
        listener.connections[-1].transport.close()
        listener.runtime.advance(1)
    assert len(listener.connections) < 90


def test_a_client_is_closed_or_reconnected_while_it_authenticates() -> None:
    listener = Listener(Broker(LEADER))
    listener.is_silent = True
    listener.connections[-1].transport.close()
    listener.runtime.advance(1)
    before = listener.connections[-1]
    listener.server = listener.runtime.listen("127.0.0.1", 0, lambda: Listening(listener))
    listener.client.reconnect()
    listener.runtime.advance(0)
    assert before.is_lost
    assert not listener.connections[-1].is_lost
    listener.client.close()
    listener.runtime.advance(10)
    assert all(each.is_lost for each in listener.connections)
    assert len(listener.connected) == 1


# -- requests with a replica id


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader("/d", MemoryDisk())
    made.register(2, 3)
    made.create()
    yield made
    made.node.stop()


def fetch_as(replica_id: int, offset: int, version: int = 18, epoch: int = 102) -> FetchRequest:
    wanted = FetchPartition(0, -1, offset, -1, 0, 1 << 20)
    request = FetchRequest(
        replica_id=replica_id if version < 15 else -1,
        session_epoch=0,
        topics=[FetchTopic("t", TOPIC_ID, [wanted])],
    )
    if version >= 15:
        request.replica_state = ReplicaState(replica_id, epoch)
    return request


@pytest.mark.parametrize("version", range(4, 19))
def test_a_strangers_fetch_commits_nothing(
    leader: Leader, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    call = leader.produce("a", "b")
    caplog.clear()
    for replica_id in (2, 3):
        for _ in range(2):
            answer = leader.ask(1, version, fetch_as(replica_id, 2, version))
            assert leader.fetched(answer).error_code == E.TOPIC_AUTHORIZATION_FAILED
            assert not leader.fetched(answer).records
            assert answer.answer.session_id == 0
    assert not call.done
    assert leader.partition().log.high_watermark == 0
    assert len(caplog.records) == 1
    assert len(leader.node.services.fetch_sessions) == 0


def test_a_strangers_fetch_joins_no_isr(leader: Leader) -> None:
    leader.change(isr=[1])
    leader.ask(1, 18, fetch_as(2, 0))
    leader.run()
    assert leader.state.isr == [1]
    leader.follower(2).fetch(0)
    leader.run()
    assert leader.state.isr == [1, 2]


def test_a_broker_fetches_under_its_own_id_only(leader: Leader) -> None:
    call = leader.produce("a")
    for replica_id in (2, 3):
        leader.ask(1, 18, fetch_as(replica_id, 1, epoch=100 + replica_id), peer_broker_id=2)
    assert not call.done
    leader.follower(3).fetch(1)
    assert call.done


@pytest.mark.parametrize("epoch", [-1, 0, 101])
def test_a_fetch_names_the_broker_epoch_that_is_registered(leader: Leader, epoch: int) -> None:
    leader.change(isr=[1, 3])
    answer = leader.ask(1, 18, fetch_as(2, 0, epoch=epoch), peer_broker_id=2)
    assert leader.fetched(answer).error_code == E.NOT_LEADER_OR_FOLLOWER
    leader.run()
    assert leader.state.isr == [1, 3]


def test_a_followers_session_is_its_own(leader: Leader) -> None:
    """Others can't go on with it or end it, as followers or as consumers."""
    two = leader.follower(2)
    two.begin_session(0)
    sessions = leader.node.services.fetch_sessions
    for peer, state in ((-1, ReplicaState()), (3, ReplicaState()), (3, ReplicaState(3, 103))):
        for epoch, expected in ((1, E.FETCH_SESSION_ID_NOT_FOUND), (-1, E.NONE), (0, E.NONE)):
            request = FetchRequest(replica_state=state, session_id=two.session_id, session_epoch=epoch)
            assert leader.ask(1, 18, request, peer_broker_id=peer).answer.error_code == expected
    session = sessions.get(two.session_id)
    assert session is not None
    assert session.epoch == 1


def test_offsets_beyond_what_is_committed_are_for_replicas(leader: Leader) -> None:
    leader.produce("a", "b", acks=1)
    topics = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])]
    for replica_id, peer, expected in (
        (-1, -1, (0, 0)),
        (-2, -1, (0, 2)),  # a debugger's, as in Kafka
        (2, -1, (E.TOPIC_AUTHORIZATION_FAILED, -1)),
        (2, 3, (E.TOPIC_AUTHORIZATION_FAILED, -1)),
        (2, 2, (0, 2)),
    ):
        request = ListOffsetsRequest(replica_id=replica_id, topics=topics)
        found = leader.ask(2, 11, request, peer_broker_id=peer).answer.topics[0].partitions[0]
        assert (found.error_code, found.offset) == expected, replica_id


def test_leader_epochs_are_returned_to_replicas_and_to_consumers(leader: Leader) -> None:
    topics = [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, 0)])]
    for replica_id, peer, expected in (
        (-1, -1, 0),
        (-2, -1, 0),
        (2, -1, E.TOPIC_AUTHORIZATION_FAILED),
        (2, 2, 0),
    ):
        request = OffsetForLeaderEpochRequest(replica_id=replica_id, topics=topics)
        found = leader.ask(23, 4, request, peer_broker_id=peer).answer.topics[0].partitions[0]
        assert found.error_code == expected, replica_id


# -- over a network


class Stranger:
    """A connection to broker 1's listener."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.received = bytearray()
        self.is_lost = False
        runtime = VirtualRuntime(9, network=replicas.network, host="stranger")
        runtime.connect("h1", 9092, lambda: self, lambda error: None)
        replicas.run()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True

    def send(self, key: int, version: int, body: bytes) -> bytes:
        """The answer's body."""
        before = len(self.received)
        header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\0\1c"
        self.transport.write((len(header) + len(body)).to_bytes(4, "big") + header + body)
        self.replicas.run()
        return bytes(self.received[before + 8 :])


def test_followers_authenticate_and_replicate() -> None:
    replicas = Replicas()
    assert replicas.produce(1, "a", acks=-1) == []
    replicas.run()
    assert {len(each.messages) for each in replicas.alive.values()} == {1}


def test_a_follower_with_another_secret_replicates_nothing(caplog: pytest.LogCaptureFixture) -> None:
    replicas = Replicas()
    replicas.run()
    replicas.kill(2)
    replicas.secrets[2] = b"not the secret that the others have"
    replicas.start(2)
    replicas.tell(2)
    told = replicas.produce(1, "a", acks=-1)
    replicas.run(5)
    assert told == []
    assert replicas[2].messages == []
    assert len(replicas[3].messages) == 1
    refusals = [line for line in caplog.records if "h2: not authenticated as a broker" in line.getMessage()]
    assert len(refusals) == 1
    assert [
        line
        for line in caplog.records
        if line.levelno >= logging.WARNING and "broker-2-fetcher" in line.getMessage()
    ]


@pytest.mark.parametrize("token", [b"\xc1", bytes(5000), bytes(LARGE_BODY_BYTES)])
def test_a_malformed_proof_closes_the_connection_with_one_line(
    token: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    replicas = Replicas()
    replicas.run()
    stranger = Stranger(replicas)
    caplog.clear()
    stranger.send(AUTHENTICATE_BROKER, 0, len(token).to_bytes(4, "big") + token)
    assert stranger.is_lost
    assert len(caplog.records) == 1


def of_brokers_and_controllers() -> list[tuple[int, int]]:
    """(API key, version) of what is for controller listeners alone."""
    schemas = Path(__file__).parents[3] / "wire" / "schema"
    requests = [message for path in schemas.glob("*.txt") for message in parse_file(path).messages]
    keys = {
        (message.api_key, message.versions.first)
        for message in requests
        if message.kind == "request" and "broker" not in message.listeners
    }
    return sorted(keys | {(AUTHENTICATE_BROKER, 0)})


@pytest.mark.parametrize(("key", "version"), of_brokers_and_controllers())
def test_requests_of_brokers_and_controllers_are_refused_to_clients(
    leader: Leader, key: int, version: int
) -> None:
    """A node alone has no other brokers, so it serves no AuthenticateBroker either."""
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + bytes(50)
    dispatcher = Dispatcher(leader.node.services)
    connection: Any = None
    with pytest.raises(DecodeError, match=f"API key {key} is not served"):
        dispatcher.dispatch(connection, memoryview(frame), 0, len(frame))
