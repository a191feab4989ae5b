"""nats.* broker properties: what connections they make, what is refused at the start, and what is shown of them."""

from __future__ import annotations

import re
import subprocess
import sys
from urllib.parse import quote

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.describe import broker_entries
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.extension import ConfigTables
from barnabas.extensions import EXTENSIONS
from barnabas.nats.configs import BROKER_TABLE, TOPIC_TABLE, shown_servers
from barnabas.nats.connection_configs import nats_connections

SECRET = "s3cr/t-p@ss"
IN_ADDRESS = quote(SECRET, safe="")
GIVEN = {
    "nats.servers": "nats://127.0.0.1:4222, b:5222",
    "nats.user": "ingest",
    "nats.password": SECRET,
    "nats.connection.east.servers": f"tls://me:{IN_ADDRESS}@east",
    "nats.connection.east.tls.ca.file": "/etc/ca.pem",
    "nats.connection.east.ping.interval.ms": "1500",
    "nats.connection.west-1.servers": "west",
    "nats.connection.west-1.token": SECRET,
}


def test_connections_by_name() -> None:
    found = nats_connections({**GIVEN, "num.partitions": "3"})
    assert list(found) == ["", "east", "west-1"]
    default, east, west = found.values()
    assert [str(server) for server in default.servers] == ["127.0.0.1:4222", "b:5222"]
    assert (default.user, default.password.value, default.ping_interval_s) == ("ingest", SECRET, 20.0)
    assert (east.name, east.user, east.tls_ca_file, east.ping_interval_s) == ("east", "", "/etc/ca.pem", 1.5)
    assert [(server.tls, server.user, server.password.value) for server in east.servers] == [
        (True, "me", SECRET)
    ]
    assert west.token.value == SECRET
    assert nats_connections({"nats.servers": ""}) == {}
    assert nats_connections({}) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nats.user": "x"}, "nats.servers is missing"),
        ({"nats.connection.east.user": "x"}, "nats.connection.east.servers is missing"),
        ({"nats.servers": "ws://h"}, "nats.servers: ws:// is no scheme of NATS"),
        ({"nats.servers": "h:0x"}, "nats.servers: nats://h:0x is not the address"),
        ({"nats.servers": "h,,g"}, "'nats.servers' values must not be empty"),
        ({"nats.servers": "h", "nats.password": "p"}, "nats.user is missing"),
        ({"nats.servers": "h", "nats.user": "u", "nats.token": "t"}, "different ways to log in"),
        ({"nats.servers": "h", "nats.tls.key.file": "k"}, "belong together"),
        (
            {"nats.connection.e.servers": "h", "nats.connection.e.ping.interval.ms": "1"},
            "nats.connection.e.ping.interval.ms: Value must be at least 1000",
        ),
    ],
)
def test_properties_that_a_broker_does_not_start_with(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        BrokerConfig.from_properties(given, EXTENSIONS)


def test_errors_show_no_secrets() -> None:
    for given in ({"nats.servers": f"nats://u:{SECRET}@[h"}, {"nats.servers": f"ws://{SECRET}@h"}):
        with pytest.raises(ConfigError) as raised:
            BrokerConfig.from_properties(given, EXTENSIONS)
        assert SECRET not in str(raised.value)


def test_named_connections_are_known_and_misspelled_ones_are_not() -> None:
    assert BrokerConfig.from_properties(GIVEN, EXTENSIONS).notes == []
    notes = BrokerConfig.from_properties(
        {
            **GIVEN,
            "nats.connection.east.usr": "x",
            "nats.sevrers": "h",
            "nats.monitoring.url": "http://h:8222",
        },
        EXTENSIONS,
    ).notes
    assert [text for _, text in notes] == [
        "unknown property nats.connection.east.usr is ignored",
        "unknown property nats.sevrers is ignored; did you mean nats.servers?",
        "unknown property nats.monitoring.url is ignored",
    ]


def test_no_secret_is_described() -> None:
    entries = {entry.name: entry for entry in broker_entries(BrokerConfig.from_properties(GIVEN, EXTENSIONS))}
    assert set(GIVEN) <= set(entries)
    assert all(SECRET not in repr(entry) and IN_ADDRESS not in repr(entry) for entry in entries.values())
    for name in ("nats.password", "nats.connection.west-1.token"):
        assert (entries[name].is_sensitive, entries[name].value) == (True, None)
    assert entries["nats.user"].value == "ingest"
    assert entries["nats.connection.east.servers"].value == "tls://[hidden]@east"
    assert all(entries[name].read_only for name in GIVEN)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a:1,nats://b", "a:1,nats://b"),
        ("u:p@a,nats://token@b:4, tls://u:p/q:@@c", "[hidden]@a,nats://[hidden]@b:4, tls://[hidden]@c"),
    ],
)
def test_addresses_are_shown_without_credentials(text: str, shown: str) -> None:
    assert shown_servers("nats.servers", text) == shown
    assert shown_servers("nats.connection.x.servers", text) == shown
    assert shown_servers("controller.quorum.bootstrap.servers", text) == text


def test_every_property_is_documented() -> None:
    documentation = ConfigTables(EXTENSIONS).documentation
    for resource_type, table in ((2, TOPIC_TABLE), (4, BROKER_TABLE)):
        for line in table.split("\n"):
            assert not line or documentation(resource_type, line.split()[0])
    assert documentation(4, "nats.connection.east.user") == documentation(4, "nats.user")


@pytest.mark.sockets
def test_nothing_of_nats_is_loaded_before_it_is_configured() -> None:
    code = (
        "import sys, barnabas.broker.node; from barnabas.broker.config.broker_config import BrokerConfig;"
        "from barnabas.extensions import EXTENSIONS; BrokerConfig.from_properties({}, EXTENSIONS);"
        "print(sorted(name for name in sys.modules if 'nats.' in name))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "['barnabas.nats.configs', 'barnabas.nats.extension']"
