"""Reads the sasl.oauthbearer.* properties of a listener."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from barnabas.broker.security.json_web_tokens import (
    UNSECURED_OPTIONS,
    KeySet,
    SignedTokenVerifier,
    TokenRules,
    UnsecuredVerifier,
)
from barnabas.broker.security.sasl import OAUTHBEARER
from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.security.jaas import LoginModule
    from barnabas.broker.security.oauthbearer import Verify
    from barnabas.runtime.interface import Runtime

HANDLER: Final = "sasl.server.callback.handler.class"
_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_SIGNED: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
_UNSECURED: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_FETCH_TIMEOUT_S: Final = 10.0
_KEYS_BYTES_MAX: Final = 1 << 20


def token_verifier(config: BrokerConfig, listener: str, module: LoginModule, runtime: Runtime) -> Verify:
    """What verifies the tokens of a listener's clients. ConfigError. Unsecured tokens are accepted only where a property asks for
    them; Kafka accepts them where none says anything."""

    def value(name: str) -> str | None:
        return config.listener_value(listener, name, OAUTHBEARER) or None

    handler, url = value(HANDLER), value(_URL)
    if handler not in (None, _UNSECURED, *_SIGNED):
        raise ConfigError(f"{HANDLER}: listener {listener} names a Java class for OAUTHBEARER; leave it out")
    asks_for_unsecured = handler == _UNSECURED or any(
        each.startswith(UNSECURED_OPTIONS) for each in module.options
    )
    if asks_for_unsecured and url is None:
        try:
            return UnsecuredVerifier(module.options, runtime.time_ms)
        except ValueError as error:
            raise ConfigError(f"sasl.jaas.config of OAUTHBEARER on listener {listener}: {error}") from None
    if url is None:
        raise ConfigError(
            f"{_URL} is needed by listener {listener}, which verifies tokens by it. (For tests with unsecured tokens, which "
            f'anyone can make, set {UNSECURED_OPTIONS}PrincipalClaimName="sub" in its sasl.jaas.config)'
        )
    try:
        import jwt  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"sasl.enabled.mechanisms: OAUTHBEARER on listener {listener} needs PyJWT: pip install 'barnabas[security]'"
        ) from None

    def number(name: str) -> int:
        found = BROKER_CONFIGS[name].parse(value(name))
        assert isinstance(found, int)
        return found

    keys = KeySet(
        runtime,
        _fetcher(url),
        url,
        refresh_s=max(1, number("sasl.oauthbearer.jwks.endpoint.refresh.ms")) / 1000,
        retry_s=max(1, number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")) / 1000,
        retry_max_s=max(1, number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms")) / 1000,
    )
    runtime.call_soon(keys.refresh)
    audiences = [each.strip() for each in (value("sasl.oauthbearer.expected.audience") or "").split(",")]
    rules = TokenRules(
        value("sasl.oauthbearer.expected.issuer"),
        [each for each in audiences if each],
        value("sasl.oauthbearer.sub.claim.name") or "sub",
        value("sasl.oauthbearer.scope.claim.name") or "scope",
        number("sasl.oauthbearer.clock.skew.seconds"),
    )
    return SignedTokenVerifier(keys, rules, runtime.time_ms)


def _fetcher(url: str) -> Callable[[], bytes]:
    """Fetches the keys, blocking. The URL is the operator's; what it redirects to is fetched over HTTP only."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = Path(unquote(parts.path))
        return lambda: _bounded(path.read_bytes())
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{_URL}: it must begin with https://, http:// or file:///")
    opener = urllib.request.OpenerDirector()
    for kind in (
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPRedirectHandler,
    ):
        opener.add_handler(kind())

    def fetch() -> bytes:
        with opener.open(url, timeout=_FETCH_TIMEOUT_S) as response:
            return _bounded(response.read(_KEYS_BYTES_MAX + 1))

    return fetch


def _bounded(content: bytes) -> bytes:
    if len(content) > _KEYS_BYTES_MAX:
        raise ValueError(f"more than {_KEYS_BYTES_MAX} bytes")
    return content
