"""AlterConfigs and IncrementalAlterConfigs: from a request and the image to ConfigRecords and results.

Each resource succeeds or fails by itself; the changes that succeed commit together. The checks, their order and their texts are
those of Kafka 4.3.1 (ConfigAdminManager, ConfigurationControlManager): duplicates and nulls first, then the resource's name, then
the values, then whether the resource exists. Levels of broker loggers are not metadata (broker/config/logger_levels.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.config_def import PER_BROKER, READ_ONLY, ConfigDef
from barnabas.controller.config.group_configs import (
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    validate_client_metrics,
    validate_group,
)
from barnabas.controller.config.topic_configs import TIERS, validate_topic_configs
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.extension import ConfigTables, NodeValues, TopicChecks
from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from barnabas.controller.operations.features import MIN_ISR, with_elr
from barnabas.controller.operations.observers import change_observers
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ClearElrRecord, ConfigRecord, PartitionChangeRecord

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

CONFIGS_MAX: Final = 10_000  # of a request, as in Kafka (QuorumController.MAX_RECORDS_PER_USER_OP)
TOO_MANY_CONFIGS: Final = "Unable to perform excessively large batch operation."

_OPERATION_NAMES: Final = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
_THREAD_COUNTS: Final = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "background.threads",
    "num.recovery.threads.per.data.dir",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.reader.threads",
)
_OF_A_LISTENER: Final = "listener.name."
_OF_LISTENERS_OF_ALL: Final = ("max.connections", "max.connection.creation.rate", "num.network.threads")
_NAME_REQUIRED: Final = {
    TOPIC_RESOURCE: "Default topic resources are not allowed.",
    CLIENT_METRICS_RESOURCE: "Subscription name can't be empty",
    GROUP_RESOURCE: "Default group resources are not allowed.",
}
_KINDS: Final = (TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)


class NodeConfig(NodeValues, Protocol):
    """The configuration of the deciding node."""

    node_id: int
    tables: ConfigTables


class ConfigChange(msgspec.Struct, frozen=True):
    """One property of one resource: SET, DELETE, APPEND or SUBTRACT."""

    name: str
    operation: int
    value: str | None


class ResourceChange(msgspec.Struct, frozen=True):
    """Changes to one resource. `replace`: properties that are not named lose their values (AlterConfigs)."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]
    replace: bool = False


class ResourceResult(msgspec.Struct, frozen=True):
    """Result of a ResourceChange."""

    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_configs(
    image: MetadataImage,
    requested: Sequence[ResourceChange],
    config: NodeConfig,
    validate_only: bool,
    named: Mapping[tuple[int, str], int] | None = None,
) -> Decision[list[ResourceResult]]:
    """One result per requested resource, in order; no records when only validating. `named`: how often the whole request names
    each resource, when `requested` is a part of it."""
    seen = named or Counter((change.resource_type, change.resource_name) for change in requested)
    records: list[msgspec.Struct] = []
    results: list[ResourceResult] = []
    checks = config.tables.topic_checks(image, config)
    for change in requested:
        resource = (change.resource_type, change.resource_name)
        try:
            if seen[resource] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            decided = _decide(image, change, config, checks)
            records += [*decided, *_clear_elr(image, change, decided)]
        except ApiError as api_error:
            results.append(ResourceResult(*resource, api_error.error, api_error.message))
        except ConfigError as error:
            results.append(ResourceResult(*resource, ErrorCode.INVALID_CONFIG, str(error)))
        else:
            results.append(ResourceResult(*resource))
    return Decision([] if validate_only else records, results)


def _decide(
    image: MetadataImage, change: ResourceChange, config: NodeConfig, checks: TopicChecks
) -> list[ConfigRecord | PartitionChangeRecord]:
    _check_entries(change)
    resource = (change.resource_type, change.resource_name)
    if change.resource_type not in _KINDS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {change.resource_type}")
    if change.resource_type == BROKER_RESOURCE:
        _check_broker_name(change.resource_name, image, config)
    current = image.configs.get(resource, {})
    wanted = _wanted(change, current, config)
    _validate(change, wanted, image, config)
    if change.resource_type == TOPIC_RESOURCE:
        checks.check(change.resource_name, current, wanted)
    _check_exists(image, change)
    moved: list[PartitionChangeRecord] = []
    if change.resource_type == TOPIC_RESOURCE:
        moved = change_observers(image, config, image.topics[change.resource_name], current, wanted)
        checks.accept(change.resource_name, current, wanted)
    changed = [
        ConfigRecord(resource_type=resource[0], resource_name=resource[1], name=name, value=wanted.get(name))
        for name in _changed_names(change, current)
        # Also a value that a broker has already: it may have to reload the file that the value names.
        if wanted.get(name) != current.get(name) or change.resource_type == BROKER_RESOURCE
    ]
    return [*changed, *moved]


def _check_entries(change: ResourceChange) -> None:
    nulls = [each.name for each in change.changes if each.value is None and each.operation != DELETE]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    if len({each.name for each in change.changes}) != len(change.changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def _clear_elr(
    image: MetadataImage, change: ResourceChange, decided: Sequence[ConfigRecord | PartitionChangeRecord]
) -> list[ClearElrRecord | PartitionChangeRecord]:
    """Clears the eligible leader replicas (KIP-966) when min.insync.replicas changes, on which their eligibility depends.

    Without a leader nothing can be committed, so replicas of such a partition stay eligible. Kafka clears them as well; then only
    an unclean election makes the partition available again.
    """
    if not with_elr(image) or all(
        isinstance(record, PartitionChangeRecord) or record.name != MIN_ISR for record in decided
    ):
        return []
    name = change.resource_name if change.resource_type == TOPIC_RESOURCE else ""
    topics = [topic for topic in image.topics.values() if name in ("", topic.name)]
    if all(state.leader >= 0 for topic in topics for state in topic.partitions.values()):
        return [ClearElrRecord(topic_name=name)]
    return [
        PartitionChangeRecord(
            topic_id=topic.topic_id, partition_id=index, eligible_leader_replicas=[], last_known_elr=[]
        )
        for topic in topics
        for index, state in topic.partitions.items()
        if state.leader >= 0 and (state.eligible_leader_replicas or state.last_known_elr)
    ]


def _check_broker_name(name: str, image: MetadataImage, config: NodeConfig) -> None:
    """ApiError unless the name is empty, this node's id, or that of a registered broker."""
    if not name:
        return
    try:
        broker_id = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if broker_id != config.node_id and broker_id not in image.brokers:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {config.node_id}, but received {broker_id}",
        )


def _wanted(change: ResourceChange, current: Mapping[str, str], config: NodeConfig) -> dict[str, str]:
    """The resource's properties after the change."""
    wanted = {} if change.replace else dict(current)
    for each in change.changes:
        if each.operation == SET:
            wanted[each.name] = each.value or ""
        elif each.operation == DELETE:
            wanted.pop(each.name, None)
        elif each.operation in _OPERATION_NAMES:
            wanted[each.name] = _edited_list(change.resource_type, each, current.get(each.name), config)
        else:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
    return wanted


def _edited_list(resource_type: int, each: ConfigChange, current: str | None, config: NodeConfig) -> str:
    key = _table(resource_type, config.tables).get(each.name)
    if key is None or key.type != "list":
        operation = _OPERATION_NAMES[each.operation]
        if resource_type == BROKER_RESOURCE:
            text = f"Config value {operation.lower()} is not allowed for config key: {each.name}"
        else:
            text = f"Can't {operation} to key {each.name} because its type is not LIST."
        raise ApiError(ErrorCode.INVALID_CONFIG, text)
    if current is None:
        current = _default(resource_type, each.name, config) or ""
    parts = [part for part in current.split(",") if part]
    edited = (each.value or "").split(",")
    if each.operation == APPEND:
        known = set(parts)
        return ",".join(parts + [part for part in dict.fromkeys(edited) if part not in known])
    left = Counter(edited)  # to remove, from the front
    kept = []
    for part in parts:
        if left[part] > 0:
            left[part] -= 1
        else:
            kept.append(part)
    return ",".join(kept)


def _default(resource_type: int, name: str, config: NodeConfig) -> str | None:
    if resource_type == TOPIC_RESOURCE:
        return config.topic_defaults().get(name)
    if resource_type == BROKER_RESOURCE:
        return config.value(name)
    return _table(resource_type, config.tables)[name].default


def _table(resource_type: int, tables: ConfigTables) -> ConfigDef:
    if resource_type == TOPIC_RESOURCE:
        return tables.topic
    if resource_type == BROKER_RESOURCE:
        return tables.updatable
    return GROUP_CONFIGS if resource_type == GROUP_RESOURCE else CLIENT_METRICS_CONFIGS


def _changed_names(change: ResourceChange, current: Mapping[str, str]) -> list[str]:
    named = [each.name for each in change.changes]
    return named + [name for name in current if name not in named] if change.replace else named


def _validate(
    change: ResourceChange, wanted: dict[str, str], image: MetadataImage, config: NodeConfig
) -> None:
    kind, name = change.resource_type, change.resource_name
    if not name and kind in _NAME_REQUIRED:
        raise ApiError(ErrorCode.INVALID_REQUEST, _NAME_REQUIRED[kind])
    if kind == TOPIC_RESOURCE:
        problem = invalid_topic_name(name)
        if problem:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        validate_topic_configs(
            wanted,
            config.topic_defaults(),
            config.tables.topic,
            tiers=config.value(TIERS) == "true",
            current=image.topic_configs(name),
        )
    elif kind == BROKER_RESOURCE:
        changed = {each.name for each in change.changes}
        _check_broker_change(name, wanted, changed, image, config.value, config.tables.updatable)
    elif kind == CLIENT_METRICS_RESOURCE:
        validate_client_metrics(wanted)
    else:
        validate_group(wanted, config.value)


def _check_exists(image: MetadataImage, change: ResourceChange) -> None:
    if change.resource_type == TOPIC_RESOURCE and change.resource_name not in image.topics:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{change.resource_name}' does not exist."
        )


def _check_broker_change(
    broker: str,
    wanted: Mapping[str, str],
    changed: set[str],
    image: MetadataImage,
    current_value: Callable[[str], str | None],
    table: ConfigDef,
) -> None:
    """ApiError when the properties `wanted` may not become those of a running broker ("": of the whole cluster; KIP-226).

    `changed` are the names the request carries, deleted ones included. Names that are not in `table` have no effect.
    """
    names = [name for name in wanted if name in table]
    _refuse_listed(
        [name for name in names if table[name].update_mode == READ_ONLY],
        "Cannot update these configs dynamically",
    )
    _refuse_listed(
        [name for name in names if name.startswith("ssl.")],
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    if not broker:
        _refuse_listed(
            [name for name in wanted if _is_of_one_broker(name, table)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    for name in names:
        try:
            table[name].parse(wanted[name])
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
    for name in _THREAD_COUNTS:
        if name in changed and name in wanted:
            _check_thread_count(
                name, int(wanted[name]), int(current_value(name) or BROKER_CONFIGS[name].default or 1)
            )
    if with_elr(image) and MIN_ISR in changed:
        _check_min_isr(broker, wanted)


def _is_of_one_broker(name: str, table: ConfigDef) -> bool:
    """Whether each broker has a value of its own. So has each for a listener, of whatever property
    (`listener.name.<listener>.<property>`, `listener.name.<listener>.<mechanism>.<property>`), but for a few."""
    if name.startswith(_OF_A_LISTENER):
        _, dot, base = name.removeprefix(_OF_A_LISTENER).partition(".")
        return bool(dot) and base not in _OF_LISTENERS_OF_ALL
    return name in table and table[name].update_mode == PER_BROKER


def _refuse_listed(names: list[str], reason: str) -> None:
    if names:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{reason}: [{', '.join(names)}]")


def _check_thread_count(name: str, count: int, current: int) -> None:
    problem = ""
    if count < current // 2:
        problem = f"value should be at least half the current value {current}"
    elif count > current * 2:
        problem = f"value should not be greater than double the current value {current}"
    if problem:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation "
            f"failed for {name}={count}, {problem} for configuration Invalid dynamic configuration",
        )


def _check_min_isr(broker: str, wanted: Mapping[str, str]) -> None:
    """Eligible leader replicas (KIP-966) need one min.insync.replicas for the whole cluster."""
    if broker:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        )
    if MIN_ISR not in wanted:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )
