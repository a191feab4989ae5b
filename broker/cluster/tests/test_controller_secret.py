"""What is said about the file with the cluster's secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cluster.controller_security import (
    check_secret,
    inter_broker_secret,
    own_secret,
    read_secret,
)
from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
from barnabas.broker.config.authorizer import STANDARD_AUTHORIZER
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.requests.context import RequestContext
from barnabas.broker.requests.registry import AUTHENTICATE_BROKER
from barnabas.broker.security.caller import ANONYMOUS, Caller
from barnabas.broker.tests.reply import Reply
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from compat_tests.virtual.runtime import VirtualRuntime

SECRET = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (0o600, ""),
        (0o400, ""),
        (0o640, ""),  # a group's, as a container's mounted secret is
        (0o644, "can be read by others (mode 0644); run: chmod 600 "),
        (0o604, "can be read by others (mode 0604)"),
        (0o620, "can be changed by others (mode 0620)"),
        (0o666, "can be read by others (mode 0666)"),
    ],
)
def test_a_secret_that_others_can_read_is_warned_about(
    mode: int, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    file.chmod(mode)
    assert read_secret(str(file)) == b"0123456789abcdef0123456789abcdef"
    said = [record.getMessage() for record in caplog.records]
    assert [says in text and str(file) in text for text in said] == ([True] if says else [])
    assert "0123456789abcdef" not in caplog.text


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "does not exist"), (b"", "is empty"), (b"\n", "is empty"), (b"short\n", "holds 5 bytes")],
)
def test_an_unusable_secret_is_an_error(content: bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        ConfigError, match=rf"barnabas\.controller\.secret\.file: {file} {says}.*openssl rand"
    ):
        read_secret(str(file))


def test_other_ways_to_have_no_secret(tmp_path: Path) -> None:
    assert read_secret(None) is None
    with pytest.raises(ConfigError, match="is empty: name"):
        read_secret("")
    with pytest.raises(ConfigError, match="can't be read"):
        read_secret(str(tmp_path))


def config(roles: str, listeners: str, **properties: str) -> BrokerConfig:
    return BrokerConfig.load(
        None,
        {},
        [
            "node.id=1",
            f"process.roles={roles}",
            f"listeners={listeners}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            *(f"{name.replace('_', '.')}={value}" for name, value in properties.items()),
        ],
    )


OTHERS = {"controller_quorum_voters": "1@a:9093,2@b:9093,3@c:9093"}
BOTH = "broker,controller"


@pytest.mark.parametrize(
    ("roles", "listeners", "properties", "named"),
    [
        (BOTH, "PLAINTEXT://127.0.0.1:9092,CONTROLLER://localhost:9093", OTHERS, ""),
        (BOTH, "PLAINTEXT://[::1]:9092,CONTROLLER://127.0.0.2:9093", OTHERS, ""),
        (BOTH, "PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093", OTHERS, "PLAINTEXT"),
        (BOTH, "PLAINTEXT://127.0.0.1:9092,CONTROLLER://10.0.0.1:9093", OTHERS, "CONTROLLER"),
        ("controller", "CONTROLLER://a:9093", OTHERS, "CONTROLLER"),
        (
            BOTH,
            "PLAINTEXT://:9092,INTERNAL://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093",
            {**OTHERS, "inter_broker_listener_name": "INTERNAL"},
            "",
        ),
        ("broker", "PLAINTEXT://:9092", {"controller_quorum_bootstrap_servers": "a:9093"}, "PLAINTEXT"),
        (BOTH, "PLAINTEXT://:9092,CONTROLLER://:9093", {"controller_quorum_voters": "1@a:9093"}, ""),
        (BOTH, "PLAINTEXT://:9092", {}, ""),
    ],
)
def test_one_of_several_nodes_that_others_can_reach_needs_the_secret(
    roles: str, listeners: str, properties: dict[str, str], named: str, tmp_path: Path
) -> None:
    made = config(roles, listeners, log_dirs=str(tmp_path), **properties)
    check_secret(made, SECRET)
    if not named:
        check_secret(made, None)
        return
    with pytest.raises(
        ConfigError, match=rf"barnabas\.controller\.secret\.file is not set.*{named}.*openssl rand"
    ):
        Node(made, VirtualRuntime()).start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("listeners", "properties", "secret", "proves"),
    [
        ("PLAINTEXT://127.0.0.1:9092", {}, SECRET, None),  # there can be no other brokers
        ("PLAINTEXT://127.0.0.1:9092", {}, None, None),
        ("PLAINTEXT://:9092,CONTROLLER://:9093", {}, None, None),  # others could only be strangers
        ("PLAINTEXT://:9092,CONTROLLER://:9093", {}, SECRET, SECRET),
        ("PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", OTHERS, None, b""),
        ("PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", OTHERS, SECRET, SECRET),
    ],
)
def test_the_secret_between_brokers(
    listeners: str, properties: dict[str, str], secret: bytes | None, proves: bytes | None
) -> None:
    assert inter_broker_secret(config(BOTH, listeners, **properties), secret) == proves


def side(broker_id: int, secret: bytes, listener: str, cluster_id: str = "c") -> InterBrokerAuthentication:
    return InterBrokerAuthentication(
        VirtualRuntime(broker_id),
        secret,
        cluster_id=cluster_id,
        broker_id=broker_id,
        broker_epoch=lambda: 1 << 40,
        listener=listener,
        image=MetadataImage,
    )


def taken_for(served: InterBrokerAuthentication, stranger: InterBrokerAuthentication) -> int:
    """The broker that a client of the listener PLAINTEXT counts as once it has tried to prove that it is one."""
    reply = Reply()
    caller = Caller(ANONYMOUS, "PLAINTEXT", "203.0.113.7")
    context = RequestContext[Any](None, reply, AUTHENTICATE_BROKER, 0, 1, None, caller)
    hello = stranger.hello(1)
    answer = served.serve(context, SaslAuthenticateRequest(hello))
    proof = stranger.greeted(1, hello, bytes(answer.auth_bytes)).prove()
    served.serve(context, SaslAuthenticateRequest(proof))
    return reply.peer.broker_id


AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER}


def test_nodes_with_an_authorizer_need_the_secret_on_the_loopback_address_too() -> None:
    """A node may do everything, so a client must not be able to pose as one."""
    listeners = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    voters = {"controller_quorum_voters": "1@127.0.0.1:9093,2@127.0.0.1:9094,3@127.0.0.1:9095"}
    check_secret(config(BOTH, listeners, **voters), None)
    with pytest.raises(ConfigError, match="could pose as another node"):
        check_secret(config(BOTH, listeners, **voters, **AUTHORIZER), None)


@pytest.mark.parametrize(("properties", "broker_id"), [({}, 2), (AUTHORIZER, -1)])
def test_a_client_of_a_node_alone_with_an_authorizer_cannot_pose_as_a_broker(
    properties: dict[str, str], broker_id: int, tmp_path: Path
) -> None:
    """Without ACLs it may do everything anyway."""
    listeners = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    given = {**properties, "log_dirs": str(tmp_path)}
    node = Node(config(BOTH, listeners, **given), VirtualRuntime())
    node.start()
    try:
        served = node.services.inter_broker_authentication
        assert served is not None
        assert taken_for(served, side(2, b"", "PLAINTEXT", node.cluster_id)) == broker_id
    finally:
        node.stop()


def test_no_stranger_links_with_a_node_alone_that_other_machines_reach() -> None:
    made = config(BOTH, "PLAINTEXT://:9092,CONTROLLER://:9093", controller_quorum_voters="1@a:9093")
    check_secret(made, None)  # it starts without a secret, as Kafka's own server.properties must
    assert own_secret(made, os.urandom) is not None, "and admits no other node"


def test_a_client_of_another_machine_cannot_pose_as_a_broker() -> None:
    made = config(
        BOTH,
        "PLAINTEXT://:9092,INTERNAL://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093",
        inter_broker_listener_name="INTERNAL",
        controller_quorum_voters="1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9096",
    )
    check_secret(made, None)  # starts without a secret
    secret = inter_broker_secret(made, None)
    assert secret is not None
    served = side(1, secret, made.inter_broker_listener)
    assert taken_for(served, side(2, b"", "PLAINTEXT")) == -1
