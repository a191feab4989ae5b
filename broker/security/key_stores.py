"""Key stores and trust stores: PEM, PKCS12 and JKS, from files and, for PEM, from the property itself.

As in Java, the file decides and not `ssl.keystore.type`: keytool writes PKCS12 since Java 9, while the property's default is
JKS. PKCS12 needs the package `cryptography` (pip install 'barnabas[security]'), which is imported for such a file alone.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import stat
import struct
from pathlib import Path
from typing import Final

from barnabas.broker.security.certificates import CertificateError, Element, elements, object_id, sequence

log = logging.getLogger("barnabas.security")

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_PEM_BLOCK: Final = rb"-----BEGIN ([A-Z0-9 ]+)-----\s.*?-----END \1-----"
_CERTIFICATE: Final = b"CERTIFICATE"
_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_JKS_KEY, _JKS_CERTIFICATE = 1, 2
_JKS_ENCRYPTION: Final = "1.3.6.1.4.1.42.2.17.1.1"
_CHECK_BYTES: Final = 20  # SHA-1
_u16, _u32 = struct.Struct(">H").unpack_from, struct.Struct(">I").unpack_from


class StoreError(ValueError):
    """A store that can't be read. The text has no secrets."""


class Identity:
    """A private key and its certificates, the own one first."""

    def __init__(self, alias: str, key: bytes, key_password: str, chain: list[bytes]) -> None:
        """`key` in PEM; `chain` in DER."""
        self.alias = alias
        self.key = key
        self.key_password = key_password
        self.chain = chain

    def __repr__(self) -> str:
        return f"Identity({self.alias})"

    def pem(self) -> bytes:
        """All of it, as OpenSSL reads it from a file."""
        return b"".join([*map(_certificate_pem, self.chain), self.key])


def read_identity(data: bytes, password: str | None, key_password: str | None) -> list[Identity]:
    """The private keys in a key store's bytes. StoreError."""
    kind = kind_of(data)
    if kind == "PEM":
        return [_pem_identity(data, key_password)]
    if password is None:
        raise StoreError("it is a store with a password, and none is configured")
    if kind == "JKS":
        return _jks_identities(data, password, password if key_password is None else key_password)
    return [_pkcs12_identity(data, password)]


def read_anchors(data: bytes, password: str | None) -> list[bytes]:
    """The certificates in a trust store's bytes, as DER. StoreError."""
    kind = kind_of(data)
    if kind == "PEM":
        found = _pem_certificates(data)
    elif kind == "JKS":
        found = _Jks(data, password).certificates
    elif password is None:
        raise StoreError("certificates of a PKCS12 store can't be read without its password")
    else:
        found = _pkcs12_certificates(data, password)
    if not found:
        raise StoreError("it has no certificates")
    return found


def kind_of(data: bytes) -> str:
    """PEM, JKS or PKCS12, by the first bytes."""
    if data.startswith(_JKS):
        return "JKS"
    if data.startswith(_JCEKS):
        raise StoreError("it is a JCEKS store, which this version can't read: convert it with keytool")
    if data.startswith(b"\x30") and not data.startswith(b"0\n"):
        return "PKCS12"
    if b"-----BEGIN " in data:
        return "PEM"
    raise StoreError("it is no PEM, PKCS12 or JKS store")


def read_store(path: str) -> bytes:
    """The bytes of a store's file. StoreError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise StoreError(f"it can't be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise StoreError("it is too large for a store")
    return data


def warn_of_readers(name: str, path: str) -> None:
    """Warn of a file with a secret, which property `name` names, that others can read or write. Its group may read it."""
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except OSError:
        return
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        what = "be read" if mode & stat.S_IROTH else "be changed"
        log.warning("%s: %s can %s by others (mode %04o); run: chmod 600 %s", name, path, what, mode, path)


# -- PEM


def pem_blocks(data: bytes) -> list[tuple[bytes, bytes]]:
    """(label, the whole block) of each block."""
    return [(match[1], match[0]) for match in re.finditer(_PEM_BLOCK, data, re.DOTALL)]


def _pem_certificates(data: bytes) -> list[bytes]:
    return [_der(block) for label, block in pem_blocks(data) if label == _CERTIFICATE]


def _pem_identity(data: bytes, key_password: str | None) -> Identity:
    keys = [block for label, block in pem_blocks(data) if label.endswith(b"PRIVATE KEY")]
    if len(keys) != 1:
        raise StoreError(f"Expected one private key, but found {len(keys)}")
    chain = _pem_certificates(data)
    if not chain:
        raise StoreError("it has a private key and no certificate")
    return Identity("kafka", keys[0] + b"\n", key_password or "", chain)


def _der(block: bytes) -> bytes:
    body = b"".join(line for line in block.splitlines()[1:-1] if b":" not in line)
    try:
        return base64.b64decode(body, validate=False)
    except binascii.Error:
        raise StoreError("a PEM block is not base64") from None


def _certificate_pem(certificate: bytes) -> bytes:
    return _armoured(b"CERTIFICATE", certificate)


def _armoured(label: bytes, data: bytes) -> bytes:
    return b"-----BEGIN %s-----\n%s-----END %s-----\n" % (label, base64.encodebytes(data), label)


# -- PKCS12


def _pkcs12(data: bytes, password: str):  # type: ignore[no-untyped-def]  # the package may be missing
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise StoreError(
            "it is a PKCS12 store, and those need the package cryptography: pip install 'barnabas[security]'"
        ) from None
    try:
        return pkcs12.load_pkcs12(data, password.encode())
    except ValueError:
        raise StoreError("its password is wrong, or it is damaged") from None


def _pkcs12_identity(data: bytes, password: str) -> Identity:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    store = _pkcs12(data, password)
    if store.key is None or store.cert is None:
        raise StoreError("it has no private key with a certificate")
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [each.certificate.public_bytes(Encoding.DER) for each in (store.cert, *store.additional_certs)]
    return Identity((store.cert.friendly_name or b"1").decode("utf-8", "replace"), key, "", chain)


def _pkcs12_certificates(data: bytes, password: str) -> list[bytes]:
    store = _pkcs12(data, password)
    from cryptography.hazmat.primitives.serialization import Encoding

    own = [] if store.cert is None else [store.cert]
    return [each.certificate.public_bytes(Encoding.DER) for each in (*own, *store.additional_certs)]


# -- JKS


class _Jks:
    """The entries of a store of Java's own format. Numbers are big endian; the last 20 bytes are a keyed hash of the others."""

    def __init__(self, data: bytes, password: str | None) -> None:
        """Without a password the hash is not checked, as in Java."""
        self._data = memoryview(data)[: -_CHECK_BYTES or None]
        self._at = 4
        self.certificates: list[bytes] = []
        self.keys: list[tuple[str, bytes, list[bytes]]] = []  # alias, encrypted key, chain
        if password is not None:
            import hashlib  # late: for such stores alone

            check = hashlib.sha1(_utf16(password) + b"Mighty Aphrodite" + self._data, usedforsecurity=False)
            if check.digest() != data[-_CHECK_BYTES:]:
                raise StoreError("its password is wrong, or it is damaged")
        try:
            self._read()
        except (struct.error, UnicodeDecodeError):
            raise StoreError("it is damaged") from None

    def _read(self) -> None:
        version, count = self._number(), self._number()
        if version not in (1, 2):
            raise StoreError(f"it is a JKS store of version {version}")
        for _ in range(count):
            tag, alias = self._number(), self._text()
            self._at += 8  # when it was made
            if tag == _JKS_KEY:
                key = self._bytes()
                self.keys.append((alias, key, [self._certificate(version) for _ in range(self._number())]))
            elif tag == _JKS_CERTIFICATE:
                self.certificates.append(self._certificate(version))
            else:
                raise StoreError(f"it has an entry of the unknown kind {tag}")

    def _number(self) -> int:
        (value,) = _u32(self._data, self._at)
        self._at += 4
        return int(value)

    def _text(self) -> str:
        (length,) = _u16(self._data, self._at)
        self._at += 2
        return self._take(length).decode()

    def _bytes(self) -> bytes:
        return self._take(self._number())

    def _take(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise StoreError("it is damaged")
        return bytes(self._data[start : self._at])

    def _certificate(self, version: int) -> bytes:
        if version == 2:
            self._text()  # X.509
        return self._bytes()


def _jks_identities(data: bytes, password: str, key_password: str) -> list[Identity]:
    store = _Jks(data, password)
    if not store.keys:
        raise StoreError("it has no private key")
    return [
        Identity(alias, _armoured(b"PRIVATE KEY", _jks_key(key, key_password)), "", chain)
        for alias, key, chain in store.keys
    ]


def _jks_key(encrypted: bytes, password: str) -> bytes:
    """The PKCS#8 DER of a key: xor with a chain of SHA-1, then a check value."""
    import hashlib

    try:
        algorithm, octets = sequence(memoryview(encrypted))
        kind: Element = next(elements(algorithm.content))
    except (CertificateError, ValueError, StopIteration):
        raise StoreError("its private key is damaged") from None
    if object_id(kind.content) != _JKS_ENCRYPTION:
        raise StoreError("its private key is encrypted in a way that this version can't read")
    secret = _utf16(password)
    sealed = bytes(octets.content)
    block, body, check = sealed[:_CHECK_BYTES], sealed[_CHECK_BYTES:-_CHECK_BYTES], sealed[-_CHECK_BYTES:]
    stream = bytearray()
    while len(stream) < len(body):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    plain = bytes(one ^ other for one, other in zip(body, stream, strict=False))
    if hashlib.sha1(secret + plain, usedforsecurity=False).digest() != check:
        raise StoreError("the password of its private key is wrong (ssl.key.password)")
    return plain


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")
