"""Verifies signed JSON web tokens for OAUTHBEARER, with the keys of an issuer (JWKS, RFC 7517).

Only asymmetric algorithms are allowed, so that no public key can be taken for a secret (CVE-2026-33557). The checks of claims are
those of Kafka's OAuthBearerValidatorCallbackHandler.

Unsecured tokens (RFC 7515, alg `none`) can be made by anyone, so they are for tests: they are accepted only where the listener's JAAS
entry or callback handler asks for them. Their checks are those of OAuthBearerUnsecuredValidatorCallbackHandler.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from barnabas.broker.security.oauthbearer import TokenClaims, TokenRefused
from barnabas.runtime.backoff import Backoff

if TYPE_CHECKING:
    from jwt.types import Options

    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.security")

UNSECURED_OPTIONS: Final = "unsecuredValidator"  # how the options of the JAAS entry begin

# By algorithm: the type of its keys.
ALGORITHMS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
KEY_ID_CHARACTERS_MAX: Final = 1000
UNKNOWN_KEY_IDS_MAX: Final = 16  # that are remembered
UNKNOWN_KEY_PAUSE_S: Final = 60.0  # before a key id leads to another refresh


class SignatureKey(NamedTuple):
    """A public key of the issuer."""

    key_id: str | None
    key_type: str
    algorithm: str | None  # None: any of its type
    public: Any


class TokenRules(msgspec.Struct, frozen=True):
    """What the claims of a token must be."""

    issuer: str | None  # None: any
    audiences: Sequence[str]  # one of them; none: the token must name none
    name_claim: str
    scope_claim: str
    skew_s: int


class KeySet:
    """The keys of an issuer. They are fetched in a thread, at the start, every `refresh_s`, and for a key that is not known."""

    def __init__(
        self,
        runtime: Runtime,
        fetch: Callable[[], bytes],
        source: str,
        *,
        refresh_s: float,
        retry_s: float,
        retry_max_s: float,
    ) -> None:
        """`fetch()`: blocking, the JSON; OSError or ValueError. `source`: where from, for the log."""
        self._runtime = runtime
        self._fetch = fetch
        self._source = source
        self._refresh_s = refresh_s
        self._backoff = Backoff(runtime, retry_s, retry_max_s)
        self._keys: list[SignatureKey] = []
        self._unknown: dict[str, float] = {}  # key id -> when it led to a refresh
        self._is_fetching = False
        self._timer: Timer | None = None

    def refresh(self) -> None:
        """Begin to fetch, unless that goes on."""
        if self._is_fetching:
            return
        self._is_fetching = True
        if self._timer is not None:
            self._timer.cancel()
        self._runtime.run_in_thread(lambda: _parse_keys(self._fetch()), self._fetched)

    def find(self, key_id: str | None, key_type: str) -> SignatureKey | None:
        """The key with this id; without an id the only key of its type. A key that is not known is looked for at the issuer, so
        that it is known when the client tries again."""
        found = [each for each in self._keys if each.key_type == key_type and key_id in (None, each.key_id)]
        if len(found) == 1:
            return found[0]
        if key_id is not None and len(key_id) <= KEY_ID_CHARACTERS_MAX:
            self._note_unknown(key_id)
        return None

    def _note_unknown(self, key_id: str) -> None:
        now = self._runtime.monotonic()
        last = self._unknown.pop(key_id, None)
        if last is not None and now - last < UNKNOWN_KEY_PAUSE_S:
            self._unknown[key_id] = last
            return
        self._unknown[key_id] = now
        if len(self._unknown) > UNKNOWN_KEY_IDS_MAX:
            del self._unknown[next(iter(self._unknown))]
        self.refresh()

    def _fetched(self, keys: list[SignatureKey] | None, error: BaseException | None) -> None:
        self._is_fetching = False
        pause_s = self._refresh_s
        if keys is None:
            pause_s = self._backoff.next_s()
            log.warning("the keys of %s can't be read: %s", self._source, error)
        else:
            self._backoff.reset()
            self._keys = keys
            log.info("%d keys of %s", len(keys), self._source)
        self._timer = self._runtime.call_later(pause_s, self.refresh)


def _parse_keys(content: bytes) -> list[SignatureKey]:
    """The keys for signatures, of types that are known here. ValueError."""
    import jwt

    found = msgspec.json.decode(content)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError("it is no set of keys")
    usable: list[SignatureKey] = []
    for key in keys:
        if (
            isinstance(key, dict)
            and key.get("use", "sig") == "sig"
            and key.get("kty") in ("RSA", "EC", "OKP")
        ):
            try:
                usable.append(SignatureKey(key.get("kid"), key["kty"], key.get("alg"), jwt.PyJWK(key).key))
            except jwt.PyJWTError as error:
                log.warning("a key of the set is not used: %s", type(error).__name__)
    return usable


class SignedTokenVerifier:
    """See the module."""

    def __init__(self, keys: KeySet, rules: TokenRules, time_ms: Callable[[], int]) -> None:
        self._keys = keys
        self._rules = rules
        self._time_ms = time_ms

    def __call__(self, token: str) -> TokenClaims:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
                raise TokenRefused("its header is not that of a signed token")
            key_type = ALGORITHMS.get(algorithm)
            if key_type is None:
                raise TokenRefused("its algorithm is not allowed")
            key = self._keys.find(key_id, key_type)
            if key is None:
                raise TokenRefused("its key is not known")
            if key.algorithm not in (None, algorithm):
                raise TokenRefused("its key is for another algorithm")
            claims = jwt.decode(token, key.public, algorithms=[algorithm], options=_SIGNATURE_ONLY)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise TokenRefused(type(error).__name__) from None
        return self._check(claims)

    def _check(self, claims: Mapping[str, Any]) -> TokenClaims:
        rules, now_s = self._rules, self._time_ms() / 1000
        expires_s, issued_s, not_before_s = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
        if expires_s is None or issued_s is None:
            raise TokenRefused("it has no exp or no iat")
        if now_s - rules.skew_s >= expires_s or expires_s < issued_s:
            raise TokenRefused("it has expired")
        if not_before_s is not None and (now_s + rules.skew_s < not_before_s or expires_s < not_before_s):
            raise TokenRefused("it is not valid yet")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise TokenRefused("its issuer is another")
        named = claims.get("aud")
        audiences = named if isinstance(named, list) else [] if named is None else [named]
        if rules.audiences and not any(each in rules.audiences for each in audiences):
            raise TokenRefused("it is for another audience")
        if audiences and not rules.audiences:
            raise TokenRefused(
                "it is for an audience, and none is expected (sasl.oauthbearer.expected.audience)"
            )
        name = claims.get(rules.name_claim)
        if not isinstance(name, str) or not name.strip():
            raise TokenRefused("it names no principal")
        _check_scopes(claims.get(rules.scope_claim))
        return TokenClaims(name, int(expires_s * 1000))


# PyJWT checks the signature, this module the claims.
_SIGNATURE_ONLY: Final[Options] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRefused(f"{name} is no time")
    return value


def _check_scopes(scopes: object) -> None:
    """A text or a list of texts without repetitions, or none."""
    if scopes is None or isinstance(scopes, str):
        return
    if not isinstance(scopes, list) or not all(isinstance(each, str) for each in scopes):
        raise TokenRefused("its scope is no list of texts")
    if len(set(scopes)) < len(scopes):
        raise TokenRefused("its scope has repetitions")


class UnsecuredVerifier:
    """`options`: of the JAAS entry. ValueError for one that is wrong."""

    def __init__(self, options: Mapping[str, str], time_ms: Callable[[], int]) -> None:
        self._time_ms = time_ms
        self._name_claim = options.get(f"{UNSECURED_OPTIONS}PrincipalClaimName") or "sub"
        self._scope_claim = options.get(f"{UNSECURED_OPTIONS}ScopeClaimName") or "scope"
        self._required_scopes = (options.get(f"{UNSECURED_OPTIONS}RequiredScope") or "").split()
        self._skew_ms = int(options.get(f"{UNSECURED_OPTIONS}AllowableClockSkewMs") or 0)
        if self._skew_ms < 0:
            raise ValueError(f"{UNSECURED_OPTIONS}AllowableClockSkewMs is negative")

    def __call__(self, token: str) -> TokenClaims:
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise TokenRefused("it has not the form of an unsecured token")
        header, claims = (_decoded(part) for part in parts[:2])
        if header.get("alg") != "none":
            raise TokenRefused("its algorithm is not none")
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name.strip():
            raise TokenRefused("it names no principal")
        now_ms = self._time_ms()
        expires_at_ms = _milliseconds(claims, "exp")
        if expires_at_ms is None or now_ms - self._skew_ms >= expires_at_ms:
            raise TokenRefused("it has expired, or never does")
        issued_at_ms = _milliseconds(claims, "iat")
        if issued_at_ms is not None and (
            issued_at_ms > now_ms + self._skew_ms or expires_at_ms <= issued_at_ms
        ):
            raise TokenRefused("it was issued in the future, or has expired before that")
        scopes = claims.get(self._scope_claim)
        granted = scopes.split() if isinstance(scopes, str) else scopes if isinstance(scopes, list) else []
        if any(each not in granted for each in self._required_scopes):
            raise TokenRefused("it lacks a scope", f"[{', '.join(self._required_scopes)}]")
        return TokenClaims(name, expires_at_ms)


def times_of(token: str) -> tuple[int | None, int | None]:
    """When a token was issued, and when it ends, in ms. It is not verified: it is this node's own. TokenRefused."""
    claims = _decoded(token.split(".")[1])
    return _milliseconds(claims, "iat"), _milliseconds(claims, "exp")


def _decoded(part: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefused("it is not JSON in base64") from None
    if not isinstance(found, dict):
        raise TokenRefused("it is not an object")
    return found


def _milliseconds(claims: Mapping[str, Any], name: str) -> int | None:
    seconds = _seconds(claims, name)
    return None if seconds is None else int(seconds * 1000)
