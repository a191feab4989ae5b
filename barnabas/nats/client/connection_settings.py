"""Settings of a connection to a NATS system: servers, credentials, TLS, limits."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from barnabas.nats.client.errors import NatsSettingsError

DEFAULT_PORT: Final = 4222
SCHEMES: Final = ("nats", "tls")


class Secret:
    """Text that `repr` hides."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)


NO_SECRET: Final = Secret("")


class ServerAddress(msgspec.Struct, frozen=True):
    """Address of one server. `tls` requires TLS even where the server does not. `tls_name` is the name that its certificate
    must have; "" for `host`."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    user: str = ""
    password: Secret = NO_SECRET
    token: Secret = NO_SECRET
    tls_name: str = ""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one connection."""

    servers: tuple[ServerAddress, ...]
    name: str = ""  # of the connection; "" is the default one
    user: str = ""
    password: Secret = NO_SECRET
    token: Secret = NO_SECRET
    nkey_seed_file: str = ""
    credentials_file: str = ""
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_first: bool = False  # TLS from the first byte on (the server's handshake_first)
    jetstream_domain: str = ""
    inbox_prefix: str = "_INBOX"
    echo: bool = True  # whether subscriptions get messages that the same connection publishes
    ping_interval_s: float = 20.0
    connect_timeout_s: float = 5.0
    output_bytes_max: int = 64 * 1024 * 1024
    read_buffer_bytes: int = 512 * 1024


def parse_server(text: str) -> ServerAddress:
    """`nats://user:password@host:port`, `tls://token@host`, `host:port` or `host`. NatsSettingsError says what is wrong,
    without the secrets."""
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "nats", text
    if scheme not in SCHEMES:
        raise NatsSettingsError(
            f"{scheme}:// is no scheme of NATS: write nats://host:port or tls://host:port"
        )
    shown = f"{scheme}://{rest.rpartition('@')[2]}"
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise NatsSettingsError(f"{shown} is not the address of a server: write nats://host:port") from error
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment or port == 0:
        raise NatsSettingsError(f"{shown} is not the address of a server: write nats://host:port")
    user, password, token = unquote(parts.username or ""), unquote(parts.password or ""), ""
    if user and parts.password is None:
        user, token = "", user  # as in every NATS client: a user without password is a token
    return ServerAddress(host, port or DEFAULT_PORT, scheme == "tls", user, Secret(password), Secret(token))
