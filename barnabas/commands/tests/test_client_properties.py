"""Properties of Kafka's clients as settings of kafka-python."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.commands.client_properties import client_settings, pairs
from barnabas.commands.options import CommandFailed

DEFAULTS = {
    "bootstrap_servers": "localhost",
    "bootstrap_timeout_ms": 30000,
    "client_id": "kafka-python",
    "enable_auto_commit": True,
    "group_id": None,
    "key_deserializer": None,
    "receive_buffer_bytes": None,
    "retries": float("inf"),
}
LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";'


def settings(properties: dict[str, str]) -> dict[str, Any]:
    return client_settings(properties, DEFAULTS)


def test_names_and_types() -> None:
    assert settings(
        {
            "client.id": "me",
            "enable.auto.commit": "False",
            "group.id": "g",
            "receive.buffer.bytes": " 1024 ",
            "retries": "5",
            "default.api.timeout.ms": "100",
            "bootstrap.servers": "ignored:1",
            "key.deserializer": "a.Class",
            "unknown.property": "x",
        }
    ) == {
        "client_id": "me",
        "enable_auto_commit": False,
        "group_id": "g",
        "receive_buffer_bytes": 1024,
        "retries": 5,
        "bootstrap_timeout_ms": 100,
        "security_protocol": "PLAINTEXT",
    }
    with pytest.raises(CommandFailed, match=r"Invalid value x for configuration retries"):
        settings({"retries": "x"})


def test_sasl() -> None:
    properties = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-256"}
    assert settings({**properties, "sasl.jaas.config": LOGIN}) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
    }
    for wrong, text in (
        ({}, "sasl.jaas.config: Login module not specified"),
        ({"sasl.jaas.config": LOGIN.replace("username", "user")}, "it needs username and password"),
        ({"sasl.mechanism": "GSSAPI"}, "GSSAPI is none of those"),
        ({"security.protocol": "TLS"}, "TLS is none of PLAINTEXT"),
    ):
        with pytest.raises(CommandFailed, match=text):
            settings({**properties, **wrong})


def test_tls(tmp_path: Any) -> None:
    store = str(tmp_path / "no-such-file.pem")
    with pytest.raises(CommandFailed, match=r"ssl.truststore.location.*no-such-file.pem"):
        settings({"security.protocol": "SSL", "ssl.truststore.location": store})
    context = settings({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""})[
        "ssl_context"
    ]
    assert not context.check_hostname


def test_pairs() -> None:
    assert pairs(["a=b=c", "d", "e=", "a=f"]) == {"a": "f", "d": "", "e": ""}
