"""DescribeConfigs' entries: sources and synonyms as Kafka 4.3.1 gives them for the same settings (asked of it)."""

from __future__ import annotations

import logging

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.describe import (
    Entry,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from barnabas.broker.config.logger_levels import change_logger_levels, logger_levels
from barnabas.controller.operations.configs import DELETE, SET, ConfigChange, ResourceChange
from barnabas.wire.errors import ErrorCode

CLUSTER = {
    "message.max.bytes": "2000000",
    "log.retention.ms": "99",
    "nope": "5",
    "ssl.keystore.password": "s",
}


@pytest.fixture
def config() -> BrokerConfig:
    config = BrokerConfig.from_properties({"log.retention.hours": "168", "node.id": "1"})
    config.apply_dynamic(CLUSTER, {"log.retention.ms": "98", "leader.replication.throttled.rate": "5"})
    return config


def shown(entries: list[Entry], name: str) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    (entry,) = [entry for entry in entries if entry.name == name]
    return entry.value, entry.config_source, [(each.name, each.value, each.source) for each in entry.synonyms]


def test_a_topic_shows_every_source_of_a_value(config: BrokerConfig) -> None:
    entries = topic_entries(config, {"retention.ms": "1000"})
    assert shown(entries, "retention.ms") == (
        "1000",
        1,
        [
            ("retention.ms", "1000", 1),
            ("log.retention.ms", "98", 2),
            ("log.retention.ms", "99", 3),
            ("log.retention.hours", "168", 4),
            ("log.retention.hours", "168", 5),
        ],
    )
    assert shown(entries, "max.message.bytes") == (
        "2000000",
        3,
        [("message.max.bytes", "2000000", 3), ("message.max.bytes", "1048588", 5)],
    )
    assert shown(entries, "flush.ms") == ("9223372036854775807", 5, [])


def test_other_units_show_only_behind_the_propertys_own_name() -> None:
    entries = topic_entries(BrokerConfig.from_properties({"log.retention.hours": "1"}), {})
    assert shown(entries, "retention.ms") == ("3600000", 5, [])


def test_a_broker_shows_static_and_dynamic_values(config: BrokerConfig) -> None:
    entries = broker_entries(config)
    assert shown(entries, "broker.id") == ("1", 4, [("broker.id", "1", 4), ("broker.id", "-1", 5)])
    assert shown(entries, "log.retention.hours")[2] == [
        ("log.retention.hours", "168", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert shown(entries, "leader.replication.throttled.rate")[:2] == ("5", 2)
    read_only = {entry.name: entry.read_only for entry in entries}
    assert (read_only["node.id"], read_only["log.retention.ms"]) == (True, False)


def test_secrets_and_unknown_names_have_no_value(config: BrokerConfig) -> None:
    for entries in (broker_entries(config), cluster_entries(config, CLUSTER)):
        for name in ("ssl.keystore.password", "nope"):
            value, _, synonyms = shown(entries, name)
            assert value is None
            assert {each[1] for each in synonyms} == {None}
            assert [entry.is_sensitive for entry in entries if entry.name == name] == [True]


def test_groups_fall_back_to_the_brokers_values(config: BrokerConfig) -> None:
    entries = group_entries(config, {"consumer.session.timeout.ms": "50000"})
    assert shown(entries, "consumer.session.timeout.ms") == (
        "50000",
        8,
        [("consumer.session.timeout.ms", "50000", 8), ("group.consumer.session.timeout.ms", "45000", 5)],
    )
    assert shown(entries, "share.auto.offset.reset") == (
        "latest",
        5,
        [("share.auto.offset.reset", "latest", 5)],
    )


def test_client_metrics_show_what_is_set(config: BrokerConfig) -> None:
    entries = client_metrics_entries(config, {"interval.ms": "100000"})
    assert shown(entries, "interval.ms") == ("100000", 7, [("interval.ms", "100000", 7)])
    assert shown(entries, "match") == ("", 5, [])


def test_levels_of_loggers_are_set_and_unset() -> None:
    def change(
        name: str, operation: int, value: str | None, broker: str = "1"
    ) -> tuple[ErrorCode, str | None]:
        result = change_logger_levels(
            ResourceChange(8, broker, [ConfigChange(name, operation, value)]), 1, False
        )
        return result.error, result.message

    name = "barnabas.test.levels"
    logging.getLogger(name)
    assert change(name, SET, "FATAL") == (ErrorCode.NONE, None)
    assert dict(logger_levels())[name] == "FATAL"
    assert change(name, DELETE, None) == (ErrorCode.NONE, None)
    assert logging.getLogger(name).level == logging.NOTSET
    assert change("zork", SET, "INFO") == (ErrorCode.INVALID_CONFIG, "Logger zork does not exist!")
    assert change(name, SET, "x")[0] == ErrorCode.INVALID_CONFIG
    assert change(name, SET, "INFO", broker="2")[0] == ErrorCode.INVALID_REQUEST
    assert change("root", DELETE, None) == (
        ErrorCode.INVALID_REQUEST,
        "Removing the log level of the root logger is not allowed",
    )


def test_properties_of_a_listener_have_the_type_of_their_base() -> None:
    given = {
        "listener.name.plaintext.ssl.keystore.password": "hidden",
        "listener.name.plaintext.ssl.keystore.location": "/keys",
        "listener.name.plaintext.plain.sasl.jaas.config": "hidden too",
        "ssl.keystore.password": "hidden as well",
        "my.own.password": "hidden, who knows",
    }
    config = BrokerConfig.from_properties(given)
    config.apply_dynamic({}, {"listener.name.plaintext.ssl.key.password": "hidden, dynamic"})
    entries = {entry.name: entry for entry in broker_entries(config)}
    assert "hidden" not in str(entries)
    for name in (*given, "listener.name.plaintext.ssl.key.password"):
        is_location = name.endswith("location")
        assert entries[name].value == ("/keys" if is_location else None)
        assert entries[name].is_sensitive != is_location
        assert entries[name].synonyms[0].name == name
    synonyms = entries["listener.name.plaintext.ssl.keystore.password"].synonyms
    assert [(each.name, each.value) for each in synonyms] == [
        ("listener.name.plaintext.ssl.keystore.password", None),
        ("ssl.keystore.password", None),
    ]


def test_entries_have_kafkas_order() -> None:
    """As Apache Kafka 4.3.1 answers."""
    config = BrokerConfig.from_properties()
    names = [entry.name for entry in topic_entries(config, {}) if not entry.name.startswith("barnabas.")]
    assert names[:6] == [
        "compression.type",
        "remote.log.delete.on.disable",
        "leader.replication.throttled.replicas",
        "remote.storage.enable",
        "min.insync.replicas",
        "segment.jitter.ms",
    ]
    assert [entry.name for entry in client_metrics_entries(config, {})] == ["interval.ms", "match", "metrics"]
    # Fifteen names are in a table of 32 buckets.
    fifteen = [
        "compression.type", "log.retention.ms", "message.max.bytes", "num.io.threads", "log.flush.interval.ms",
        "min.insync.replicas", "log.roll.ms", "log.cleaner.threads", "log.index.interval.bytes", "log.segment.bytes",
        "log.cleaner.io.buffer.load.factor", "num.network.threads", "log.preallocate", "max.connections", "background.threads",
    ]  # fmt: skip
    stored = dict.fromkeys((*fifteen[8:], *fifteen[:8]), "1")
    assert [entry.name for entry in cluster_entries(config, stored)] == fifteen
