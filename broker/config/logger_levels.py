"""The BROKER_LOGGER resource (KIP-412): the broker's loggers and their levels.

Levels have Kafka's names; Python's logging has no TRACE, so it is one below DEBUG. Changes last until the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from barnabas.broker.config.authorizer import AUDIT_LOGGER
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations.configs import DELETE, SET, ResourceChange, ResourceResult
from barnabas.wire.errors import ErrorCode

ROOT: Final = "root"
FAMILY: Final = "barnabas"
LEVELS: Final = {"DEBUG": 10, "ERROR": 40, "FATAL": 50, "INFO": 20, "TRACE": 9, "WARN": 30}
_OPERATIONS: Final = {2: "APPEND", 3: "SUBTRACT"}


def logger_names() -> list[str]:
    """The root and every logger of the broker, whether used yet or not."""
    known = logging.root.manager.loggerDict
    names = {name for name in {*known, FAMILY} if name.partition(".")[0] == FAMILY}
    return [ROOT, *sorted(names | {AUDIT_LOGGER})]


def logger_levels() -> Iterator[tuple[str, str]]:
    """(name, effective level)."""
    for name in logger_names():
        effective = _logger(name).getEffectiveLevel()
        reached = [(level, text) for text, level in LEVELS.items() if level >= effective]
        yield name, min(reached)[1] if reached else "FATAL"


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def change_logger_levels(change: ResourceChange, node_id: int, validate_only: bool) -> ResourceResult:
    """Set or unset levels; none if one of them is invalid."""
    resource = (change.resource_type, change.resource_name)
    try:
        _check(change, node_id)
    except ApiError as api_error:
        return ResourceResult(*resource, api_error.error, api_error.message)
    if not validate_only:
        for each in change.changes:
            _logger(each.name).setLevel(LEVELS[each.value or ""] if each.operation == SET else logging.NOTSET)
    return ResourceResult(*resource)


def _check(change: ResourceChange, node_id: int) -> None:
    nulls = [each.name for each in change.changes if each.value is None and each.operation != DELETE]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    names = [each.name for each in change.changes]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    check_broker_id(change.resource_name, node_id)
    known = set(logger_names())
    for each in change.changes:
        if each.operation in _OPERATIONS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{_OPERATIONS[each.operation]} operation is not allowed for the BROKER_LOGGER resource",
            )
        if each.operation not in (SET, DELETE):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
        if each.name not in known:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {each.name} does not exist!")
        if each.operation == DELETE and each.name == ROOT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
            )
        if each.operation == SET and each.value not in LEVELS:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {each.name} to {each.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(LEVELS))}",
            )


def check_broker_id(name: str, node_id: int) -> None:
    """ApiError unless `name` is this broker's id."""
    try:
        broker_id = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if broker_id != node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {node_id}, but received {broker_id}"
        )
