"""Who the voters of the metadata quorum are, as the properties of Kafka's KRaft mode say it.

`controller.quorum.voters=1@host:port,...` names ids and addresses; `controller.quorum.bootstrap.servers=host:port,...`
addresses only. A controller that is the only one needs neither: it decides alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from barnabas.controller.config_validators import ConfigError

_ADDRESS: Final = re.compile(r"^(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^\[\]:@]+)):(?P<port>\d{1,5})$")
_ROLES: Final = ("broker", "controller")


class QuorumConfig(msgspec.Struct, frozen=True):
    """`voters` by node id, empty where only addresses are known: those stand in `bootstrap`. `is_alone`: this node is
    the only controller."""

    voters: dict[int, tuple[str, int]]
    bootstrap: list[tuple[str, int]]
    is_alone: bool


def quorum_config(
    roles: Sequence[str], node_id: int, voters: Sequence[str], bootstrap: Sequence[str]
) -> QuorumConfig:
    """ConfigError names the property that does not fit."""
    for role in roles:
        if role not in _ROLES:
            raise ConfigError(f"process.roles: {role!r} is no role; it is broker, controller, or both")
    if not roles:
        raise ConfigError("process.roles must name broker, controller, or both")
    named = _voters(voters)
    addresses = [] if named else [_address("controller.quorum.bootstrap.servers", text) for text in bootstrap]
    is_controller = "controller" in roles
    if is_controller and named and node_id not in named:
        raise ConfigError(
            f"controller.quorum.voters does not name node.id={node_id}, which has the controller role: "
            f"add {node_id}@host:port of its controller listener"
        )
    if not is_controller and node_id in named:
        raise ConfigError(
            f"controller.quorum.voters names node.id={node_id}, which does not have the controller role"
        )
    if not is_controller and not named and not addresses:
        raise ConfigError(
            "process.roles=broker needs controller.quorum.bootstrap.servers or controller.quorum.voters: "
            "where the controllers are"
        )
    return QuorumConfig(named, addresses, is_controller and max(len(named), len(addresses)) <= 1)


def _voters(entries: Sequence[str]) -> dict[int, tuple[str, int]]:
    voters: dict[int, tuple[str, int]] = {}
    for entry in entries:
        text, at, address = entry.strip().partition("@")
        if not at or not text.isdigit():
            raise ConfigError.invalid(
                "controller.quorum.voters",
                entry,
                "an entry must look like id@host:port, such as 1@10.0.0.1:9093",
            )
        if int(text) in voters:
            raise ConfigError.invalid("controller.quorum.voters", entry, "node ids must differ")
        voters[int(text)] = _address("controller.quorum.voters", address)
    return voters


def _address(name: str, text: str) -> tuple[str, int]:
    match = _ADDRESS.match(text.strip())
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ConfigError.invalid(name, text, "an address must look like host:port")
    return match["v6"] or match["host"], int(match["port"])
