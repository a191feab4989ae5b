"""Creating and deleting ACLs (KIP-11, KIP-801)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.acls import (
    ANY,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import RemoveAccessControlEntryRecord

ACLS_PER_REQUEST_MAX: Final = 10_000  # as in Kafka
TOO_MANY_CREATED: Final = f"Cannot create more than {ACLS_PER_REQUEST_MAX} acls in a single create operation."
TOO_MANY_DELETED: Final = f"Cannot remove more than {ACLS_PER_REQUEST_MAX} acls in a single delete operation."
# Of ACLs with filters, beside one of each ACL: more would hold up other requests.
COMPARISONS_MAX: Final = 100_000
TOO_MANY_FILTERS: Final = "The request has more filters than can be compared with all ACLs at once."

_UNKNOWN: Final = "UNKNOWN"
_KINDS: Final = {int(each): each.name for each in ResourceType}
_PATTERNS: Final = {int(each): each.name for each in PatternType}
_OPERATIONS: Final = {int(each): each.name for each in Operation}
_PERMISSIONS: Final = {int(each): each.name for each in Permission}


def create_acls(
    image: MetadataImage, wanted: Sequence[Acl], new_id: Callable[[int], bytes]
) -> Decision[list[ApiError | None]]:
    """Create those that are valid; ones that exist already succeed too. The results are in the order of `wanted`. `new_id(n)`: the
    id of the n-th."""
    records: dict[Acl, msgspec.Struct] = {}
    results: list[ApiError | None] = []
    for number, acl in enumerate(wanted):
        problem = _problem(acl)
        results.append(None if problem is None else ApiError(ErrorCode.INVALID_REQUEST, problem))
        if problem is None and acl not in image.acls.ids and acl not in records:
            records[acl] = acl.record(new_id(number))
    return Decision(list(records.values()), results)


def _problem(acl: Acl) -> str | None:
    """Why Kafka refuses the ACL. Operations that a resource does not have are no reason."""
    if acl.resource_type == ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.name:
        return "Invalid empty resource name"
    if acl.resource_type == ANY or acl.resource_type not in _KINDS:
        return f"Invalid resourceType {_KINDS.get(acl.resource_type, _UNKNOWN)}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {_PATTERNS.get(acl.pattern_type, _UNKNOWN)}"
    if acl.operation == ANY or acl.operation not in _OPERATIONS:
        return f"Invalid operation {_OPERATIONS.get(acl.operation, _UNKNOWN)}"
    if acl.permission == ANY or acl.permission not in _PERMISSIONS:
        return f"Invalid permissionType {_PERMISSIONS.get(acl.permission, _UNKNOWN)}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
            f"from the principal name)"
        )
    return None


def _filter_problem(wanted: AclFilter) -> str | None:
    if wanted.resource_type not in _KINDS or wanted.pattern_type not in _PATTERNS:
        return "Unknown patternFilter."
    if wanted.operation not in _OPERATIONS or wanted.permission not in _PERMISSIONS:
        return "Unknown entryFilter."
    return None


def delete_acls(image: MetadataImage, filters: Sequence[AclFilter]) -> Decision[list[list[Acl] | ApiError]]:
    """Delete what the filters match; each is answered with all that it matches."""
    comparisons_left = COMPARISONS_MAX + len(image.acls.by_id)
    removed: dict[bytes, None] = {}
    results: list[list[Acl] | ApiError] = []
    for each in filters:
        problem = _filter_problem(each)
        if problem is not None:
            results.append(ApiError(ErrorCode.INVALID_REQUEST, problem))
            continue
        comparisons_left -= len(image.acls.candidates(each)) + 1
        if comparisons_left < 0:
            results.append(ApiError(ErrorCode.INVALID_REQUEST, TOO_MANY_FILTERS))
            continue
        matching = image.acls.matching(each)
        new = [acl_id for acl_id in matching if acl_id not in removed]
        if len(removed) + len(new) > ACLS_PER_REQUEST_MAX:
            results.append(ApiError(ErrorCode.INVALID_REQUEST, TOO_MANY_DELETED))
            continue
        removed.update(dict.fromkeys(new))
        results.append(list(matching.values()))
    return Decision([RemoveAccessControlEntryRecord(acl_id) for acl_id in removed], results)
