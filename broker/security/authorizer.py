"""The authorizer: what a principal may do, by the ACLs of the metadata (Kafka's StandardAuthorizer; KIP-11, KIP-290, KIP-801).

1. A super user may do everything.
2. Among the ACLs of the resource that match principal, host and operation, any DENY denies; else any ALLOW allows.
3. Where no ACL at all applies to the resource, allow.everyone.if.no.acl.found decides; else it is denied.

ALLOW of READ, WRITE, DELETE or ALTER also allows DESCRIBE, and ALTER_CONFIGS also DESCRIBE_CONFIGS. DENY implies nothing.

Decisions go to the logger kafka.authorizer.logger in Kafka's words: denied at INFO, allowed at DEBUG. Which topics a caller may
read or write is remembered until the ACLs change, so that the fast path asks a set; only topics that exist are, as clients can
name as many others as they like.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.broker.config.authorizer import AUDIT_LOGGER
from barnabas.controller.metadata.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from barnabas.runtime.repeated_warnings import one_line
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from barnabas.broker.config.authorizer import AuthorizerConfig
    from barnabas.broker.security.caller import Caller
    from barnabas.controller.metadata.image import MetadataImage

audit = logging.getLogger(AUDIT_LOGGER)

GRANTS_MAX: Final = 100_000  # of all callers, that are remembered
DENIED_PER_SECOND_MAX: Final = 200  # that are logged; one request may name very much that it may not use
NAME_LENGTH_MAX: Final = 300  # of what clients name, in the log
_TRACE: Final = logging.DEBUG - 1  # as config/logger_levels.py has it

# Operation -> those whose ALLOW includes it
_INCLUDED_IN: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_TYPE_NAMES: Final = {
    ResourceType.TOPIC: "Topic",
    ResourceType.GROUP: "Group",
    ResourceType.CLUSTER: "Cluster",
    ResourceType.TRANSACTIONAL_ID: "TransactionalId",
    ResourceType.DELEGATION_TOKEN: "DelegationToken",
    ResourceType.USER: "User",
}
# The operations that a resource has, which are shown as authorized operations (KIP-430).
OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
}  # fmt: skip
ALL_OPERATIONS: Final = {
    kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS.items()
}


class Authorizer:
    """See the module. `acls_changed` is to be called when the image's ACLs have changed."""

    def __init__(
        self,
        config: AuthorizerConfig,
        image: Callable[[], MetadataImage],
        monotonic: Callable[[], float],
        is_loaded: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_loaded()`: the image has caught up with the cluster's metadata. Before that only super users are allowed anything."""
        self._super_users = config.super_users
        self._default = config.allow_everyone_if_no_acl_found
        self._image = image
        self.epoch = 1  # grows with each change of the ACLs
        self.allowed = 0  # decisions since the start
        self.denied = 0
        # The topics that each caller may read or write
        self._granted: dict[Operation, dict[Caller, set[str]]] = {Operation.READ: {}, Operation.WRITE: {}}
        self._by_type: dict[tuple[Caller, Operation, ResourceType], bool] = {}
        self._grant_count = 0
        self._monotonic = monotonic
        self._is_loaded = is_loaded
        self._second = 0  # in which denied decisions are counted
        self._denied = 0

    def acls_changed(self) -> None:
        self.epoch += 1
        self._forget()

    def _forget(self) -> None:
        for granted in self._granted.values():
            granted.clear()
        self._by_type.clear()
        self._grant_count = 0

    def _count_grant(self) -> None:
        if self._grant_count >= GRANTS_MAX:
            self._forget()
        self._grant_count += 1

    def has_granted(self, caller: Caller, operation: Operation, topic: str) -> bool:
        """Whether the caller is remembered as allowed to READ or WRITE the topic; False says nothing. Who goes by it adds to
        `allowed`."""
        names = self._granted[operation].get(caller)
        return names is not None and topic in names and not audit.isEnabledFor(logging.DEBUG)

    def allows(
        self,
        caller: Caller,
        api_key: int,
        operation: Operation,
        kind: ResourceType,
        name: str,
        *,
        count: int = 1,
        silent: bool = False,
    ) -> bool:
        """Whether the caller may do it. `count`: how often the request names the resource. `silent`: a filter of a list, whose
        decisions are not logged above TRACE."""
        if caller.is_node:
            return True
        granted = self._granted.get(operation) if kind == ResourceType.TOPIC else None
        if granted is not None and self.has_granted(caller, operation, name):
            self.allowed += 1
            return True
        allowed, rule = self._decide(caller, operation, kind, name)
        self._count(allowed)
        level = _TRACE if silent else logging.DEBUG if allowed else logging.INFO
        if audit.isEnabledFor(level) and (level != logging.INFO or self._may_log()):
            _log(level, caller, api_key, operation, kind, name, count, allowed, rule)
        if granted is not None and allowed and name in self._image().topics:
            self._count_grant()
            granted.setdefault(caller, set()).add(name)
        return allowed

    def _count(self, allowed: bool) -> None:
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1

    def _may_log(self) -> bool:
        """Whether another denied decision may be logged in this second."""
        second = int(self._monotonic())
        if second != self._second:
            if self._denied > DENIED_PER_SECOND_MAX:
                audit.info("%d more were Denied, which are not logged", self._denied - DENIED_PER_SECOND_MAX)
            self._second, self._denied = second, 0
        self._denied += 1
        return self._denied <= DENIED_PER_SECOND_MAX

    def allows_any(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """Whether the caller may do it on some resource of the type, existing or not (KIP-679's authorizeByResourceType)."""
        if caller.is_node:
            return True
        key = caller, operation, kind
        if key not in self._by_type:
            self._count_grant()
            # A name that is asked about as Kafka does it: it lets super users pass.
            allowed, _ = self._decide(caller, operation, kind, "hardcode")
            some = allowed or self._has_some(caller, operation, kind)
            if self._is_loaded():
                self._by_type[key] = some
        else:
            some = self._by_type[key]
        self._count(some)
        return some

    def operations(self, caller: Caller, kind: ResourceType, name: str) -> int:
        """The bits of the operations that the caller may do."""
        if caller.is_node:
            return ALL_OPERATIONS[kind]
        bits = 0
        for operation in OPERATIONS[kind]:
            allowed, _ = self._decide(caller, operation, kind, name)
            self._count(allowed)
            bits |= allowed << operation
        return bits

    def _decide(
        self, caller: Caller, operation: Operation, kind: ResourceType, name: str
    ) -> tuple[bool, Acl | str]:
        """(whether it is allowed, the ACL or the name of the rule)."""
        principal = str(caller.principal)
        if principal in self._super_users:
            return True, "SuperUser"
        if not self._is_loaded():
            return False, "AuthorizerNotReady"
        host = java_address(caller.client_host)
        allowed: Acl | None = None
        has_acls = False
        included_in = _INCLUDED_IN.get(operation, ())
        for acls in self._image().acls.applying_to(kind, name):
            has_acls = True
            for named in (principal, WILDCARD_PRINCIPAL):
                for acl in acls.get(named, {}).values():
                    if acl.host not in (WILDCARD, host):
                        continue
                    if acl.operation in (operation, Operation.ALL):
                        if acl.permission == Permission.DENY:
                            return False, acl
                    elif acl.operation not in included_in or acl.permission == Permission.DENY:
                        continue
                    allowed = acl
        if allowed is not None:
            return True, allowed
        if not has_acls:
            return self._default, "DefaultAllow" if self._default else "DefaultDeny"
        return False, "DefaultDeny"

    def _has_some(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """Whether some ALLOW of exactly this operation, or of ALL, is not dominated by a DENY."""
        if not self._is_loaded():
            return False
        host = java_address(caller.client_host)
        allowed: list[Acl] = []
        denied: set[tuple[int, str]] = set()
        for named in {str(caller.principal), WILDCARD_PRINCIPAL}:
            for acl in self._image().acls.of_principal(kind, named):
                if acl.host not in (WILDCARD, host) or acl.operation not in (operation, Operation.ALL):
                    continue
                if acl.permission == Permission.ALLOW:
                    allowed.append(acl)
                elif (acl.pattern_type, acl.name) == (PatternType.LITERAL, WILDCARD):
                    return False
                else:
                    denied.add((acl.pattern_type, acl.name))
        return any(_is_wildcard(acl) or not _is_dominated(acl, denied) for acl in allowed)


def _is_wildcard(acl: Acl) -> bool:
    return acl.pattern_type == PatternType.LITERAL and acl.name == WILDCARD


def _is_dominated(acl: Acl, denied: set[tuple[int, str]]) -> bool:
    """Whether a denied pattern has all names of the ACL's."""
    if acl.pattern_type == PatternType.LITERAL and (PatternType.LITERAL, acl.name) in denied:
        return True
    return any((PatternType.PREFIXED, acl.name[:end]) in denied for end in range(1, len(acl.name) + 1))


def java_address(host: str) -> str:
    """An address as Java writes it, and so as ACLs name it: IPv6 in full, such as 0:0:0:0:0:0:0:1."""
    if ":" not in host:
        return host
    from socket import AF_INET6, inet_pton  # late: few clients use it

    address, percent, scope = host.partition("%")
    try:
        packed = inet_pton(AF_INET6, address)
    except OSError:
        return host
    if packed.startswith(bytes(10) + b"\xff\xff"):  # an IPv4 address
        return ".".join(map(str, packed[12:]))
    groups = [int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2)]
    return ":".join(f"{group:x}" for group in groups) + percent + scope


def _log(
    level: int,
    caller: Caller,
    api_key: int,
    operation: Operation,
    kind: ResourceType,
    name: str,
    count: int,
    allowed: bool,
    rule: Acl | str,
) -> None:
    audit.log(
        level,
        "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s with "
        "resourceRefCount = %d based on rule %s",
        _printable(str(caller.principal)),
        "Allowed" if allowed else "Denied",
        operation.name,
        java_address(caller.client_host),
        _TYPE_NAMES[kind],
        name if kind == ResourceType.CLUSTER else _printable(name),
        API_NAMES.get(api_key, api_key),
        count,
        rule if isinstance(rule, str) else _described(rule),
    )


def _described(acl: Acl) -> str:
    return (
        f"MatchingAcl(acl=StandardAcl[resourceType={ResourceType(acl.resource_type).name}, "
        f"resourceName={_printable(acl.name)}, patternType={PatternType(acl.pattern_type).name}, "
        f"principal={_printable(acl.principal)}, host={_printable(acl.host)}, "
        f"operation={Operation(acl.operation).name}, permissionType={Permission(acl.permission).name}])"
    )


def _printable(text: str) -> str:
    """A text from outside, cut, and on one line."""
    cut = text if len(text) <= NAME_LENGTH_MAX else f"{text[:NAME_LENGTH_MAX]}..."
    return one_line(cut)
