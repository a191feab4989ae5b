"""The ssl.* properties of one listener.

A value is the first of: dynamic `listener.name.<listener>.<property>` of this node, the static one, `<property>`, the default.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.config.authorizer import DEFAULT_PRINCIPAL_BUILDERS, PRINCIPAL_BUILDER
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

log = logging.getLogger("barnabas.security")

# What AlterConfigs may change while the broker runs, as `listener.name.<listener>.<property>`.
RECONFIGURABLE: Final = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)
PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
CLIENT_AUTH: Final = "ssl.client.auth"
_JAVA_CLASSES: Final = {
    "ssl.engine.factory.class": (
        "",
        "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
    ),
    PRINCIPAL_BUILDER: DEFAULT_PRINCIPAL_BUILDERS,
}


class SslConfig(msgspec.Struct, frozen=True):
    """The settings of a listener; "" or None where a property has no value."""

    listener: str
    keystore_type: str
    keystore_location: str
    keystore_password: str | None
    key_password: str | None
    keystore_key: str | None  # PEM, in the property
    keystore_certificate_chain: str | None
    truststore_type: str
    truststore_location: str
    truststore_password: str | None
    truststore_certificates: str | None
    client_auth: str  # none, requested or required
    enabled_protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]  # IANA's names; empty: all that are safe
    checks_host_names: bool  # of servers that this node connects to
    principal_mapping_rules: str
    allow_dn_changes: bool
    allow_san_changes: bool

    def __repr__(self) -> str:
        return f"SslConfig({self.listener})"  # without the passwords


def prefix_of(listener: str) -> str:
    """What begins the properties of one listener."""
    return f"listener.name.{listener.lower()}."


def read_ssl_config(
    config: BrokerConfig, listener: str, *, is_sasl: bool = False, stored: Mapping[str, str] | None = None
) -> SslConfig:
    """The settings of a listener; on a SASL_SSL listener the plain `ssl.client.auth` does not count, as in Kafka. `stored`: the
    dynamic values of this node, those in force unless given. ConfigError for values that can't be used."""
    prefix = prefix_of(listener)
    dynamic = config.resolved_stored(config.stored_node if stored is None else stored)

    def own(name: str) -> str | None:
        text = dynamic.get(prefix + name) if name in RECONFIGURABLE else None
        return config.given.get(prefix + name) if text is None else text

    def value(name: str) -> str | None:
        text = own(name)
        return config.value(name) if text is None else text

    def text_of(name: str) -> str:
        return (value(name) or "").strip()

    def items(name: str) -> tuple[str, ...]:
        return tuple(filter(None, map(str.strip, text_of(name).split(","))))

    for name, allowed in _JAVA_CLASSES.items():
        if text_of(name) not in allowed:
            raise ConfigError.invalid(name, text_of(name), "this version runs no Java classes")
    client_auth = ((own(CLIENT_AUTH) if is_sasl else value(CLIENT_AUTH)) or "none").strip().lower()
    if client_auth not in ("none", "requested", "required"):
        raise ConfigError.invalid(
            CLIENT_AUTH, client_auth, "String must be one of: required, requested, none"
        )
    if is_sasl and own(CLIENT_AUTH) is None and (config.value(CLIENT_AUTH) or "none") != "none":
        log.warning(
            "ssl.client.auth does not count on the SASL_SSL listener %s; set %s%s there",
            listener,
            prefix,
            CLIENT_AUTH,
        )
    return SslConfig(
        listener=listener,
        keystore_type=text_of("ssl.keystore.type"),
        keystore_location=text_of("ssl.keystore.location"),
        keystore_password=value("ssl.keystore.password"),
        key_password=value("ssl.key.password"),
        keystore_key=value("ssl.keystore.key"),
        keystore_certificate_chain=value("ssl.keystore.certificate.chain"),
        truststore_type=text_of("ssl.truststore.type"),
        truststore_location=text_of("ssl.truststore.location"),
        truststore_password=value("ssl.truststore.password"),
        truststore_certificates=value("ssl.truststore.certificates"),
        client_auth=client_auth,
        enabled_protocols=_enabled_protocols(items("ssl.enabled.protocols"), listener),
        cipher_suites=items("ssl.cipher.suites"),
        checks_host_names=bool(text_of("ssl.endpoint.identification.algorithm")),
        principal_mapping_rules=value("ssl.principal.mapping.rules") or "DEFAULT",
        allow_dn_changes=text_of("ssl.allow.dn.changes").lower() == "true",
        allow_san_changes=text_of("ssl.allow.san.changes").lower() == "true",
    )


def _enabled_protocols(given: tuple[str, ...], listener: str) -> tuple[str, ...]:
    usable = tuple(each for each in PROTOCOLS if each in given)
    if not usable:
        raise ConfigError.invalid(
            "ssl.enabled.protocols", list(given), f"this version has {' and '.join(PROTOCOLS)}"
        )
    others = [each for each in given if each not in PROTOCOLS]
    if others:
        log.warning("ssl.enabled.protocols: %s is not served on %s", ", ".join(others), listener)
    return usable
