"""Unsecured JSON web tokens (RFC 7515, alg `none`) for OAUTHBEARER: anyone can make one, so they are for tests.

They are accepted only where the listener's JAAS entry or callback handler asks for them. The checks are those of Kafka's
OAuthBearerUnsecuredValidatorCallbackHandler.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.security.oauthbearer import TokenClaims, TokenRefused

OPTIONS: Final = "unsecuredValidator"  # how the options begin


class UnsecuredVerifier:
    """`options`: of the JAAS entry. ValueError for one that is wrong."""

    def __init__(self, options: Mapping[str, str], time_ms: Callable[[], int]) -> None:
        self._time_ms = time_ms
        self._name_claim = options.get(f"{OPTIONS}PrincipalClaimName") or "sub"
        self._scope_claim = options.get(f"{OPTIONS}ScopeClaimName") or "scope"
        self._required_scopes = (options.get(f"{OPTIONS}RequiredScope") or "").split()
        self._skew_ms = int(options.get(f"{OPTIONS}AllowableClockSkewMs") or 0)
        if self._skew_ms < 0:
            raise ValueError(f"{OPTIONS}AllowableClockSkewMs is negative")

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


def _decoded(part: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefused("it is not JSON in base64") from None
    if not isinstance(found, dict):
        raise TokenRefused("it is not an object")
    return found


def _milliseconds(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRefused(f"{name} is no time")
    return int(value * 1000)
