"""A whole node with TLS listeners: a client's certificate is the principal that ACLs name. On the virtual network."""

from __future__ import annotations

import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.tls_contexts import client_context
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.registry import request_type, response_type
from compat_tests.harness.certificates import Authority
from compat_tests.virtual.runtime import VirtualRuntime

CREATE_TOPICS, VERSION = 19, 5
AUTHORITY = Authority()
BROKER = AUTHORITY.sign("broker")


class Client:
    """One connection, on which topics are created."""

    def __init__(self, node: TlsNode, own: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._node = node
        self._transport: Any = None
        self._received = bytearray()
        self.failures: list[OSError] = []
        self.is_closed = False
        context = client_context()
        context.load_verify_locations(cadata=AUTHORITY.pem)
        if own is not None:
            context.load_cert_chain(own)
        node.runtime.connect(
            "127.0.0.1", node.port, lambda: self, self.failures.append, tls=context if tls is None else tls
        )
        node.runtime.run_until_idle()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_closed = True

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def create(self, topic: str) -> ErrorCode | None:
        """The error of creating a topic; None when no answer comes."""
        new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        body = b"".join(
            bytes(part)  # type: ignore[call-overload]
            for part in request_type(CREATE_TOPICS).encode(VERSION, CreateTopicsRequest([new], 1000))
        )
        header = struct.pack(">hhihc", CREATE_TOPICS, VERSION, 7, 1, b"c") + b"\0"
        self._transport.write(struct.pack(">i", len(header) + len(body)) + header + body)
        self._node.runtime.advance(0.1)
        if not self._received:
            return None
        (size,) = struct.unpack_from(">i", self._received)
        assert len(self._received) == size + 4
        response = response_type(CREATE_TOPICS).decode(VERSION, bytes(self._received), 9)[0]
        self._received.clear()
        return ErrorCode.of(response.topics[0].error_code)


class TlsNode:
    """A node with one SSL listener, where alice is a super user and others need ACLs."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.runtime = VirtualRuntime()
        self.directory = directory
        stores = [
            f"ssl.keystore.location={BROKER.write(directory / 'broker.pem')}",
            f"ssl.truststore.location={AUTHORITY.write_anchors(directory / 'ca.pem')}",
            "ssl.keystore.type=PEM",
            "ssl.truststore.type=PEM",
        ]
        rights = [
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:CN=alice",
        ]
        given = [
            "listeners=SSL://127.0.0.1:0",
            f"log.dirs={directory / 'data'}",
            *stores,
            *rights,
            *settings,
        ]
        self.node = Node(BrokerConfig.load(None, {}, given), self.runtime)
        self.node.start()
        self.runtime.run_until_idle()
        self.port = self.node.endpoints[0].port

    def key_store(self, name: str) -> Path:
        return AUTHORITY.sign(name).write(self.directory / f"{name}.pem")


def test_the_principal_of_a_certificate_has_its_rights(tmp_path: Path) -> None:
    world = TlsNode(tmp_path, "ssl.client.auth=requested")
    assert Client(world, world.key_store("alice")).create("of-alice") == ErrorCode.NONE
    for own in (world.key_store("bob"), None):
        assert Client(world, own).create("of-another") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.node.stop()


def test_rules_name_the_principal(tmp_path: Path) -> None:
    rule = "ssl.principal.mapping.rules=RULE:CN=(.*)/$1/L"
    world = TlsNode(tmp_path, "ssl.client.auth=required", rule, "super.users=User:alice")
    assert Client(world, world.key_store("ALICE")).create("of-alice") == ErrorCode.NONE
    world.node.stop()


def test_open_connections_outlive_a_renewal_and_new_ones_see_it(tmp_path: Path) -> None:
    world = TlsNode(tmp_path, "ssl.client.auth=required", "ssl.allow.dn.changes=true")
    alice = Client(world, world.key_store("alice"))
    assert alice.create("one") == ErrorCode.NONE
    AUTHORITY.sign("renewed").write(tmp_path / "broker.pem")
    world.runtime.advance(120)
    assert alice.create("two") == ErrorCode.NONE
    later = Client(world, world.key_store("alice"))
    assert later.create("three") == ErrorCode.NONE
    shown = later._transport.tls.getpeercert()["subject"]
    assert shown == ((("commonName", "renewed"),),)
    world.node.stop()


def test_a_client_that_does_not_trust_the_broker_sends_nothing(tmp_path: Path) -> None:
    world = TlsNode(tmp_path)
    stranger = client_context()
    stranger.load_verify_locations(cadata=Authority("other").pem)
    client = Client(world, tls=stranger)
    assert len(client.failures) == 1
    assert "certificate verify failed" in str(client.failures[0])
    world.node.stop()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ssl.keystore.location=/nowhere", "/nowhere: it can't be read"),
        ("ssl.truststore.location=/nowhere", "/nowhere: it can't be read"),
        ("ssl.principal.mapping.rules=RULE:", "ssl.principal.mapping.rules"),
        ("listener.name.ssl.ssl.keystore.type=JKS", "key store password is not specified"),
    ],
)
def test_what_is_wrong_stops_the_start_before_a_port_is_open(
    setting: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        TlsNode(tmp_path, setting)
    assert not (tmp_path / "data").exists()
