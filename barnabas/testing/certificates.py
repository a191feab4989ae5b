"""Certificates made on the spot: an authority in memory, and what it signs, as PEM. Keys are EC P-256: one takes a fraction of a
millisecond.

It is made with `cryptography`, which is loaded with this module: `pip install 'barnabas[security]'`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.testing.node_runtime import Clock

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ImportError(
        f"certificates are made with cryptography, which is not installed ({error}): "
        "pip install 'barnabas[security]', or pip install cryptography"
    ) from None

if TYPE_CHECKING:
    from cryptography.x509 import CertificateBuilder, Name

LIFETIME: Final = timedelta(days=365)
_AGO: Final = timedelta(days=1)  # clocks of clients may be behind


class Certificate(msgspec.Struct, frozen=True):
    """A certificate and its private key (PKCS#8), as PEM."""

    name: str  # its CN
    pem: str
    key: str

    def __repr__(self) -> str:
        return f"Certificate({self.name})"  # without the key


class Authority:
    """Signs certificates. `pem` is its own one, which those who trust it load."""

    def __init__(self, name: str = "Barnabas test authority") -> None:
        self._subject = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._now = datetime.fromtimestamp(Clock().time_ms() // 1000, UTC)
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = (
            self._builder(self._subject, self._key)
            .not_valid_before(self._now - 3 * _AGO)
            .not_valid_after(self._now + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(self._identifier, critical=False)
        )
        self.pem = self._sign(builder)

    def sign(self, name: str, hosts: Sequence[str] = (), *, is_expired: bool = False) -> Certificate:
        """A certificate for servers at `hosts` (names and addresses) and for clients. `is_expired`: since yesterday."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(_name(name), key)
            .not_valid_before(self._now - 2 * _AGO)
            .not_valid_after(self._now - _AGO if is_expired else self._now + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier),
                critical=False,
            )
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(name, self._sign(builder), text.decode())

    def _builder(self, subject: Name, key: ec.EllipticCurvePrivateKey) -> CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
        )

    def _sign(self, builder: CertificateBuilder) -> str:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _name(name: str) -> Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
