"""The voters of the metadata quorum, from the properties of Kafka's KRaft mode.

`controller.quorum.voters=1@host:port,...` names ids and addresses; `controller.quorum.bootstrap.servers=host:port,...`
addresses only. A single controller needs neither.
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

# Compiled with its first use: a single node has no addresses of others.
_ADDRESS: Final = r"^(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^\[\]:@]+)):(?P<port>\d+)$"
_ROLES: Final = ("broker", "controller")
NODE_ID_MAX: Final = 2**31 - 1


class QuorumConfig(msgspec.Struct, frozen=True):
    """`voters` by node id; empty where only addresses are configured, in `bootstrap`. `is_alone`: this node is the only
    controller. `warnings`: lines about values that may be mistakes."""

    voters: dict[int, tuple[str, int]]
    bootstrap: list[tuple[str, int]]
    is_alone: bool
    warnings: list[str]


def quorum_config(
    roles: Sequence[str], node_id: int, voters: Sequence[str], bootstrap: Sequence[str]
) -> QuorumConfig:
    """ConfigError names a property that is wrong."""
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
            f"{','.join(voters)}. Set node.id to the id of this node in that list, add {node_id}@host:port of its "
            f"controller listener to it on every node, or remove controller from its process.roles"
        )
    if not is_controller and node_id in named:
        raise ConfigError(
            f"{VOTERS} names node.id={node_id}, which does not have the controller role: give it another node.id, or "
            f"add controller to its process.roles"
        )
    if not is_controller and not named and not addresses:
        raise ConfigError(
            f"process.roles=broker needs {BOOTSTRAP} or {VOTERS}: the addresses of the controllers"
        )
    warnings = []
    if named and addresses and sorted(named.values()) != sorted(addresses):
        warnings.append(
            f"{BOOTSTRAP} ({','.join(bootstrap)}) names other addresses than {VOTERS} ({','.join(voters)}), which "
            f"takes precedence: remove one of them"
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
    """Warnings about this node's address in the configured quorum. ConfigError when it is certainly wrong, as the address serves
    clients; other addresses may be forwarded to this node."""
    name = VOTERS if quorum.voters else BOOTSTRAP
    own = for_controllers[0] if for_controllers else None
    own_ports = {port for each in for_controllers for port in (each.port, each.advertised_port)}
    to = f", which is {own.name} at port {own.port}" if own is not None and own.port else ""
    for host, port in [*quorum.voters.values(), *quorum.bootstrap]:
        for each in for_clients:
            if (host, port) in ((each.advertised_host, each.advertised_port), (each.host, each.port)):
                raise ConfigError(
                    f"{name} names {format_address(host, port)}, where the listener {each.name} of this node serves "
                    f"clients: name the port of the controller listener{to}, on every node"
                )
    if own is not None and quorum.is_alone and quorum.bootstrap and 0 not in own_ports:
        (host, port) = quorum.bootstrap[0]
        if port not in own_ports:
            raise ConfigError(
                f"{BOOTSTRAP} names {format_address(host, port)} alone, where this node's controller listener {own.name} with "
                f"port {own.port} is not: a node that is alone names its own, and one that joins a quorum two of its controllers "
                f"at least"
            )
    address = quorum.voters.get(node_id)
    if own is None or address is None or address[1] in own_ports or 0 in own_ports:
        return []
    return [
        f"{VOTERS} has node {node_id} at {format_address(*address)}, and its listener {own.name} has port {own.port}: unless "
        f"the one is forwarded to the other, other nodes can't connect to this one. Correct the port in `listeners`, or in "
        f"{VOTERS} on every node"
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
        return f"has an @ (only {VOTERS} has ids)"
    if text.count(":") > 1 and "[" not in text:
        return "has an IPv6 address without brackets, such as [::1]:9093"
    host, colon, port = text.rpartition(":")
    if not colon or not port:
        return "has no port"
    return "has no host" if not host else f"ends with {port!r}, which is no port"
