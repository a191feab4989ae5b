"""Reads the sasl.* properties of listeners. Loaded only where a listener uses SASL."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.config.listeners import SASL_PROTOCOLS
from barnabas.broker.config.sources import JAAS_FILE_PROPERTY
from barnabas.broker.security.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasError,
    LoginModule,
    parse_jaas_file,
    parse_login_module,
)
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
    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.broker.security.sasl_client import NewSaslClient
    from barnabas.broker.security.scram import Credential
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.security")

MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
_MODULES: Final = {PLAIN: PLAIN_MODULE, OAUTHBEARER: OAUTHBEARER_MODULE}  # of the others: SCRAM_MODULE
JAAS_CONFIG: Final = "sasl.jaas.config"
_INTER_BROKER: Final = "sasl.mechanism.inter.broker.protocol"
_CONTROLLER: Final = "sasl.mechanism.controller.protocol"
_HANDLER: Final = "sasl.server.callback.handler.class"


class Authority(NamedTuple):
    """What mechanisms use of the node. Its metadata is known when the first client connects, but not when the first controller
    does: `knows_users()`."""

    runtime: Runtime
    image: Callable[[], MetadataImage]
    tokens: Callable[[], DelegationTokens | None]
    knows_users: Callable[[], bool]


class SaslListeners:
    """The listeners that use SASL. ConfigError names a property that is wrong."""

    def __init__(self, config: BrokerConfig, authority: Authority) -> None:
        self._config = config
        self._authority = authority
        self._plain_users: dict[str, PlainUsers] = {}  # by listener
        self.by_name = {each.name: self._listener(each.name) for each in config.sasl_listeners}

    def reload(self) -> None:
        """Take up users of PLAIN that AlterConfigs has changed. What can't be read is logged, and the users stay."""
        for listener, users in self._plain_users.items():
            try:
                users.replace(login_module(self._config, listener, PLAIN).options)
            except ConfigError as error:
                log.warning("the users of PLAIN stay as they were: %s", error)

    def _listener(self, name: str) -> SaslListener:
        config = self._config
        mechanisms = _enabled_mechanisms(config, name)
        if not mechanisms:
            raise ConfigError(f"sasl.enabled.mechanisms is empty, and listener {name} uses SASL")
        return SaslListener(
            {each: self._mechanism(name, each) for each in mechanisms},
            config.sasl_server_max_receive_size,
            config.connection_failed_authentication_delay_ms / 1000,
        )

    def _mechanism(self, listener: str, mechanism: str) -> Mechanism:
        if mechanism not in MECHANISMS:
            raise ConfigError(
                f"sasl.enabled.mechanisms: listener {listener} names {mechanism[:100]}, which this version does not have; it "
                f"has {', '.join(MECHANISMS)}"
            )
        value = self._config.listener_value
        if mechanism != OAUTHBEARER and value(listener, _HANDLER, mechanism):
            raise ConfigError(
                f"{_HANDLER}: listener {listener} names a Java class for {mechanism}; leave it out"
            )
        lifetime = value(listener, "connections.max.reauth.ms", mechanism)
        return Mechanism(
            self._new_server(listener, mechanism), _whole_number("connections.max.reauth.ms", lifetime)
        )

    def _new_server(self, listener: str, mechanism: str) -> NewSaslServer:
        authority = self._authority
        module = login_module(self._config, listener, mechanism)
        if mechanism == PLAIN:
            users = self._plain_users[listener] = PlainUsers(module.options)
            return partial(PlainServer, users)
        if mechanism == OAUTHBEARER:
            from barnabas.broker.security.oauthbearer import OAuthBearerServer
            from barnabas.broker.security.oauthbearer_config import token_verifier

            return partial(
                OAuthBearerServer, token_verifier(self._config, listener, module, authority.runtime)
            )
        from barnabas.broker.security.scram import ScramCredentials, ScramServer, ScramUsers
        from barnabas.controller.operations.scram import MECHANISM_NAMES

        number, random_bytes = MECHANISM_NAMES[mechanism], authority.runtime.random_bytes
        scram_users = ScramUsers(number, authority.image, authority.tokens, random_bytes)
        of_user: Callable[[str], Credential | None] = scram_users.of_user
        if listener in {each.name for each in self._config.controller_listeners}:
            of_user = self._with_own_user(of_user, number, module)
        return partial(ScramServer, ScramCredentials(number, random_bytes, of_user, scram_users.of_token))

    def _with_own_user(
        self, of_user: Callable[[str], Credential | None], number: int, module: LoginModule
    ) -> Callable[[str], Credential | None]:
        from barnabas.broker.security.scram import OwnUser

        name, password = module.options.get("username"), module.options.get("password")
        if not name or not password:
            return of_user
        own = OwnUser(number, name, password, self._authority.runtime.random_bytes)
        knows_users = self._authority.knows_users
        return lambda user: own.credential if user == own.name and not knows_users() else of_user(user)


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
    return _login(config, runtime, listener, mechanism, f"brokers log in to each other ({_INTER_BROKER})")


def controller_login(config: BrokerConfig, runtime: Runtime) -> NewSaslClient | None:
    """How this node logs in to controllers; None where that listener does not use SASL, or there are no others. ConfigError."""
    listener, mechanism = config.controller_listener, config.sasl_mechanism_controller_protocol
    if config.controller_protocol not in SASL_PROTOCOLS or config.quorum.is_alone:
        return None
    enabled = _enabled_mechanisms(config, listener) if config.is_controller else MECHANISMS
    if mechanism not in enabled:
        raise ConfigError(
            f"{_CONTROLLER} is {mechanism}, and nodes log in to the controller listener {listener} by "
            f"{', '.join(enabled)}; it must be one of sasl.enabled.mechanisms there"
        )
    return _login(config, runtime, listener, mechanism, f"nodes log in to controllers ({_CONTROLLER})")


def _login(
    config: BrokerConfig, runtime: Runtime, listener: str, mechanism: str, purpose: str
) -> NewSaslClient | None:
    module = login_module(config, listener, mechanism)
    if mechanism == OAUTHBEARER:
        from barnabas.broker.security.oauthbearer_config import token_source

        source = token_source(config, listener, module, runtime, purpose)
        return None if source is None else source.client
    user, password = module.options.get("username"), module.options.get("password")
    if not (user and password) and config.quorum.is_alone:
        return None  # there are no others yet
    if not user or not password:
        raise ConfigError(
            f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS_CONFIG} needs username and password, with which "
            f"{purpose}"
        )
    from barnabas.broker.security.sasl_client import PlainClient, ScramLogin
    from barnabas.controller.operations.scram import MECHANISM_NAMES

    if mechanism == PLAIN:
        return lambda: PlainClient(user, password)  # a partial's repr has the password
    return ScramLogin(mechanism, MECHANISM_NAMES[mechanism], user, password, runtime.random_bytes).client


def _enabled_mechanisms(config: BrokerConfig, listener: str) -> list[str]:
    enabled = config.listener_value(listener, "sasl.enabled.mechanisms") or ""
    return [each.strip() for each in enabled.split(",") if each.strip()]


def login_module(config: BrokerConfig, listener: str, mechanism: str) -> LoginModule:
    """The JAAS entry of a mechanism on a listener: dynamic, static, or of the file that KAFKA_OPTS names. ConfigError."""
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS_CONFIG}"
    text = config.resolved_stored(config.stored_node).get(name) or config.given.get(name)
    if text is None:
        return _module_of_file(config, listener, mechanism, name)
    try:
        return parse_login_module(text)
    except JaasError as error:
        raise ConfigError(f"{name}: {error}") from None


def _module_of_file(config: BrokerConfig, listener: str, mechanism: str, name: str) -> LoginModule:
    """The options of all modules of the mechanism in the listener's section, else in KafkaServer; of one given twice the first."""
    path, entry = config.jaas_file, f"{listener.lower()}.KafkaServer"
    try:
        sections = {} if path is None else parse_jaas_file(path.read_text())
    except (OSError, UnicodeDecodeError, JaasError) as error:
        raise ConfigError(f"{JAAS_FILE_PROPERTY}={path}: {error}") from None
    modules = sections.get(entry) or sections.get("KafkaServer")
    if not modules:
        raise ConfigError(
            f"Could not find a 'KafkaServer' or '{entry}' entry in the JAAS configuration; set {name}"
        )
    wanted = _MODULES.get(mechanism, SCRAM_MODULE)
    options: dict[str, str] = {}
    for module in modules:
        if module.name == wanted:
            options = module.options | options
    return LoginModule(wanted, options)


def _whole_number(name: str, text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        raise ConfigError.invalid(name, text or "", "Not a number of type LONG") from None
