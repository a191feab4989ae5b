"""Certificates for tests: authorities, and what they sign, as files in PEM."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


class Certificate:
    """A certificate with its private key and the certificates up to its authority."""

    def __init__(self, certificate: x509.Certificate, key: CertificateIssuerPrivateKeyTypes) -> None:
        self.certificate = certificate
        self.key = key

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def key_pem(self, password: str = "") -> str:
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ).decode()

    def write(self, path: Path, password: str = "") -> Path:
        """A key store in PEM: the key, then the certificate."""
        path.write_text(self.key_pem(password) + self.pem)
        path.chmod(0o600)
        return path


def subject(name: str | x509.Name) -> x509.Name:
    return name if isinstance(name, x509.Name) else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority(Certificate):
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject(name))
            .issuer_name(subject(name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - DAY)
            .not_valid_after(NOW + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        super().__init__(certificate, key)

    def write_anchors(self, path: Path) -> Path:
        """A trust store in PEM."""
        path.write_text(self.pem)
        return path

    def sign(
        self,
        name: str | x509.Name,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        *,
        is_expired: bool = False,
        is_rsa: bool = False,
    ) -> Certificate:
        """A certificate for `name` (CN, or a whole name) and hosts."""
        key: CertificateIssuerPrivateKeyTypes = (
            rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject(name))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 10 * DAY)
            .not_valid_after(NOW - DAY if is_expired else NOW + 20 * DAY)
        )
        if hosts:
            names = [x509.SubjectAlternativeName(map(_general_name, hosts))]
            builder = builder.add_extension(names[0], critical=False)
        return Certificate(builder.sign(self.key, hashes.SHA256()), key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
