"""The nodes of one configuration (barnabas.cores): ids, ports, folders and roles of each, as properties on top of the configuration.

Node number i, from 0, has node.id + i, its listeners at the configured ports + i, and its data in `node-<id>` of each log directory.
I/O: `check_folders` reads folders, `cpu_quota` the limits of control groups.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.config.listeners import format_address, parse_address, parse_protocol_map
from barnabas.controller.config.validators import ConfigError
from barnabas.cores import NODE_FOLDER, names_in
from barnabas.storage.manager.directory import META_PROPERTIES

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import ListenerConfig

CORES: Final = "barnabas.cores"
AUTO: Final = "auto"
CGROUPS: Final = Path("/sys/fs/cgroup")
LOOPBACK: Final = "127.0.0.1"
CONSOLE: Final = "barnabas.console.listener"
PORT_MAX: Final = 65535
_FOLDER: Final = re.compile(NODE_FOLDER + r"(\d+)")


class PrivatePorts(msgspec.Struct, frozen=True):
    """Ports on the loopback address that the supervisor has reserved. `metrics`: one for each node; empty where no metrics are
    configured."""

    controller: int
    metrics: list[int]


class CoreNode(msgspec.Struct, frozen=True):
    """A node to run. `overrides`: its properties, on top of the configuration. `addresses`: what it listens on for others, as
    (name of the listener, host, port). `metrics_port`: 0 where it has none."""

    node_id: int
    is_controller: bool
    overrides: dict[str, str]
    addresses: list[tuple[str, str, int]]
    metrics_port: int


def count_of(text: str) -> int:
    """The number of nodes that a value of barnabas.cores stands for."""
    if text != AUTO:
        return int(text)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(cpus, cpu_quota(CGROUPS)))


def cpu_quota(cgroups: Path, own: Path = Path("/proc/self/cgroup")) -> float:
    """CPUs that this process's control groups (version 2, at `cgroups`) let it use, as in a container with a limit; infinite
    without one. `own` names the process's group: the root, or a path below it."""
    try:
        group = Path(own.read_text().partition("0::/")[2].partition("\n")[0])
    except OSError:
        return math.inf
    quotas = [math.inf]
    for folder in (group, *group.parents):
        try:
            quota, _, period = (cgroups / folder / "cpu.max").read_text().partition(" ")
            quotas.append(int(quota) / int(period))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(quotas)


def nodes_of(
    config: BrokerConfig, count: int, ports: PrivatePorts, machine: str, secret_file: str
) -> list[CoreNode]:
    """The nodes. `machine`: their rack, where broker.rack is not set. `secret_file`: what they authenticate each other with, where
    they are a cluster by themselves and no file is configured. ConfigError where they cannot be."""
    if not config.is_broker:
        raise ConfigError(
            f"{CORES}={count}: process.roles has no broker; a controller runs on one core, without {CORES}"
        )
    maker = _Maker(config, count, ports, machine, secret_file)
    nodes = [maker.node(index) for index in range(count)]
    _check_ports(nodes, count)
    return nodes


class _Maker:
    """Derives the nodes of one configuration."""

    def __init__(
        self, config: BrokerConfig, count: int, ports: PrivatePorts, machine: str, secret_file: str
    ) -> None:
        self._config = config
        self._count = count
        self._ports = ports
        self._machine = machine
        self._secret_file = secret_file

    def node(self, index: int) -> CoreNode:
        config = self._config
        node_id = config.node_id + index
        is_controller = self._is_controller(node_id)
        listeners = self._listeners(index, is_controller=is_controller)
        metrics_port = self._ports.metrics[index] if self._ports.metrics else 0
        overrides = {
            CORES: "1",
            "node.id": str(node_id),
            "process.roles": "broker,controller" if is_controller else "broker",
            "listeners": ",".join(f"{name}://{format_address(host, port)}" for name, host, port in listeners),
            "broker.rack": config.static_value("broker.rack") or self._machine,
            "barnabas.metrics.listener": format_address(LOOPBACK, metrics_port) if metrics_port else "",
            "barnabas.ready.lines": "",
            **self._directories(node_id),
            **self._quorum(),
        }
        if config.static_value("advertised.listeners"):
            overrides["advertised.listeners"] = ",".join(
                f"{each.name}://{format_address(each.advertised_host, _plus(each.advertised_port, index))}"
                for each in config.listeners
            )
        addresses = list(listeners)
        if console := config.given.get(CONSOLE):
            host, port = parse_address(CONSOLE, console)
            overrides[CONSOLE] = format_address(host, _plus(port, index))
            addresses.append((CONSOLE, host or LOOPBACK, _plus(port, index)))
        return CoreNode(node_id, is_controller, overrides, addresses, metrics_port)

    def _is_controller(self, node_id: int) -> bool:
        """Of voters that the configuration names, those; otherwise the first node alone."""
        config = self._config
        if not config.is_controller:
            return False
        if config.quorum.voters and not config.quorum.is_alone:
            return node_id in config.quorum.voters
        return node_id == config.node_id

    def _listeners(self, index: int, *, is_controller: bool) -> list[tuple[str, str, int]]:
        config = self._config
        opened = [(each.name, each.host, _plus(each.port, index)) for each in config.listeners]
        if not is_controller:
            return opened
        if config.quorum.is_alone:
            name, host, port = self._controller_address()
            return [*opened, (name, host, port)]
        return opened + [
            (each.name, each.host, _plus(each.port, index)) for each in config.controller_listeners
        ]

    def _controller_address(self) -> tuple[str, str, int]:
        """Of the only controller: the listener that the configuration has for it, or one on the loopback address."""
        configured: Sequence[ListenerConfig] = self._config.controller_listeners
        if not configured:
            return self._config.controller_listener, LOOPBACK, self._ports.controller
        return configured[0].name, configured[0].host, configured[0].port or self._ports.controller

    def _quorum(self) -> dict[str, str]:
        config = self._config
        if not config.quorum.is_alone:
            return {}
        _, host, port = self._controller_address()
        reached = LOOPBACK if host in ("", "0.0.0.0", "::") else host
        found = {
            "controller.quorum.voters": f"{config.node_id}@{format_address(reached, port)}",
            "controller.quorum.bootstrap.servers": "",
        }
        protocols = config.given.get("listener.security.protocol.map")
        if protocols is not None and config.controller_listener not in parse_protocol_map(protocols):
            found["listener.security.protocol.map"] = f"{protocols},{config.controller_listener}:PLAINTEXT"
        if not config.barnabas_controller_secret_file:
            found["barnabas.controller.secret.file"] = self._secret_file
        return found

    def _directories(self, node_id: int) -> dict[str, str]:
        config = self._config
        found = {"log.dirs": ",".join(folder_of(each, node_id) for each in config.log_dirs)}
        if metadata := config.static_value("metadata.log.dir"):
            found["metadata.log.dir"] = folder_of(metadata, node_id)
        cordoned = [each if each == "*" else folder_of(each, node_id) for each in config.cordoned_log_dirs]
        if cordoned:
            found["cordoned.log.dirs"] = ",".join(cordoned)
        return found


def folder_of(directory: str, node_id: int) -> str:
    """Where a node has its part of a log directory."""
    return os.path.join(directory, f"{NODE_FOLDER}{node_id}")


def _plus(port: int, index: int) -> int:
    """Port 0, any free one, stays."""
    return port and port + index


def _check_ports(nodes: Sequence[CoreNode], count: int) -> None:
    owners: dict[int, tuple[str, int]] = {}
    for node in nodes:
        for name, _, port in node.addresses:
            if port > PORT_MAX:
                raise ConfigError(
                    f"{CORES}={count}: {name} of node {node.node_id} would have port {port}: choose a lower one"
                )
            if not port:
                continue
            if port in owners:
                other, other_id = owners[port]
                raise ConfigError(
                    f"{CORES}={count}: port {port} would be that of {other} of node {other_id} and of {name} of node "
                    f"{node.node_id}: the nodes take {count} consecutive ports for each listener, so leave {count} between them"
                )
            owners[port] = name, node.node_id


def check_folders(config: BrokerConfig, count: int) -> None:
    """ConfigError where the log directories hold data that `count` nodes would not serve. OSError.

    `count` 1: one node, in the log directories themselves.
    """
    served = range(config.node_id, config.node_id + count) if count > 1 else range(0)
    directories = dict.fromkeys([*config.log_dirs, *filter(None, [config.static_value("metadata.log.dir")])])
    left = sorted({node_id for each in directories for node_id in _nodes_in(Path(each))} - {*served})
    if left:
        raise ConfigError(_left_out(config, left, count))
    for each in directories:
        if count > 1 and os.path.exists(Path(each) / META_PROPERTIES):
            raise ConfigError(
                f"{each} has the data of a node that ran without {CORES}: while it is stopped, move all that is in {each} into "
                f"{folder_of(each, config.node_id)}, or choose another log.dirs"
            )


def _nodes_in(directory: Path) -> list[int]:
    """The nodes that have data there. A partition of a topic named `node` has such a folder, too, and no meta.properties."""
    found = filter(None, map(_FOLDER.fullmatch, names_in(directory)))
    return [int(each[1]) for each in found if os.path.exists(directory / each[0] / META_PROPERTIES)]


def _left_out(config: BrokerConfig, left: Sequence[int], count: int) -> str:
    shown = ("nodes " if len(left) > 1 else "node ") + ", ".join(map(str, left))
    needed = max(left) - config.node_id + 1
    first = config.node_id + count - 1
    nodes = f"nodes {config.node_id} to {first}" if count > 1 else "one node"
    again = (
        f"Start with {CORES}={needed} again"
        if needed > 1
        else f"Start with the node.id and the {CORES} that they had"
    )
    return (
        f"{','.join(config.log_dirs)} has the data of {shown}, which {CORES}={count} ({nodes}) does not start: its partitions "
        f"would have no replica there. {again}; to have fewer nodes, first move the partitions to the others "
        f"(kafka-reassign-partitions.sh), then stop, and remove the folders of those nodes"
    )
