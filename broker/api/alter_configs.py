"""AlterConfigs (33), versions 0-2, and IncrementalAlterConfigs (44), versions 0-1.

AlterConfigs replaces all properties of a resource: those that it does not name lose their value. It is deprecated since
KIP-339 and still used. IncrementalAlterConfigs sets, deletes, appends to or subtracts from single properties, also the
levels of this broker's loggers (KIP-412), which AlterConfigs refuses, as in Kafka.

The active controller changes the resources of the metadata, this broker its loggers; the response leaves when both are done. Before
that this broker reads the stores that changes of its own listeners' TLS name, as in Kafka: what it can't use is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from barnabas.broker.config.logger_levels import change_logger_levels
from barnabas.broker.requests.authorization import config_refusal
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect
from barnabas.broker.services import HandlerContext, Services
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.image import BROKER_RESOURCE
from barnabas.controller.operations.configs import (
    CONFIGS_MAX,
    DELETE,
    SET,
    TOO_MANY_CONFIGS,
    ConfigChange,
    ResourceChange,
    ResourceResult,
)
from barnabas.controller.operations.configs import alter_configs as decide_configs
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import alter_configs as replacing
from barnabas.wire.messages import incremental_alter_configs as incremental

if TYPE_CHECKING:
    from barnabas.broker.security.listener_tls import TlsListeners

BROKER_LOGGER_RESOURCE: Final = 8
CHANGES_PER_TURN: Final = 500  # take 20 ms to decide

Request: TypeAlias = "replacing.AlterConfigsRequest | incremental.IncrementalAlterConfigsRequest"


class _Kind(NamedTuple):
    """What the two APIs have of their own."""

    change: Callable[[Any], ResourceChange]
    response: Callable[..., msgspec.Struct]
    resource_response: Callable[[int, str | None, int, str], Any]

    def responded(self, result: ResourceResult) -> Any:
        """The result of one resource, in the response."""
        return self.resource_response(
            result.error, result.message, result.resource_type, result.resource_name
        )


@api(33, 0, 2, shared=True)
def alter_configs(context: HandlerContext, request: replacing.AlterConfigsRequest) -> Outcome:
    return _alter(context, request, _REPLACING)


@api(44, 0, 1, shared=True)
def incremental_alter_configs(
    context: HandlerContext, request: incremental.IncrementalAlterConfigsRequest
) -> Outcome:
    return _alter(context, request, _INCREMENTAL)


def _replacement(resource: replacing.AlterConfigsResource) -> ResourceChange:
    changes = [ConfigChange(each.name, SET, each.value) for each in resource.configs]
    return ResourceChange(resource.resource_type, resource.resource_name, changes, replace=True)


def _increment(resource: incremental.AlterConfigsResource) -> ResourceChange:
    changes = [ConfigChange(each.name, each.config_operation, each.value) for each in resource.configs]
    return ResourceChange(resource.resource_type, resource.resource_name, changes)


_REPLACING: Final = _Kind(
    _replacement, replacing.AlterConfigsResponse, replacing.AlterConfigsResourceResponse
)
_INCREMENTAL: Final = _Kind(
    _increment, incremental.IncrementalAlterConfigsResponse, incremental.AlterConfigsResourceResponse
)


def _alter(context: HandlerContext, request: Request, kind: _Kind) -> Outcome:
    resources, validate_only = request.resources, request.validate_only
    if len(resources) > CONFIGS_MAX or sum([len(each.configs) for each in resources]) > CONFIGS_MAX:
        answer_in_slices(context, _refused(resources, kind))
        return PENDING
    services = context.services
    changes = [kind.change(each) for each in resources]
    settled = _unauthorized(context, changes, kind)  # by their place in the request
    for place, change in enumerate(changes):
        if change.resource_type == BROKER_LOGGER_RESOURCE and kind is _INCREMENTAL and place not in settled:
            result = change_logger_levels(change, services.node_id, validate_only)
            settled[place] = kind.responded(result)

    def alter() -> None:
        _alter_others(context, request, kind, changes, settled)

    if services.tls is None:
        alter()
    else:
        _check_tls(services, services.tls, changes, settled, kind, alter)
    return PENDING


def _check_tls(
    services: Services,
    tls: TlsListeners,
    changes: Sequence[ResourceChange],
    settled: dict[int, Any],
    kind: _Kind,
    done: Callable[[], object],
) -> None:
    """Add the refusals of changes to this broker's TLS to `settled`, then call `done()`."""
    own = BROKER_RESOURCE, str(services.node_id)
    places = [
        place
        for place, change in enumerate(changes)
        if (change.resource_type, change.resource_name) == own and place not in settled
    ]
    if len(places) != 1:  # several are refused
        done()
        return
    (place,) = places
    change = changes[place]
    stored = {} if change.replace else dict(services.config.stored_node)
    for each in change.changes:
        if each.operation == SET and each.value is not None:
            stored[each.name] = each.value
        elif each.operation == DELETE:
            stored.pop(each.name, None)
    names = {each.name for each in change.changes}
    if change.replace:
        names.update(services.config.stored_node)

    def checked(error: BaseException | None) -> None:
        if error is not None:
            message = (
                "Invalid value org.apache.kafka.common.config.ConfigException: Validation of dynamic config update of SSLFactory "
                f"failed: org.apache.kafka.common.config.ConfigException: {error} for configuration Invalid dynamic configuration"
            )
            settled[place] = kind.responded(ResourceResult(*own, ErrorCode.INVALID_REQUEST, message))
        done()

    tls.check(stored, names, checked)


def _alter_others(
    context: HandlerContext,
    request: Request,
    kind: _Kind,
    changes: Sequence[ResourceChange],
    settled: dict[int, Any],
) -> None:
    services, validate_only = context.services, request.validate_only
    resources = request.resources
    others = [place for place in range(len(changes)) if place not in settled]

    def complete(responses: Iterable[Any]) -> None:
        of_place = {**settled, **dict(zip(others, responses, strict=True))}
        context.complete(kind.response(responses=[of_place[place] for place in range(len(changes))]))

    def decided(results: Sequence[ResourceResult]) -> None:
        complete(map(kind.responded, results))

    def answered(response: Any, error: ErrorCode) -> None:
        if response is None:
            decided(_failed([changes[place] for place in others], error, error.message))
        else:
            complete(response.responses)

    if not others:
        complete([])
    elif services.controller.is_active:
        _Alteration(services, [changes[place] for place in others], validate_only, decided).decide_next()
    else:
        forwarded = msgspec.structs.replace(request, resources=[resources[place] for place in others])
        services.controller_channel.send(context.api_key, forwarded, answered)


def _unauthorized(context: HandlerContext, changes: Sequence[ResourceChange], kind: _Kind) -> dict[int, Any]:
    """The responses of resources whose configs the sender may not alter, by their place in the request."""
    refused: dict[int, Any] = {}
    if context.services.authorizer is None:
        return refused
    for place, change in enumerate(changes):
        named = change.resource_type, change.resource_name
        error = config_refusal(context, Operation.ALTER_CONFIGS, *named)
        if error:
            is_logger = change.resource_type == BROKER_LOGGER_RESOURCE
            message = None if is_logger and kind is _INCREMENTAL else error.message  # as in Kafka
            refused[place] = kind.responded(ResourceResult(*named, error, message))
    return refused


def _refused(resources: Sequence[Any], kind: _Kind) -> Generator[None, None, msgspec.Struct]:
    def refuse(resource: Any) -> Any:
        return kind.resource_response(
            ErrorCode.POLICY_VIOLATION, TOO_MANY_CONFIGS, resource.resource_type, resource.resource_name
        )

    return kind.response(responses=(yield from collect(refuse, resources)))


def _failed(changes: Sequence[ResourceChange], error: ErrorCode, message: str | None) -> list[ResourceResult]:
    return [ResourceResult(each.resource_type, each.resource_name, error, message or "") for each in changes]


class _Alteration:
    """Changes that this node's controller decides, CHANGES_PER_TURN at a time: each succeeds or fails by itself."""

    def __init__(
        self,
        services: Services,
        changes: Sequence[ResourceChange],
        validate_only: bool,
        done: Callable[[Sequence[ResourceResult]], object],
    ) -> None:
        self._services = services
        self._changes = changes
        self._validate_only = validate_only
        self._done = done
        self._named = Counter((each.resource_type, each.resource_name) for each in changes)
        self._results: list[ResourceResult] = []

    def decide_next(self) -> None:
        services = self._services
        at = len(self._results)
        changes = self._changes[at : at + CHANGES_PER_TURN]

        def decided(results: Sequence[ResourceResult]) -> None:
            self._results += results
            if len(self._results) < len(self._changes):
                services.runtime.call_soon(self.decide_next)
            else:
                self._done(self._results)

        services.controller.run(
            lambda image: decide_configs(image, changes, services.config, self._validate_only, self._named),
            decided,
            lambda error, message: decided(_failed(changes, error, message)),
        )
