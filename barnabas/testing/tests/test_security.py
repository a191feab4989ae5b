"""A secured test broker: what real clients see, and what may be asked for."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.conn import create_conn
from aiokafka.errors import SaslAuthenticationFailed
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from barnabas.testing import Acl, Broker, Security
from barnabas.testing.client_settings import ClientIdentity, Login, java
from barnabas.testing.operations import RequestFailed
from barnabas.testing.security import MECHANISMS

EVERYONE = "User:ANONYMOUS"


def send_by_kafka_python(settings: dict[str, Any], value: bytes) -> None:
    producer = KafkaProducer(**settings)
    try:
        producer.send("orders", value).get(30)
    finally:
        producer.close()


def send_by_aiokafka(settings: dict[str, Any], value: bytes) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(**settings, acks="all") as producer:
            await producer.send_and_wait("orders", value)

    asyncio.run(send())


def send_by_librdkafka(settings: dict[str, Any], value: bytes) -> None:
    producer = confluent_kafka.Producer(settings)
    producer.produce("orders", value)
    assert producer.flush(30) == 0


CLIENTS: dict[str, Callable[[dict[str, Any], bytes], None]] = {
    "kafka-python": send_by_kafka_python,
    "aiokafka": send_by_aiokafka,
    "confluent-kafka": send_by_librdkafka,
}


def values(broker: Broker) -> list[bytes | None]:
    return [record.value for record in broker.records("orders")]


@pytest.mark.sockets
@pytest.mark.parametrize("library", CLIENTS)
@pytest.mark.parametrize("nodes", [1, 3])
def test_clients_with_certificates(library: Any, nodes: int) -> None:
    with Broker(security=Security(protocol="SSL", client_auth="required"), nodes=nodes) as broker:
        CLIENTS[library](broker.security.client(library, certificate="alice"), b"1")
        assert values(broker) == [b"1"]


USERS = {"alice": 'se"cr\\et', "bob": "bob"}


@pytest.mark.sockets
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("library", CLIENTS)
def test_clients_with_passwords_and_tokens(library: Any, mechanism: str) -> None:
    with Broker(security=Security(users=USERS, mechanisms=MECHANISMS)) as broker:
        CLIENTS[library](broker.security.client(library, "alice", mechanism=mechanism), b"1")
        assert values(broker) == [b"1"]


def can_log_in(broker: Broker, user: str, password: str, mechanism: str) -> bool:
    """Whether a client is let in; otherwise it gets the error of a wrong password."""
    settings = broker.security.client("aiokafka", user, password=password, mechanism=mechanism)
    del settings["bootstrap_servers"]

    async def log_in() -> bool:
        try:
            connection = await create_conn("127.0.0.1", broker.port, **settings)
        except SaslAuthenticationFailed:
            return False
        connection.close()
        return True

    return asyncio.run(log_in())


@pytest.mark.sockets
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_users_come_change_and_go(nodes: int, mechanism: str) -> None:
    security = Security(protocol="SASL_PLAINTEXT", mechanisms=[mechanism], users=USERS)
    with Broker(security=security, nodes=nodes) as broker:
        broker.create_topic("orders")
        assert can_log_in(broker, "bob", "bob", mechanism)
        assert not can_log_in(broker, "bob", "wrong", mechanism)
        broker.security.add_user("carol", "carol")
        broker.security.add_user("bob", "wrong")
        broker.security.remove_user("alice")
        assert can_log_in(broker, "carol", "carol", mechanism)
        assert can_log_in(broker, "bob", "wrong", mechanism)
        assert not can_log_in(broker, "alice", USERS["alice"], mechanism)
        assert broker.topics() == {"orders": 1}
        broker.reset()
        assert broker.security.users == ["alice", "bob"]
        assert can_log_in(broker, "alice", USERS["alice"], mechanism)
        assert can_log_in(broker, "bob", "bob", mechanism)
        assert not can_log_in(broker, "carol", "carol", mechanism)
        with pytest.raises(LookupError, match="no user carol"):
            broker.security.remove_user("carol")


@pytest.mark.sockets
def test_users_change_in_the_running_loop() -> None:
    async def scenario() -> None:
        async with Broker(security=Security(users=USERS)) as broker:
            await broker.security.add_user("carol", "carol")
            async with AIOKafkaProducer(**broker.security.client("aiokafka", user="carol")) as producer:
                await producer.send_and_wait("orders", b"1")
            await broker.reset()
            assert broker.security.users == ["alice", "bob"]

    asyncio.run(scenario())


def server_certificate(broker: Broker) -> bytes:
    """What a client gets that accepts any."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", broker.port), 30) as raw, context.wrap_socket(raw) as wrapped:
        certificate = wrapped.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


@pytest.mark.sockets
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_servers_certificate_changes(nodes: int) -> None:
    with Broker(security=Security(protocol="SSL"), nodes=nodes) as broker:
        before = server_certificate(broker)
        assert server_certificate(broker) == before
        broker.security.rotate_certificate()
        assert server_certificate(broker) != before
        settings = broker.security.client("confluent-kafka")
        assert AdminClient(settings).list_topics(timeout=30).brokers
        broker.security.rotate_certificate(is_foreign=True)
        with pytest.raises(confluent_kafka.KafkaException):
            AdminClient(settings).list_topics(timeout=1)
        broker.reset()
        assert server_certificate(broker) == before


@pytest.mark.sockets
def test_certificates_that_have_expired_or_are_of_another_authority_are_refused() -> None:
    with Broker(security=Security(protocol="SSL", client_auth="required")) as broker:
        for certificate in (
            broker.security.certificate("alice", is_expired=True),
            broker.security.certificate("alice", is_foreign=True),
        ):
            admin = AdminClient(broker.security.client("confluent-kafka", certificate=certificate))
            with pytest.raises(confluent_kafka.KafkaException):
                admin.list_topics(timeout=1)


@pytest.mark.sockets
@pytest.mark.parametrize("nodes", [1, 3])
def test_acls_are_there_from_the_first_start_and_after_a_reset(nodes: int) -> None:
    acls = [Acl(EVERYONE, "ALL", topic="ord", prefixed=True)]
    with Broker(security=Security(protocol="PLAINTEXT", acls=acls), nodes=nodes) as broker:

        def named() -> list[list[str]]:
            """The resources of all ACLs, as each node knows them."""
            return broker.call(
                lambda: [
                    sorted(acl.name for acl in node.node.services.controller.image.acls.ids)
                    for node in broker.nodes
                ]
            )

        assert named() == [["ord"]] * nodes
        broker.security.add_acls(Acl(EVERYONE, "READ", topic="others"))
        assert named() == [["ord", "others"]] * nodes
        broker.security.remove_acls(*acls)
        assert named() == [["others"]] * nodes
        broker.reset()
        assert named() == [["ord"]] * nodes


@pytest.mark.sockets
def test_an_acl_without_a_principal_type_is_refused() -> None:
    with Broker(security=Security(protocol="PLAINTEXT", acls=[])) as broker:
        with pytest.raises(RequestFailed, match="no colon"):
            broker.security.add_acls(Acl("alice", "READ", topic="orders"))
        with pytest.raises(ValueError, match="one of topic, group"):
            broker.security.add_acls(Acl(EVERYONE, "READ"))
        with pytest.raises(ValueError, match="REED"):
            broker.security.add_acls(Acl(EVERYONE, "REED", topic="orders"))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"protocol": "TLS"}, "TLS is none of PLAINTEXT"),
        ({"mechanisms": ["GSSAPI"]}, "GSSAPI is none of PLAIN"),
        ({"mechanisms": []}, "needs one of the mechanisms"),
        ({"protocol": "SSL", "users": {"alice": "secret"}}, "SSL is without"),
        ({"protocol": "SASL_PLAINTEXT", "client_auth": "required"}, "SASL_PLAINTEXT is without"),
        ({"client_auth": "yes"}, "yes is none of none"),
        ({"users": {"alice@example.com": "secret"}}, "letters, digits"),
    ],
)
def test_what_can_not_be_is_refused(wanted: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Security(**wanted)


def test_passwords_are_in_no_repr() -> None:
    security = Security(users={"alice": "se-cret"})
    shown = repr(security) + repr(Login("PLAIN", "alice", "se-cret"))
    assert "alice" in shown
    assert "se-cret" not in shown


def test_a_client_is_given_what_it_can_use() -> None:
    broker = Broker(security=Security(protocol="SSL", client_auth="required"))
    with pytest.raises(ValueError, match="need a certificate"):
        broker.security.client("java")
    with pytest.raises(ValueError, match="not of ruby"):
        broker.security.client("ruby", certificate="alice")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="there is no user bob; there are alice"):
        Broker(security=Security(users={"alice": "secret"})).security.client("java", user="bob")
    with pytest.raises(ValueError, match="open to everyone"):
        _ = Broker().security


def test_values_of_a_properties_file_are_escaped() -> None:
    identity = ClientIdentity("127.0.0.1:9092", "SASL_PLAINTEXT", None, None, Login("PLAIN", "é", 'a"\\😀'))
    assert java(identity)["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="\\u00e9" password="a\\\\"\\\\\\\\\\ud83d\\ude00";'
    )
