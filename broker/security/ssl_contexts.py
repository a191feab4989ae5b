"""TLS contexts of a listener: its stores are read and checked with Kafka's errors, then loaded.

One listener has a context for the connections that it accepts and one for those that this node opens to the same listener of
other nodes. Contexts are never changed: a change of the stores makes new ones.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.security.key_stores import (
    Identity,
    StoreError,
    read_anchors,
    read_identity,
    read_store,
    warn_of_readers,
)
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.tls_contexts import client_context, server_context

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.security.ssl_config import SslConfig

log = logging.getLogger("barnabas.security")

_PEM: Final = "PEM"
_TLS13_SUITE: Final = "TLS_AES_", "TLS_CHACHA20_"
_RECORDS_MAX: Final = 16  # flights of a handshake between two contexts


class Stores(msgspec.Struct, frozen=True):
    """What is in the key store and the trust store of a listener."""

    identities: tuple[
        Identity, ...
    ]  # Java chooses among several by the type of the key; the first is used here
    anchors: tuple[bytes, ...] | None  # certificates in DER; None without a trust store


class SslContexts(msgspec.Struct, frozen=True):
    """The contexts that were made of some settings."""

    stores: Stores
    server: ssl.SSLContext
    client: ssl.SSLContext | None  # where nodes connect to each other


def make_contexts(config: SslConfig, *, is_between_nodes: bool = False) -> SslContexts:
    """Read the stores and make the contexts. `is_between_nodes`: nodes connect to each other here, so the settings must be able to
    connect with themselves. ConfigError."""
    stores = read_stores(config)
    server = _server(config, stores)
    if not is_between_nodes:
        return SslContexts(stores, server, None)
    client = _client(config, stores)
    check_handshake(client, server)
    return SslContexts(stores, server, client)


def make_client_context(config: SslConfig) -> ssl.SSLContext:
    """For connections of a node that accepts none on this listener: it may have no key. ConfigError."""
    return _client(config, Stores(tuple(_identities(config)), _anchors(config)))


def read_stores(config: SslConfig) -> Stores:
    """ConfigError as Kafka's, where it has one."""
    identities = _identities(config)
    if not identities:
        raise ConfigError(
            f"the listener {config.listener} uses TLS and has no key: set ssl.keystore.location, or ssl.keystore.key and "
            f"ssl.keystore.certificate.chain"
        )
    if len(identities) > 1:
        log.warning(
            "ssl.keystore.location: %s has several private keys; %s is used",
            config.keystore_location,
            identities[0].alias,
        )
    return Stores(tuple(identities), _anchors(config))


def _identities(config: SslConfig) -> list[Identity]:
    is_pem = config.keystore_type.upper() == _PEM
    if config.keystore_key is not None:
        if not is_pem:
            raise ConfigError(
                f"SSL private key can be specified only for PEM, but key store type is {config.keystore_type}."
            )
        if config.keystore_certificate_chain is None:
            raise ConfigError("SSL private key is specified, but certificate chain is not specified.")
        if config.keystore_location:
            raise ConfigError("Both SSL key store location and separate private key are specified.")
        if config.keystore_password is not None:
            raise ConfigError(
                "SSL key store password cannot be specified with PEM format, only key password may be specified."
            )
        data = f"{config.keystore_key}\n{config.keystore_certificate_chain}".encode()
        return _identity("ssl.keystore.key", data, config)
    if config.keystore_certificate_chain is not None:
        raise ConfigError("SSL certificate chain is specified, but private key is not specified.")
    if not config.keystore_location:
        if config.keystore_password is not None:
            raise ConfigError("SSL key store is not specified, but key store password is specified.")
        return []
    if is_pem and config.keystore_password is not None:
        raise ConfigError(
            "SSL key store password cannot be specified with PEM format, only key password may be specified."
        )
    if not is_pem and config.keystore_password is None:
        raise ConfigError("SSL key store is specified, but key store password is not specified.")
    warn_of_readers("ssl.keystore.location", config.keystore_location)
    what = f"ssl.keystore.location: {config.keystore_location}"
    try:
        data = read_store(config.keystore_location)
    except StoreError as error:
        raise ConfigError(f"{what}: {error}") from None
    return _identity(what, data, config)


def _identity(what: str, data: bytes, config: SslConfig) -> list[Identity]:
    try:
        return read_identity(data, config.keystore_password, config.key_password)
    except StoreError as error:
        raise ConfigError(f"{what}: {error}") from None


def _anchors(config: SslConfig) -> tuple[bytes, ...] | None:
    is_pem = config.truststore_type.upper() == _PEM
    if config.truststore_certificates is not None:
        if not is_pem:
            raise ConfigError(
                f"SSL trust store certs can be specified only for PEM, but trust store type is {config.truststore_type}."
            )
        if config.truststore_location:
            raise ConfigError("Both SSL trust store location and separate trust certificates are specified.")
        if config.truststore_password is not None:
            raise ConfigError("SSL trust store password cannot be specified for PEM format.")
        what, data = "ssl.truststore.certificates", config.truststore_certificates.encode()
    elif not config.truststore_location:
        if config.truststore_password is not None:
            raise ConfigError("SSL trust store is not specified, but trust store password is specified.")
        return None
    else:
        if is_pem and config.truststore_password is not None:
            raise ConfigError("SSL trust store password cannot be specified for PEM format.")
        what = f"ssl.truststore.location: {config.truststore_location}"
        try:
            data = read_store(config.truststore_location)
        except StoreError as error:
            raise ConfigError(f"{what}: {error}") from None
    try:
        return tuple(read_anchors(data, config.truststore_password))
    except StoreError as error:
        raise ConfigError(f"{what}: {error}") from None


def _server(config: SslConfig, stores: Stores) -> ssl.SSLContext:
    import ssl

    context = server_context()
    _load(context, config, stores)
    if config.client_auth != "none":
        context.verify_mode = ssl.CERT_REQUIRED if config.client_auth == "required" else ssl.CERT_OPTIONAL
        if stores.anchors is None:
            log.warning(
                "the listener %s asks clients for certificates and has no ssl.truststore.*: it takes those of the system's "
                "authorities",
                config.listener,
            )
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def _client(config: SslConfig, stores: Stores) -> ssl.SSLContext:
    import ssl

    context = client_context()
    _load(context, config, stores)
    context.check_hostname = config.checks_host_names
    if stores.anchors is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _load(context: ssl.SSLContext, config: SslConfig, stores: Stores) -> None:
    import ssl

    versions = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
    enabled = [versions[each] for each in config.enabled_protocols]
    context.minimum_version, context.maximum_version = min(enabled), max(enabled)
    _load_cipher_suites(context, config)
    try:
        for identity in stores.identities[:1]:
            _load_identity(context, identity)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the private key of the listener {config.listener} can't be used with its certificate: {error}; is "
            f"ssl.key.password right?"
        ) from None
    if stores.anchors is not None:
        try:
            context.load_verify_locations(cadata=b"".join(stores.anchors))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the trust store of the listener {config.listener} can't be used: {error}"
            ) from None


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """load_cert_chain takes a file: one in memory where the system has that, else one that only this user can read."""
    password = identity.key_password  # never None: OpenSSL would ask the terminal for it
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with os.fdopen(os.memfd_create("barnabas-key"), "wb", buffering=0) as file:
            file.write(identity.pem())
            context.load_cert_chain(os.path.join("/proc/self/fd", str(file.fileno())), password=password)
        return
    import tempfile

    with tempfile.NamedTemporaryFile(buffering=0) as temporary:
        temporary.write(identity.pem())
        context.load_cert_chain(temporary.name, password=password)


def _load_cipher_suites(context: ssl.SSLContext, config: SslConfig) -> None:
    """ssl.cipher.suites chooses among the suites of TLS 1.2, and whether TLS 1.3 is used, whose suites Python can't choose."""
    import ssl

    if not config.cipher_suites:
        return
    older = [each for each in config.cipher_suites if not each.startswith(_TLS13_SUITE)]
    names = [openssl_name(each) for each in older]
    known = {str(each["name"]) for each in _all_ciphers()}
    for suite, name in zip(older, names, strict=True):
        if name not in known:
            raise ConfigError.invalid("ssl.cipher.suites", suite, f"Unsupported CipherSuite: {suite}")
    if len(older) == len(config.cipher_suites):
        if context.minimum_version == ssl.TLSVersion.TLSv1_3:
            raise ConfigError.invalid("ssl.cipher.suites", list(older), "none of them belongs to TLSv1.3")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if names:
        context.set_ciphers(":".join(names))
    elif context.maximum_version == ssl.TLSVersion.TLSv1_2:
        raise ConfigError.invalid(
            "ssl.cipher.suites", list(config.cipher_suites), "none of them belongs to TLSv1.2"
        )
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _all_ciphers() -> list[dict[str, object]]:
    context = server_context()
    context.set_ciphers("ALL")
    return list(context.get_ciphers())  # type: ignore[arg-type]  # a TypedDict


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, rest = suite.removeprefix("TLS_").partition("_WITH_")
    rest = rest.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    return "-".join(([] if exchange == "RSA" else [exchange]) + [rest]).replace("_", "-")


def check_handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """ConfigError unless a connection of these contexts comes about; without a check of host names, as in Kafka."""
    import ssl

    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    checks_host_names, client.check_hostname = client.check_hostname, False
    try:
        ends = [
            client.wrap_bio(to_client, to_server),
            server.wrap_bio(to_server, to_client, server_side=True),
        ]
    finally:
        client.check_hostname = checks_host_names
    try:
        for _ in range(_RECORDS_MAX):
            for end in tuple(ends):
                try:
                    end.do_handshake()
                    ends.remove(end)
                except ssl.SSLWantReadError:
                    pass
            if not ends:
                return
        reason = "the handshake does not end"
    except ssl.SSLError as error:
        reason = str(error)
    raise ConfigError(
        "A client SSLEngine created with the provided settings can't connect to a server SSLEngine created with those "
        f"settings. ({reason})"
    )
