"""Credentials of the nodes of a cluster: a secret that they share, and mutual TLS on the controller listener.

The secret is in the file that `barnabas.controller.secret.file` names. It authenticates nodes on the controller listener and
the inter-broker listener. It may be missing only where all listeners between nodes are on the loopback address; then every
process of this machine can pose as a node. So can every process that can read the file: a file that others can read is warned
about, as is such a private key.

TLS is `listener.security.protocol.map=CONTROLLER:SSL` with Kafka's ssl.* properties. Both sides present a
certificate that the other's truststore must contain or have signed. `listener.name.<listener>.ssl.*` takes precedence over
`ssl.*`, as in Kafka. With SASL_SSL the caller logs in, and needs a certificate only where `ssl.client.auth` of the listener asks
for one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from barnabas.broker.config.listeners import format_address, is_loopback
from barnabas.broker.security.key_stores import warn_of_readers
from barnabas.broker.security.ssl_config import read_ssl_config
from barnabas.broker.security.ssl_contexts import make_client_context, make_contexts
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from barnabas.broker.config.broker_config import BrokerConfig

NAME: Final = "barnabas.controller.secret.file"
SECRET_BYTES_MIN: Final = 16
MAKE_ONE: Final = "make one, the same on all nodes: (umask 077; openssl rand -base64 48 > {path})"


def read_secret(path: str | None) -> bytes | None:
    """The secret in the file, None where none is configured. ConfigError describes a file that is wrong."""
    if path is None:
        return None
    if not path.strip():
        raise ConfigError(f"{NAME} is empty: name the file, or remove the line")
    try:
        secret = Path(path).read_bytes().strip()
    except FileNotFoundError:
        raise ConfigError(f"{NAME}: {path} does not exist; {MAKE_ONE.format(path=path)}") from None
    except OSError as error:
        raise ConfigError(f"{NAME}: {path} can't be read: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"{NAME}: {path} is empty; {MAKE_ONE.format(path=path)}")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{NAME}: {path} holds {len(secret)} bytes, and a secret has at least {SECRET_BYTES_MIN}; "
            f"{MAKE_ONE.format(path=path)}"
        )
    warn_of_readers(NAME, path)
    return secret


def check_secret(config: BrokerConfig, secret: bytes | None) -> None:
    """ConfigError where one of several nodes has no secret and can be reached from other machines, or by clients that may not do
    everything: a node may."""
    if secret is not None or config.quorum.is_alone:
        return
    between_nodes = [each for each in config.listeners if each.name == config.inter_broker_listener]
    for listener in [*between_nodes, *config.controller_listeners]:
        if not is_loopback(listener.host) or config.authorizer is not None:
            raise ConfigError(
                f"{NAME} is not set, and this node is one of several: any process that reaches its listener "
                f"{listener.name} ({format_address(listener.host or '*', listener.port)}) could pose as another node, and "
                f"acknowledged records could be lost. Make a file with a secret, the same on all nodes, and name it in "
                f"{NAME} on each: (umask 077; openssl rand -base64 48 > FILE). Only where all nodes run on "
                f"one machine and listen on 127.0.0.1, and no authorizer is configured, may it be left out"
            )


def own_secret(config: BrokerConfig, random_bytes: Callable[[int], bytes]) -> bytes | None:
    """In place of a secret that is not configured: one that no other process has, where ACLs are enforced, and where a node alone can
    be reached from other machines. Without any, clients could pose as another node."""
    is_reachable = any(not is_loopback(each.host) for each in config.controller_listeners)
    is_needed = config.authorizer is not None or (config.quorum.is_alone and is_reachable)
    return random_bytes(SECRET_BYTES_MIN) if is_needed else None


def inter_broker_secret(config: BrokerConfig, secret: bytes | None) -> bytes | None:
    """The secret that brokers authenticate with; None where there are no other brokers, or none may connect."""
    if not config.is_broker or (config.quorum.is_alone and not config.controller_listeners):
        return None
    if secret is not None:
        return secret
    hosts = [each.host for each in config.listeners if each.name == config.inter_broker_listener]
    return b"" if all(map(is_loopback, hosts)) else None


class ControllerTls(NamedTuple):
    """TLS contexts for accepted connections, where this node accepts any, and for those that it opens."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext


def controller_tls(config: BrokerConfig, listener: str, protocol: str = "SSL") -> ControllerTls:
    """ConfigError names a property that is missing or whose file can't be used. With SSL nodes always need certificates."""
    if protocol == "SASL_SSL":
        settings = read_ssl_config(config, listener, is_sasl=True)
        if not config.is_controller:
            return ControllerTls(None, make_client_context(settings))
        contexts = make_contexts(settings, is_between_nodes=True)
        assert contexts.client is not None
        return ControllerTls(contexts.server, contexts.client)
    settings = msgspec.structs.replace(read_ssl_config(config, listener), client_auth="required")
    if not settings.truststore_location and settings.truststore_certificates is None:
        raise ConfigError(
            f"ssl.truststore.location is needed by the controller listener {listener}, which uses SSL"
        )
    contexts = make_contexts(settings, is_between_nodes=True)
    assert contexts.client is not None
    return ControllerTls(contexts.server, contexts.client)
