"""Who the voters of the metadata quorum are, as the properties of Kafka's KRaft mode say it.

`controller.quorum.voters=1@host:port,...` names ids and addresses; `controller.quorum.bootstrap.servers=host:port,...`
addresses only. A controller that is the only one needs neither: it decides alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.broker.config.listeners import ListenerConfig, format_address
from barnabas.controller.config.validators import ConfigError

VOTERS: Final = "controller.quorum.voters"
BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"

# Compiled with its first use: a node alone has no addresses of others.
_ADDRESS: Final = r"^(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^\[\]:@]+)):(?P<port>\d+)$"
_ROLES: Final = ("broker", "controller")
NODE_ID_MAX: Final = 2**31 - 1


class QuorumConfig(msgspec.Struct, frozen=True):
    """`voters` by node id, empty where only addresses are known: those stand in `bootstrap`. `is_alone`: this node is
    the only controller. `warnings`: what is taken as it is and may not be meant so."""

    voters: dict[int, tuple[str, int]]
    bootstrap: list[tuple[str, int]]
    is_alone: bool
    warnings: list[str]


def quorum_config(
    roles: Sequence[str], node_id: int, voters: Sequence[str], bootstrap: Sequence[str]
) -> QuorumConfig:
    """ConfigError names the property that does not fit."""
    for role in roles:
        if role not in _ROLES:
            raise ConfigError(f"process.roles: {role!r} is no role; it is broker, controller, or both")
    if not roles:
        raise ConfigError("process.roles must name broker, controller, or both")
    named = read_voters(voters)
    addresses = read_addresses(bootstrap)
    is_controller = "controller" in roles
    if is_controller and named and node_id not in named:
        raise ConfigError(
            f"{VOTERS} does not name node.id={node_id}, which has the controller role; it names "
            f"{','.join(voters)}. Set node.id to the id that stands there for this node, add {node_id}@host:port of "
            f"its controller listener on every node, or take controller out of its process.roles"
        )
    if not is_controller and node_id in named:
        raise ConfigError(
            f"{VOTERS} names node.id={node_id}, which does not have the controller role: give it another node.id, or "
            f"add controller to its process.roles"
        )
    if not is_controller and not named and not addresses:
        raise ConfigError(f"process.roles=broker needs {BOOTSTRAP} or {VOTERS}: where the controllers are")
    warnings = []
    if named and addresses and sorted(named.values()) != sorted(addresses):
        warnings.append(
            f"{BOOTSTRAP} ({','.join(bootstrap)}) names other addresses than {VOTERS} ({','.join(voters)}), which "
            f"counts where both are set: take one of them out"
        )
    return QuorumConfig(
        named,
        [] if named else addresses,
        is_controller and max(len(named), len(addresses)) <= 1,
        warnings,
    )


def read_voters(entries: Sequence[str]) -> dict[int, tuple[str, int]]:
    """Address by node id. ConfigError quotes the entry that is wrong."""
    voters: dict[int, tuple[str, int]] = {}
    for entry in map(str.strip, entries):
        text, at, address = entry.partition("@")
        if not at:
            likely = entry if re.match(_ADDRESS, entry) else "10.0.0.1:9093"
            raise _wrong_voter(entry, "has no id before an @", f"1@{likely}")
        if not text.isdigit() or int(text) > NODE_ID_MAX:
            raise _wrong_voter(entry, f"begins with {text!r}, which is no node id", "1@10.0.0.1:9093")
        node_id, found = int(text), _address(address)
        if isinstance(found, str):
            raise _wrong_voter(entry, found, f"{node_id}@10.0.0.1:9093")
        if node_id in voters:
            raise ConfigError(f"{VOTERS}: {entry!r} is the second with id {node_id}: node ids must differ")
        for other, known in voters.items():
            if known == found:
                raise ConfigError(
                    f"{VOTERS}: {entry!r} has the address of node {other}: addresses must differ"
                )
        voters[node_id] = found
    return voters


def check_own_address(
    quorum: QuorumConfig,
    node_id: int,
    for_clients: Sequence[ListenerConfig],
    for_controllers: Sequence[ListenerConfig],
) -> list[str]:
    """What to warn about where others would look for this node. ConfigError when it is certain that they would not
    find its controller there: where clients are served. Elsewhere something may stand between that forwards."""
    name = VOTERS if quorum.voters else BOOTSTRAP
    own = for_controllers[0] if for_controllers else None
    to = f", which is {own.name} at port {own.port}" if own is not None and own.port else ""
    for host, port in [*quorum.voters.values(), *quorum.bootstrap]:
        for each in for_clients:
            if (host, port) in ((each.advertised_host, each.advertised_port), (each.host, each.port)):
                raise ConfigError(
                    f"{name} names {format_address(host, port)}, where the listener {each.name} of this node serves "
                    f"clients: name the port of the controller listener{to}, on every node"
                )
    address = quorum.voters.get(node_id)
    if own is None or address is None or address[1] in (own.port, own.advertised_port) or not own.port:
        return []
    return [
        f"{VOTERS} says that node {node_id} is at {format_address(*address)}, and its listener {own.name} has port "
        f"{own.port}: unless something forwards the one to the other, no other node finds this one. Correct the port "
        f"in `listeners`, or in {VOTERS} on every node"
    ]


def _wrong_voter(entry: str, wrong: str, example: str) -> ConfigError:
    return ConfigError(f"{VOTERS}: {entry!r} {wrong}; an entry looks like id@host:port, such as {example}")


def read_addresses(entries: Sequence[str]) -> list[tuple[str, int]]:
    """ConfigError quotes the entry that is wrong."""
    addresses: list[tuple[str, int]] = []
    for entry in map(str.strip, entries):
        found = _address(entry)
        if isinstance(found, str):
            raise ConfigError(
                f"{BOOTSTRAP}: {entry!r} {found}; an entry looks like host:port, such as 10.0.0.1:9093"
            )
        addresses.append(found)
    return addresses


def _address(text: str) -> tuple[str, int] | str:
    """Host and port, or what is wrong with the entry."""
    match = re.match(_ADDRESS, text)
    if match is not None:
        if len(match["port"]) <= 5 and 0 < int(match["port"]) < 65536:
            return match["v6"] or match["host"], int(match["port"])
        return "has a port that does not lie between 1 and 65535"
    if "@" in text:
        return f"has an @ too many (ids stand in {VOTERS} alone)"
    if text.count(":") > 1 and "[" not in text:
        return "has an IPv6 address without brackets, such as [::1]:9093"
    host, colon, port = text.rpartition(":")
    if not colon or not port:
        return "has no port"
    return "has no host" if not host else f"ends with {port!r}, which is no port"
