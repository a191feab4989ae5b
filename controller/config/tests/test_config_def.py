"""Validation of config values, with the error texts of Kafka 4.3.1."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.config_def import ConfigDef
from barnabas.controller.config.group_configs import (
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    GROUP_SYNONYMS,
    validate_group,
)
from barnabas.controller.config.topic_configs import (
    TOPIC_CONFIGS,
    TOPIC_SYNONYMS,
    topic_default,
    validate_topic_configs,
)
from barnabas.controller.config.validators import ConfigError, java_text

THROTTLED = (
    "Invalid value [x] for configuration leader.replication.throttled.replicas: leader.replication.throttled.replicas "
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)
REFUSED_BY_TOPICS = [
    (
        "segment.bytes",
        "12",
        "Invalid value 12 for configuration segment.bytes: Value must be at least 1048576",
    ),
    ("segment.bytes", "abc", "Invalid value abc for configuration segment.bytes: Not a number of type INT"),
    (
        "segment.bytes",
        "99999999999",
        "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT",
    ),
    ("segment.bytes", "", "Invalid value  for configuration segment.bytes: Not a number of type INT"),
    ("retention.ms", "0x10", "Invalid value 0x10 for configuration retention.ms: Not a number of type LONG"),
    ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
    (
        "cleanup.policy",
        "foo",
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    ("cleanup.policy", "delete,,compact", "Configuration 'cleanup.policy' values must not be empty."),
    (
        "compression.type",
        "foo",
        "Invalid value foo for configuration compression.type: "
        "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    ),
    (
        "compression.gzip.level",
        "10",
        "Invalid value 10 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
    ),
    (
        "compression.lz4.level",
        "18",
        "Invalid value 18 for configuration compression.lz4.level: Value must be no more than 17",
    ),
    (
        "preallocate",
        "yes",
        "Invalid value yes for configuration preallocate: Expected value to be either true or false",
    ),
    (
        "min.cleanable.dirty.ratio",
        "2",
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    (
        "message.timestamp.type",
        "foo",
        "Invalid value foo for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime",
    ),
    ("leader.replication.throttled.replicas", "x", THROTTLED),
    ("nope", "1", "Unknown topic config name: nope"),
    (
        "remote.storage.enable",
        "true",
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
]
REFUSED_BY_BROKERS = [
    (
        "process.roles",
        "",
        "Configuration 'process.roles' must not be empty. Valid values include: [broker, controller]",
    ),
    (
        "listeners",
        "",
        "Configuration 'listeners' must not be empty. Valid values include: any non-empty value",
    ),
    (
        "offsets.topic.replication.factor",
        "40000",
        "Invalid value 40000 for configuration offsets.topic.replication.factor: Not a number of type SHORT",
    ),
    (
        "controller.quorum.voters",
        "x",
        "Invalid configuration value for controller.quorum.voters. Each entry should be in the form `{id}@{host}:{port}`.",
    ),
    (
        "group.consumer.migration.policy",
        "foo",
        "Invalid value foo for configuration group.consumer.migration.policy: "
        "String must be one of (case insensitive): DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL",
    ),
    (
        "remote.log.storage.manager.class.name",
        "",
        "Invalid value  for configuration remote.log.storage.manager.class.name: String must be non-empty",
    ),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED_BY_TOPICS)
def test_topic_config_errors_have_kafkas_texts(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_topic_configs({name: value})
    assert str(raised.value) == message


@pytest.mark.parametrize(("name", "value", "message"), REFUSED_BY_BROKERS)
def test_broker_config_errors_have_kafkas_texts(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BROKER_CONFIGS[name].parse(value)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("segment.bytes", " 2000000 ", 2000000),
        ("segment.bytes", "+2000000", 2000000),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", "", []),
        ("cleanup.policy", " compact , delete ", ["compact", "delete"]),
        ("leader.replication.throttled.replicas", "0:1,1:2", ["0:1", "1:2"]),
        ("leader.replication.throttled.replicas", "*", ["*"]),
        ("retention.bytes", "-5", -5),
    ],
)
def test_values_that_kafka_accepts_are_accepted(name: str, value: str, parsed: object) -> None:
    validate_topic_configs({name: value})
    assert TOPIC_CONFIGS[name].parse(value) == parsed


def test_minimum_compaction_lag_is_at_most_the_maximum() -> None:
    message = r"^conflict topic config setting min.compaction.lag.ms \(10\) > max.compaction.lag.ms \(5\)$"
    with pytest.raises(ConfigError, match=message):
        validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    validate_topic_configs({"min.compaction.lag.ms": "10"})
    with pytest.raises(ConfigError, match=message):
        validate_topic_configs({"min.compaction.lag.ms": "10"}, {"max.compaction.lag.ms": "5"})


@pytest.mark.parametrize("table", [BROKER_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS])
def test_every_default_is_valid(table: ConfigDef) -> None:
    for key in table.values():
        if not key.required:
            key.parse(key.default)


def test_synonyms_name_real_properties() -> None:
    for name, synonyms in TOPIC_SYNONYMS.items():
        assert name in TOPIC_CONFIGS
        for broker_name, _ in synonyms:
            assert broker_name in BROKER_CONFIGS
    for name, broker_name in GROUP_SYNONYMS.items():
        assert name in GROUP_CONFIGS
        assert broker_name in BROKER_CONFIGS


def test_the_finest_unit_that_is_set_decides_a_topics_default() -> None:
    def default(given: dict[str, str]) -> str | None:
        return topic_default("retention.ms", lambda name: given.get(name, BROKER_CONFIGS[name].default))

    assert default({}) == str(168 * 3_600_000)
    assert default({"log.retention.hours": "2"}) == "7200000"
    assert default({"log.retention.hours": "2", "log.retention.minutes": "3"}) == "180000"
    assert default({"log.retention.minutes": "3", "log.retention.ms": "4"}) == "4"


def test_group_configs_are_bounded_by_broker_configs() -> None:
    def broker_value(name: str) -> str | None:
        return BROKER_CONFIGS[name].default

    validate_group({"consumer.session.timeout.ms": "50000"}, broker_value)
    with pytest.raises(ConfigError, match="must be greater than or equal to group"):
        validate_group({"consumer.session.timeout.ms": "1"}, broker_value)
    with pytest.raises(ConfigError, match="must be less than or equal to group"):
        validate_group({"consumer.session.timeout.ms": "70000"}, broker_value)


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=30))
def test_every_text_is_parsed_or_raises_a_config_error(name: str, text: str) -> None:
    with contextlib.suppress(ConfigError):
        validate_topic_configs({name: text})


@given(st.integers(-(2**70), 2**70))
def test_integers_are_accepted_exactly_within_their_type(number: int) -> None:
    for type_, bits in (("short", 16), ("int", 32), ("long", 64)):
        key = ConfigDef(f"x {type_} 0 * low")["x"]
        if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            assert key.parse(str(number)) == number
        else:
            with pytest.raises(ConfigError, match="Not a number of type"):
                key.parse(str(number))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2.0"),
        (1e7, "1.0E7"),
        (-12345678.5, "-1.23456785E7"),
        (0.0001, "1.0E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (None, "null"),
    ],
)
def test_numbers_print_as_java_prints_them(value: object, text: str) -> None:
    assert java_text(value) == text


COPY_DISABLED = (
    "When `remote.log.copy.disable` is set to true, the `local.retention.{0}` and `retention.{0}` must be set to the identical "
    "value because there will be no more logs copied to the remote storage."
)
TOTAL = {"retention.ms": "1", "retention.bytes": "1"}
BOTH_ABOVE = {"local.retention.ms": "2", "local.retention.bytes": "2", **TOTAL}


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            BOTH_ABOVE,
            "Invalid value 2 for configuration local.retention.bytes: Value must not be more than retention.bytes property value: 1",
        ),
        (
            {**BOTH_ABOVE, "local.retention.bytes": "1", "remote.log.copy.disable": "true"},
            "Invalid value 2 for configuration local.retention.ms: Value must not be more than retention.ms property value: 1",
        ),
        (
            {"local.retention.ms": "-1", "local.retention.bytes": "-1", "remote.log.copy.disable": "true"},
            "Invalid value -1 for configuration local.retention.ms: Value must not be -1 as retention.ms value is set as 604800000.",
        ),
        (
            {
                **TOTAL,
                "local.retention.ms": "0",
                "local.retention.bytes": "0",
                "remote.log.copy.disable": "true",
            },
            COPY_DISABLED.format("bytes"),
        ),
        ({**TOTAL, "local.retention.ms": "0", "remote.log.copy.disable": "true"}, COPY_DISABLED.format("ms")),
        (
            {**BOTH_ABOVE, "cleanup.policy": "compact"},
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list.",
        ),
    ],
)
def test_remote_storage_is_refused_in_kafkas_order(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_topic_configs({"remote.storage.enable": "true", **properties}, tiers=True)
    assert str(raised.value) == message
