"""Stores of keytool (stores/*, made by Java 17) and of cryptography, and Kafka's errors about wrong ones."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.certificates import subject_name
from barnabas.broker.security.key_stores import StoreError, read_anchors, read_identity
from barnabas.broker.security.ssl_config import SslConfig, read_ssl_config
from barnabas.broker.security.ssl_contexts import SslContexts, make_contexts, openssl_name
from barnabas.controller.config.validators import ConfigError
from compat_tests.harness.certificates import Authority

STORES = Path(__file__).parent / "stores"
AUTHORITY = Authority()
BROKER = AUTHORITY.sign("broker")


def settings(**properties: str) -> SslConfig:
    given = {name.replace("_", "."): text for name, text in properties.items()}
    return read_ssl_config(BrokerConfig.from_properties(given), "SSL")


def contexts(**properties: str) -> SslContexts:
    return make_contexts(settings(**properties), is_between_nodes=True)


def keytool(name: str) -> bytes:
    return (STORES / name).read_bytes()


@pytest.mark.parametrize(
    ("store", "key_password"), [("one.jks", "secret2"), ("one.p12", None), ("one.p12", "ignored")]
)
def test_keys_of_keytool(store: str, key_password: str | None) -> None:
    [identity] = read_identity(keytool(store), "secret1", key_password)
    assert [subject_name(each) for each in identity.chain] == ["CN=broker,O=Acme"]
    serialization.load_pem_private_key(identity.key, None)
    assert identity.alias == "one"
    assert "PRIVATE" not in repr(identity)


@pytest.mark.parametrize("store", ["trust.jks", "trust.p12"])
def test_anchors_of_keytool(store: str) -> None:
    assert [subject_name(each) for each in read_anchors(keytool(store), "secret1")] == ["CN=broker,O=Acme"]


def test_certificates_of_a_jks_store_need_no_password() -> None:
    assert read_anchors(keytool("trust.jks"), None) == read_anchors(keytool("trust.jks"), "secret1")


def read_key(data: bytes, password: str | None) -> object:
    return read_identity(data, password, None)


@pytest.mark.parametrize(
    ("read", "data", "password", "message"),
    [
        (read_key, keytool("one.jks"), "wrong", "its password is wrong, or it is damaged"),
        (read_key, keytool("one.p12"), "wrong", "its password is wrong, or it is damaged"),
        (read_key, keytool("one.jks"), "secret1", r"the password of its private key is wrong \(ssl.key.password\)"),
        (read_key, keytool("trust.jks"), "secret1", "it has no private key"),
        (read_key, keytool("trust.p12"), "secret1", "it has no private key"),
        (read_anchors, keytool("trust.p12"), None, "can't be read without its password"),
        (read_anchors, b"\xce\xce\xce\xce", "x", "JCEKS"),
        (read_anchors, b"hello", "x", "no PEM, PKCS12 or JKS store"),
        (read_anchors, b"", None, "no PEM, PKCS12 or JKS store"),
        (read_anchors, BROKER.key_pem().encode(), None, "it has no certificates"),
        (read_key, (BROKER.key_pem() * 2 + BROKER.pem).encode(), None, "Expected one private key, but found 2"),
        (read_key, BROKER.pem.encode(), None, "Expected one private key, but found 0"),
        (read_key, BROKER.key_pem().encode(), None, "no certificate"),
    ],
)  # fmt: skip
def test_stores_that_cannot_be_read(
    read: Callable[[bytes, str | None], object], data: bytes, password: str | None, message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        read(data, password)


@given(st.integers(0, 571), st.integers(0, 255), st.integers(4, 572))
def test_damaged_jks_stores_are_errors(at: int, byte: int, length: int) -> None:
    damaged = bytearray(keytool("one.jks"))
    damaged[at] = byte
    try:
        read_anchors(bytes(damaged[:length]), None)
    except StoreError:
        pass


def write_p12(path: Path) -> str:
    key: Any = BROKER.key
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"one",
            key,
            BROKER.certificate,
            [AUTHORITY.certificate],
            serialization.BestAvailableEncryption(b"p"),
        )
    )
    return str(path)


def test_every_kind_of_store_gives_contexts_that_connect(tmp_path: Path) -> None:
    anchors = str(AUTHORITY.write_anchors(tmp_path / "ca.pem"))
    pem_anchors = {"ssl_truststore_type": "PEM", "ssl_truststore_location": anchors}
    of_keytool = {
        "ssl_keystore_location": str(STORES / "one.jks"),
        "ssl_keystore_password": "secret1",
        "ssl_key_password": "secret2",
        "ssl_truststore_location": str(STORES / "trust.jks"),
    }
    kinds: list[dict[str, str]] = [
        {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(BROKER.write(tmp_path / "b.pem")),
            **pem_anchors,
        },
        {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(BROKER.write(tmp_path / "e.pem", "key password")),
            "ssl_key_password": "key password",
            **pem_anchors,
        },
        {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_key": BROKER.key_pem("kp"),
            "ssl_key_password": "kp",
            "ssl_keystore_certificate_chain": BROKER.pem,
            "ssl_truststore_type": "PEM",
            "ssl_truststore_certificates": AUTHORITY.pem,
        },
        # the type is not what decides, as in Java
        {
            "ssl_keystore_location": write_p12(tmp_path / "b.p12"),
            "ssl_keystore_password": "p",
            **pem_anchors,
        },
        of_keytool,
    ]
    for kind in kinds:
        for auth in ("none", "requested", "required"):
            made = contexts(**kind, ssl_client_auth=auth)
            assert made.server.verify_mode == {
                "none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED
            }[auth]  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "the listener SSL uses TLS and has no key"),
        ({"ssl_keystore_location": "/x"}, "SSL key store is specified, but key store password is not specified."),
        ({"ssl_keystore_password": "p"}, "SSL key store is not specified, but key store password is specified."),
        ({"ssl_keystore_location": "/nowhere", "ssl_keystore_password": "p"}, "/nowhere: it can't be read: No such file"),
        (
            {"ssl_keystore_type": "PEM", "ssl_keystore_location": "/x", "ssl_keystore_password": "p"},
            "SSL key store password cannot be specified with PEM format, only key password may be specified.",
        ),
        ({"ssl_keystore_key": "k"}, "SSL private key can be specified only for PEM, but key store type is JKS."),
        (
            {"ssl_keystore_key": "k", "ssl_keystore_type": "PEM"},
            "SSL private key is specified, but certificate chain is not specified.",
        ),
        (
            {"ssl_keystore_key": "k", "ssl_keystore_type": "PEM", "ssl_keystore_certificate_chain": "c"},
            "ssl.keystore.key: it is no PEM, PKCS12 or JKS store",
        ),
        ({"ssl_engine_factory_class": "com.acme.Engine"}, "this version runs no Java classes"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, r"this version has TLSv1.2 and TLSv1.3"),
    ],
)  # fmt: skip
def test_wrong_settings_stop_the_start(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        contexts(**properties)


def test_settings_that_cannot_connect_to_themselves_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="A client SSLEngine created with the provided settings can't connect"
    ):
        contexts(
            ssl_keystore_type="PEM",
            ssl_keystore_location=str(BROKER.write(tmp_path / "b.pem")),
            ssl_truststore_type="PEM",
            ssl_truststore_location=str(Authority("other").write_anchors(tmp_path / "ca.pem")),
        )


def test_a_key_of_another_certificate_and_a_wrong_password(tmp_path: Path) -> None:
    other = AUTHORITY.sign("other")
    for key, password in ((other.key_pem(), ""), (BROKER.key_pem("right"), "wrong")):
        with pytest.raises(ConfigError, match=r"the private key of the listener SSL can't be used") as caught:
            contexts(
                ssl_keystore_type="PEM",
                ssl_keystore_key=key,
                ssl_keystore_certificate_chain=BROKER.pem,
                ssl_key_password=password,
            )
        assert "PRIVATE" not in str(caught.value)


def test_a_listener_has_settings_of_its_own() -> None:
    given = {"ssl.client.auth": "required", "listener.name.inside.ssl.client.auth": "none"}
    config = BrokerConfig.from_properties(given)
    assert read_ssl_config(config, "INSIDE").client_auth == "none"
    assert read_ssl_config(config, "OUTSIDE").client_auth == "required"
    # as in Kafka, the plain property does not count on SASL_SSL
    assert read_ssl_config(config, "OUTSIDE", is_sasl=True).client_auth == "none"
    secret = read_ssl_config(BrokerConfig.from_properties({"ssl.key.password": "hush"}), "SSL")
    assert secret.key_password == "hush"
    assert "hush" not in repr(secret)


def test_protocols_and_suites(tmp_path: Path) -> None:
    base = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(BROKER.write(tmp_path / "b.pem")),
    }

    def server(**properties: str) -> ssl.SSLContext:
        return make_contexts(settings(**base, **properties)).server

    assert server().minimum_version == ssl.TLSVersion.TLSv1_2
    assert server().maximum_version == ssl.TLSVersion.TLSv1_3
    assert server(ssl_enabled_protocols="TLSv1.2").maximum_version == ssl.TLSVersion.TLSv1_2
    assert server(ssl_enabled_protocols="TLSv1.3").minimum_version == ssl.TLSVersion.TLSv1_3
    assert server(ssl_cipher_suites="TLS_AES_128_GCM_SHA256").minimum_version == ssl.TLSVersion.TLSv1_3
    chosen = server(ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    assert chosen.maximum_version == ssl.TLSVersion.TLSv1_2
    names = [each["name"] for each in chosen.get_ciphers() if not each["name"].startswith("TLS_")]
    assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]
    with pytest.raises(ConfigError, match="Unsupported CipherSuite: TLS_WITH_NOTHING"):
        server(ssl_cipher_suites="TLS_WITH_NOTHING")


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
    ],
)
def test_names_of_suites(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl


def test_the_stores_of_keytool_last() -> None:
    """They are used by tests for as long as their certificates are valid."""
    import cryptography.x509 as x509

    certificate = x509.load_der_x509_certificate(read_anchors(keytool("trust.jks"), None)[0])
    assert certificate.not_valid_after_utc.year > datetime.date(2100, 1, 1).year
