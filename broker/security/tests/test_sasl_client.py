"""A broker's login to another one, against the servers of the same mechanisms."""

from __future__ import annotations

from itertools import count

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.caller import Principal
from barnabas.broker.security.plain import PlainServer, PlainUsers
from barnabas.broker.security.sasl import Identity, SaslFailure
from barnabas.broker.security.sasl_client import PlainClient, ScramLogin
from barnabas.broker.security.sasl_config import inter_broker_login
from barnabas.broker.security.scram import ScramServer
from barnabas.broker.security.tests.test_scram import make
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.operations.scram import HASHES, MECHANISM_NAMES, SHA_256
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
