"""The configuration of the group coordinator: what stands as the broker starts, and what can change while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.controller.metadata.image import GROUP_RESOURCE

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.controller.metadata.image import MetadataImage

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000  # Kafka has no property for it
_BOUNDS: Final = ("min", "max")
_UNBOUNDED: Final = (
    "streams.min.standby.replicas",
    "streams.min.initial.rebalance.delay.ms",
    "streams.max.initial.rebalance.delay.ms",
)


class GroupSettings(msgspec.Struct, frozen=True):
    """Kafka's properties of the same names; times in ms."""

    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_share_max_size: int = 200
    group_share_initialize_retry_interval_ms: int = 30_000
    group_streams_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_commit_timeout_ms: int = 5000
    offsets_retention_ms: int = 10080 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000

    @classmethod
    def from_config(cls, config: BrokerConfig) -> GroupSettings:
        return cls(
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_max_size=config.group_max_size,
            group_consumer_max_size=config.group_consumer_max_size,
            group_consumer_assignors=tuple(config.group_consumer_assignors),
            group_consumer_migration_policy=config.group_consumer_migration_policy.lower(),
            group_consumer_regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
            group_share_max_size=config.group_share_max_size,
            group_share_initialize_retry_interval_ms=config.group_share_initialize_retry_interval_ms,
            group_streams_max_size=config.group_streams_max_size,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_commit_timeout_ms=config.offsets_commit_timeout_ms,
            offsets_retention_ms=config.offsets_retention_minutes * 60 * 1000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        )


class GroupConfigs:
    """The properties of single groups (resources of type GROUP), with the broker's where a group has none."""

    def __init__(self, broker_value: Callable[[str], str | None], image: Callable[[], MetadataImage]) -> None:
        """`broker_value(name)`: the present text of a broker's property."""
        self._broker_value = broker_value
        self.image = image

    def number(self, group_id: str, name: str) -> int:
        """The group's `name`, such as consumer.session.timeout.ms. A value that was set before the broker's limits became
        narrower counts as the nearest one within them."""
        given = self.image().configs.get((GROUP_RESOURCE, group_id), {}).get(name)
        if given is None:
            return int(self._broker_value(f"group.{name}") or 0)
        kind, _, rest = name.partition(".")
        names = (f"{kind}.{bound}.{rest.removeprefix('num.')}" for bound in _BOUNDS)
        lowest, highest = (
            None if name in _UNBOUNDED else self._broker_value(f"group.{name}") for name in names
        )
        number = max(int(given), int(lowest or 0))
        return min(number, int(highest)) if highest is not None else number
