"""ACLs: what one is, the set of them in the image, and filters over it (KIP-11, KIP-290).

Codes are those of Kafka's ResourceType, PatternType, AclOperation and AclPermissionType.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from enum import IntEnum
from typing import Final, TypeVar

import msgspec

from barnabas.wire.messages.metadata_records import AccessControlEntryRecord

ANY: Final = 1  # the code of "any", in all four
WILDCARD: Final = "*"  # a literal name, or a host, that stands for all
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"  # the name of the one cluster resource

K = TypeVar("K")
L = TypeVar("L")
V = TypeVar("V")


class ResourceType(IntEnum):
    """What an ACL is about; ANY in filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names resources. ANY and MATCH in filters only; MATCH: whatever applies to the name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done with a resource (AclOperation); ANY in filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """AclPermissionType; ANY in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(msgspec.Struct, frozen=True):
    """One access control entry."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str  # TYPE:NAME
    host: str
    operation: int
    permission: int

    @classmethod
    def of(cls, record: AccessControlEntryRecord) -> Acl:
        return cls(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def record(self, acl_id: bytes) -> AccessControlEntryRecord:
        return AccessControlEntryRecord(
            acl_id,
            self.resource_type,
            self.name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )


class AclFilter(msgspec.Struct, frozen=True):
    """Which ACLs are meant. None, or ANY: all."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name in (None, acl.name):
            return True
        if self.pattern_type != PatternType.MATCH or self.name is None:
            return False
        if acl.pattern_type == PatternType.LITERAL:
            return acl.name == WILDCARD
        return self.name.startswith(acl.name)


Pattern = tuple[int, int, str]  # resource type, pattern type, name
AclsOfPattern = Mapping[str, Mapping[bytes, Acl]]  # by principal and id


class _Part(dict[K, V]):
    """A part of an AclSet, which copies of the set share. Only its owner changes it in place."""

    __slots__ = ("owner",)

    def __init__(self, owner: object, items: Mapping[K, V]) -> None:
        super().__init__(items)
        self.owner = owner


class AclSet:
    """The cluster's ACLs by id, and by what they apply to. A copy costs some milliseconds with 100,000 of them: it shares the ACLs of
    each pattern and of each principal, which are copied when either set changes them."""

    __slots__ = ("_by_pattern", "_by_principal", "_owner", "_prefix_lengths", "by_id", "ids")

    def __init__(self) -> None:
        self.by_id: dict[bytes, Acl] = {}
        self.ids: dict[Acl, bytes] = {}
        self._by_pattern: dict[Pattern, _Part[str, _Part[bytes, Acl]]] = {}
        self._by_principal: dict[tuple[int, str], _Part[bytes, Acl]] = {}  # (resource type, principal)
        self._prefix_lengths: dict[int, Counter[int]] = {}  # of the prefixed patterns, by resource type
        self._owner = object()  # of the parts that no copy shares

    def copy(self) -> AclSet:
        copy = AclSet()
        copy.by_id = self.by_id.copy()
        copy.ids = self.ids.copy()
        copy._by_pattern = self._by_pattern.copy()
        copy._by_principal = self._by_principal.copy()
        copy._prefix_lengths = {kind: lengths.copy() for kind, lengths in self._prefix_lengths.items()}
        self._owner = object()
        return copy

    def _own(self, parts: MutableMapping[K, _Part[L, V]], key: K) -> _Part[L, V]:
        """The part with this key, which may be changed; a new one, if there is none."""
        part = parts.get(key)
        if part is None or part.owner is not self._owner:
            part = parts[key] = _Part(self._owner, {} if part is None else part)
        return part

    def add(self, acl_id: bytes, acl: Acl) -> None:
        self.remove(acl_id)
        self.by_id[acl_id] = acl
        self.ids[acl] = acl_id
        self._own(self._by_principal, (acl.resource_type, acl.principal))[acl_id] = acl
        pattern = acl.resource_type, acl.pattern_type, acl.name
        if acl.pattern_type == PatternType.PREFIXED and pattern not in self._by_pattern:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.name)] += 1
        self._own(self._own(self._by_pattern, pattern), acl.principal)[acl_id] = acl

    def remove(self, acl_id: bytes) -> None:
        """Without effect when there is none with this id. Others that are equal to it stay."""
        acl = self.by_id.pop(acl_id, None)
        if acl is None:
            return
        if self.ids.get(acl) == acl_id:
            del self.ids[acl]
        self._remove_from(self._by_principal, (acl.resource_type, acl.principal), acl_id)
        pattern = acl.resource_type, acl.pattern_type, acl.name
        principals = self._own(self._by_pattern, pattern)
        self._remove_from(principals, acl.principal, acl_id)
        if principals:
            return
        del self._by_pattern[pattern]
        if acl.pattern_type == PatternType.PREFIXED:
            lengths = self._prefix_lengths[acl.resource_type]
            lengths[len(acl.name)] -= 1
            if not lengths[len(acl.name)]:
                del lengths[len(acl.name)]

    def _remove_from(self, parts: MutableMapping[K, _Part[bytes, Acl]], key: K, acl_id: bytes) -> None:
        part = self._own(parts, key)
        del part[acl_id]
        if not part:
            del parts[key]

    def applying_to(self, resource_type: int, name: str) -> Iterator[AclsOfPattern]:
        """The ACLs of each pattern that applies to a resource: its literal name, prefixes of it, and the wildcard."""
        by_pattern = self._by_pattern
        found = by_pattern.get((resource_type, PatternType.LITERAL, name))
        if found is not None:
            yield found
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                found = by_pattern.get((resource_type, PatternType.PREFIXED, name[:length]))
                if found is not None:
                    yield found
        found = by_pattern.get((resource_type, PatternType.LITERAL, WILDCARD))
        if found is not None and name != WILDCARD:
            yield found

    def candidates(self, wanted: AclFilter) -> Collection[tuple[bytes, Acl]]:
        """(id, ACL) of those that the filter may match: all, unless it names a pattern."""
        if wanted.name is None or wanted.resource_type == ANY or wanted.pattern_type <= PatternType.MATCH:
            return self.by_id.items()
        pattern = wanted.resource_type, wanted.pattern_type, wanted.name
        principals: AclsOfPattern = self._by_pattern.get(pattern, {})
        if wanted.principal is not None:
            return principals.get(wanted.principal, {}).items()
        return [each for acls in principals.values() for each in acls.items()]

    def matching(self, wanted: AclFilter) -> dict[bytes, Acl]:
        """Those that the filter matches, by id."""
        return {acl_id: acl for acl_id, acl in self.candidates(wanted) if wanted.matches(acl)}

    def of_principal(self, resource_type: int, principal: str) -> Iterable[Acl]:
        """All that name this principal and resources of this type."""
        return self._by_principal.get((resource_type, principal), {}).values()
