"""The configuration of the group coordinator, as it is when the broker starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000  # Kafka has no property for it


class GroupSettings(msgspec.Struct, frozen=True):
    """Kafka's properties of the same names; times in ms."""

    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
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
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_commit_timeout_ms=config.offsets_commit_timeout_ms,
            offsets_retention_ms=config.offsets_retention_minutes * 60 * 1000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        )
