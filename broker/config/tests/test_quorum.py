"""The properties that say who the voters are, and what a start says when they can't be meant so."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.controller.config.validators import ConfigError

CLUSTER_LISTENERS = {"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"}


@pytest.mark.parametrize(
    ("properties", "voters", "bootstrap", "is_alone"),
    [
        ({}, {}, [], True),
        (CLUSTER_LISTENERS, {}, [], True),
        ({**CLUSTER_LISTENERS, "controller.quorum.bootstrap.servers": "a:9093"}, {}, [("a", 9093)], True),
        (
            {**CLUSTER_LISTENERS, "controller.quorum.voters": "1@a:1,2@[::1]:2"},
            {1: ("a", 1), 2: ("::1", 2)},
            [],
            False,
        ),
        (
            {**CLUSTER_LISTENERS, "controller.quorum.bootstrap.servers": "a:1,b:2"},
            {},
            [("a", 1), ("b", 2)],
            False,
        ),
        ({"process.roles": "broker", "controller.quorum.bootstrap.servers": "a:1"}, {}, [("a", 1)], False),
    ],
)
def test_the_quorum_is_read_as_kafka_reads_it(
    properties: dict[str, str],
    voters: dict[int, tuple[str, int]],
    bootstrap: list[tuple[str, int]],
    is_alone: bool,
) -> None:
    quorum = BrokerConfig.from_properties(properties).quorum
    assert (quorum.voters, quorum.bootstrap, quorum.is_alone) == (voters, bootstrap, is_alone)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "voters",
            "a:1,2@b:2",
            "'a:1' has no id before an @; an entry looks like id@host:port, such as 1@a:1",
        ),
        ("voters", "1@a:1,b@b:2", "'b@b:2' begins with 'b', which is no node id"),
        ("voters", "-1@a:1", "'-1@a:1' begins with '-1', which is no node id"),
        (
            "voters",
            "1@a:1,2@b",
            "'2@b' has no port; an entry looks like id@host:port, such as 2@10.0.0.1:9093",
        ),
        ("voters", "1@a:99999", "'1@a:99999' has a port that does not lie between 1 and 65535"),
        ("voters", "1@a:x", "'1@a:x' ends with 'x', which is no port"),
        ("voters", "1@:1", "'1@:1' has no host"),
        ("voters", "1@::1:9093", "'1@::1:9093' has an IPv6 address without brackets"),
        ("voters", "1@a:1,1@b:2", "'1@b:2' is the second with id 1"),
        ("voters", "1@a:1,2@a:1", "'2@a:1' has the address of node 1"),
        ("voters", "2@a:1,3@b:1", "does not name node.id=1"),
        ("bootstrap.servers", "a", "'a' has no port; an entry looks like host:port"),
        ("bootstrap.servers", "1@a:1", "'1@a:1' has an @"),
    ],
)
def test_an_entry_of_the_quorum_that_is_wrong_is_quoted(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.from_properties({**CLUSTER_LISTENERS, f"controller.quorum.{name}": text})
    assert str(raised.value).startswith(f"controller.quorum.{name}")
    assert words in str(raised.value)


def test_voters_and_servers_that_differ_are_warned_about() -> None:
    names = {f"controller.quorum.{name}": "" for name in ("voters", "bootstrap.servers")}
    names["controller.quorum.voters"] = "1@a:9093,2@b:2"
    names["controller.quorum.bootstrap.servers"] = "b:2,a:9093"
    assert BrokerConfig.from_properties({**CLUSTER_LISTENERS, **names}).notes == []
    names["controller.quorum.bootstrap.servers"] = "c:3"
    config = BrokerConfig.from_properties({**CLUSTER_LISTENERS, **names})
    (note,) = config.notes
    assert "controller.quorum.bootstrap.servers (c:3)" in note[1]
    assert config.quorum.voters == {1: ("a", 9093), 2: ("b", 2)}


def test_a_node_of_several_needs_a_node_id(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    text = "listeners=PLAINTEXT://a:1,CONTROLLER://a:9093\ncontroller.quorum.voters=1@a:9093,2@b:2\n"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"node\.id is missing"):
        BrokerConfig.load(file)
    file.write_text(text + "broker.id=2\n")
    assert BrokerConfig.load(file).node_id == 2


def test_a_controller_without_a_broker_has_no_listener_for_clients() -> None:
    config = BrokerConfig.from_properties(
        {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"}
    )
    assert config.listeners == []
    assert [each.port for each in config.controller_listeners] == [9093]


@pytest.mark.parametrize(
    ("voters", "listeners", "warns"),
    [
        ("1@a:9093,2@b:2", "CONTROLLER://:9093", False),
        ("1@a:9094,2@b:2", "CONTROLLER://:9093", True),
        ("1@a:9094,2@b:2", "CONTROLLER://:0", False),  # a test's
        ("1@a:9094,2@b:9093", "CONTROLLER://:9093", True),
        ("1@a:9094", "CONTROLLER://:9093", True),
    ],
)
def test_a_wrong_port_of_its_own_is_warned_about(voters: str, listeners: str, warns: bool) -> None:
    config = BrokerConfig.from_properties(
        {"listeners": f"PLAINTEXT://127.0.0.1:9092,{listeners}", "controller.quorum.voters": voters}
    )
    notes = [text for _, text in config.notes]
    assert notes == ([notes[0]] if warns else [])
    if warns:
        assert "controller.quorum.voters has node 1 at a:9094" in notes[0]
        assert "CONTROLLER has port 9093" in notes[0]


def test_a_controller_listener_behind_a_proxy_advertises_its_port() -> None:
    listeners = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093"
    config = BrokerConfig.from_properties(
        {
            "listeners": listeners,
            "advertised.listeners": "CONTROLLER://a:9094",
            "controller.quorum.voters": "1@a:9094,2@b:2",
        }
    )
    assert config.notes == []


@pytest.mark.parametrize(
    "quorum",
    [
        "controller.quorum.voters=1@host:9092,2@b:2",
        "controller.quorum.voters=1@127.0.0.1:9192,2@b:2",
        "controller.quorum.bootstrap.servers=host:9092,b:2",
    ],
)
def test_a_port_for_clients_is_refused_as_a_controllers(quorum: str) -> None:
    settings = [
        "listeners=PLAINTEXT://:9092,OTHER://127.0.0.1:9192,CONTROLLER://:9093",
        "advertised.listeners=PLAINTEXT://host:9092",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        quorum,
    ]
    with pytest.raises(
        ConfigError, match="of this node serves clients: name the port of the controller list"
    ) as raised:
        BrokerConfig.load(None, {}, settings)
    assert "CONTROLLER at port 9093" in str(raised.value)


@pytest.mark.parametrize(
    ("servers", "listeners", "is_refused"),
    [
        ("a:9093", "CONTROLLER://:9093", False),
        ("a:9094", "CONTROLLER://:9093", True),
        ("a:9094", "CONTROLLER://:0", False),
        ("a:9094,b:9093", "CONTROLLER://:9093", False),
    ],
)
def test_a_node_that_would_join_by_one_address_does_not_start_alone(
    servers: str, listeners: str, is_refused: bool
) -> None:
    settings = {
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:9092,{listeners}",
        "controller.quorum.bootstrap.servers": servers,
    }
    if is_refused:
        with pytest.raises(ConfigError, match="two of its controllers at least"):
            BrokerConfig.from_properties(settings)
    else:
        BrokerConfig.from_properties(settings)
