"""Kafka 4.3's properties of groups and of client metrics subscriptions (config_def.py explains the columns)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.controller.config_def import ConfigDef
from barnabas.controller.config_validators import ConfigError

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
GROUP_SYNONYMS: Final[dict[str, str]] = {
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
}


def unknown_group_config(name: str) -> ConfigError:
    return ConfigError(f"Unknown group config name: {name}")


def validate_group_configs(properties: Mapping[str, str]) -> None:
    """ConfigError when a group may not have these properties."""
    GROUP_CONFIGS.validate(properties, unknown_group_config)


def validate_client_metrics_configs(properties: Mapping[str, str]) -> None:
    """ConfigError when a client metrics subscription may not have these properties."""
    CLIENT_METRICS_CONFIGS.validate(
        properties, lambda name: ConfigError(f"Unknown client metrics configuration: {name}")
    )
