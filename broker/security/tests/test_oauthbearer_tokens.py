"""The tokens that nodes log in with: where they are from, and when they are refreshed."""

from __future__ import annotations

import json
import logging
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.json_web_tokens import UnsecuredVerifier
from barnabas.broker.security.oauthbearer import OAuthBearerServer
from barnabas.broker.security.oauthbearer_tokens import (
    ClientCredentials,
    RefreshTimes,
    TokenSource,
    token_of_endpoint,
    token_of_file,
    unsecured_token,
)
from barnabas.broker.security.sasl import SaslFailure
from barnabas.broker.security.sasl_client import OAuthBearerClient
from barnabas.broker.security.sasl_config import controller_login, inter_broker_login
from barnabas.controller.config.validators import ConfigError
from compat_tests.virtual.runtime import VirtualRuntime

DEFAULTS = RefreshTimes(0.8, 0.05, 60, 300, 0.1, 10)
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def token(**claims: object) -> str:
    parts = (json.dumps(each).encode() for each in ({"alg": "RS256"}, {"sub": "node", **claims}, {}))
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


class Issuer:
    """Makes a token of a lifetime at each call; None: fails."""

    def __init__(self, runtime: VirtualRuntime, lifetime_s: float | None, *, has_iat: bool = True) -> None:
        self.runtime = runtime
        self.lifetime_s = lifetime_s
        self.has_iat = has_iat
        self.calls: list[float] = []

    def __call__(self) -> str:
        self.calls.append(self.runtime.monotonic())
        if self.lifetime_s is None:
            raise OSError("HTTP status 503")
        now_s = self.runtime.time_ms() / 1000
        return token(exp=now_s + self.lifetime_s, **({"iat": now_s} if self.has_iat else {}))


def source(issuer: Issuer, times: RefreshTimes = DEFAULTS) -> TokenSource:
    made = TokenSource(issuer.runtime, issuer, "http://issuer", times)
    made.refresh()
    issuer.runtime.run_until_idle()
    return made


@pytest.mark.parametrize("has_iat", [True, False])
@pytest.mark.parametrize(
    ("lifetime_s", "first", "last"),
    [
        (3600, 2880, 3060),  # 80 to 85 percent
        (1000, 700, 700),  # 300 s before the end
        (350, 280, 297.5),  # too short for both: a share of the lifetime
        (10, 8, 8.5),
    ],
)
def test_a_token_is_refreshed_before_it_ends(
    lifetime_s: float, first: float, last: float, has_iat: bool
) -> None:
    issuer = Issuer(VirtualRuntime(), lifetime_s, has_iat=has_iat)
    source(issuer)
    issuer.runtime.advance(lifetime_s)
    assert first <= issuer.calls[1] <= last + 0.001


def test_there_is_always_a_token_while_the_issuer_works() -> None:
    issuer = Issuer(VirtualRuntime(), 5)
    tokens = source(issuer)
    for _ in range(600):
        issuer.runtime.advance(0.1)
        assert tokens.client().mechanism == "OAUTHBEARER"


def test_an_issuer_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    issuer = Issuer(VirtualRuntime(), None)
    tokens = source(issuer)
    with pytest.raises(SaslFailure, match="there is no token of http://issuer yet"):
        tokens.client()
    assert "no token of http://issuer: HTTP status 503" in caplog.text
    issuer.lifetime_s = 20
    issuer.runtime.advance(1)
    present = tokens.client()
    issuer.lifetime_s = None
    issuer.runtime.advance(18)
    assert tokens.client().first() == present.first()
    issuer.runtime.advance(2)
    with pytest.raises(SaslFailure, match="has expired"):
        tokens.client()
    issuer.lifetime_s = 20
    issuer.runtime.advance(10)
    assert tokens.client().first() != present.first()
    assert present.first()[20:60].decode() not in caplog.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON web token"),
        ("opaque", "it is no JSON web token"),
        ("a.b.c", "it is no JSON web token"),
        (token(exp=9e11) + "\x01auth=x", "it is no JSON web token"),
        (token(exp=9e11, pad="x" * 40_000), "it is no JSON web token"),
        (token(), "it has no exp"),
        (token(exp=True), "it is no JSON web token: exp is no time"),
        (token(exp="9"), "it is no JSON web token: exp is no time"),
        (token(exp=9e11, iat=-1), "it is no JSON web token: iat is no time"),
        (token(exp=1), "it has expired"),
    ],
)
def test_what_is_no_token_is_not_used(text: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    runtime = VirtualRuntime()
    tokens = TokenSource(runtime, lambda: text, "the file", DEFAULTS)
    tokens.refresh()
    runtime.run_until_idle()
    assert f"no token of the file: {why}" in caplog.text
    with pytest.raises(SaslFailure):
        tokens.client()


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a.b.c\n")
    fetch = token_of_file(path)
    assert fetch().strip() == "a.b.c"
    path.write_text("d.e.f")
    assert fetch() == "d.e.f"
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        fetch()


def test_unsecured_tokens_are_those_that_the_verifier_takes() -> None:
    runtime = VirtualRuntime()
    options = {
        "unsecuredLoginStringClaim_sub": "node",
        "unsecuredLoginNumberClaim_size": "3",
        "unsecuredLoginListClaim_scope": "|one|two",
        "unsecuredLoginLifetimeSeconds": "7",
    }
    client = OAuthBearerClient(unsecured_token(options, runtime.time_ms)())
    verifier = UnsecuredVerifier({"unsecuredValidatorRequiredScope": "two one"}, runtime.time_ms)
    server = OAuthBearerServer(verifier)
    answer = server.evaluate(client.first())
    assert (answer, client.evaluate(answer)) == (b"", None)
    assert server.identity is not None
    assert server.identity.principal.name == "node"
    assert server.identity.expires_at_ms == runtime.time_ms() + 7000


def test_a_refusal_of_the_server_is_acknowledged() -> None:
    server = OAuthBearerServer(UnsecuredVerifier({}, lambda: 0))
    client = OAuthBearerClient("no.token")
    acknowledgement = client.evaluate(server.evaluate(client.first()))
    assert acknowledgement is not None
    with pytest.raises(SaslFailure, match="invalid_token"):
        server.evaluate(acknowledgement)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "unsecuredLoginStringClaim_sub is needed"),
        ({"unsecuredLoginStringClaim_sub": "a", "unsecuredLoginNumberClaim_exp": "1"}, "'exp' claim"),
        ({"unsecuredLoginStringClaim_sub": "a", "unsecuredLoginLifetimeSeconds": "x"}, "could not convert"),
    ],
)
def test_wrong_options_of_unsecured_tokens(options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unsecured_token(options, lambda: 0)


def test_an_exchange_ends_with_its_acknowledged_refusal() -> None:
    client = OAuthBearerClient("a.b.c")
    assert client.evaluate(b'{"status":"invalid_token"}') == b"\x01"
    for token in (b'{"status":"invalid_token"}', b""):
        with pytest.raises(SaslFailure, match="does not end the exchange"):
            client.evaluate(token)


# -- an authorization server


class Endpoint(BaseHTTPRequestHandler):
    status = 200
    answer = b""
    asked: tuple[str, str, str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        type(self).asked = self.headers["Authorization"], self.headers["Content-Type"], body
        self.send_response(self.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.sockets
def test_an_authorization_server_is_asked_with_client_credentials(endpoint: str) -> None:
    Endpoint.status, Endpoint.answer = 200, b'{"access_token": "a.b.c", "expires_in": 3}'
    fetch = token_of_endpoint(endpoint, ClientCredentials("node", "hunter2", "read write"), 10)
    assert fetch() == "a.b.c"
    assert Endpoint.asked == (
        "Basic bm9kZTpodW50ZXIy",
        "application/x-www-form-urlencoded",
        "grant_type=client_credentials&scope=read+write",
    )


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("status", "answer", "text"),
    [
        (401, b'{"error": "invalid_client"}', "HTTP status 401 (invalid_client)"),
        (401, b'{"error": "a\\nb"}', "HTTP status 401"),
        (500, b"<html>", "HTTP status 500"),
        (302, b"", "HTTP status 302"),
        (200, b"hunter2", "the answer is no JSON"),
        (200, b'["hunter2"]', "the answer has no access_token"),
        (200, b"x" * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_what_an_authorization_server_refuses(endpoint: str, status: int, answer: bytes, text: str) -> None:
    Endpoint.status, Endpoint.answer = status, answer
    fetch = token_of_endpoint(endpoint, ClientCredentials("node", "hunter2", ""), 10)
    with pytest.raises((OSError, ValueError)) as refused:
        fetch()
    assert str(refused.value) == text


def test_credentials_are_not_shown() -> None:
    assert "hunter2" not in repr(ClientCredentials("node", "hunter2", ""))
    tokens = source(Issuer(VirtualRuntime(), 3600))
    assert "eyJ" in str(tokens.client().first())
    assert "eyJ" not in repr(vars(tokens))


# -- configuration

JAAS = "listener.name.internal.oauthbearer.sasl.jaas.config"
URL = "sasl.oauthbearer.token.endpoint.url"
CLUSTER = {
    "listeners": "INTERNAL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9097",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.mechanism.controller.protocol": "OAUTHBEARER",
    JAAS: f'{MODULE} clientId="node" clientSecret="hunter2";',
    "listener.name.controller.oauthbearer.sasl.jaas.config": f"{MODULE};",
}
UNSECURED = {JAAS: f'{MODULE} unsecuredLoginStringClaim_sub="node";'}


def test_the_login_of_a_broker(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    (tmp_path / "token").write_text(token(exp=2_000_000_000))
    file = {URL: f"file://{tmp_path}/token"}
    for make, changes in (
        (inter_broker_login, UNSECURED),
        (inter_broker_login, file),
        (controller_login, file),
    ):
        login = make(BrokerConfig.from_properties({**CLUSTER, **changes}), runtime)
        assert login is not None
        runtime.run_until_idle()
        assert login().first().startswith(b"n,,\x01auth=Bearer ey")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, f"{URL} is needed by listener INTERNAL"),
        ({URL: "ftp://issuer"}, f"{URL}: it must begin with https://"),
        ({URL: "https://[issuer"}, f"{URL}: Invalid IPv6 URL"),
        (
            {URL: "https://issuer", "listener.name.internal.sasl.login.read.timeout.ms": "soon"},
            "Invalid value soon for configuration sasl.login.read.timeout.ms",
        ),
        ({URL: "https://issuer", JAAS: f'{MODULE} clientSecret="hunter2";'}, "client.id is needed"),
        ({URL: "https://issuer", JAAS: f'{MODULE} clientId="node";'}, "client.secret is needed"),
        ({JAAS: f'{MODULE} unsecuredLoginStringClaim_name="x";'}, "unsecuredLoginStringClaim_sub is needed"),
        ({"sasl.login.callback.handler.class": "a.B"}, "sasl.login.callback.handler.class"),
        (
            {
                URL: "https://issuer",
                "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
            },
            "sasl.oauthbearer.jwt.retriever.class: this version has",
        ),
        ({URL: "https://issuer", "sasl.oauthbearer.assertion.file": "/f"}, "has no client assertions"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        inter_broker_login(BrokerConfig.from_properties({**CLUSTER, **changes}), VirtualRuntime())
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert ("sasl.jaas.config of" in str(refused.value)) == ("unsecuredLogin" in words)


def test_properties_go_before_options() -> None:
    properties = {
        **CLUSTER,
        URL: "https://issuer",
        JAAS: f"{MODULE};",
        "sasl.oauthbearer.client.credentials.client.id": "node",
        "listener.name.internal.sasl.oauthbearer.client.credentials.client.secret": "hunter2",
    }
    assert inter_broker_login(BrokerConfig.from_properties(properties), VirtualRuntime()) is not None


def test_a_broker_without_others_needs_no_token() -> None:
    alone = {name: text for name, text in CLUSTER.items() if name != "controller.quorum.voters"}
    assert inter_broker_login(BrokerConfig.from_properties(alone), VirtualRuntime()) is None
