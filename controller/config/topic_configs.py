"""Kafka 4.3's topic properties, one a line (config_def.py explains the columns), and those of Barnabas.

A topic's value for a property is the first of: set on the topic; set for its broker or the cluster while
running, under the property's broker name (its synonyms below); given in server.properties; the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from barnabas.controller.config.config_def import ConfigDef
from barnabas.controller.config.validators import ConfigError

TOPIC_TABLE: Final = """
segment.bytes int 1073741824 [1048576,...] medium
segment.ms long 604800000 [1,...] medium
segment.jitter.ms long 0 [0,...] medium
segment.index.bytes int 10485760 [4,...] medium
flush.messages long 9223372036854775807 [1,...] medium
flush.ms long 9223372036854775807 [0,...] medium
retention.bytes long -1 * medium
retention.ms long 604800000 [-1,...] medium
max.message.bytes int 1048588 [0,...] medium
index.interval.bytes int 4096 [0,...] medium
delete.retention.ms long 86400000 [0,...] medium
min.compaction.lag.ms long 0 [0,...] medium
max.compaction.lag.ms long 9223372036854775807 [1,...] medium
file.delete.delay.ms long 60000 [0,...] medium
min.cleanable.dirty.ratio double 0.5 [0,...,1] medium
cleanup.policy list delete list:compact,delete medium
unclean.leader.election.enable boolean false * medium
min.insync.replicas int 1 [1,...] medium
compression.type string producer in:uncompressed,zstd,lz4,snappy,gzip,producer medium
compression.gzip.level int -1 gzip-level medium
compression.lz4.level int 9 [1,...,17] medium
compression.zstd.level int 3 [-131072,...,22] medium
preallocate boolean false * medium
message.timestamp.type string CreateTime in:CreateTime,LogAppendTime medium
message.timestamp.before.max.ms long 9223372036854775807 [0,...] medium
message.timestamp.after.max.ms long 3600000 [0,...] medium
leader.replication.throttled.replicas list "" throttled-replicas medium
follower.replication.throttled.replicas list "" throttled-replicas medium
remote.storage.enable boolean false * medium
local.retention.ms long -2 [-2,...] medium
local.retention.bytes long -2 [-2,...] medium
remote.log.copy.disable boolean false * medium
remote.log.delete.on.disable boolean false * medium
internal.segment.bytes int - * medium internal
barnabas.isr.hedge.ms long -1 [-1,...] medium
barnabas.observers list "" broker-ids medium
barnabas.remote.restore string "" restore-source medium
barnabas.retention.messages long -1 [-1,...] medium
barnabas.validate.records boolean false * medium
"""

TOPIC_CONFIGS: Final = ConfigDef(TOPIC_TABLE)
OBSERVERS: Final = "barnabas.observers"
RESTORE: Final = "barnabas.remote.restore"
TIERS: Final = "remote.log.storage.system.enable"  # of the broker: whether it has tiered topics

# Topic property, then the broker properties that are its default, most important first; *n: in units of n ms.
_SYNONYMS: Final = """
segment.bytes log.segment.bytes
segment.ms log.roll.ms log.roll.hours*3600000
segment.jitter.ms log.roll.jitter.ms log.roll.jitter.hours*3600000
segment.index.bytes log.index.size.max.bytes
flush.messages log.flush.interval.messages
flush.ms log.flush.interval.ms log.flush.scheduler.interval.ms
retention.bytes log.retention.bytes
retention.ms log.retention.ms log.retention.minutes*60000 log.retention.hours*3600000
max.message.bytes message.max.bytes
index.interval.bytes log.index.interval.bytes
delete.retention.ms log.cleaner.delete.retention.ms
min.compaction.lag.ms log.cleaner.min.compaction.lag.ms
max.compaction.lag.ms log.cleaner.max.compaction.lag.ms
file.delete.delay.ms log.segment.delete.delay.ms
min.cleanable.dirty.ratio log.cleaner.min.cleanable.ratio
cleanup.policy log.cleanup.policy
unclean.leader.election.enable unclean.leader.election.enable
min.insync.replicas min.insync.replicas
compression.type compression.type
compression.gzip.level compression.gzip.level
compression.lz4.level compression.lz4.level
compression.zstd.level compression.zstd.level
preallocate log.preallocate
message.timestamp.type log.message.timestamp.type
message.timestamp.before.max.ms log.message.timestamp.before.max.ms
message.timestamp.after.max.ms log.message.timestamp.after.max.ms
local.retention.ms log.local.retention.ms
local.retention.bytes log.local.retention.bytes
barnabas.isr.hedge.ms barnabas.isr.hedge.ms
barnabas.retention.messages barnabas.retention.messages
barnabas.validate.records barnabas.validate.records
"""


def _parse_synonym(text: str) -> tuple[str, int]:
    name, _, factor = text.partition("*")
    return name, int(factor or 1)


TOPIC_SYNONYMS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    name: tuple(map(_parse_synonym, synonyms))
    for name, *synonyms in (line.split() for line in _SYNONYMS.split("\n")[1:-1])
}


def topic_default(
    name: str, broker_value: Callable[[str], str | None], table: ConfigDef = TOPIC_CONFIGS
) -> str | None:
    """The value of `name` for a topic that does not set it.

    `broker_value(name)`: a broker property's text, as set or its default; None for null.
    """
    for broker_name, factor in TOPIC_SYNONYMS.get(name, ()):
        text = broker_value(broker_name)
        if text is not None:
            return text if factor == 1 else str(int(text) * factor)
    return table[name].default


def observers_of(configs: Mapping[str, str]) -> frozenset[int]:
    """The brokers with observers of a topic with these configs: replicas that never join the ISR."""
    text = configs.get(OBSERVERS, "")
    return frozenset(int(each) for each in text.split(",")) if text.strip() else frozenset()


class RestoreSource(NamedTuple):
    """The topic in remote storage with whose segments a topic begins, and the leader epoch that its partitions begin with: above
    all that are in remote storage."""

    cluster_id: str
    topic_id: str
    leader_epoch: int

    @classmethod
    def parse(cls, text: str) -> RestoreSource | None:
        """None for the empty string; `text` has been validated."""
        if not text.strip():
            return None
        cluster_id, topic_id, leader_epoch = text.strip().split("/")
        return cls(cluster_id, topic_id, int(leader_epoch))

    def __str__(self) -> str:
        return "/".join(map(str, self))


def first_leader_epoch(configs: Mapping[str, str]) -> int:
    """Of new partitions of a topic with these configs."""
    source = RestoreSource.parse(configs.get(RESTORE, ""))
    return 0 if source is None else source.leader_epoch


def check_tiering(
    wanted: Mapping[str, str], current: Mapping[str, str] | None, defaults: Mapping[str, str], *, tiers: bool
) -> None:
    """ConfigError where the properties of remote storage do not go together (Kafka's LogConfig.validateTopicLogConfigValues).
    `current`: None of a new topic."""

    def text(name: str, values: Mapping[str, str] = wanted) -> str:
        return (values.get(name) or defaults.get(name) or TOPIC_CONFIGS[name].default or "").strip()

    def is_on(name: str, values: Mapping[str, str] = wanted) -> bool:
        return text(name, values).lower() == "true"

    if text(RESTORE) and not is_on("remote.storage.enable"):
        raise ConfigError(f"{RESTORE} needs remote.storage.enable=true.")
    if current is not None and text(RESTORE) not in ("", text(RESTORE, current)):
        raise ConfigError(f"{RESTORE} can only be set when a topic is created.")
    if not is_on("remote.storage.enable"):
        if is_on("remote.storage.enable", current or {}) and not is_on("remote.log.delete.on.disable"):
            raise ConfigError(
                "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data and "
                "turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable "
                "remote storage and delete all remote data, please set "
                "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
            )
        return
    if not tiers:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
        )
    if text("cleanup.policy") not in ("delete", ""):
        raise ConfigError(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list."
        )
    limits = {
        kind: (int(text(f"local.retention.{kind}")), int(text(f"retention.{kind}")))
        for kind in ("bytes", "ms")
    }
    for kind, (here, total) in limits.items():
        if total == -1 or here == -2:
            continue
        if here == -1:
            problem = f"Value must not be -1 as retention.{kind} value is set as {total}."
        elif here > total:
            problem = f"Value must not be more than retention.{kind} property value: {total}"
        else:
            continue
        raise ConfigError(f"Invalid value {here} for configuration local.retention.{kind}: {problem}")
    if is_on("remote.log.copy.disable"):
        for kind, (here, total) in limits.items():
            if here not in (-2, total):
                raise ConfigError(
                    f"When `remote.log.copy.disable` is set to true, the `local.retention.{kind}` and `retention.{kind}` must be set "
                    f"to the identical value because there will be no more logs copied to the remote storage."
                )


def unknown_topic_config(name: str) -> ConfigError:
    return ConfigError(f"Unknown topic config name: {name}")


def validate_topic_configs(
    properties: Mapping[str, str],
    effective: Mapping[str, str] | None = None,
    table: ConfigDef = TOPIC_CONFIGS,
    *,
    tiers: bool = False,
    current: Mapping[str, str] | None = None,
) -> None:
    """ConfigError, with Kafka's text, when a topic may not have these properties.

    `effective`: values of properties that the topic does not set, for checks between two properties; by default Kafka's defaults.
    `tiers`: remote.log.storage.system.enable. `current`: what the topic has now, None for a new one.
    """
    table.validate(properties, unknown_topic_config)
    check_tiering(properties, current, effective or {}, tiers=tiers)

    def number(name: str) -> int:
        text = properties.get(name) or (effective or {}).get(name) or TOPIC_CONFIGS[name].default
        value = TOPIC_CONFIGS[name].parse(text)
        assert isinstance(value, int)
        return value

    low, high = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if low > high:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )
