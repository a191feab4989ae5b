"""`listeners`, `advertised.listeners` and `listener.security.protocol.map`, read as Kafka reads them.

Nodes connect to controller listeners (`controller.listener.names`), clients do not.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from barnabas.controller.config.validators import ConfigError

_ENDPOINT: Final = re.compile(
    r"^(?P<name>[^:/]+)://(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^\[\]:]*)):(?P<port>-?\d+)$"
)
_WILDCARDS: Final = ("0.0.0.0", "::")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")


class ListenerConfig(msgspec.Struct, frozen=True):
    """A socket to open. `advertised_port` 0: the port that was picked when it was opened."""

    name: str
    security_protocol: str
    host: str  # "" is every interface
    port: int  # 0 picks a free one
    advertised_host: str
    advertised_port: int


class Endpoint(msgspec.Struct):
    """The address at which clients of a listener reach this broker."""

    listener: str
    security_protocol: str
    host: str
    port: int


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener there ("" is every interface)."""
    from ipaddress import ip_address  # late: a single node does not need it

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def open_listeners(
    listeners: Iterable[ListenerConfig], asks_certificates: Callable[[str], bool], *, has_authorizer: bool
) -> str:
    """A line about the listeners that other machines reach and whose clients authenticate themselves by nothing; "" for none.
    `asks_certificates(name)`: whether a TLS listener requires them."""
    found = [
        f"{each.name} ({each.security_protocol}) on {format_address(each.host or 'every interface', each.port)}"
        for each in listeners
        if each.security_protocol not in SASL_PROTOCOLS
        and not (each.security_protocol in TLS_PROTOCOLS and asks_certificates(each.name))
        and not is_loopback(each.host)
    ]
    if not found:
        return ""
    right = "do what ACLs allow User:ANONYMOUS" if has_authorizer else "read, write and change everything"
    return f"open without authentication: {', '.join(found)}; all who can connect there may {right}"


def base_name(name: str) -> str:
    """The property that `listener.name.<listener>.<property>` sets for a listener; for others the name itself."""
    return name.split(".", 3)[3] if name.startswith("listener.name.") and name.count(".") > 2 else name


def parse_address(property_name: str, text: str) -> tuple[str, int]:
    """The host ("" is every interface) and port of HOST:PORT or [V6]:PORT. ConfigError names the property."""
    match = _ENDPOINT.match(f"ADDRESS://{text.strip()}")
    if match is None:
        raise ConfigError.invalid(
            property_name, text, "it must look like HOST:PORT, for example 127.0.0.1:9404"
        )
    port = int(match["port"])
    if not 0 <= port <= 65535:
        raise ConfigError.invalid(property_name, text, "the port must lie between 0 and 65535")
    return match["v6"] or match["host"] or "", port


def _parse_endpoints(property_name: str, entries: list[str]) -> dict[str, tuple[str, int]]:
    endpoints: dict[str, tuple[str, int]] = {}
    ports: dict[tuple[str, int], str] = {}
    for entry in entries:
        match = _ENDPOINT.match(entry)
        if match is None:
            raise ConfigError.invalid(
                property_name,
                entry,
                "an entry must look like NAME://host:port, for example PLAINTEXT://127.0.0.1:9092",
            )
        name = match["name"].upper()
        host, port = match["v6"] or match["host"] or "", int(match["port"])
        if not 0 <= port <= 65535:
            raise ConfigError.invalid(property_name, entry, "the port must lie between 0 and 65535")
        if name in endpoints:
            raise ConfigError.invalid(
                property_name, ",".join(entries), "Each listener must have a different name"
            )
        if port and property_name == "listeners" and (host, port) in ports:
            raise ConfigError.invalid(
                property_name, ",".join(entries), "Each listener must have a different port"
            )
        ports[host, port] = name
        endpoints[name] = (host, port)
    return endpoints


def controller_endpoint(names: list[str], *sources: list[str]) -> tuple[str, str, int] | None:
    """(name, host, port) of the first controller listener in lists of `listeners` entries; the host is localhost where it
    listens on every interface. None when no list has one."""
    wanted = [name.upper() for name in names]
    for entries in sources:
        for match in filter(None, map(_ENDPOINT.match, map(str.strip, entries))):
            if match["name"].upper() in wanted:
                return match["name"].upper(), match["v6"] or match["host"] or "localhost", int(match["port"])
    return None


def parse_protocol_map(text: str) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = entry.rpartition(":")
        if not name:
            raise ConfigError.invalid(
                "listener.security.protocol.map", text, "an entry must look like NAME:PROTOCOL"
            )
        mapping[name.strip().upper()] = protocol.strip().upper()
    return mapping


def resolve_listeners(
    listeners: list[str],
    advertised: list[str] | None,
    protocol_map: str,
    controller_listener_names: list[str],
    hostname: Callable[[], str] = socket.gethostname,
) -> tuple[list[ListenerConfig], list[ListenerConfig]]:
    """(listeners for clients and brokers, controller listeners in the order of their names). ConfigError names a property that is
    wrong."""
    protocols = parse_protocol_map(protocol_map)
    wanted = _parse_endpoints("listeners", listeners)
    shown = _parse_endpoints("advertised.listeners", advertised or [])
    controllers = [name.upper() for name in controller_listener_names]
    for name in shown:
        if name not in wanted:
            raise ConfigError(f"advertised.listeners names {name}, which listeners does not have")
    opened: list[ListenerConfig] = []
    for_controllers: list[ListenerConfig] = []
    for name, endpoint in wanted.items():
        is_controller = name in controllers
        listener = _listener(
            name, endpoint, shown.get(name), protocols, hostname, is_controller=is_controller
        )
        (for_controllers if is_controller else opened).append(listener)
    return opened, sorted(for_controllers, key=lambda each: controllers.index(each.name))


def _listener(
    name: str,
    endpoint: tuple[str, int],
    shown: tuple[str, int] | None,
    protocols: dict[str, str],
    hostname: Callable[[], str],
    *,
    is_controller: bool,
) -> ListenerConfig:
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"No security protocol defined for listener {name} in listener.security.protocol.map"
        )
    if protocol not in _PROTOCOLS:
        raise ConfigError.invalid(
            "listener.security.protocol.map",
            f"{name}:{protocol}",
            f"String must be one of: {', '.join(_PROTOCOLS)}",
        )
    host, port = shown if shown is not None else endpoint
    if host in _WILDCARDS and is_controller and shown is None:  # clients get no address of a controller
        host = ""
    if host in _WILDCARDS:
        raise ConfigError(
            f"advertised.listeners cannot use the nonroutable meta-address {host}. Use a routable IP address. "
            f"(Listener {name}: set advertised.listeners={name}://HOST:{port}, with the host that clients reach)"
        )
    return ListenerConfig(
        name=name,
        security_protocol=protocol,
        host=endpoint[0],
        port=endpoint[1],
        advertised_host=host or hostname(),
        advertised_port=port,
    )
