"""Reads the sasl.* properties of listeners. Loaded only where a listener uses SASL."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.security.jaas import JaasError, LoginModule, parse_login_module
from barnabas.broker.security.plain import PlainServer, PlainUsers
from barnabas.broker.security.sasl import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Mechanism,
    NewSaslServer,
    SaslListener,
)
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import ListenerConfig
    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime

MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
JAAS_CONFIG: Final = "sasl.jaas.config"
_HANDLER: Final = "sasl.server.callback.handler.class"


class Authority(NamedTuple):
    """What mechanisms use of the node; its metadata is known when the first client connects."""

    runtime: Runtime
    image: Callable[[], MetadataImage]
    tokens: Callable[[], DelegationTokens | None]


def sasl_listeners(config: BrokerConfig, authority: Authority) -> dict[str, SaslListener]:
    """Those listeners for clients that use SASL, by name. ConfigError names a property that is wrong."""
    with_sasl = config.sasl_listeners
    if not config.quorum.is_alone and config.inter_broker_listener in {each.name for each in with_sasl}:
        raise ConfigError(
            f"inter.broker.listener.name: listener {config.inter_broker_listener} uses SASL, which brokers don't between each "
            f"other in this version; add a listener without it for them"
        )
    return {each.name: _sasl_listener(config, authority, each) for each in with_sasl}


def _sasl_listener(config: BrokerConfig, authority: Authority, listener: ListenerConfig) -> SaslListener:
    name = listener.name
    enabled = config.listener_value(name, "sasl.enabled.mechanisms") or ""
    mechanisms = [each.strip() for each in enabled.split(",") if each.strip()]
    if not mechanisms:
        raise ConfigError(f"sasl.enabled.mechanisms is empty, and listener {name} uses SASL")
    return SaslListener(
        {each: _mechanism(config, authority, name, each) for each in mechanisms},
        config.sasl_server_max_receive_size,
        config.connection_failed_authentication_delay_ms / 1000,
    )


def _mechanism(config: BrokerConfig, authority: Authority, listener: str, mechanism: str) -> Mechanism:
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"sasl.enabled.mechanisms: listener {listener} names {mechanism[:100]}, which this version does not have; it has "
            f"{', '.join(MECHANISMS)}"
        )
    if mechanism != OAUTHBEARER and config.listener_value(listener, _HANDLER, mechanism):
        raise ConfigError(f"{_HANDLER}: listener {listener} names a Java class for {mechanism}; leave it out")
    lifetime = config.listener_value(listener, "connections.max.reauth.ms", mechanism)
    return Mechanism(
        _new_server(config, authority, listener, mechanism),
        _whole_number("connections.max.reauth.ms", lifetime),
    )


def _new_server(config: BrokerConfig, authority: Authority, listener: str, mechanism: str) -> NewSaslServer:
    module = login_module(config, listener, mechanism)
    if mechanism == PLAIN:
        return partial(PlainServer, PlainUsers(module.options))
    if mechanism == OAUTHBEARER:
        from barnabas.broker.security.oauthbearer import OAuthBearerServer
        from barnabas.broker.security.oauthbearer_config import token_verifier

        return partial(OAuthBearerServer, token_verifier(config, listener, module, authority.runtime))
    from barnabas.broker.security.scram import ScramCredentials, ScramServer
    from barnabas.broker.security.scram_users import ScramUsers
    from barnabas.controller.operations.scram import MECHANISM_NAMES

    number, random_bytes = MECHANISM_NAMES[mechanism], authority.runtime.random_bytes
    users = ScramUsers(number, authority.image, authority.tokens, random_bytes)
    return partial(ScramServer, ScramCredentials(number, random_bytes, users.of_user, users.of_token))


def login_module(config: BrokerConfig, listener: str, mechanism: str) -> LoginModule:
    """The JAAS entry of a mechanism on a listener. ConfigError."""
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS_CONFIG}"
    text = config.given.get(name)
    if text is None:
        entry = f"{listener.lower()}.KafkaServer"
        raise ConfigError(
            f"Could not find a 'KafkaServer' or '{entry}' entry in the JAAS configuration; set {name}"
        )
    try:
        return parse_login_module(text)
    except JaasError as error:
        raise ConfigError(f"{name}: {error}") from None


def _whole_number(name: str, text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        raise ConfigError.invalid(name, text or "", "Not a number of type LONG") from None
