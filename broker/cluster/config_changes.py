"""AlterConfigs and IncrementalAlterConfigs: the controller changes resources of the metadata, this broker the levels of its
loggers; the answer leaves when both are done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config.logger_levels import change_logger_levels
from barnabas.controller.operations.configs import ResourceChange, ResourceResult, alter_configs
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import alter_configs as whole
from barnabas.wire.messages import incremental_alter_configs as incremental

if TYPE_CHECKING:
    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.controller.metadata.controller import Controller
    from barnabas.runtime.interface import Runtime

BROKER_LOGGER_RESOURCE: Final = 8
ALTER_CONFIGS: Final = 33
INCREMENTAL_ALTER_CONFIGS: Final = 44
CHANGES_PER_TURN: Final = 500
CONFIGS_MAX: Final = 10_000  # of a request, as in Kafka (QuorumController.MAX_RECORDS_PER_USER_OP)
TOO_MANY_CONFIGS: Final = "Unable to perform excessively large batch operation."


def are_too_many(resources: Sequence[whole.AlterConfigsResource | incremental.AlterConfigsResource]) -> bool:
    """Whether a request changes more than is decided about at once."""
    return len(resources) > CONFIGS_MAX or sum([len(each.configs) for each in resources]) > CONFIGS_MAX


def change_configs(
    runtime: Runtime,
    config: BrokerConfig,
    controller: Controller,
    channel: ControllerChannel,
    requested: Sequence[ResourceChange],
    validate_only: bool,
    done: Callable[[list[ResourceResult]], object],
) -> None:
    """Call `done` with a result for each requested resource, in their order; once, now or later."""
    # AlterConfigs knows no loggers: the controller refuses its resource type 8.
    is_logger = [each.resource_type == BROKER_LOGGER_RESOURCE and not each.replace for each in requested]
    loggers = iter(
        [
            change_logger_levels(each, config.node_id, validate_only)
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

    if controller.is_active or not others:
        _Alteration(runtime, config, controller, others, validate_only, merge).go_on()
        return

    def answered(response: Any, error: ErrorCode) -> None:
        if response is None:
            failed(error, error.message or "")
            return
        merge(
            [
                ResourceResult(
                    each.resource_type,
                    each.resource_name,
                    ErrorCode.of(each.error_code),
                    each.error_message,
                )
                for each in response.responses
            ]
        )

    if others[0].replace:
        channel.send(ALTER_CONFIGS, _whole(others, validate_only), answered)
    else:
        channel.send(INCREMENTAL_ALTER_CONFIGS, _incremental(others, validate_only), answered)


class _Alteration:
    """Changes decided here, CHANGES_PER_TURN at a time: each succeeds or fails by itself, and what is decided about so many
    takes a turn 20 ms."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        controller: Controller,
        changes: Sequence[ResourceChange],
        validate_only: bool,
        done: Callable[[list[ResourceResult]], object],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._controller = controller
        self._changes = changes
        self._validate_only = validate_only
        self._done = done
        self._named = Counter((each.resource_type, each.resource_name) for each in changes)
        self._results: list[ResourceResult] = []

    def go_on(self) -> None:
        at = len(self._results)
        changes = self._changes[at : at + CHANGES_PER_TURN]

        def decided(results: list[ResourceResult]) -> None:
            self._results += results
            if len(self._results) < len(self._changes):
                self._runtime.call_soon(self.go_on)
            else:
                self._done(self._results)

        def failed(error: ErrorCode, message: str) -> None:
            decided(
                [ResourceResult(each.resource_type, each.resource_name, error, message) for each in changes]
            )

        self._controller.run(
            lambda image: alter_configs(image, changes, self._config, self._validate_only, self._named),
            decided,
            failed,
        )


def _whole(changes: Sequence[ResourceChange], validate_only: bool) -> whole.AlterConfigsRequest:
    return whole.AlterConfigsRequest(
        resources=[
            whole.AlterConfigsResource(
                resource_type=change.resource_type,
                resource_name=change.resource_name,
                configs=[whole.AlterableConfig(name=each.name, value=each.value) for each in change.changes],
            )
            for change in changes
        ],
        validate_only=validate_only,
    )


def _incremental(
    changes: Sequence[ResourceChange], validate_only: bool
) -> incremental.IncrementalAlterConfigsRequest:
    return incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=change.resource_type,
                resource_name=change.resource_name,
                configs=[
                    incremental.AlterableConfig(
                        name=each.name, config_operation=each.operation, value=each.value
                    )
                    for each in change.changes
                ],
            )
            for change in changes
        ],
        validate_only=validate_only,
    )
