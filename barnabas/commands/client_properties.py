"""Properties of Kafka's clients (--command-config and its like) as settings of kafka-python.

Names become kafka-python's (`request.timeout.ms` is request_timeout_ms); what it does not know is ignored, as Java's clients ignore
it. TLS and SASL settings are read by the broker's own readers: PEM, PKCS12 and JKS stores, `sasl.jaas.config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from barnabas.commands.options import CommandFailed

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_RENAMED: Final = {"default.api.timeout.ms": "bootstrap_timeout_ms"}
# Their values are Java classes or mean something else in kafka-python.
_NOT_TAKEN: Final = frozenset(
    [
        "bootstrap_servers",
        "key_deserializer",
        "key_serializer",
        "metric_reporters",
        "partition_assignment_strategy",
        "partitioner",
        "value_deserializer",
        "value_serializer",
    ]
)


def read_properties(path: str) -> dict[str, str]:
    """The properties of a file. CommandFailed."""
    from barnabas.broker.config.sources import parse_properties

    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Of `--property key=value`, repeated; the value may contain `=`, and may be missing."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def client_settings(properties: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a client of kafka-python with these defaults. CommandFailed."""
    settings: dict[str, Any] = {}
    for name, text in properties.items():
        setting = _RENAMED.get(name) or name.replace(".", "_")
        if setting in defaults and setting not in _NOT_TAKEN and not name.startswith(("ssl.", "sasl.")):
            settings[setting] = _converted(name, text.strip(), defaults[setting])
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise CommandFailed(f"security.protocol: {protocol} is none of {', '.join(_PROTOCOLS)}")
    settings["security_protocol"] = protocol
    if protocol.startswith("SASL_"):
        settings.update(_sasl_settings(properties))
    if protocol.endswith("SSL"):
        settings["ssl_context"] = _tls_context(properties)
    return settings


def _converted(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        return text.lower() == "true"
    if isinstance(default, (int, float)) or (default is None and text.lstrip("-").isdecimal()):
        try:
            return int(text)
        except ValueError:
            raise CommandFailed(f"Invalid value {text} for configuration {name}") from None
    return text


def _sasl_settings(properties: Mapping[str, str]) -> dict[str, str]:
    from barnabas.broker.security.jaas import JaasError, parse_login_module

    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in _MECHANISMS:
        raise CommandFailed(
            f"sasl.mechanism: {mechanism} is none of those of these commands: {', '.join(_MECHANISMS)}"
        )
    try:
        options = parse_login_module(properties.get("sasl.jaas.config", "")).options
    except JaasError as error:
        raise CommandFailed(f"sasl.jaas.config: {error}") from None
    if not {"username", "password"} <= options.keys():
        raise CommandFailed("sasl.jaas.config: it needs username and password")
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": options["username"],
        "sasl_plain_password": options["password"],
    }


def _tls_context(properties: Mapping[str, str]) -> Any:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.security.ssl_config import read_ssl_config
    from barnabas.broker.security.ssl_contexts import make_client_context
    from barnabas.controller.config.validators import ConfigError

    own = {name: text for name, text in properties.items() if name.startswith("ssl.")}
    try:
        return make_client_context(read_ssl_config(BrokerConfig.from_properties(own), "CLIENT"))
    except ConfigError as error:
        raise CommandFailed(str(error)) from None
