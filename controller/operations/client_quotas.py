"""AlterClientQuotas and DescribeClientQuotas (KIP-546): from requests and the image to ClientQuotaRecords and answers.

Each entity succeeds or fails by itself. The checks, their order and their texts are those of Kafka 4.3.1
(ClientQuotaControlManager, ClientQuotasImage).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage, QuotaEntity, quota_entity, quota_record
from barnabas.controller.metadata.quota_names import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_client_quotas import EntryData as AlteredEntity
from barnabas.wire.messages.describe_client_quotas import ComponentData, EntityData, ValueData
from barnabas.wire.messages.describe_client_quotas import EntryData as DescribedEntity

# key -> the largest whole number, and its type in Kafka's text; None where fractions are allowed
_CLIENT_KEYS: Final[Mapping[str, tuple[int, str] | None]] = {
    PRODUCER_BYTE_RATE: (2**63 - 1, "a LONG"),
    CONSUMER_BYTE_RATE: (2**63 - 1, "a LONG"),
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Final[Mapping[str, tuple[int, str] | None]] = {CONNECTION_CREATION_RATE: (2**31 - 1, "an INT")}
_TYPES: Final = (USER, CLIENT_ID, IP)
_FRACTION_MIN: Final = 1e-6

QUOTAS_MAX: Final = (
    10_000  # entities and changes of a request, as in Kafka (QuorumController.MAX_RECORDS_PER_USER_OP)
)
TOO_MANY_QUOTAS: Final = "Unable to perform excessively large batch operation."

QuotaResults = dict[QuotaEntity, ApiError | None]  # None: the change has succeeded

# DescribeClientQuotasRequest.MatchType
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


def alter_client_quotas(
    image: MetadataImage,
    entries: Sequence[AlteredEntity],
    is_host: Callable[[str], bool],
    *,
    validate_only: bool,
) -> Decision[QuotaResults]:
    """`is_host(name)`: whether it is an address, or resolves to one. An entity that is named again keeps the changes that it is
    named with first, and its result is an error."""
    records: list[msgspec.Struct] = []
    results: QuotaResults = {}
    for entry in entries:
        entity = quota_entity(entry.entity)
        try:
            if entity in results or len({change.key for change in entry.ops}) < len(entry.ops):
                raise _invalid(f"Ignoring duplicate entity {_described(entity)}")
            records += _changes(image, entity, entry, is_host)
            results[entity] = None
        except ApiError as error:
            results[entity] = error
    return Decision([] if validate_only else records, results)


def hosts_named(entries: Sequence[AlteredEntity]) -> set[str]:
    """The names of the ip entities."""
    return {
        part.entity_name
        for entry in entries
        for part in entry.entity
        if part.entity_type == IP and part.entity_name
    }


def _changes(
    image: MetadataImage, entity: QuotaEntity, entry: AlteredEntity, is_host: Callable[[str], bool]
) -> list[msgspec.Struct]:
    _check_entity(entity)
    keys = _keys_of(dict(entity), is_host)
    present = image.client_quotas.get(entity, {})
    records: list[msgspec.Struct] = []
    for change in entry.ops:
        if not change.remove:
            if change.key not in keys:
                raise _invalid(f"Invalid configuration key {change.key}")
            _check_value(change.key, change.value, keys[change.key])
        value = None if change.remove else change.value
        if present.get(change.key) != value:
            records.append(quota_record(entity, change.key, value))
    return records


def _check_entity(entity: QuotaEntity) -> None:
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in _TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")


def _keys_of(
    entity: Mapping[str, str | None], is_host: Callable[[str], bool]
) -> Mapping[str, tuple[int, str] | None]:
    if IP not in entity:
        return _CLIENT_KEYS
    if len(entity) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )
    name = entity[IP]
    if name is not None and not is_host(name):
        raise _invalid(f"{name} is not a valid IP or resolvable host.")
    return _IP_KEYS


def _check_value(key: str, value: float, whole: tuple[int, str] | None) -> None:
    if not value > 0:  # NaN neither
        raise _invalid(f"Quota {key} must be greater than 0")
    if whole is None:
        if value == math.inf:  # Kafka takes it; no rate can be computed with it
            raise _invalid(f"Proposed value for {key} is too large for a DOUBLE.")
        return
    largest, type_name = whole
    if value > largest:
        raise _invalid(f"Proposed value for {key} is too large for {type_name}.")
    if math.fmod(value, 1.0) > _FRACTION_MIN:
        raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def _described(entity: QuotaEntity) -> str:
    """As Java prints it."""
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{parts}}})"


def describe_client_quotas(
    image: MetadataImage, components: Sequence[ComponentData], *, strict: bool
) -> Generator[None, None, list[DescribedEntity]]:
    """The quotas of entities that have all components, and no others where `strict`. Yields between parts of the work. ApiError."""
    exact, specified = _filter(components)
    wanted = exact.keys() | specified
    found = []
    for entity, quotas in list(image.client_quotas.items()):
        parts = dict(entity)
        if _has(parts, exact, specified) and (not strict or len(parts) == len(wanted)):
            found.append(
                DescribedEntity(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[ValueData(key=key, value=value) for key, value in quotas.items()],
                )
            )
        yield
    return found


def _has(
    parts: Mapping[str, str | None], exact: Mapping[str, str | None], specified: Collection[str]
) -> bool:
    return all(kind in parts for kind in specified) and all(
        kind in parts and parts[kind] == name for kind, name in exact.items()
    )


def _filter(components: Sequence[ComponentData]) -> tuple[dict[str, str | None], set[str]]:
    """Types with their names, and types that may have any name."""
    exact: dict[str, str | None] = {}
    specified: set[str] = set()
    for each in components:
        kind = each.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in specified:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if each.match_type == _EXACT:
            if each.match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = each.match
        elif each.match_type == _DEFAULT:
            if each.match is not None:
                raise _invalid("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            exact[kind] = None
        elif each.match_type == _SPECIFIED:
            if each.match is not None:
                raise _invalid("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            specified.add(kind)
        else:
            raise _invalid(f"Unknown match type {each.match_type}")
    named = exact.keys() | specified
    if IP in named and len(named) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return exact, specified
