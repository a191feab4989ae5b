"""The settings of a share group: its configs (resource type GROUP), or the broker's group.share.* where it has none.

A stored value outside of the broker's bounds, which may have changed since, is clamped, as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.share_partitions.acquisition import Limits

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.\d+)?S)?)?",
    re.I,
)


class ShareGroupSettings(msgspec.Struct, frozen=True):
    """`reset`: "earliest", "latest", or how many ms before now a group without a position begins."""

    limits: Limits
    reset: str | int = "latest"
    is_read_committed: bool = False
    allows_renewal: bool = True

    @property
    def lock_ms(self) -> int:
        return round(self.limits.lock_s * 1000)


def share_group_settings(config: BrokerConfig, configs: Mapping[str, str]) -> ShareGroupSettings:
    """`configs`: those of the group."""

    def number(name: str, default: int, lowest: int, highest: int) -> int:
        text = configs.get(name)
        return default if text is None else min(max(int(text), lowest), highest)

    limits = Limits(
        number(
            "share.delivery.count.limit",
            config.group_share_delivery_count_limit,
            config.group_share_min_delivery_count_limit,
            config.group_share_max_delivery_count_limit,
        ),
        number(
            "share.record.lock.duration.ms",
            config.group_share_record_lock_duration_ms,
            config.group_share_min_record_lock_duration_ms,
            config.group_share_max_record_lock_duration_ms,
        )
        / 1000,
        number(
            "share.partition.max.record.locks",
            config.group_share_partition_max_record_locks,
            config.group_share_min_partition_max_record_locks,
            config.group_share_max_partition_max_record_locks,
        ),
    )
    return ShareGroupSettings(
        limits,
        _reset(configs.get("share.auto.offset.reset", "latest")),
        configs.get("share.isolation.level") == "read_committed",
        configs.get("share.renew.acknowledge.enable", "true").lower() == "true",
    )


def _reset(text: str) -> str | int:
    kind, _, duration = text.strip().lower().partition(":")
    found = _DURATION.fullmatch(duration) if kind == "by_duration" else None
    if found is None:
        return "earliest" if kind == "earliest" else "latest"
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
