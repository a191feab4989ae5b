"""`barnabas acls`: lists, adds and removes ACLs, as kafka-acls.sh."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from barnabas.commands.connection import CONNECTION, Cluster, ServerError, java_text, raise_for
from barnabas.commands.options import ArgumentError, Option, Options, Tool, UsageError
from barnabas.commands.terminal import say

# Numbers of the protocol
_RESOURCES: Final = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
_PATTERNS: Final = {1: "ANY", 2: "MATCH", 3: "LITERAL", 4: "PREFIXED"}
_OPERATIONS: Final = {
    1: "ANY",
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}
_PERMISSIONS: Final = {1: "ANY", 2: "DENY", 3: "ALLOW"}
_NUMBERS: Final = {
    name: number
    for names in (_RESOURCES, _PATTERNS, _OPERATIONS, _PERMISSIONS)
    for number, name in names.items()
}
_ANY: Final = 1
_ALLOWED_OPERATIONS: Final = {
    "TOPIC": "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    "GROUP": "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    "CLUSTER": "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
    "TRANSACTIONAL_ID": "WRITE DESCRIBE TWO_PHASE_COMMIT",
    "DELEGATION_TOKEN": "DESCRIBE",
    "USER": "CREATE_TOKENS DESCRIBE_TOKENS",
}
_ACTIONS: Final = ("list", "add", "remove")
# option -> resource type
_NAMED: Final = {
    "topic": "TOPIC",
    "group": "GROUP",
    "transactional-id": "TRANSACTIONAL_ID",
    "delegation-token": "DELEGATION_TOKEN",
    "user-principal": "USER",
}

_OPTIONS: Final = (
    *CONNECTION,
    Option("bootstrap-controller", "Not here: this command asks brokers.", "HOST:PORT,..."),
    Option("list", "List the ACLs, of the resources if any are given."),
    Option("add", "Add ACLs."),
    Option("remove", "Remove ACLs; without a principal all of the resources."),
    Option("topic", "A topic, or * for all; may be repeated.", "TOPIC"),
    Option("group", "A consumer group, or * for all; may be repeated.", "GROUP"),
    Option("transactional-id", "A transactional.id, or * for all; may be repeated.", "ID"),
    Option("delegation-token", "A delegation token, or * for all; may be repeated.", "ID"),
    Option("user-principal", "A user whose tokens are meant; may be repeated.", "TYPE:NAME"),
    Option("cluster", "The cluster."),
    Option(
        "resource-pattern-type",
        "literal, prefixed; to list and remove, also any (of that name) and match (that has effect on it).",
        "TYPE",
        default="literal",
    ),
    Option("operation", "Read, Write, Describe, ...; may be repeated.", "OPERATION"),
    Option("allow-principal", "Who is allowed to; may be repeated.", "TYPE:NAME"),
    Option("deny-principal", "Who is not allowed to; may be repeated.", "TYPE:NAME"),
    Option("allow-host", "From where; any host unless given. May be repeated.", "HOST"),
    Option("deny-host", "From where; any host unless given. May be repeated.", "HOST"),
    Option("principal", "With --list, only ACLs of this principal; may be repeated.", "TYPE:NAME"),
    Option("producer", "What a producer needs: Write, Describe and Create on the topics."),
    Option("consumer", "What a consumer needs: Read and Describe on the topics, Read on the groups."),
    Option("idempotent", "With --producer, also IdempotentWrite on the cluster."),
    Option("force", "Do not ask before removing."),
)


class Resource(NamedTuple):
    """A pattern of resources, or a filter of such patterns."""

    kind: str
    name: str
    pattern: str

    def __str__(self) -> str:
        return f"ResourcePattern(resourceType={self.kind}, name={self.name}, patternType={self.pattern})"


class Entry(NamedTuple):
    """Who may do what, or may not."""

    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return (
            f"(principal={self.principal}, host={self.host}, operation={self.operation}, "
            f"permissionType={self.permission})"
        )


_CLUSTER: Final = Resource("CLUSTER", "kafka-cluster", "LITERAL")
_Acls = dict[Resource, set[Entry]]


def _run(options: Options) -> int:
    _check(options)
    with Cluster(options) as cluster:
        try:
            if options.has("add"):
                _add(cluster, options)
            elif options.has("remove"):
                _remove(cluster, options)
            else:
                _list(cluster, options)
        except (ArgumentError, ServerError, cluster.errors) as error:
            say(f"Error while executing ACL command: {java_text(error)}")
            return 1
    return 0


def _check(options: Options) -> None:
    """The combinations that Kafka's tool refuses."""
    if options.has("bootstrap-controller"):
        raise UsageError("--bootstrap-controller: this command asks brokers, with --bootstrap-server")
    if len(options.which_of(_ACTIONS)) != 1:
        raise UsageError("Command must include exactly one action: --list, --add, --remove. ")
    options.refuse_with(
        "list", ("producer", "consumer", "allow-host", "allow-principal", "deny-host", "deny-principal")
    )
    for role in ("producer", "consumer"):
        options.refuse_with(role, ("operation", "deny-principal", "deny-host"))
    if options.has("principal") and not options.has("list"):
        raise UsageError("The --principal option is only available if --list is set")
    if options.has("producer") and not options.has("topic"):
        raise UsageError("With --producer you must specify a --topic")
    if options.has("idempotent") and not options.has("producer"):
        raise UsageError("The --idempotent option is only available if --producer is set")
    if options.has("consumer") and (
        len(options.which_of(("topic", "group"))) < 2
        or (not options.has("producer") and options.which_of(("cluster", "transactional-id")))
    ):
        raise UsageError(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option should be "
            "specified."
        )


def _resources(options: Options) -> list[Resource]:
    """Those of the command line. ArgumentError."""
    pattern = str(options.value("resource-pattern-type")).upper()
    if pattern not in _PATTERNS.values():
        raise ArgumentError(
            f"Cannot parse argument '{options.value('resource-pattern-type')}' of option resource-pattern-type"
        )
    found = [
        Resource(kind, name.strip(), pattern)
        for option, kind in _NAMED.items()
        for name in options.values(option)
    ]
    if pattern == "LITERAL" and options.which_of(("cluster", "idempotent")):
        found.append(_CLUSTER)
    return found


def _given_acls(options: Options) -> _Acls:
    """The resources of the command line, and the entries that it gives each; none where it names no principal. UsageError."""
    resources = _resources(options)
    if not resources:
        raise UsageError(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or --delegation-token "
            "<Delegation Token ID>"
        )
    acls: _Acls = {}

    def give(kind: str, *operations: str) -> None:
        for resource in resources:
            if resource.kind == kind:
                acls.setdefault(resource, set()).update(_entries(options, operations))

    if options.has("producer"):
        give("TOPIC", "WRITE", "DESCRIBE", "CREATE")
        give("TRANSACTIONAL_ID", "WRITE", "DESCRIBE")
        if options.has("idempotent"):
            acls[_CLUSTER] = _entries(options, ["IDEMPOTENT_WRITE"])
    if options.has("consumer"):
        give("TOPIC", "READ", "DESCRIBE")
        give("GROUP", "READ")
    if not options.which_of(("producer", "consumer")):
        operations = [_operation(text) for text in options.values("operation") or ["ALL"]]
        acls = {resource: _entries(options, operations) for resource in resources}
    for resource, entries in acls.items():
        allowed = ["ALL", *_ALLOWED_OPERATIONS[resource.kind].split()]
        if any(entry.operation not in allowed for entry in entries):
            raise UsageError(f"ResourceType {resource.kind} only supports operations [{', '.join(allowed)}]")
    return acls


def _operation(text: str) -> str:
    """The protocol's name of `Read`, `DescribeConfigs`, ... in any case; UNKNOWN for none."""
    names = {name.replace("_", ""): name for name in _OPERATIONS.values()}
    return names.get(text.strip().upper(), "UNKNOWN")


def _entries(options: Options, operations: Iterable[str]) -> set[Entry]:
    return {
        Entry(principal, host, operation, permission)
        for permission, option in (("ALLOW", "allow"), ("DENY", "deny"))
        for principal in _principals(options, f"{option}-principal")
        for host in [each.strip() for each in options.values(f"{option}-host")] or ["*"]
        for operation in operations
    }


def _principals(options: Options, option: str) -> list[str]:
    """ArgumentError."""
    found = [text.strip() for text in options.values(option)]
    for text in found:
        if ":" not in text:
            raise ArgumentError(f"expected a string in format principalType:principalName but got {text}")
    return found


def _add(cluster: Cluster, options: Options) -> None:
    from kafka.protocol.admin import CreateAclsRequest

    pattern = str(options.value("resource-pattern-type")).upper()
    if pattern in ("ANY", "MATCH"):
        raise UsageError(f"A '--resource-pattern-type' value of '{pattern}' is not valid when adding acls.")
    acls = _given_acls(options)
    if not all(acls.values()):
        raise UsageError(
            "You must specify one of: --allow-principal, --deny-principal when trying to add ACLs."
        )
    for resource, entries in acls.items():
        have = _described(cluster, resource).get(resource, set())
        for entry in sorted(entries & have):
            say(f"Acl (pattern={resource}, entry={entry}) already exists.")
        if not (new := sorted(entries - have)):
            continue
        say(f"Adding ACLs for resource `{resource}`: \n {_lines(new)}\n")
        creations: list[Any] = [(*_numbers(resource), *_numbers(entry)) for entry in new]
        version = 3 if resource.kind == "USER" else 1
        for result in cluster.ask(CreateAclsRequest(creations=creations, min_version=version)).results:
            raise_for(result.error_code, result.error_message)


def _lines(entries: Iterable[Entry]) -> str:
    return "\n".join(f"\t{entry}" for entry in entries)


def _numbers(part: Resource | Entry) -> list[str | int]:
    """The fields of a request."""
    if isinstance(part, Resource):
        return [_NUMBERS[part.kind], part.name, _NUMBERS[part.pattern]]
    return [part.principal, part.host, _NUMBERS[part.operation], _NUMBERS[part.permission]]


def _described(cluster: Cluster, resource: Resource | None) -> _Acls:
    """The ACLs that a filter matches, or all."""
    from kafka.protocol.admin import DescribeAclsRequest

    kind = _ANY if resource is None else _NUMBERS[resource.kind]
    request = DescribeAclsRequest(
        resource_type_filter=kind,
        resource_name_filter=None if resource is None else resource.name,
        pattern_type_filter=_ANY if resource is None else _NUMBERS[resource.pattern],
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
        min_version=3 if kind == _NUMBERS["USER"] else 1,
    )
    response = cluster.ask(request)
    raise_for(response.error_code, response.error_message)
    found: _Acls = {}
    for each in response.resources:
        pattern_of = Resource(
            _name(_RESOURCES, each.resource_type), each.resource_name, _name(_PATTERNS, each.pattern_type)
        )
        found.setdefault(pattern_of, set()).update(
            Entry(
                acl.principal,
                acl.host,
                _name(_OPERATIONS, acl.operation),
                _name(_PERMISSIONS, acl.permission_type),
            )
            for acl in each.acls
        )
    return found


def _name(names: Mapping[int, str], number: int) -> str:
    return names.get(number, "UNKNOWN")


def _list(cluster: Cluster, options: Options) -> None:
    principals = _principals(options, "principal")
    found: _Acls = {}
    wanted: Sequence[Resource | None] = _resources(options) or [None]
    for resource in wanted:
        for pattern, entries in _described(cluster, resource).items():
            found.setdefault(pattern, set()).update(entries)
    if not principals:
        _print(found)
    for principal in dict.fromkeys(principals):
        say(f"ACLs for principal `{principal}`")
        own = {
            pattern: {entry for entry in entries if entry.principal == principal}
            for pattern, entries in found.items()
        }
        _print({pattern: entries for pattern, entries in own.items() if entries})


def _print(acls: _Acls) -> None:
    for resource, entries in sorted(acls.items()):
        say(f"Current ACLs for resource `{resource}`:\n{_lines(sorted(entries))}\n")


def _remove(cluster: Cluster, options: Options) -> None:
    from kafka.protocol.admin import DeleteAclsRequest

    for resource, entries in _given_acls(options).items():
        if not entries:
            question = f"Are you sure you want to delete all ACLs for resource filter `{resource}`? (y/n)"
        else:
            question = f"Are you sure you want to remove ACLs: \n {_lines(sorted(entries))}\n from resource filter `{resource}`? (y/n)"
        if not options.has("force") and not _confirmed(question):
            continue
        wanted: Sequence[Any] = [_numbers(entry) for entry in sorted(entries)] or [[None, None, _ANY, _ANY]]
        filters: list[Any] = [(*_numbers(resource), *fields) for fields in wanted]
        version = 3 if resource.kind == "USER" else 1
        for result in cluster.ask(DeleteAclsRequest(filters=filters, min_version=version)).filter_results:
            raise_for(result.error_code, result.error_message)


def _confirmed(question: str) -> bool:
    say(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() == "y"


TOOL: Final = Tool(
    "acls",
    "kafka-acls.sh",
    "List, add and remove ACLs. They need an authorizer on all nodes: "
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer.",
    _OPTIONS,
    _run,
)
