"""Mutual TLS on the controller listener: `listener.security.protocol.map=CONTROLLER:SSL` with Kafka's ssl.* properties, files in
PEM. Both sides show a certificate that the other's truststore vouches for; whoever has none is no node of this cluster.

`listener.name.<listener>.ssl.*` goes before `ssl.*`, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from barnabas.broker.cluster.controller_secret import warn_of_readers
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.tls_contexts import client_context, server_context

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.config.broker_config import BrokerConfig

_FILES = ("ssl.keystore.location", "ssl.truststore.location")


class ControllerTls(NamedTuple):
    """For those who call this node, and for the calls of this node."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def controller_tls(config: BrokerConfig, listener: str) -> ControllerTls:
    """ConfigError names the property that is missing or whose file can't be used."""
    import ssl

    def value(name: str) -> str | None:
        own = config.given.get(f"listener.name.{listener.lower()}.{name}")
        return own if own is not None else config.value(name)

    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        if (value(name) or "").upper() != "PEM":
            raise ConfigError(
                f"{name} must be PEM for the controller listener {listener}: this version reads no other kind of store"
            )
    keystore, truststore = (_file(name, value(name), listener) for name in _FILES)
    warn_of_readers("ssl.keystore.location", keystore)
    server, client = server_context(), client_context()
    for context in (server, client):
        try:
            context.load_cert_chain(keystore, password=value("ssl.key.password") or "")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"ssl.keystore.location: {keystore} must hold a private key and its certificate in PEM: {error}"
            ) from error
        try:
            context.load_verify_locations(truststore)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"ssl.truststore.location: {truststore} must hold certificates in PEM: {error}"
            ) from error
    server.verify_mode = ssl.CERT_REQUIRED
    client.check_hostname = bool((value("ssl.endpoint.identification.algorithm") or "").strip())
    return ControllerTls(server, client)


def _file(name: str, path: str | None, listener: str) -> str:
    if not path:
        raise ConfigError(f"{name} is needed by the controller listener {listener}, which uses SSL")
    return path
