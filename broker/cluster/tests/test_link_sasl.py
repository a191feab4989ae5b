"""Logins by SASL on controller listeners, in a virtual world."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from functools import partial
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.cluster.link_sasl import LinkAuthentication, authentication_of_links, login_to_links
from barnabas.broker.cluster.sasl_login import SaslLogin
from barnabas.broker.network.authentication_counts import AuthenticationCounts
from barnabas.broker.security.caller import Principal
from barnabas.broker.security.json_web_tokens import UnsecuredVerifier
from barnabas.broker.security.oauthbearer import OAuthBearerServer
from barnabas.broker.security.oauthbearer_tokens import unsecured_token
from barnabas.broker.security.plain import PlainServer, PlainUsers
from barnabas.broker.security.sasl import (
    Identity,
    Mechanism,
    NewSaslServer,
    SaslFailure,
    SaslListener,
    ThreadNeeded,
)
from barnabas.broker.security.sasl_client import NewSaslClient, OAuthBearerClient, PlainClient, ScramLogin
from barnabas.broker.security.scram import OwnUser, ScramCredentials, ScramServer
from barnabas.controller.link import messages
from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import encode
from barnabas.controller.link.tests.link_nodes import PORT, LinkedNode, LinkWorld
from barnabas.controller.link.tests.test_refused_links import RawClient
from barnabas.controller.operations.scram import SHA_512
from compat_tests.virtual.runtime import VirtualRuntime

USER, PASSWORD = "node", "node-secret"
SKEW = {"unsecuredValidatorAllowableClockSkewMs": "5000"}
INVALID = "the login by SASL has failed: Authentication failed: Invalid username or password"


def plain(password: str = PASSWORD) -> NewSaslClient:
    return lambda: PlainClient(USER, password)


def listener(runtime: VirtualRuntime, max_reauth_ms: int = 0, delay_s: float = 0.1) -> SaslListener:
    own = OwnUser(SHA_512, USER, PASSWORD, runtime.random_bytes)
    credentials = ScramCredentials(
        SHA_512,
        runtime.random_bytes,
        lambda name: own.credential if name == USER else None,
        lambda _: None,
    )
    users = PlainUsers({f"user_{USER}": PASSWORD})
    servers: dict[str, NewSaslServer] = {
        "PLAIN": partial(PlainServer, users),
        "SCRAM-SHA-512": partial(ScramServer, credentials),
        "OAUTHBEARER": partial(OAuthBearerServer, UnsecuredVerifier(SKEW, runtime.time_ms)),
    }
    mechanisms = {name: Mechanism(server, max_reauth_ms) for name, server in servers.items()}
    return SaslListener(mechanisms, 1000, delay_s)


def start(
    world: LinkWorld,
    node: LinkedNode,
    login: NewSaslClient | None,
    *,
    max_reauth_ms: int = 0,
    delay_s: float = 0.1,
    listens: bool = True,
) -> LinkedNode:
    """`listens`: with a login, as all voters but those that are not up to date."""
    runtime = node.runtime
    if login is not None:
        node.links.login = login_to_links(runtime, login)
    authentication = None
    if listens:
        authentication = authentication_of_links(
            runtime, listener(runtime, max_reauth_ms, delay_s), "CONTROLLER", AuthenticationCounts()
        )
    if node.identity.is_controller:
        node.links.listen("", PORT, authentication=authentication)
    node.links.call([(f"n{voter}", PORT, voter) for voter in world.voter_ids])
    return node


def scram(world: LinkWorld) -> NewSaslClient:
    return ScramLogin("SCRAM-SHA-512", SHA_512, USER, PASSWORD, lambda size: bytes(size)).client


def oauthbearer(world: LinkWorld, lifetime_s: str = "3600") -> NewSaslClient:
    """A token that is new for each login."""
    time_ms = VirtualRuntime(1, network=world.network, host="issuer").time_ms
    options = {"unsecuredLoginStringClaim_sub": USER, "unsecuredLoginLifetimeSeconds": lifetime_s}
    fetch = unsecured_token(options, time_ms)
    return lambda: OAuthBearerClient(fetch())


@pytest.mark.parametrize(
    "make", [lambda _: plain(), scram, oauthbearer], ids=["PLAIN", "SCRAM", "OAUTHBEARER"]
)
def test_nodes_that_log_in_are_linked(make: Callable[[LinkWorld], NewSaslClient]) -> None:
    world = LinkWorld()
    one, two = (start(world, world.node(node_id), make(world)) for node_id in (1, 2))
    broker = start(world, world.node(9), make(world))
    world.run(2)
    assert (one.linked, two.linked, broker.linked) == ([2, 9], [1, 9], [1, 2])
    assert not one.refusals


def test_a_wrong_password_is_refused_with_one_line_on_each_side(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), plain())
    broker = start(world, world.node(9), plain("wrong"))
    world.run(30)
    assert (one.linked, broker.linked) == ([], [])
    assert caplog.text.count(INVALID) == 2
    assert "wrong" not in caplog.text
    assert {(each.code, each.reason) for each in one.refusals + broker.refusals} == {
        ("authentication", INVALID)
    }
    broker.links.login = login_to_links(broker.runtime, plain())
    assert world.run_until(lambda: broker.linked == [1]) < 5


def test_a_request_does_not_show_its_password() -> None:
    login = SaslLogin(PlainClient(USER, PASSWORD))
    login.first()
    request = login.answered(struct.pack(">hi", 0, 0), 0)
    assert request is not None
    assert PASSWORD.encode() in request.body
    assert PASSWORD not in repr(request)


def test_a_long_delay_of_refusals_is_cut_short() -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), plain(), delay_s=60)
    start(world, world.node(9), plain("wrong"))
    assert world.run_until(lambda: bool(one.refusals)) < 2


def test_another_mechanism_is_refused_by_name() -> None:
    world = LinkWorld(voters=1)
    start(world, world.node(1), plain())
    broker = start(world, world.node(9), lambda: ScramLogin("SCRAM-SHA-256", SHA_512, "", "", bytes).client())
    world.run_until(lambda: bool(broker.refusals))
    assert "it has PLAIN, SCRAM-SHA-512, OAUTHBEARER, not SCRAM-SHA-256" in broker.refusals[0].reason


def test_nodes_of_which_one_logs_in_are_told_so() -> None:
    world = LinkWorld(voters=2)
    one, two = start(world, world.node(1), plain()), start(world, world.node(2), None, listens=False)
    world.run(5)
    assert (one.linked, two.linked) == ([], [])
    texts = {each.reason.split(":")[0] for each in one.refusals}
    assert texts == {
        "the controller listener asks for a login by SASL, and the caller begins without",
        "the caller logs in by SASL, and the controller listener does not use it",
    }
    assert {each.reason.split(":")[0] for each in two.refusals} == texts


def test_a_login_that_can_not_begin_is_tried_again() -> None:
    world = LinkWorld(voters=1)
    start(world, world.node(1), plain())
    has_token = False

    def login() -> PlainClient:
        if not has_token:
            raise SaslFailure("there is no token yet")
        return PlainClient(USER, PASSWORD)

    broker = start(world, world.node(9), login)
    world.run(3)
    assert not broker.refusals
    has_token = True
    assert world.run_until(lambda: broker.linked == [1]) < 1


def test_a_link_outlives_its_sessions() -> None:
    world = LinkWorld(voters=2)
    one, two = (start(world, world.node(node_id), plain(), max_reauth_ms=2000) for node_id in (1, 2))
    world.run(60)
    assert (one.events, two.events) == (["+2"], ["+1"])


def test_a_link_outlives_its_tokens() -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), None)
    broker = start(world, world.node(9), oauthbearer(world, "3"))
    world.run(30)
    assert (one.events, broker.events) == (["+9"], ["+1"])


def test_a_session_that_is_not_renewed_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), None, max_reauth_ms=2000)
    broker = start(world, world.node(9), plain())
    world.run_until(lambda: broker.linked == [1])
    [peer] = broker.links.peers()
    sasl = peer.connection.sasl
    assert sasl is not None
    sasl.close()  # the node does not log in again
    assert 1 < world.run_until(lambda: one.events == ["+9", "-9"]) < 2.1
    assert "the session of its login by SASL has ended" in caplog.text
    world.run_until(lambda: broker.linked == [1])


def test_a_session_too_short_for_another_login_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = LinkWorld(voters=1)
    start(world, world.node(1), None, max_reauth_ms=900)
    broker = start(world, world.node(9), plain())
    world.run_until(lambda: broker.events == ["+1", "-1", "+1"])
    assert "the session of its login by SASL has ended" in caplog.text
    assert not broker.refusals


def kafka_request(api_key: int, body: bytes) -> bytes:
    return struct.pack(">hhih", api_key, 1, 5, -1) + body


def say(content: bytes) -> bytes:
    return encode_frame(messages.SASL, content, None)


HANDSHAKE = say(kafka_request(17, struct.pack(">h", 5) + b"PLAIN"))
TOKEN = f"\0{USER}\0{PASSWORD}".encode()
HELLO = encode_frame(messages.HELLO, encode(messages.Hello(1, 3, "secret", bytes(16))), None)
AUTHENTICATE = say(kafka_request(36, struct.pack(">i", len(TOKEN)) + TOKEN))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (say(b""), "Invalid request"),
        (say(kafka_request(18, b"")), "a request that is no login by SASL"),
        (say(kafka_request(0, b"x" * 1000)), "Invalid request"),
        (say(kafka_request(17, b"\x7f\xff")), "can't be read"),
        (HANDSHAKE + say(kafka_request(12, b"")), "Unexpected Kafka request of type HEARTBEAT"),
        (HANDSHAKE + say(kafka_request(36, b"\x7f\xff\xff\xff")), "can't be read"),
        (HANDSHAKE + AUTHENTICATE + HANDSHAKE, "a frame of kind 19 where one of kind 1 is expected"),
        (encode_frame(messages.RAFT, b"", None), "a frame of kind 7 where one of kind 19 is expected"),
    ],
)
def test_anything_else_than_a_login_is_refused(content: bytes, words: str) -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), plain())
    client = RawClient(world)
    client.say(PREFACE + content)
    world.run(1)
    assert client.is_closed
    assert words in one.refusals[0].reason


def test_nothing_is_said_behind_a_login_that_has_failed() -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), plain())
    client = RawClient(world)
    wrong = say(kafka_request(36, struct.pack(">i", 3) + b"\0a\0"))
    client.say(PREFACE + HANDSHAKE + wrong + HANDSHAKE + AUTHENTICATE)
    world.run(1)
    assert client.is_closed
    assert "a request behind the login by SASL" in one.refusals[0].reason


class User:
    """A connection."""

    peer_host = "stranger"

    def send_sasl(self, payload: bytes) -> None:
        """Sent to no one."""

    def logged_in(self) -> None:
        raise AssertionError("without a password")

    def login_failed(self, refused: messages.LinkRefused) -> None:
        """Expected."""


@given(st.lists(st.binary(max_size=60), max_size=4), st.booleans())
def test_any_bytes_are_refused(contents: list[bytes], begins_well: bool) -> None:
    runtime = VirtualRuntime()
    side = LinkAuthentication(runtime, listener(runtime), "CONTROLLER", AuthenticationCounts(), User())
    if begins_well:
        side.received(HANDSHAKE[5:])
    for content in contents:
        try:
            side.received(kafka_request(36, content) if begins_well else content)
        except messages.MalformedMessage:
            break


class SlowServer:
    """A mechanism whose one token takes a thread."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self._has_worked = False

    def evaluate(self, token: bytes) -> bytes:
        if not self._has_worked:
            raise ThreadNeeded(self._work)
        self.identity = Identity(Principal("User", token.decode()))
        return b""

    def _work(self) -> None:
        self._has_worked = True


def test_a_token_that_takes_a_thread_is_answered_when_that_has_worked() -> None:
    runtime, user, counts = VirtualRuntime(), Mock(peer_host="node"), AuthenticationCounts()
    slow = SaslListener({"PLAIN": Mechanism(SlowServer, 0)}, 1000, 0.1)
    side = LinkAuthentication(runtime, slow, "CONTROLLER", counts, user)
    side.received(HANDSHAKE[5:])
    side.received(kafka_request(36, struct.pack(">i", 5) + b"admin"))
    assert user.send_sasl.call_count == 1
    with pytest.raises(messages.MalformedMessage, match="a request behind the login"):
        side.received(HANDSHAKE[5:])
    runtime.run_until_idle()
    assert user.send_sasl.call_count == 2
    user.logged_in.assert_called_once_with()
    assert counts.successful == 1


def test_a_login_is_no_proof_of_the_secret() -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), plain())
    stranger = start(world, world.node(9, secret=b"another secret, which is long"), plain())
    world.run(3)
    assert (one.linked, stranger.linked) == ([], [])
    assert "barnabas.controller.secret.file" in one.refusals[0].reason


def test_an_open_link_without_logins_takes_none() -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), None, listens=False)
    broker = start(world, world.node(9), None)
    world.run_until(lambda: broker.linked == [1])
    [peer] = broker.links.peers()
    peer.send(messages.SASL, b"")
    world.run_until(lambda: "-9" in one.events)


def test_an_expired_token_opens_no_link() -> None:
    """Within the clock skew a login with it succeeds, for a session of no time: what comes together with it is not served."""
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), None)
    token = oauthbearer(world, "1")().first()
    world.run(3)
    client = RawClient(world)
    choice = say(kafka_request(17, struct.pack(">h", 11) + b"OAUTHBEARER"))
    client.say(PREFACE + choice + say(kafka_request(36, struct.pack(">i", len(token)) + token)) + HELLO)
    assert client.is_closed
    assert b"secret" not in client.heard, "the hello is not answered"
    assert [each.reason for each in one.refusals] == [
        "the login by SASL has failed: its token has expired by the clock of this node"
    ]


def test_the_hello_comes_behind_the_login() -> None:
    world = LinkWorld(voters=1)
    one = start(world, world.node(1), plain())
    client = RawClient(world)
    client.say(PREFACE + HELLO)
    assert b"asks for a login by SASL" in client.heard
    assert "begins without" in one.refusals[0].reason
