"""Kafka 4.3's properties of groups and of client metrics subscriptions (config_def.py explains the columns)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.config_def import ConfigDef
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
MATCH_PARAMETERS: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)

GROUP_TABLE: Final = """
consumer.session.timeout.ms int 45000 [1,...] medium
consumer.heartbeat.interval.ms int 5000 [1,...] medium
consumer.assignment.interval.ms int 1000 [0,...] medium
share.session.timeout.ms int 45000 [1,...] medium
share.heartbeat.interval.ms int 5000 [1,...] medium
share.record.lock.duration.ms int 30000 [1000,...] medium
share.delivery.count.limit int 5 [2,...] medium
share.partition.max.record.locks int 2000 [100,...] medium
share.auto.offset.reset string latest offset-reset medium
share.isolation.level string read_uncommitted in:read_committed,read_uncommitted medium
share.renew.acknowledge.enable boolean true * medium
share.assignment.interval.ms int 1000 [0,...] medium
streams.session.timeout.ms int 45000 [1,...] medium
streams.heartbeat.interval.ms int 5000 [1,...] medium
streams.num.standby.replicas int 0 [0,...] medium
streams.initial.rebalance.delay.ms int 3000 [0,...] medium
streams.assignment.interval.ms int 1000 [0,...] medium
"""

CLIENT_METRICS_TABLE: Final = """
metrics list "" list medium
interval.ms int 300000 * medium
match list "" list medium
"""

GROUP_CONFIGS: Final = ConfigDef(GROUP_TABLE)
CLIENT_METRICS_CONFIGS: Final = ConfigDef(CLIENT_METRICS_TABLE)

# Group property -> the broker property that is its default.
GROUP_SYNONYMS: Final = {name: f"group.{name}" for name in GROUP_CONFIGS if f"group.{name}" in BROKER_CONFIGS}


def unknown_group_config(name: str) -> ConfigError:
    return ConfigError(f"Unknown group config name: {name}")


def validate_group(properties: Mapping[str, str], broker_value: Callable[[str], str | None]) -> None:
    """ConfigError when a group may not have these properties.

    A broker's group.<kind>.min.<property> and group.<kind>.max.<property> bound a group's <kind>.<property>.
    """
    GROUP_CONFIGS.validate(properties, unknown_group_config)
    for name, text in properties.items():
        kind, _, rest = name.partition(".")
        lowest, highest = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest.removeprefix('num.')}"
        if lowest in BROKER_CONFIGS and int(text) < int(broker_value(lowest) or 0):
            raise ConfigError(f"{name} must be greater than or equal to {lowest}")
        if highest in BROKER_CONFIGS and int(text) > int(broker_value(highest) or 0):
            raise ConfigError(f"{name} must be less than or equal to {highest}")


def validate_client_metrics(properties: Mapping[str, str]) -> None:
    """ApiError or ConfigError when a client metrics subscription (KIP-714) may not have these properties."""
    for name in properties:
        if name not in CLIENT_METRICS_CONFIGS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    CLIENT_METRICS_CONFIGS.validate(properties, ConfigError)
    interval = int(properties.get("interval.ms", "300000"))
    if not INTERVAL_MS_MIN <= interval <= INTERVAL_MS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        )
    for pattern in filter(None, (part.strip() for part in properties.get("match", "").split(","))):
        parts = pattern.rstrip("=").split("=")
        if len(parts) != 2 or parts[0].strip() not in MATCH_PARAMETERS or not _compiles(parts[1]):
            raise ConfigError(f"Illegal client matching pattern: {pattern}")


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression.strip())
    except re.error:
        return False
    return True
