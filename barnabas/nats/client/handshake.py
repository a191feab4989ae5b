"""The client's side of the handshake: the options and credentials of CONNECT, and TLS.

Credential files are read again for each connection, so they can be replaced while the broker runs. Credentials in a server's
address take precedence over the settings, as in every NATS client. The seed of an NKEY, or of a credentials file (a user's
JWT and its seed), signs the server's nonce.

NKEYs are Ed25519 keys as NATS writes them. A seed is base32 of two bytes of prefix, 32 bytes of seed and a CRC-16 (XMODEM,
little end first); the prefix holds S for seed, then the kind of the key, U for a user (NATS's nkeys and its ADR-14). Signing
needs PyNaCl, which barnabas[nkeys] installs; it is imported when it is needed.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.nats.client.errors import NatsSettingsError
from barnabas.runtime.tls_contexts import client_context

if TYPE_CHECKING:
    import ssl

    from nacl.signing import SigningKey

    from barnabas.nats.client.connection_settings import ConnectionSettings, ServerAddress
    from barnabas.nats.client.protocol import ServerInfo

SEED_BYTES: Final = 32
_PREFIX_SEED: Final = 18 << 3  # writes S
_PREFIX_USER: Final = 20 << 3  # writes U


def decode_seed(text: str) -> bytes:
    """The 32 bytes of a user's seed, SU... NatsSettingsError, which does not show the text, when it is not one."""
    try:
        raw = base64.b32decode(text.strip().encode() + b"=" * (-len(text.strip()) % 8))
    except (ValueError, UnicodeError):
        raise NatsSettingsError("the NKEY seed is not base32: it must begin with SU") from None
    if len(raw) != 2 + SEED_BYTES + 2:
        raise NatsSettingsError(f"the NKEY seed has {len(raw)} bytes, not {2 + SEED_BYTES + 2}")
    body, checksum = raw[:-2], int.from_bytes(raw[-2:], "little")
    if binascii.crc_hqx(body, 0) != checksum:
        raise NatsSettingsError("the NKEY seed has a wrong checksum: it is incomplete or changed")
    kind = (body[0] & 7) << 5 | body[1] >> 3
    if body[0] & 0xF8 != _PREFIX_SEED or kind != _PREFIX_USER:
        raise NatsSettingsError("the NKEY is not the seed of a user: it must begin with SU")
    return body[2:]


def public_key(seed: bytes) -> str:
    """The user's public key, U..."""
    body = bytes([_PREFIX_USER]) + bytes(_signing_key(seed).verify_key)
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def signature(seed: bytes, nonce: str) -> str:
    """The signature of the server's nonce, in the form of CONNECT: base64 for URLs, without padding."""
    signed = _signing_key(seed).sign(nonce.encode()).signature
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def _signing_key(seed: bytes) -> SigningKey:
    try:
        from nacl.signing import SigningKey
    except ImportError:
        raise NatsSettingsError(
            "NKEYs and credentials files need PyNaCl, which is not installed: pip install 'barnabas[nkeys]'"
        ) from None
    return SigningKey(seed)


FILE_BYTES_MAX: Final = 256 * 1024
# -----BEGIN NATS USER JWT-----, its lines, ------END NATS USER JWT------; the number of dashes differs among tools
_SECTION = re.compile(r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}\s*(\S+)\s*-{3,}\s*END \1\s*-{3,}")


def signed_credentials(settings: ConnectionSettings, nonce: str) -> dict[str, str]:
    """The fields of CONNECT for the credentials file or the seed file. NatsSettingsError names the file that can't be used."""
    if settings.credentials_file:
        name, path = "nats.credentials.file", settings.credentials_file
        jwt, seed_text = _sections(_read(name, path), name, path)
    else:
        name, path = "nats.nkey.seed.file", settings.nkey_seed_file
        jwt, seed_text = "", _seed_line(_read(name, path))
    if not nonce:
        raise NatsSettingsError(
            f"{name}: the server asks for no signature: set up NKEYs there, or remove it here"
        )
    try:
        seed = decode_seed(seed_text)
    except NatsSettingsError as error:
        raise NatsSettingsError(f"{name}: {path}: {error}") from None
    identity = {"jwt": jwt} if jwt else {"nkey": public_key(seed)}
    return {**identity, "sig": signature(seed, nonce)}


def _read(name: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise NatsSettingsError(f"{name}: {path} can't be read: {reason}") from None


def _sections(text: str, name: str, path: str) -> tuple[str, str]:
    sections = dict(_SECTION.findall(text))
    jwt, seed = sections.get("NATS USER JWT"), sections.get("USER NKEY SEED")
    if jwt is None or seed is None:
        raise NatsSettingsError(
            f"{name}: {path} must hold NATS USER JWT and USER NKEY SEED, as nsc writes them"
        )
    return jwt, seed


def _seed_line(text: str) -> str:
    """The first line that is not a comment, or the seed of a file with sections."""
    sections = dict(_SECTION.findall(text))
    if "USER NKEY SEED" in sections:
        return str(sections["USER NKEY SEED"])
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


CLIENT_VERSION = "1"


def connect_options(
    settings: ConnectionSettings, server: ServerAddress, info: ServerInfo, name: str
) -> dict[str, object]:
    """The options of CONNECT. NatsSettingsError when credentials can't be read or used."""
    return {
        "verbose": False,
        "pedantic": False,
        "tls_required": wants_tls(settings, server) or info.tls_required,
        "name": name,
        "lang": "barnabas",
        "version": CLIENT_VERSION,
        "protocol": 1,
        "echo": settings.echo,
        "headers": True,
        "no_responders": True,
        **_credentials(settings, server, info),
    }


def _credentials(settings: ConnectionSettings, server: ServerAddress, info: ServerInfo) -> dict[str, Any]:
    if server.user:
        return {"user": server.user, "pass": server.password.value}
    if server.token:
        return {"auth_token": server.token.value}
    if settings.credentials_file or settings.nkey_seed_file:
        return signed_credentials(settings, info.nonce)
    if settings.user:
        return {"user": settings.user, "pass": settings.password.value}
    if settings.token:
        return {"auth_token": settings.token.value}
    return {}


def login_advice(settings: ConnectionSettings, server: ServerAddress) -> str:
    """Which settings to check when the server rejects the login: those that `connect_options` uses."""
    prefix = f"nats.connection.{settings.name}" if settings.name else "nats"
    if server.user or server.token:
        return f"check the credentials before the @ in {prefix}.servers"
    if settings.credentials_file:
        return f"check {prefix}.credentials.file={settings.credentials_file}"
    if settings.nkey_seed_file:
        return f"check {prefix}.nkey.seed.file={settings.nkey_seed_file}"
    if settings.user:
        return f"check {prefix}.user={settings.user} and {prefix}.password"
    if settings.token:
        return f"check {prefix}.token"
    return (
        f"no credentials are set: set {prefix}.user and {prefix}.password, {prefix}.token, {prefix}.nkey.seed.file or "
        f"{prefix}.credentials.file"
    )


def wants_tls(settings: ConnectionSettings, server: ServerAddress) -> bool:
    """Whether the settings require TLS, whatever the server says."""
    return server.tls or settings.tls_first or bool(settings.tls_ca_file or settings.tls_certificate_file)


def tls_context(
    settings: ConnectionSettings, server: ServerAddress, info: ServerInfo | None
) -> ssl.SSLContext | None:
    """The TLS context of a connection after INFO, or before it (`info` is None); None for a connection without TLS.
    NatsSettingsError when the settings require TLS and the server has none, so credentials are not sent in the clear, or
    when files can't be used."""
    if info is not None and not info.tls_required:
        if not wants_tls(settings, server):
            return None
        if not info.tls_available:
            raise NatsSettingsError(
                f"{server} does not speak TLS, but the settings ask for it: set tls in the server's configuration, or "
                "remove tls:// and nats.tls.* here"
            )
    import ssl

    context = client_context()
    if not settings.tls_ca_file:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            context.load_verify_locations(settings.tls_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise NatsSettingsError(
                f"nats.tls.ca.file: {settings.tls_ca_file} must hold certificates in PEM: {error}"
            ) from error
    if settings.tls_certificate_file:
        try:
            # an empty password: never ask on the terminal
            context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file or None, password="")
        except (OSError, ssl.SSLError) as error:
            raise NatsSettingsError(
                f"nats.tls.certificate.file: {settings.tls_certificate_file} must hold a certificate in PEM, and "
                f"nats.tls.key.file (or the same file) its private key without a password: {error}"
            ) from error
    return context
