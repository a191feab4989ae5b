"""Settings of client libraries for a secured broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.testing.security import LIBRARIES, OAUTHBEARER, PLAIN, quoted

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from barnabas.testing.certificates import Certificate

WriteFile = Callable[[str, str], "Path"]
_TOKEN_SECONDS = 3600


class Login(msgspec.Struct, frozen=True):
    """How a client authenticates itself."""

    mechanism: str
    user: str
    password: str  # "" with OAUTHBEARER

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.user})"  # without the password


class ClientIdentity(msgspec.Struct, frozen=True):
    """What a client needs in order to be let in."""

    bootstrap_servers: str
    protocol: str
    authority: str | None  # PEM; None without TLS
    certificate: Certificate | None
    login: Login | None


def settings_of(library: str, identity: ClientIdentity, write: WriteFile) -> dict[str, Any] | str:
    """For one of LIBRARIES. `write(name, text)` gives the path of a new file. ValueError for another library."""
    if library == "java":
        return "".join(f"{name}={value}\n" for name, value in java(identity).items())
    if library == "confluent-kafka":
        return librdkafka(identity)
    if library in ("kafka-python", "aiokafka"):
        return python(library, identity, write)
    raise ValueError(f"settings are known of {', '.join(LIBRARIES)}, and not of {library}")


def python(library: str, identity: ClientIdentity, write: WriteFile) -> dict[str, Any]:
    """Arguments of the classes of kafka-python and aiokafka."""
    found: dict[str, Any] = {
        "bootstrap_servers": identity.bootstrap_servers,
        "security_protocol": identity.protocol,
    }
    if identity.authority is not None:
        found["ssl_context"] = _ssl_context(identity.authority, identity.certificate, write)
    login = identity.login
    if login is not None:
        found["sasl_mechanism"] = login.mechanism
        if login.mechanism == OAUTHBEARER:
            found["sasl_oauth_token_provider"] = _token_provider(library, login.user)
        else:
            found |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    return found


def librdkafka(identity: ClientIdentity) -> dict[str, Any]:
    """The configuration of confluent-kafka, and of what else is made with librdkafka."""
    found: dict[str, Any] = {
        "bootstrap.servers": identity.bootstrap_servers,
        "security.protocol": identity.protocol,
    }
    if identity.authority is not None:
        found["ssl.ca.pem"] = identity.authority
    if identity.certificate is not None:
        found["ssl.certificate.pem"] = identity.certificate.pem
        found["ssl.key.pem"] = identity.certificate.key
    login = identity.login
    if login is not None:
        found["sasl.mechanism"] = login.mechanism
        if login.mechanism == OAUTHBEARER:
            found["enable.sasl.oauthbearer.unsecure.jwt"] = True
            found["sasl.oauthbearer.config"] = f"principal={login.user}"
        else:
            found |= {"sasl.username": login.user, "sasl.password": login.password}
    return found


def java(identity: ClientIdentity) -> dict[str, str]:
    """Properties of Java's clients, for the file of --command-config as well; values are escaped."""
    found = {"bootstrap.servers": identity.bootstrap_servers, "security.protocol": identity.protocol}
    if identity.authority is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": identity.authority}
    if identity.certificate is not None:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": identity.certificate.pem,
            "ssl.keystore.key": identity.certificate.key,
        }
    if identity.login is not None:
        found["sasl.mechanism"] = identity.login.mechanism
        found["sasl.jaas.config"] = _jaas(identity.login)
        if identity.login.mechanism == OAUTHBEARER:
            found["sasl.login.callback.handler.class"] = (
                "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
                "OAuthBearerUnsecuredLoginCallbackHandler"
            )
    return {name: _escaped(value) for name, value in found.items()}


def _jaas(login: Login) -> str:
    user = quoted(login.user)
    if login.mechanism == OAUTHBEARER:
        return (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="{user}";'
        )
    module = "plain.Plain" if login.mechanism == PLAIN else "scram.Scram"
    return (
        f"org.apache.kafka.common.security.{module}LoginModule required "
        f'username="{user}" password="{quoted(login.password)}";'
    )


def _escaped(value: str) -> str:
    """As it stands in a properties file, which is read as ISO 8859-1."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    units = escaped.encode("utf-16-be")
    codes = [units[i] << 8 | units[i + 1] for i in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)


def _ssl_context(authority: str, certificate: Certificate | None, write: WriteFile) -> ssl.SSLContext:
    from barnabas.runtime.tls_contexts import client_context

    context = client_context()
    context.load_verify_locations(cadata=authority)
    if certificate is not None:
        # It takes a file; this one is read once.
        path = write(f"{certificate.name}-with-key.pem", certificate.key + certificate.pem)
        context.load_cert_chain(path)
        path.unlink()
    return context


def unsecured_token(user: str, now_s: int) -> str:
    """A token that is not signed (`alg` none, RFC 7519 section 6), which only a test should accept."""
    import base64

    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip("=")

    claims: dict[str, object] = {"sub": user, "iat": now_s, "exp": now_s + _TOKEN_SECONDS}
    return f"{part({'alg': 'none'})}.{part(claims)}."


def _token_provider(library: str, user: str) -> object:
    """An object that gives a client of kafka-python or aiokafka its tokens."""
    from barnabas.testing.node_runtime import Clock

    def token() -> str:
        return unsecured_token(user, Clock().time_ms() // 1000)

    if library == "kafka-python":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):
            def token(self) -> str:
                return token()

        return Provider()  # type: ignore[no-untyped-call]
    from aiokafka.abc import AbstractTokenProvider as AioTokenProvider

    class AioProvider(AioTokenProvider):
        async def token(self) -> str:
            return token()

    return AioProvider()
