"""Reads connections from a broker's nats.* properties. Loaded where such a property is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.controller.config.validators import ConfigError
from barnabas.nats.client.connection_settings import (
    ConnectionSettings,
    Secret,
    ServerAddress,
    parse_server,
)
from barnabas.nats.client.errors import NatsSettingsError
from barnabas.nats.configs import BROKER_CONFIGS, SERVERS, ConfigValues, split_connection

if TYPE_CHECKING:
    from collections.abc import Mapping


def nats_connections(given: Mapping[str, str]) -> dict[str, ConnectionSettings]:
    """The settings of connections, by name; "" is the name of the one of nats.servers. ConfigError names the invalid property,
    and shows no secret."""
    properties: dict[str, dict[str, str]] = {}
    for full_name, text in given.items():
        found = split_connection(full_name)
        if found is not None:
            connection, name = found
            properties.setdefault(connection, {})[name] = text
    return {name: made for name in sorted(properties) if (made := _settings(name, properties[name]))}


def _settings(connection: str, given: Mapping[str, str]) -> ConnectionSettings | None:
    def full(name: str) -> str:
        return f"nats.connection.{connection}.{name.removeprefix('nats.')}" if connection else name

    values = ConfigValues(BROKER_CONFIGS, given, full)
    text = values.text
    servers = values.texts(SERVERS)
    if not servers:
        others = sorted(full(name) for name in given if given[name].strip())
        if others:
            raise ConfigError(
                f"{full(SERVERS)} is missing: without it {', '.join(others)} has no effect. Set it, as in "
                f"{full(SERVERS)}=nats://HOST:4222"
            )
        return None
    if bool(text("nats.tls.certificate.file")) != bool(text("nats.tls.key.file")):
        raise ConfigError(
            f"{full('nats.tls.certificate.file')} and {full('nats.tls.key.file')} belong together: set both or neither"
        )
    ways = ("nats.user", "nats.token", "nats.nkey.seed.file", "nats.credentials.file")
    used = [full(name) for name in ways if text(name)]
    if len(used) > 1:
        raise ConfigError(f"{' and '.join(used)} are different ways to log in: set one of them")
    if text("nats.password") and not text("nats.user"):
        raise ConfigError(f"{full('nats.user')} is missing: {full('nats.password')} is its password")
    return ConnectionSettings(
        servers=tuple(_server(full(SERVERS), server) for server in servers),
        name=connection,
        user=text("nats.user"),
        password=Secret(text("nats.password")),
        token=Secret(text("nats.token")),
        nkey_seed_file=text("nats.nkey.seed.file"),
        credentials_file=text("nats.credentials.file"),
        tls_ca_file=text("nats.tls.ca.file"),
        tls_certificate_file=text("nats.tls.certificate.file"),
        tls_key_file=text("nats.tls.key.file"),
        tls_first=values.boolean("nats.tls.handshake.first"),
        jetstream_domain=text("nats.jetstream.domain"),
        connect_timeout_s=values.integer("nats.connect.timeout.ms") / 1000,
        ping_interval_s=values.integer("nats.ping.interval.ms") / 1000,
    )


def _server(name: str, text: str) -> ServerAddress:
    try:
        return parse_server(text)
    except NatsSettingsError as error:
        raise ConfigError(f"{name}: {error}") from error
