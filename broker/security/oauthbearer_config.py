"""Reads the sasl.oauthbearer.* properties of a listener: for its clients, and for logins of this node to the same listener of others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from barnabas.broker.security import issuer_fetch
from barnabas.broker.security.json_web_tokens import (
    UNSECURED_OPTIONS,
    KeySet,
    SignedTokenVerifier,
    TokenRules,
    UnsecuredVerifier,
)
from barnabas.broker.security.oauthbearer_tokens import (
    UNSECURED_LOGIN,
    ClientCredentials,
    FetchToken,
    RefreshTimes,
    TokenSource,
    token_of_endpoint,
    token_of_file,
    unsecured_token,
)
from barnabas.broker.security.sasl import OAUTHBEARER
from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_LOGIN_HANDLERS: Final = (
    f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
)
_UNSECURED_LOGIN: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_RETRIEVERS: Final = tuple(
    f"{_PACKAGE}.{each}"
    for each in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
)
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_ASSERTIONS: Final = ("sasl.oauthbearer.assertion.file", "sasl.oauthbearer.assertion.claim.iss")
# By the option of the JAAS entry: the property, which goes before it.
_CLIENT: Final = {
    "clientId": "sasl.oauthbearer.client.credentials.client.id",
    "clientSecret": "sasl.oauthbearer.client.credentials.client.secret",
    "scope": "sasl.oauthbearer.scope",
}


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


def token_source(
    config: BrokerConfig, listener: str, module: LoginModule, runtime: Runtime, purpose: str
) -> TokenSource | None:
    """The tokens that this node logs in with to the listener of other nodes; None where it has none and there are no others.
    `purpose`: what for, for an error. ConfigError."""

    def value(name: str) -> str | None:
        return config.listener_value(listener, name, OAUTHBEARER) or None

    def number(name: str) -> float:
        found = BROKER_CONFIGS[name].parse(value(name))
        assert isinstance(found, int | float)
        return found

    handler, url = value(_LOGIN_HANDLER), value(_ENDPOINT)
    if handler not in (None, _UNSECURED_LOGIN, *_LOGIN_HANDLERS):
        raise ConfigError(
            f"{_LOGIN_HANDLER}: listener {listener} names a Java class for OAUTHBEARER; leave it out"
        )
    asks_for_unsecured = handler == _UNSECURED_LOGIN or any(
        each.startswith(UNSECURED_LOGIN) for each in module.options
    )
    if url is None and not asks_for_unsecured:
        if config.quorum.is_alone:
            return None
        raise ConfigError(
            f"{_ENDPOINT} is needed by listener {listener}: the tokens with which {purpose} are from there. (For tests with "
            f'unsecured tokens, which anyone can make, set {UNSECURED_LOGIN}StringClaim_sub="NAME" in its sasl.jaas.config)'
        )
    if url is not None:
        given = [f"sasl.login.{each}.timeout.ms" for each in ("connect", "read")]
        timeout_s = max((number(each) for each in given if value(each)), default=0) / 1000
        fetch = _token_fetcher(url, value, module.options, timeout_s if timeout_s > 0 else _FETCH_TIMEOUT_S)
    else:
        try:
            fetch = unsecured_token(module.options, runtime.time_ms)
        except ValueError as error:
            raise ConfigError(f"sasl.jaas.config of OAUTHBEARER on listener {listener}: {error}") from None
    times = RefreshTimes(
        window_factor=number("sasl.login.refresh.window.factor"),
        window_jitter=number("sasl.login.refresh.window.jitter"),
        min_period_s=int(number("sasl.login.refresh.min.period.seconds")),
        buffer_s=int(number("sasl.login.refresh.buffer.seconds")),
        retry_s=max(1, number("sasl.login.retry.backoff.ms")) / 1000,
        retry_max_s=max(1, number("sasl.login.retry.backoff.max.ms")) / 1000,
    )
    source = TokenSource(runtime, fetch, url or "this node itself", times)
    runtime.call_soon(source.refresh)
    return source


def _token_fetcher(
    url: str, value: Callable[[str], str | None], options: Mapping[str, str], timeout_s: float
) -> FetchToken:
    """ConfigError."""
    if value(_RETRIEVER) not in (None, *_RETRIEVERS):
        raise ConfigError(f"{_RETRIEVER}: this version has {', '.join(_RETRIEVERS)}")
    for name in filter(value, _ASSERTIONS):
        raise ConfigError(
            f"{name}: this version has no client assertions; it asks for tokens with a client secret"
        )
    path = _path_of(_ENDPOINT, url)
    if path is not None:
        return token_of_file(path)
    found = {option: (value(name) or options.get(option) or "").strip() for option, name in _CLIENT.items()}
    for option in ("clientId", "clientSecret"):
        if not found[option]:
            raise ConfigError(
                f"{_CLIENT[option]} is needed to ask {_ENDPOINT} for tokens (or {option} in sasl.jaas.config)"
            )
    credentials = ClientCredentials(found["clientId"], found["clientSecret"], found["scope"])
    return token_of_endpoint(url, credentials, timeout_s)


def _fetcher(url: str) -> Callable[[], bytes]:
    """Fetches the keys, blocking. The URL is the operator's; what it redirects to is fetched over HTTP only. ConfigError."""
    path = _path_of(_URL, url)
    if path is not None:
        return partial(issuer_fetch.read_file, path)
    opener = issuer_fetch.opener(follows_redirects=True)

    def fetch() -> bytes:
        with opener.open(url, timeout=_FETCH_TIMEOUT_S) as response:
            return issuer_fetch.read(response)

    return fetch


def _path_of(name: str, url: str) -> Path | None:
    """The file that a URL is of; None for one of HTTP. ConfigError for any other."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{name}: it must begin with https://, http:// or file:///")
    return None
