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
    from barnabas.broker.security.sasl_client import NewSaslClient
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime

MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
JAAS_CONFIG: Final = "sasl.jaas.config"
_INTER_BROKER: Final = "sasl.mechanism.inter.broker.protocol"
_HANDLER: Final = "sasl.server.callback.handler.class"


class Authority(NamedTuple):
    """What mechanisms use of the node; its metadata is known when the first client connects."""

    runtime: Runtime
    image: Callable[[], MetadataImage]
    tokens: Callable[[], DelegationTokens | None]


def sasl_listeners(config: BrokerConfig, authority: Authority) -> dict[str, SaslListener]:
    """Those listeners for clients that use SASL, by name. ConfigError names a property that is wrong."""
    return {each.name: _sasl_listener(config, authority, each) for each in config.sasl_listeners}


def inter_broker_login(config: BrokerConfig, runtime: Runtime) -> NewSaslClient | None:
    """How this broker logs in to the inter-broker listener of others; None where that does not use SASL. ConfigError."""
    listener = config.inter_broker_listener
    if listener not in {each.name for each in config.sasl_listeners}:
        return None
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if mechanism not in _enabled_mechanisms(config, listener):
        raise ConfigError(
            f"{_INTER_BROKER} must be included in sasl.enabled.mechanisms when SASL is used for inter-broker communication; "
            f"it is {mechanism}, and listener {listener} has {', '.join(_enabled_mechanisms(config, listener))}"
        )
    module = login_module(config, listener, mechanism)
    user, password = module.options.get("username"), module.options.get("password")
    if mechanism == OAUTHBEARER:
        raise ConfigError(
            f"{_INTER_BROKER}: brokers log in to each other by PLAIN or SCRAM, not by OAUTHBEARER in this version"
        )
    if not (user and password) and config.quorum.is_alone:
        return None  # there are no others yet
    if not user or not password:
        raise ConfigError(
            f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS_CONFIG} needs username and password, with which "
            f"brokers log in to each other ({_INTER_BROKER})"
        )
    from barnabas.broker.security.sasl_client import PlainClient, ScramLogin
    from barnabas.controller.operations.scram import MECHANISM_NAMES

    if mechanism == PLAIN:
        return partial(PlainClient, user, password)
    return ScramLogin(mechanism, MECHANISM_NAMES[mechanism], user, password, runtime.random_bytes).client


def _enabled_mechanisms(config: BrokerConfig, listener: str) -> list[str]:
    enabled = config.listener_value(listener, "sasl.enabled.mechanisms") or ""
    return [each.strip() for each in enabled.split(",") if each.strip()]


def _sasl_listener(config: BrokerConfig, authority: Authority, listener: ListenerConfig) -> SaslListener:
    name = listener.name
    mechanisms = _enabled_mechanisms(config, name)
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
