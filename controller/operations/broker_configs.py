"""Which properties of a running broker may be changed, and to what (KIP-226)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.config_def import PER_BROKER, READ_ONLY, ConfigDef
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode

_THREAD_COUNTS: Final = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "background.threads",
    "num.recovery.threads.per.data.dir",
)
_ELR_FEATURE: Final = "eligible.leader.replicas.version"
_MIN_ISR: Final = "min.insync.replicas"


def check_broker_change(
    broker: str,
    wanted: Mapping[str, str],
    changed: set[str],
    image: MetadataImage,
    current_value: Callable[[str], str | None],
    table: ConfigDef,
) -> None:
    """ApiError when the properties `wanted` may not become those of `broker` ("" is the whole cluster).

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
            [name for name in names if table[name].update_mode == PER_BROKER],
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
    if image.features.get(_ELR_FEATURE, 0) and _MIN_ISR in changed:
        _check_min_isr(broker, wanted)


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
    """Eligible leader replicas (KIP-966) count on one min.insync.replicas for the whole cluster."""
    if broker:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        )
    if _MIN_ISR not in wanted:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )
