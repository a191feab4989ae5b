"""`barnabas api-versions`: which versions of each API the brokers have, as kafka-broker-api-versions.sh."""

from __future__ import annotations

from typing import Any, Final

from barnabas.commands.connection import CONNECTION, Cluster, reason_of
from barnabas.commands.options import CommandFailed, Options, Tool
from barnabas.commands.terminal import say
from barnabas.wire.messages.index import APIS

# Brokers do not have them: nodes ask controllers.
OF_CONTROLLERS: Final = frozenset([52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82])


def _run(options: Options) -> int:
    with Cluster(options) as cluster:
        try:
            brokers = cluster.admin.describe_cluster()["brokers"]
        except cluster.errors as error:
            raise CommandFailed(reason_of(error)) from None
        for broker in sorted(brokers, key=lambda each: int(each["broker_id"])):
            say(f"{_shown(broker)} -> {_versions(cluster, broker['broker_id'])}")
    return 0


def _shown(broker: dict[str, Any]) -> str:
    rack = broker["rack"] or "null"
    return f"{broker['host']}:{broker['port']} (id: {broker['broker_id']} rack: {rack} isFenced: false)"


def _versions(cluster: Cluster, broker: int) -> str:
    try:
        have = cluster.admin.get_broker_version_data(broker).api_versions
    except cluster.errors as error:
        return f"ERROR: {reason_of(error)}"
    lines = []
    for key in sorted({*have, *APIS} - (OF_CONTROLLERS - {*have})):
        if key not in APIS:
            lines.append(f"UNKNOWN({key}): {_range(*have[key])}")
        elif key in have:
            lines.append(f"{APIS[key][0]}({key}): {_range(*have[key])} {_usable(key, *have[key])}")
        else:
            lines.append(f"{APIS[key][0]}({key}): UNSUPPORTED")
    listed = ",\n\t".join(lines)
    return f"(\n\t{listed}\n)"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _usable(key: int, first: int, last: int) -> str:
    """The highest version that a client of the release of these commands would use."""
    _, _, oldest, latest, _, _ = APIS[key]
    if latest < first:
        return "[unusable: node too new]"
    if last < oldest:
        return "[unusable: node too old]"
    return f"[usable: {min(latest, last)}]"


TOOL: Final = Tool(
    "api-versions",
    "kafka-broker-api-versions.sh",
    "Print which versions of each API the brokers have.",
    CONNECTION,
    _run,
)
