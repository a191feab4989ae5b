"""SASL OAUTHBEARER: the exchange, unsecured tokens, and signed ones with the keys of an issuer."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.caller import Principal
from barnabas.broker.security.jaas import OAUTHBEARER_MODULE, LoginModule
from barnabas.broker.security.json_web_tokens import (
    KeySet,
    SignedTokenVerifier,
    TokenRules,
    UnsecuredVerifier,
)
from barnabas.broker.security.oauthbearer import OAuthBearerServer, TokenClaims, TokenRefused
from barnabas.broker.security.oauthbearer_config import token_verifier
from barnabas.broker.security.sasl import Identity, SaslFailure
from barnabas.controller.config.validators import ConfigError
from compat_tests.virtual.runtime import VirtualRuntime

NOW_S = 1_000_000
INVALID = '{"status":"invalid_token"}'


def verify(token: str) -> TokenClaims:
    if token != "good":
        raise TokenRefused("it is not good")
    return TokenClaims("alice", 5000)


# -- the exchange


@pytest.mark.parametrize(
    "token",
    [
        b"n,,\x01auth=Bearer good\x01\x01",
        b"n,a=alice,\x01auth=bearer  good\x01\x01",
        b"n,,\x01traceId=1 2\x01auth=BEARER good\x01\x01",
    ],
)
def test_a_good_token(token: bytes) -> None:
    server = OAuthBearerServer(verify)
    assert server.evaluate(token) == b""
    assert server.identity == Identity(Principal("User", "alice"), 5000)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth1=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer g\x00od\x01\x01",
        b"n,a=a=b,\x01auth=Bearer good\x01\x01",
        b"n,,\x01%bauth=Bearer good\x01\x01" % (b"a=b\x01" * 100),  # each costs a step
    ],
)
def test_malformed_messages_fail(token: bytes) -> None:
    server = OAuthBearerServer(verify)
    with pytest.raises(SaslFailure) as failed:
        server.evaluate(token)
    assert failed.value.text is None
    assert server.identity is None


def test_a_refusal_is_sent_as_a_token_and_fails_once_acknowledged() -> None:
    for acknowledgement, text in ((b"\x01", INVALID), (b"n,,\x01auth=Bearer good\x01\x01", None)):
        server = OAuthBearerServer(verify)
        assert server.evaluate(b"n,,\x01auth=Bearer bad\x01\x01") == INVALID.encode()
        with pytest.raises(SaslFailure) as failed:
            server.evaluate(acknowledgement)
        assert failed.value.text == text
        assert server.identity is None


def test_the_authorization_id_is_the_token_s_principal() -> None:
    with pytest.raises(SaslFailure, match=r"authorization id \(bob\) that is different from the token's"):
        OAuthBearerServer(verify).evaluate(b"n,a=bob,\x01auth=Bearer good\x01\x01")


# -- unsecured tokens


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def unsecured(header: object = None, **claims: Any) -> str:
    wanted = {"sub": "alice", "exp": NOW_S + 60, "iat": NOW_S, **claims}
    given_claims = {name: value for name, value in wanted.items() if value is not None}
    return f"{part({'alg': 'none'} if header is None else header)}.{part(given_claims)}."


def unsecured_verifier(**options: str) -> UnsecuredVerifier:
    return UnsecuredVerifier(
        {f"unsecuredValidator{name}": value for name, value in options.items()}, lambda: NOW_S * 1000
    )


def test_unsecured_tokens() -> None:
    assert unsecured_verifier()(unsecured()) == TokenClaims("alice", (NOW_S + 60) * 1000)
    named = unsecured_verifier(PrincipalClaimName="name", RequiredScope="a b", ScopeClaimName="scp")
    assert named(unsecured(name="bob", scp=["b", "a"])).name == "bob"
    assert named(unsecured(name="bob", scp="b a c")).name == "bob"
    with pytest.raises(TokenRefused) as refused:
        named(unsecured(name="bob", scp="a"))
    assert refused.value.scope == "[a, b]"
    skewed = unsecured_verifier(AllowableClockSkewMs="61000")
    assert skewed(unsecured(exp=NOW_S - 60, iat=NOW_S - 99)).name == "alice"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "..",
        "a.b.",
        unsecured() + "c2lnbmF0dXJl",
        unsecured(header={"alg": "HS256"}),
        unsecured(header=[]),
        unsecured(sub=" "),
        unsecured(sub=5),
        unsecured(exp=None),
        unsecured(exp=NOW_S),
        unsecured(exp="later"),
        unsecured(exp=True),
        unsecured(exp=1e300),
        unsecured(iat=NOW_S + 1),
        unsecured(exp=NOW_S + 1, iat=NOW_S + 2),
        part({"alg": "none"}) + "." + "W" * 200_000 + ".",
        part({"alg": "none"}) + "." + base64.urlsafe_b64encode(b"[" * 50_000).decode() + ".",
    ],
)
def test_unsecured_tokens_that_are_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        unsecured_verifier()(token)


# -- signed tokens

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
KEYS: dict[str, Any] = {"rsa": RSA_KEY, "ec": EC_KEY, "ed": ED_KEY}


def jwks(*names: str) -> bytes:
    algorithms: dict[str, Any] = {"rsa": RSAAlgorithm, "ec": ECAlgorithm, "ed": OKPAlgorithm}
    keys = [{**json.loads(algorithms[name].to_jwk(KEYS[name].public_key())), "kid": name} for name in names]
    return json.dumps({"keys": [{"kty": "oct", "k": "AAAA", "kid": "hmac"}, {"kty": "RSA"}, *keys]}).encode()


class Issuer:
    """Its keys, how often they were fetched, and the verifier of a broker."""

    def __init__(self, *names: str, **rules: Any) -> None:
        self.runtime = VirtualRuntime()
        self.content = jwks(*names)
        self.fetched = 0
        self.keys = KeySet(
            self.runtime, self._fetch, "the issuer", refresh_s=3600, retry_s=0.1, retry_max_s=10
        )
        defaults: dict[str, Any] = {
            "issuer": None,
            "audiences": [],
            "name_claim": "sub",
            "scope_claim": "scope",
            "skew_s": 30,
        }
        self.verify = SignedTokenVerifier(
            self.keys, TokenRules(**{**defaults, **rules}), lambda: NOW_S * 1000
        )
        self.keys.refresh()
        self.runtime.advance(0)

    def _fetch(self) -> bytes:
        self.fetched += 1
        if not self.content:
            raise OSError("unreachable")
        return self.content


def signed(
    algorithm: str = "RS256", name: str = "rsa", kid: str | None = "rsa", key: Any = None, **claims: Any
) -> str:
    wanted = {"sub": "alice", "exp": NOW_S + 60, "iat": NOW_S, **claims}
    given_claims = {claim: value for claim, value in wanted.items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(given_claims, KEYS[name] if key is None else key, algorithm, headers)


@pytest.mark.parametrize(
    ("algorithm", "name"), [("RS256", "rsa"), ("PS512", "rsa"), ("ES256", "ec"), ("EdDSA", "ed")]
)
@pytest.mark.parametrize("with_key_id", [True, False])
def test_signed_tokens(algorithm: str, name: str, *, with_key_id: bool) -> None:
    token = signed(algorithm, name, name if with_key_id else None)
    assert Issuer("rsa", "ec", "ed").verify(token) == TokenClaims("alice", (NOW_S + 60) * 1000)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b.c",
        unsecured(),
        unsecured(header={"alg": "none", "kid": "rsa"}),
        jwt.encode({"sub": "a", "exp": NOW_S + 60, "iat": NOW_S}, "k" * 64, "HS256", {"kid": "rsa"}),
        jwt.encode({"sub": "a", "exp": NOW_S + 60, "iat": NOW_S}, "k" * 64, "HS256", {"kid": "hmac"}),
        signed(key=rsa.generate_private_key(65537, 2048)),
        signed("ES256", "ec", "rsa"),
        signed(kid="other"),
        signed(kid="x" * 5000),
        signed()[:-10] + "AAAAAAAAAA",
        signed(exp=None),
        signed(iat=None),
        signed(exp=NOW_S - 30),
        signed(exp=NOW_S + 5, iat=NOW_S + 6),
        signed(nbf=NOW_S + 31),
        signed(aud="kafka"),
        signed(sub=" "),
        signed(scope=["a", "a"]),
        signed(scope=5),
    ],
)
def test_signed_tokens_that_are_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        Issuer("rsa").verify(token)


@given(st.text(max_size=40), st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none()))
def test_any_token_is_refused_without_another_error(text: str, claims: dict[str, Any]) -> None:
    for verifier in (ISSUER.verify, unsecured_verifier()):
        for token in (text, f"{part(claims)}.{part(claims)}.", f"{part({'alg': 'none'})}.{part(claims)}."):
            with pytest.raises(TokenRefused):
                verifier(token)


ISSUER = Issuer("rsa")


def test_issuer_audience_and_names() -> None:
    issuer = Issuer("rsa", issuer="https://i", audiences=["kafka", "other"], name_claim="login")
    assert issuer.verify(signed(iss="https://i", aud=["x", "kafka"], login="bob")).name == "bob"
    for wrong in ({"iss": "https://i/"}, {"iss": None}, {"aud": "x"}, {"aud": None}, {"login": None}):
        claims: dict[str, Any] = {"iss": "https://i", "aud": "kafka", "login": "bob", **wrong}
        token = signed(**claims)
        with pytest.raises(TokenRefused):
            issuer.verify(token)


def test_the_token_of_a_new_key_is_valid_when_the_client_tries_again() -> None:
    issuer = Issuer("ec")
    issuer.content = jwks("ec", "rsa")
    for _ in range(3):
        with pytest.raises(TokenRefused):
            issuer.verify(signed())
    issuer.runtime.advance(0)
    assert issuer.fetched == 2
    assert issuer.verify(signed()).name == "alice"


def test_made_up_key_ids_lead_to_few_refreshes() -> None:
    issuer = Issuer("rsa")
    for _ in range(5):
        for number in range(10):
            with pytest.raises(TokenRefused):
                issuer.verify(signed(kid=f"other{number}"))
        issuer.runtime.advance(1)
    assert issuer.fetched <= 11


def test_keys_are_fetched_again_after_a_failure_and_each_hour() -> None:
    issuer = Issuer("rsa")
    issuer.content = b""
    issuer.runtime.advance(3600)
    assert issuer.fetched == 2
    assert issuer.verify(signed()).name == "alice", "those that are known stay"
    issuer.content = jwks("ec")
    issuer.runtime.advance(10)
    assert issuer.fetched == 3
    with pytest.raises(TokenRefused):
        issuer.verify(signed())


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"keys": 5}', b'{"keys": [5, {}, {"kty": "RSA"}]}'])
def test_keys_that_are_none(content: bytes) -> None:
    issuer = Issuer("rsa")
    issuer.content = content
    issuer.runtime.advance(3601)
    assert issuer.fetched >= 2


# -- configuration


def configured(options: dict[str, str], **properties: str) -> Any:
    given_properties = {
        f"listener.name.plaintext.oauthbearer.{name.replace('_', '.')}": value
        for name, value in properties.items()
    }
    config = BrokerConfig.from_properties(given_properties)
    return token_verifier(config, "PLAINTEXT", LoginModule(OAUTHBEARER_MODULE, options), VirtualRuntime())


def test_unsecured_tokens_are_accepted_only_where_a_property_asks_for_them() -> None:
    with pytest.raises(ConfigError, match=r"^sasl\.oauthbearer\.jwks\.endpoint\.url is needed"):
        configured({})
    assert isinstance(configured({"unsecuredValidatorPrincipalClaimName": "sub"}), UnsecuredVerifier)
    unsecured_option = {"unsecuredValidatorPrincipalClaimName": "sub"}
    url = {"sasl_oauthbearer_jwks_endpoint_url": "file:///nowhere"}
    assert isinstance(configured(unsecured_option, **url), SignedTokenVerifier), "the safer one"
    with pytest.raises(ConfigError):
        configured({}, sasl_oauthbearer_jwks_endpoint_url="ftp://somewhere/keys")
    with pytest.raises(ConfigError):
        configured({}, sasl_server_callback_handler_class="a.B")
