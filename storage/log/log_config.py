"""The topic-level settings of a log, typed. Names are Kafka's with underscores, times in ms, sizes in bytes.

The strings come from the controller's table, where they have been validated; absent ones take Kafka 4.3's
defaults.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

LONG_MAX = (1 << 63) - 1


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one topic. `isr_hedge_ms`, `observers`, `remote_restore`, `retention_messages` and `validate_records`
    are Barnabas's own."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    isr_hedge_ms: int = -1
    local_retention_bytes: int = -2  # as retention_bytes
    local_retention_ms: int = -2  # as retention_ms
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    observers: frozenset[int] = frozenset()  # broker ids
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_restore: str = ""  # what of remote storage a new partition begins with; "": nothing
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_messages: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    validate_records: bool = False

    @property
    def kept_here_bytes(self) -> int:
        """local.retention.bytes, of what is tiered; -1: no limit."""
        return self.retention_bytes if self.local_retention_bytes == -2 else self.local_retention_bytes

    @property
    def kept_here_ms(self) -> int:
        """local.retention.ms, of what is tiered; -1: no limit."""
        return self.retention_ms if self.local_retention_ms == -2 else self.local_retention_ms

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LogConfig:
        """From strings under Kafka's names; other names are ignored."""
        values: dict[str, object] = {}
        for name, property_name, kind in _table():
            text = properties.get(property_name)
            if text is not None:
                values[name] = _parse(kind, text)
        return cls(**values)  # type: ignore[arg-type]


_PROPERTY_OF = {
    "isr_hedge_ms": "barnabas.isr.hedge.ms",
    "observers": "barnabas.observers",
    "remote_restore": "barnabas.remote.restore",
    "retention_messages": "barnabas.retention.messages",
    "validate_records": "barnabas.validate.records",
}


def property_of(setting: str) -> str:
    """The name of the property that is this attribute."""
    return _PROPERTY_OF.get(setting, setting.replace("_", "."))


@functools.cache
def _table() -> list[tuple[str, str, object]]:
    """(attribute, Kafka's name, type) of each setting. Computed once: that takes longer than the rest of parsing."""
    return [(field.name, property_of(field.name), field.type) for field in msgspec.structs.fields(LogConfig)]


def _parse(kind: object, text: str) -> object:
    text = text.strip()
    if kind is bool:
        return text.lower() == "true"
    if kind is int:
        return int(text)
    if kind is float:
        return float(text)
    if kind is str:
        return text
    if kind == frozenset[int]:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    return frozenset(part.strip() for part in text.split(",") if part.strip())
