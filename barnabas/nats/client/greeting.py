"""What a client says of itself to a server: CONNECT's options and credentials, and whether TLS comes first.

Credentials are read anew at each connection, so that files can be exchanged while the broker runs. What the servers'
addresses hold goes before the settings, as in every NATS client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.nats.client.errors import NatsSettingsError
from barnabas.runtime.tls_contexts import client_context

if TYPE_CHECKING:
    import ssl

    from barnabas.nats.client.connection_settings import ConnectionSettings, ServerAddress
    from barnabas.nats.client.server_info import ServerInfo

CLIENT_VERSION = "1"


def connect_options(
    settings: ConnectionSettings, server: ServerAddress, info: ServerInfo, name: str
) -> dict[str, object]:
    """The options of CONNECT. NatsSettingsError when credentials can't be read or used."""
    return {
        "verbose": False,
        "pedantic": False,
        "tls_required": wants_tls(settings, server) or info.tls_required,
        "name": name,
        "lang": "barnabas",
        "version": CLIENT_VERSION,
        "protocol": 1,
        "echo": settings.echo,
        "headers": True,
        "no_responders": True,
        **_credentials(settings, server, info),
    }


def _credentials(settings: ConnectionSettings, server: ServerAddress, info: ServerInfo) -> dict[str, Any]:
    if server.user:
        return {"user": server.user, "pass": server.password.value}
    if server.token:
        return {"auth_token": server.token.value}
    if settings.credentials_file or settings.nkey_seed_file:
        # Imported here: most never need what signs
        from barnabas.nats.client.credentials import signed_credentials

        return signed_credentials(settings, info.nonce)
    if settings.user:
        return {"user": settings.user, "pass": settings.password.value}
    if settings.token:
        return {"auth_token": settings.token.value}
    return {}


def login_advice(settings: ConnectionSettings, server: ServerAddress) -> str:
    """Which settings to look at when the server does not let us in: those that `connect_options` goes by."""
    prefix = f"nats.connection.{settings.name}" if settings.name else "nats"
    if server.user or server.token:
        return f"look at what stands before the @ in {prefix}.servers"
    if settings.credentials_file:
        return f"look at {prefix}.credentials.file={settings.credentials_file}"
    if settings.nkey_seed_file:
        return f"look at {prefix}.nkey.seed.file={settings.nkey_seed_file}"
    if settings.user:
        return f"look at {prefix}.user={settings.user} and {prefix}.password"
    if settings.token:
        return f"look at {prefix}.token"
    return (
        f"no way to log in is set: set {prefix}.user and {prefix}.password, {prefix}.token, {prefix}.nkey.seed.file or "
        f"{prefix}.credentials.file"
    )


def wants_tls(settings: ConnectionSettings, server: ServerAddress) -> bool:
    """Whether we insist on it, whatever the server says."""
    return server.tls or settings.tls_first or bool(settings.tls_ca_file or settings.tls_certificate_file)


def tls_context(
    settings: ConnectionSettings, server: ServerAddress, info: ServerInfo | None
) -> ssl.SSLContext | None:
    """For the TLS of a connection, None when it has none. NatsSettingsError when we want it and the server does not have
    it (credentials never travel in the clear then), or files can't be used."""
    if info is not None and not info.tls_required:
        if not wants_tls(settings, server):
            return None
        if not info.tls_available:
            raise NatsSettingsError(
                f"{server} does not speak TLS, but the settings ask for it: set tls in the server's configuration, or "
                "remove tls:// and nats.tls.* here"
            )
    import ssl

    context = client_context()
    if not settings.tls_ca_file:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            context.load_verify_locations(settings.tls_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise NatsSettingsError(
                f"nats.tls.ca.file: {settings.tls_ca_file} must hold certificates in PEM: {error}"
            ) from error
    if settings.tls_certificate_file:
        try:
            # an empty password: never ask on the terminal
            context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file or None, password="")
        except (OSError, ssl.SSLError) as error:
            raise NatsSettingsError(
                f"nats.tls.certificate.file: {settings.tls_certificate_file} must hold a certificate in PEM, and "
                f"nats.tls.key.file (or the same file) its private key without a password: {error}"
            ) from error
    return context
