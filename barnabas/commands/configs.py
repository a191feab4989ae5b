"""`barnabas configs`: describes and changes dynamic configs, quotas and SCRAM credentials, as kafka-configs.sh."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from barnabas.commands.client_properties import read_properties
from barnabas.commands.connection import CONNECTION, Cluster, ServerError, raise_for, reason_of
from barnabas.commands.options import ArgumentError, CommandFailed, Option, Options, Tool, UsageError
from barnabas.commands.terminal import or_null, say
from barnabas.wire.errors import ErrorCode

_RESOURCES: Final = {  # entity type -> resource type of the protocol
    "topics": 2,
    "brokers": 4,
    "broker-loggers": 8,
    "client-metrics": 16,
    "groups": 32,
}
_QUOTAS: Final = {  # entity type -> entity type of the protocol, and its name in what is printed
    "users": ("user", "user-principal"),
    "clients": ("client-id", "client-id"),
    "ips": ("ip", "ip"),
}
_TYPES: Final = (
    "topics",
    "clients",
    "users",
    "brokers",
    "ips",
    "client-metrics",
    "groups",
    "broker-loggers",
)
# option -> entity type
_NAMED: Final = {
    "topic": "topics",
    "client": "clients",
    "user": "users",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "ip": "ips",
    "client-metrics": "client-metrics",
    "group": "groups",
}
_DEFAULTS: Final = {
    "client-defaults": "clients",
    "user-defaults": "users",
    "broker-defaults": "brokers",
    "ip-defaults": "ips",
}
_WITH_DEFAULTS: Final = frozenset(_DEFAULTS.values())
_CLIENT_QUOTAS: Final = frozenset(
    ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"]
)
_IP_QUOTAS: Final = frozenset(["connection_creation_rate"])
_MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_ITERATIONS_MIN: Final = 4096
_EXACT, _DEFAULT, _ANY = 0, 1, 2  # how DescribeClientQuotas matches a name
_SET, _DELETE = 0, 1  # operations of IncrementalAlterConfigs
_SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
_OWN_SOURCE: Final = {"topics": 1, "brokers": 2, "client-metrics": 7, "groups": 8}
_DEFAULT_BROKER_SOURCE: Final = 3
_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"

_OPTIONS: Final = (
    *CONNECTION,
    Option("bootstrap-controller", "Not here: this command asks brokers.", "HOST:PORT,..."),
    Option("describe", "Describe configs."),
    Option("alter", "Change configs."),
    Option("all", "Describe all configs, those from files and defaults as well."),
    Option("entity-type", f"One of {', '.join(_TYPES)}; may be repeated for clients of a user.", "TYPE"),
    Option("entity-name", "The name of the topic, the client id, the id of the broker, ...", "NAME"),
    Option("entity-default", "The defaults of all clients, users, brokers or ips."),
    Option(
        "add-config", "Configs to set; brackets hold a value with commas.", "NAME=VALUE,NAME=[VALUE,VALUE]"
    ),
    Option("add-config-file", "A properties file of configs to set.", "FILE"),
    Option("delete-config", "Configs to remove.", "NAME,..."),
    *(Option(name, f"As --entity-type {kind} --entity-name.", "NAME") for name, kind in _NAMED.items()),
    *(Option(name, f"As --entity-type {kind} --entity-default.") for name, kind in _DEFAULTS.items()),
)


class Entities(NamedTuple):
    """What the command is about: types, and as many names or fewer; "" is the default of a type."""

    types: list[str]
    names: list[str]

    @property
    def type(self) -> str:
        """The first one's."""
        return self.types[0]

    @property
    def name(self) -> str | None:
        """The first one's; None where all are meant."""
        return self.names[0] if self.names else None


def _run(options: Options) -> int:
    if len(options.which_of(("alter", "describe"))) != 1:
        raise UsageError("Command must include exactly one action: --describe, --alter")
    options.refuse_with("describe", ("add-config", "delete-config"))
    try:
        entities = _entities(options)
        _check(options, entities)
        with Cluster(options) as cluster:
            try:
                (_alter if options.has("alter") else _describe)(cluster, entities, options)
            except cluster.errors as error:
                raise CommandFailed(reason_of(error)) from None
    except (ArgumentError, ServerError) as error:
        raise CommandFailed(str(error)) from None
    return 0


def _entities(options: Options) -> Entities:
    named, defaults = options.which_of(_NAMED), options.which_of(_DEFAULTS)
    values = iter(options.values("entity-name"))
    names = [
        next(values) if name == "entity-name" else ""
        for name in options.names
        if name in ("entity-name", "entity-default")
    ]
    return Entities(
        [
            *options.values("entity-type"),
            *(_NAMED[name] for name in named),
            *(_DEFAULTS[name] for name in defaults),
        ],
        [*names, *(options.value(name) for name in named), *("" for _ in defaults)],
    )


def _check(options: Options, entities: Entities) -> None:
    """The combinations that Kafka's tool refuses. ArgumentError."""
    types = entities.types
    if options.has("bootstrap-controller"):
        raise ArgumentError("--bootstrap-controller: this command asks brokers, with --bootstrap-server")
    if twice := sorted({each for each in types if types.count(each) > 1}):
        raise ArgumentError(f"Duplicate entity type(s) specified: {','.join(twice)}")
    for each in types:
        if each not in _TYPES:
            raise ArgumentError(
                f"Invalid entity type {each}, the entity type must be one of {', '.join(_TYPES)} with a --bootstrap-server or "
                f"--bootstrap-controller argument"
            )
    if not types:
        raise ArgumentError("At least one entity type must be specified")
    if len(types) > 1 and {*types} != {"users", "clients"}:
        raise ArgumentError("Only 'users' and 'clients' entity types may be specified together")
    if options.which_of(("entity-name", "entity-type", "entity-default")) and options.which_of(
        (*_NAMED, *_DEFAULTS)
    ):
        raise ArgumentError(
            "--entity-{type,name,default} should not be used in conjunction with specific entity flags"
        )
    _check_names(entities)
    has_name, has_default = any(entities.names), "" in entities.names
    of_types = ",".join(types)
    if options.has("describe"):
        if options.has("entity-default") and not _WITH_DEFAULTS & {*types}:
            raise ArgumentError(f"--entity-default must not be specified with --describe of {of_types}")
        if "broker-loggers" in types and not has_name:
            raise ArgumentError(f"An entity name must be specified with --describe of {of_types}")
        return
    if _WITH_DEFAULTS & {*types}:
        if not has_name and not has_default:
            raise ArgumentError(
                "An entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
            )
    elif not has_name:
        raise ArgumentError(f"An entity name must be specified with --alter of {of_types}")
    if options.has("add-config") and options.has("add-config-file"):
        raise ArgumentError("Only one of --add-config or --add-config-file must be specified")
    if not options.which_of(("add-config", "add-config-file", "delete-config")):
        raise ArgumentError(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )
    if len(types) != len(entities.names):
        raise ArgumentError("An entity name must be specified for every entity type")


def _check_names(entities: Entities) -> None:
    """ArgumentError."""
    for name in filter(None, entities.names):
        if entities.type in ("brokers", "broker-loggers") and not re.fullmatch(r"-?\d+", name):
            raise ArgumentError(
                f"The entity name for {entities.type} must be a valid integer broker id, but it is: {name}"
            )
        if entities.type == "topics" and (
            not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", "..")
        ):
            raise ArgumentError(f"Topic name is invalid: {name}")
        if entities.type == "ips":
            try:
                socket.getaddrinfo(name, None)
            except OSError:
                raise ArgumentError(
                    f"The entity name for ips must be a valid IP or resolvable host, but it is: {name}"
                ) from None


def added_configs(text: str) -> dict[str, str]:
    """Of --add-config. ArgumentError."""
    parts = re.split(f",{_OUTSIDE_BRACKETS}", text)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    found = {}
    for part in parts:
        pair = re.split(rf"\s*=\s*{_OUTSIDE_BRACKETS}", part)
        if len(pair) != 2:
            raise ArgumentError(
                'requirement failed: Invalid entity config: all configs to be added must be in the format "key=val" or  '
                '"key=[val1,val2]" to group values which contain commas.'
            )
        found[pair[0].strip()] = re.sub(r"[\[\]]", "", pair[1]).strip()
    return found


def _alter(cluster: Cluster, entities: Entities, options: Options) -> None:
    added = read_properties(options.value("add-config-file")) if options.has("add-config-file") else {}
    if options.has("add-config"):
        added |= added_configs(options.value("add-config"))
    for name in added:
        if not re.fullmatch(r"[$a-zA-Z0-9._-]*", name):
            raise ArgumentError(f"Invalid character found for config key: {name}")
    deleted = [each.strip() for text in options.values("delete-config") for each in text.split(",")]
    if entities.type in _RESOURCES:
        if entities.type == "broker-loggers":
            known = {entry.name for entry in _entries(cluster, entities.type, entities.names[0])}
            if unknown := [name for name in (*deleted, *added) if name not in known]:
                raise ArgumentError(f"Invalid broker logger(s): {','.join(unknown)}")
        _alter_resource(cluster, entities, added, deleted)
    else:
        _alter_quotas_or_credentials(cluster, entities, added, deleted)
    if entities.names[0]:
        say(f"Completed updating config for {entities.type[:-1]} {entities.names[0]}.")
    else:
        say(f"Completed updating default config for {entities.type} in the cluster.")


def _alter_resource(
    cluster: Cluster, entities: Entities, added: Mapping[str, str], deleted: Iterable[str]
) -> None:
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    name = entities.names[0]
    configs = [
        *((key, _DELETE, "") for key in deleted),
        *((key, _SET, value) for key, value in added.items()),
    ]
    resources: list[Any] = [(_RESOURCES[entities.type], name, configs)]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    for response in cluster.ask(request, _node(entities.type, name)).responses:
        raise_for(response.error_code, response.error_message)


def _node(kind: str, name: str) -> int | None:
    """The broker to ask, where it is not any."""
    return int(name) if kind in ("brokers", "broker-loggers") and name else None


def _alter_quotas_or_credentials(
    cluster: Cluster, entities: Entities, added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    known = _IP_QUOTAS if entities.type == "ips" else _CLIENT_QUOTAS
    names = [*added, *deleted]
    credentials = [name for name in names if name in _MECHANISMS] if entities.type != "ips" else []
    unknown = [name for name in names if name not in known and name not in credentials]
    if entities.type == "ips":
        if unknown:
            raise ArgumentError(
                f"Only connection quota configs can be added for 'ips' using --bootstrap-server. Unexpected config names: "
                f"{','.join(unknown)}"
            )
    elif "clients" in entities.types:
        if unknown or credentials:
            raise ArgumentError(
                f"Only quota configs can be added for 'clients' using --bootstrap-server. Unexpected config names: "
                f"{','.join([*unknown, *credentials])}"
            )
    elif unknown:
        raise ArgumentError(
            f"Only quota and SCRAM credential configs can be added for 'users' using --bootstrap-server. Unexpected config "
            f"names: {','.join(unknown)}"
        )
    if not credentials:
        _alter_quotas(cluster, entities, added, deleted)
        return
    if "" in entities.names:
        raise ArgumentError(
            "The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials using "
            "--bootstrap-server."
        )
    if len(credentials) < len(names):
        raise ArgumentError(
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' using --bootstrap-server."
        )
    _alter_credentials(cluster, entities.names[0], added, deleted)


def _alter_credentials(cluster: Cluster, user: str, added: Mapping[str, str], deleted: Iterable[str]) -> None:
    from kafka.admin import UserScramCredentialDeletion, UserScramCredentialUpsertion

    changes: list[Any] = [UserScramCredentialDeletion(user, mechanism) for mechanism in deleted]
    for mechanism, text in added.items():
        found = re.fullmatch(r"(?:iterations=(-?[0-9]*),)?password=(.*)", text)
        if found is None:
            raise ArgumentError(
                f"Invalid credential property {mechanism}: it is not [iterations=8192,password=...]"
            )
        iterations = int(found[1]) if found[1] and found[1] != "-1" else _ITERATIONS_MIN
        if iterations < _ITERATIONS_MIN:
            raise ArgumentError(
                f"Iterations {iterations} is less than the minimum {_ITERATIONS_MIN} required for {mechanism}"
            )
        changes.append(UserScramCredentialUpsertion(user, mechanism, found[2], iterations))
    for text in cluster.admin.alter_user_scram_credentials(changes).values():
        if text is not None:
            raise CommandFailed(text)


def _alter_quotas(
    cluster: Cluster, entities: Entities, added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    from kafka.protocol.admin import AlterClientQuotasRequest

    have = {key for quotas in _quotas(cluster, entities).values() for key in quotas}
    if missing := [name for name in deleted if name not in have]:
        raise ArgumentError(f"Invalid config(s): {','.join(missing)}")
    operations = []
    for key, text in added.items():
        try:
            operations.append((key, float(text), False))
        except ValueError:
            raise ArgumentError(f"Cannot parse quota configuration value for {key}: {text}") from None
    operations += [(key, 0.0, True) for key in deleted]
    entity = [
        (_QUOTAS[kind][0], name or None) for kind, name in zip(entities.types, entities.names, strict=True)
    ]
    entries: list[Any] = [(entity, operations)]
    request = AlterClientQuotasRequest(entries=entries, validate_only=False)
    for entry in cluster.ask(request).entries:
        raise_for(entry.error_code, entry.error_message)


def _quotas(
    cluster: Cluster, entities: Entities
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    """By entity, the pairs of its types and names."""
    from kafka.protocol.admin import DescribeClientQuotasRequest

    components: list[Any] = []
    for position, kind in enumerate(entities.types):
        name = entities.names[position] if position < len(entities.names) else None
        how = _ANY if name is None else _EXACT if name else _DEFAULT
        components.append((_QUOTAS[kind][0], how, name or None))
    response = cluster.ask(DescribeClientQuotasRequest(components=components, strict=True))
    raise_for(response.error_code, response.error_message)
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries
    }


def _describe(cluster: Cluster, entities: Entities, options: Options) -> None:
    if entities.type in _RESOURCES:
        _describe_resources(cluster, entities, has_all=options.has("all"))
        return
    _describe_quotas(cluster, entities)
    if entities.type == "users" and "clients" not in entities.types and "" not in entities.names:
        _describe_credentials(cluster, entities.names)


def _describe_resources(cluster: Cluster, entities: Entities, *, has_all: bool) -> None:
    kind, name = entities.type, entities.name
    if name and not has_all and name not in _known_names(cluster, kind):
        say(f"The {kind[:-1]} '{name}' doesn't exist and doesn't have dynamic config.")
        return
    names = [name or ""]
    if name is None:
        names = [*_known_names(cluster, kind), *([""] if kind == "brokers" else [])]
    for each in names:
        if each:
            say(f"{'All' if has_all else 'Dynamic'} configs for {kind[:-1]} {each} are:")
        else:
            say(f"Default configs for {kind} in the cluster are:")
        source = None if has_all else _OWN_SOURCE.get(kind)
        if source is not None and kind == "brokers" and not each:
            source = _DEFAULT_BROKER_SOURCE
        for entry in _entries(cluster, kind, each):
            if source is None or entry.config_source == source:
                synonyms = ", ".join(
                    f"{_SOURCES.get(one.source, 'UNKNOWN')}:{one.name}={or_null(one.value)}"
                    for one in entry.synonyms
                )
                say(
                    f"  {entry.name}={or_null(entry.value)} sensitive={str(entry.is_sensitive).lower()} synonyms={{{synonyms}}}"
                )


def _known_names(cluster: Cluster, kind: str) -> list[str]:
    """Of all entities of a type, in order."""
    if kind == "topics":
        return sorted(topic["name"] for topic in cluster.topics())
    if kind in ("brokers", "broker-loggers"):
        brokers = cluster.admin.describe_cluster()["brokers"]
        return [str(number) for number in sorted(broker["broker_id"] for broker in brokers)]
    names = {group["group_id"] for group in cluster.admin.list_groups()} if kind == "groups" else set()
    return sorted(names | _listed_resources(cluster, kind))


def _listed_resources(cluster: Cluster, kind: str) -> set[str]:
    """The names that have configs; none where the broker does not tell those of groups."""
    from kafka.errors import ClusterAuthorizationFailedError, IncompatibleBrokerVersion
    from kafka.protocol.admin import ListConfigResourcesRequest

    version = {} if kind == "client-metrics" else {"min_version": 1}
    try:
        response = cluster.ask(ListConfigResourcesRequest(resource_types=[_RESOURCES[kind]], **version))
    except (ClusterAuthorizationFailedError, IncompatibleBrokerVersion):
        return set()
    if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and kind == "groups":
        return set()
    raise_for(response.error_code)
    return {resource.resource_name for resource in response.config_resources}


def _entries(cluster: Cluster, kind: str, name: str) -> list[Any]:
    return entries_of(cluster, kind, [name])[name]


def entries_of(cluster: Cluster, kind: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """The configs of entities of a type by their names, each in the order of its name. Of several brokers each has to be asked
    alone. ServerError."""
    from kafka.protocol.admin import DescribeConfigsRequest

    resources: list[Any] = [(_RESOURCES[kind], name, None) for name in names]
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=kind != "broker-loggers", min_version=1
    )
    found = {}
    for result in cluster.ask(request, _node(kind, names[0])).results:
        raise_for(result.error_code, result.error_message)
        found[result.resource_name] = sorted(result.configs, key=lambda entry: str(entry.name))
    return found


def _describe_quotas(cluster: Cluster, entities: Entities) -> None:
    for entity, quotas in _quotas(cluster, entities).items():
        names = dict(entity)
        shown = []
        for kind, label in _QUOTAS.values():
            if kind in names:
                shown.append(f"the default {label}" if names[kind] is None else f"{label} '{names[kind]}'")
        values = ", ".join(f"{key}={java_double(quotas[key])}" for key in sorted(quotas))
        say(f"Quota configs for {', '.join(shown)} are {values}")


def _describe_credentials(cluster: Cluster, users: Sequence[str]) -> None:
    from kafka.protocol.admin import DescribeUserScramCredentialsRequest

    mechanisms = {number: name for name, number in _MECHANISMS.items()}
    names: list[Any] | None = [(user,) for user in users] or None
    response = cluster.ask(DescribeUserScramCredentialsRequest(users=names))
    raise_for(response.error_code, response.error_message)
    for result in response.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        if result.error_code:
            error = ServerError(result.error_code, result.error_message)
            say(f"Error retrieving SCRAM credential configs for user-principal '{result.user}': {error}")
            continue
        infos = ", ".join(
            f"{mechanisms.get(info.mechanism, 'UNKNOWN')}=iterations={info.iterations}"
            for info in result.credential_infos
        )
        say(f"SCRAM credential configs for user-principal '{result.user}' are {infos}")


def java_double(value: float) -> str:
    """As Java prints it: 1000.0, 1.0E7."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{Decimal(repr(value)):f}"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


TOOL: Final = Tool(
    "configs",
    "kafka-configs.sh",
    "Describe and change dynamic configs of topics, brokers, groups and client metrics, quotas, and users' SCRAM credentials.",
    _OPTIONS,
    _run,
)
