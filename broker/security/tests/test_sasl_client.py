"""A broker's login to another one, against the servers of the same mechanisms."""

from __future__ import annotations

from itertools import count

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.caller import Principal
from barnabas.broker.security.plain import PlainServer, PlainUsers
from barnabas.broker.security.sasl import Identity, SaslFailure
from barnabas.broker.security.sasl_client import PlainClient, ScramLogin
from barnabas.broker.security.sasl_config import (
    Authority,
    SaslListeners,
    controller_login,
    inter_broker_login,
)
from barnabas.broker.security.scram import ScramServer
from barnabas.broker.security.tests.test_scram import make
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.operations.scram import HASHES, MECHANISM_NAMES, SHA_256, SHA_512
from compat_tests.virtual.runtime import VirtualRuntime

ALICE = Identity(Principal("User", "alice"))
_numbers = count()


def random_bytes(size: int) -> bytes:
    return next(_numbers).to_bytes(size, "big")


def login(mechanism: int = SHA_256, user: str = "alice", password: str = "alice-secret") -> ScramLogin:
    (name,) = [each for each, number in MECHANISM_NAMES.items() if number == mechanism]
    return ScramLogin(name, mechanism, user, password, random_bytes)


def test_plain() -> None:
    client, server = PlainClient("alice", "secret"), PlainServer(PlainUsers({"user_alice": "secret"}))
    assert client.evaluate(server.evaluate(client.first())) is None
    assert server.identity == ALICE


@pytest.mark.parametrize("mechanism", HASHES)
def test_scram(mechanism: int) -> None:
    world, logins = make(mechanism), login(mechanism)
    for _ in range(2):
        client, server = logins.client(), ScramServer(world.credentials)
        final = client.evaluate(server.evaluate(client.first()))
        assert final is not None
        assert client.evaluate(server.evaluate(final)) is None
        assert server.identity == ALICE


def test_names_are_escaped() -> None:
    world = make()
    world.add("a=b,c", b"secret")
    client, server = login(user="a=b,c", password="secret").client(), ScramServer(world.credentials)
    final = client.evaluate(server.evaluate(client.first()))
    assert final is not None
    server.evaluate(final)
    assert server.identity == Identity(Principal("User", "a=b,c"))


def test_a_wrong_password_fails() -> None:
    client, server = login(password="wrong").client(), ScramServer(make().credentials)
    final = client.evaluate(server.evaluate(client.first()))
    assert final is not None
    with pytest.raises(SaslFailure):
        server.evaluate(final)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"r=%b,s=c2FsdA==,i=4096",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=%bx,s=c2FsdA==,i=4095",
        b"r=%bx,s=c2FsdA==,i=16385",
        b"r=%bx,s=c2FsdA==,i=999999999999",
        b"r=%bx,s=,i=4096",
        b"r=%bx,s=A,i=4096",
        b"e=other-error",
    ],
)
def test_a_server_that_is_none_is_refused(first: bytes) -> None:
    client = login().client()
    nonce = client.first().rpartition(b"r=")[2]
    with pytest.raises(SaslFailure):
        client.evaluate(first.replace(b"%b", nonce))


def test_a_server_that_does_not_know_the_credential_is_refused() -> None:
    client = login().client()
    nonce = client.first().rpartition(b"r=")[2]
    assert client.evaluate(b"r=%bx,s=c2FsdA==,i=4096" % nonce) is not None
    with pytest.raises(SaslFailure, match="proof does not fit"):
        client.evaluate(b"v=AAAA")


# -- configuration

JAAS = "listener.name.internal.plain.sasl.jaas.config"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
CLUSTER = {
    "listeners": "INTERNAL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9097",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    JAAS: f'{PLAIN} username="broker" password="hunter2";',
}


def test_the_login_of_a_broker() -> None:
    found = inter_broker_login(BrokerConfig.from_properties(CLUSTER), VirtualRuntime())
    assert found is not None
    assert found().first() == b"\0broker\0hunter2"
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"sasl.mechanism.inter.broker.protocol": "GSSAPI"},
            "sasl.mechanism.inter.broker.protocol must be included in sasl.enabled.mechanisms when SASL is used",
        ),
        ({JAAS: f'{PLAIN} username="broker" hunter2="x";'}, "needs username and password"),
        ({JAAS: f'{PLAIN} username="hunter2"'}, f"{JAAS}: JAAS config entry not terminated by semi-colon"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        inter_broker_login(BrokerConfig.from_properties({**CLUSTER, **change}), VirtualRuntime())
    assert text in str(refused.value)
    assert "hunter2" not in str(refused.value)


# -- controllers

CONTROLLER_JAAS = "listener.name.controller.scram-sha-512.sasl.jaas.config"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
CONTROLLERS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9097",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
    "listener.name.controller.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    CONTROLLER_JAAS: f'{SCRAM} username="node" password="hunter2";',
}
BROKER = {"process.roles": "broker", "node.id": "9", "listeners": "PLAINTEXT://127.0.0.1:9092"}


@pytest.mark.parametrize("changes", [{}, BROKER], ids=["controller", "broker"])
def test_the_login_to_controllers(changes: dict[str, str]) -> None:
    found = controller_login(BrokerConfig.from_properties({**CONTROLLERS, **changes}), VirtualRuntime())
    assert found is not None
    assert found().first().startswith(b"n,,n=node,r=")


@pytest.mark.parametrize(
    "changes",
    [
        {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"},
        {"controller.quorum.voters": "1@127.0.0.1:9093"},
    ],
    ids=["plaintext", "alone"],
)
def test_without_others_or_sasl_there_is_none(changes: dict[str, str]) -> None:
    assert (
        controller_login(BrokerConfig.from_properties({**CONTROLLERS, **changes}), VirtualRuntime()) is None
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sasl.mechanism.controller.protocol": "GSSAPI"}, "sasl.mechanism.controller.protocol is GSSAPI"),
        (
            {"sasl.mechanism.controller.protocol": "GSSAPI", **BROKER},
            "SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        ),
        ({"sasl.mechanism.controller.protocol": "PLAIN"}, "by SCRAM-SHA-512; it must be one of"),
        ({CONTROLLER_JAAS: f"{SCRAM};"}, f"{CONTROLLER_JAAS} needs username and password"),
    ],
)
def test_what_controllers_need_is_named(changes: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        controller_login(BrokerConfig.from_properties({**CONTROLLERS, **changes}), VirtualRuntime())
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("name", "password", "knows_users", "is_let_in"),
    [
        ("node", "hunter2", False, True),
        ("node", "of the metadata", True, True),
        ("node", "of the metadata", False, False),
        ("node", "hunter2", True, False),
        ("alice", "of the metadata", False, True),
        ("bob", "hunter2", False, False),
    ],
)
def test_controllers_know_their_own_user_before_the_metadata(
    name: str, password: str, knows_users: bool, is_let_in: bool
) -> None:
    runtime, world = VirtualRuntime(), make(SHA_512)
    for user in ("node", "alice"):
        world.add(user, b"of the metadata")
    authority = Authority(runtime, lambda: world.image, lambda: None, lambda: knows_users)
    listeners = SaslListeners(BrokerConfig.from_properties(CONTROLLERS), authority)
    server = listeners.by_name["CONTROLLER"].mechanisms["SCRAM-SHA-512"].new_server()
    client = login(SHA_512, name, password).client()
    final = client.evaluate(server.evaluate(client.first()))
    assert final is not None
    if is_let_in:
        assert client.evaluate(server.evaluate(final)) is None
        assert server.identity == Identity(Principal("User", name))
    else:
        with pytest.raises(SaslFailure):
            server.evaluate(final)
