"""What AlterConfigs and IncrementalAlterConfigs share: resources of the metadata go to the controller, the
levels of this broker's loggers are set here, and the answer leaves when both are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.broker.logger_levels import change_logger_levels
from barnabas.controller.operations.configs import ResourceChange, ResourceResult, alter_configs

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.wire.errors import ErrorCode

BROKER_LOGGER_RESOURCE: Final = 8


def change_configs(
    services: Services,
    requested: Sequence[ResourceChange],
    validate_only: bool,
    done: Callable[[list[ResourceResult]], object],
) -> None:
    """Call `done` with a result for each requested resource, in their order; once, now or later."""
    # AlterConfigs knows no loggers: the controller refuses its resource type 8.
    is_logger = [each.resource_type == BROKER_LOGGER_RESOURCE and not each.replace for each in requested]
    loggers = iter(
        [
            change_logger_levels(each, services.node_id, validate_only)
            for each, local in zip(requested, is_logger, strict=True)
            if local
        ]
    )
    others = [each for each, local in zip(requested, is_logger, strict=True) if not local]

    def merge(results: list[ResourceResult]) -> None:
        committed = iter(results)
        done([next(loggers) if local else next(committed) for local in is_logger])

    def failed(error: ErrorCode, message: str) -> None:
        merge([ResourceResult(each.resource_type, each.resource_name, error, message) for each in others])

    services.controller.run(
        lambda image: alter_configs(image, others, services.config, validate_only), merge, failed
    )
