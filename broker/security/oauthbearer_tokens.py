"""The token that a node logs in to others with by OAUTHBEARER: fetched in a thread, and again before it ends.

It is read from a file, asked of an authorization server by its client credentials (RFC 6749, 4.4), or, for tests, made here without
a signature. When it is refreshed is decided as in Kafka, by sasl.login.refresh.*.
"""

from __future__ import annotations

import json
import logging
import re
import urllib.error
import urllib.request
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus

import msgspec

from barnabas.broker.security import issuer_fetch
from barnabas.broker.security.json_web_tokens import times_of
from barnabas.broker.security.oauthbearer import TokenRefused
from barnabas.broker.security.sasl import SaslFailure
from barnabas.broker.security.sasl_client import OAuthBearerClient
from barnabas.runtime.backoff import Backoff

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.security")

UNSECURED_LOGIN: Final = "unsecuredLogin"  # how the options of the JAAS entry begin
TOKEN_CHARACTERS_MAX: Final = 32 * 1024  # a frame of a controller listener has 64 KB before the login
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_OAUTH_ERROR: Final = re.compile(r"[\x20-\x7e]{1,100}")
_STRING_CLAIM: Final = f"{UNSECURED_LOGIN}StringClaim_"
_NUMBER_CLAIM: Final = f"{UNSECURED_LOGIN}NumberClaim_"
_LIST_CLAIM: Final = f"{UNSECURED_LOGIN}ListClaim_"

FetchToken = Callable[[], str]  # blocking; OSError or ValueError


class RefreshTimes(NamedTuple):
    """sasl.login.refresh.*, and the pauses after a failure."""

    window_factor: float
    window_jitter: float
    min_period_s: int
    buffer_s: int
    retry_s: float
    retry_max_s: float


class _Token(NamedTuple):
    text: str
    issued_at_ms: int | None
    expires_at_ms: int

    def __repr__(self) -> str:
        return f"_Token({self.issued_at_ms}, {self.expires_at_ms})"


class TokenSource:
    """The present token of a node."""

    def __init__(self, runtime: Runtime, fetch: FetchToken, source: str, times: RefreshTimes) -> None:
        """`source`: where the tokens are from, for the log."""
        self._runtime = runtime
        self._fetch = fetch
        self._source = source
        self._times = times
        self._backoff = Backoff(runtime, times.retry_s, times.retry_max_s)
        self._token: _Token | None = None

    def refresh(self) -> None:
        """Begin to fetch a token. Once, at the start."""
        self._runtime.run_in_thread(lambda: _parse(self._fetch()), self._fetched)

    def client(self) -> OAuthBearerClient:
        """A login with the present token. SaslFailure while there is none."""
        token = self._token
        if token is None:
            raise SaslFailure(f"there is no token of {self._source} yet")
        if token.expires_at_ms <= self._runtime.time_ms():
            raise SaslFailure(f"the token of {self._source} has expired, and there is no other yet")
        return OAuthBearerClient(token.text)

    def _fetched(self, token: _Token | None, error: BaseException | None) -> None:
        now_ms = self._runtime.time_ms()
        if token is not None and token.expires_at_ms > now_ms:
            if self._token is None or token.text != self._token.text:
                log.info("a token of %s, for %d s", self._source, (token.expires_at_ms - now_ms) // 1000)
            self._token = token
            self._backoff.reset()
            pause_s = max(self._times.retry_s, (self._refresh_at_ms(token, now_ms) - now_ms) / 1000)
        else:
            pause_s = self._backoff.next_s()
            log.warning("no token of %s: %s", self._source, error or "it has expired")
        self._runtime.call_later(pause_s, self.refresh)

    def _refresh_at_ms(self, token: _Token, now_ms: int) -> float:
        """As Kafka's ExpiringCredentialRefreshingLogin."""
        times, end_ms = self._times, token.expires_at_ms
        share = times.window_factor + times.window_jitter * self._runtime.random.random()
        if now_ms + 1000 * (times.min_period_s + times.buffer_s) > end_ms:
            return now_ms + (end_ms - now_ms) * share
        start_ms = now_ms if token.issued_at_ms is None else token.issued_at_ms
        at_ms = min(start_ms + (end_ms - start_ms) * share, end_ms - 1000 * times.buffer_s)
        return max(at_ms, now_ms + 1000 * times.min_period_s)


def _parse(text: str) -> _Token:
    """ValueError. The server verifies it; here its times are read."""
    text = text.strip()
    if len(text) > TOKEN_CHARACTERS_MAX or _TOKEN.fullmatch(text) is None or text.count(".") != 2:
        raise ValueError("it is no JSON web token")
    try:
        issued_at_ms, expires_at_ms = times_of(text)
    except TokenRefused as refused:
        raise ValueError(f"it is no JSON web token: {refused}") from None
    if expires_at_ms is None:
        raise ValueError("it has no exp")
    return _Token(text, issued_at_ms, expires_at_ms)


# -- where tokens come from


def token_of_file(path: Path) -> FetchToken:
    return lambda: issuer_fetch.read_file(path).decode("ascii")


class ClientCredentials(NamedTuple):
    """Of a client of an authorization server, which is asked for tokens with them."""

    client_id: str
    client_secret: str
    scope: str

    def __repr__(self) -> str:
        return f"ClientCredentials({self.client_id})"

    def authorization(self) -> str:
        return "Basic " + b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()

    def body(self) -> bytes:
        scope = f"&scope={quote_plus(self.scope)}" if self.scope else ""
        return f"grant_type=client_credentials{scope}".encode()


def token_of_endpoint(url: str, credentials: ClientCredentials, timeout_s: float) -> FetchToken:
    """It follows no redirect, so that the credentials go to this endpoint alone."""
    opener = issuer_fetch.opener(follows_redirects=False)
    headers = {
        "Accept": "application/json",
        "Authorization": credentials.authorization(),
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    body = credentials.body()

    def fetch() -> str:
        asked = urllib.request.Request(url, body, headers, method="POST")
        try:
            with opener.open(asked, timeout=timeout_s) as response:
                answer = issuer_fetch.read(response)
        except urllib.error.HTTPError as error:
            with error:
                why = _oauth_error(error.read(issuer_fetch.ANSWER_BYTES_MAX))
            raise OSError(f"HTTP status {error.code}{why}") from None
        return _token_in(answer)

    return fetch


def _token_in(answer: bytes) -> str:
    """ValueError, without what the server has sent."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise ValueError("the answer is no JSON") from None
    for name in ("access_token", "id_token"):
        token = found.get(name) if isinstance(found, dict) else None
        if isinstance(token, str) and token.strip():
            return token
    raise ValueError("the answer has no access_token")


def _oauth_error(answer: bytes) -> str:
    """The error of RFC 6749, 5.2, in brackets."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return ""
    error = found.get("error") if isinstance(found, dict) else None
    return f" ({error})" if isinstance(error, str) and _OAUTH_ERROR.fullmatch(error) else ""


def unsecured_token(options: Mapping[str, str], time_ms: Callable[[], int]) -> FetchToken:
    """Makes tokens without a signature, which anyone can make, of the JAAS options unsecuredLogin*. ValueError."""
    lifetime_s = float(options.get(f"{UNSECURED_LOGIN}LifetimeSeconds") or 3600)
    claims: dict[str, Any] = {}
    for name, text in options.items():
        if name.startswith(_STRING_CLAIM):
            claims[name.removeprefix(_STRING_CLAIM)] = text
        elif name.startswith(_NUMBER_CLAIM):
            claims[name.removeprefix(_NUMBER_CLAIM)] = float(text)
        elif name.startswith(_LIST_CLAIM):
            claims[name.removeprefix(_LIST_CLAIM)] = text[1:].split(text[0]) if text else []
    principal = options.get(f"{UNSECURED_LOGIN}PrincipalClaimName") or "sub"
    if not isinstance(claims.get(principal), str) or not claims[principal].strip():
        raise ValueError(f"{_STRING_CLAIM}{principal} is needed: it names the node")
    for name in ("iat", "exp"):
        if name in claims:
            raise ValueError(f"Cannot explicitly set the '{name}' claim")

    def encoded(part: Mapping[str, Any]) -> str:
        return urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=").decode()

    def fetch() -> str:
        now_s = time_ms() / 1000
        times = {"iat": now_s, "exp": now_s + lifetime_s}
        return f"{encoded({'alg': 'none'})}.{encoded(claims | times)}."

    return fetch
