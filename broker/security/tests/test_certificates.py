"""Names in certificates, against what Java's X500Principal.getName() prints for the same certificates."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.certificates import CertificateError, alternative_names, subject_name
from compat_tests.harness.certificates import Authority

AUTHORITY = Authority()


def name(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])


def multiple(*names: x509.Name) -> x509.Name:
    """A name whose RDNs have the attributes of one name each."""
    return x509.Name([x509.RelativeDistinguishedName(list(each)) for each in names])


@pytest.mark.parametrize(
    ("subject", "java"),
    [
        (
            name(
                (NameOID.COUNTRY_NAME, "DE"),
                (NameOID.ORGANIZATION_NAME, "Acme, Inc."),
                (NameOID.COMMON_NAME, 'Jürgen "x" <y>;=#+\\'),
            ),
            r"CN=Jürgen \"x\" \<y\>\;\=\#\+\\,O=Acme\, Inc.,C=DE",
        ),
        (
            name(
                (NameOID.COMMON_NAME, " lead"),
                (NameOID.ORGANIZATIONAL_UNIT_NAME, "trail  "),
                (NameOID.LOCALITY_NAME, "#hash"),
            ),
            r"L=\#hash,OU=trail\ \ ,CN=\ lead",
        ),
        (
            multiple(
                name((NameOID.COMMON_NAME, "a"), (NameOID.USER_ID, "u")),
                name((NameOID.EMAIL_ADDRESS, "a@b.c")),
                name((NameOID.DOMAIN_COMPONENT, "example")),
            ),
            "DC=example,1.2.840.113549.1.9.1=#16056140622e63,CN=a+UID=u",
        ),
        (
            name(
                (NameOID.STREET_ADDRESS, "s"),
                (NameOID.STATE_OR_PROVINCE_NAME, "st"),
                (NameOID.SERIAL_NUMBER, "12"),
                (NameOID.TITLE, "Dr"),
            ),
            "2.5.4.12=#0c024472,2.5.4.5=#13023132,ST=st,STREET=s",
        ),
        (name((NameOID.COMMON_NAME, "日本 語")), "CN=日本 語"),
        (name((NameOID.COMMON_NAME, "a\0b")), r"CN=a\00b"),
        (name((NameOID.COMMON_NAME, "a\nb")), "CN=a\nb"),
    ],
)
def test_a_subject_is_printed_as_in_java(subject: x509.Name, java: str) -> None:
    assert subject_name(AUTHORITY.sign(subject).der) == java


def test_alternative_names() -> None:
    certificate = AUTHORITY.sign("broker", ["localhost", "127.0.0.1", "::1"])
    assert alternative_names(certificate.der) == {"DNS:localhost", "IP:127.0.0.1", "IP:::1"}
    assert alternative_names(AUTHORITY.sign("broker", []).der) == set()


CERTIFICATE = AUTHORITY.sign("broker").der


@given(st.integers(0, len(CERTIFICATE) - 1), st.integers(0, 255), st.integers(0, len(CERTIFICATE)))
def test_damaged_certificates_are_errors_of_their_own(at: int, byte: int, length: int) -> None:
    damaged = bytearray(CERTIFICATE[:length])
    if at < len(damaged):
        damaged[at] = byte
    for read in (subject_name, alternative_names):
        try:
            read(bytes(damaged))
        except CertificateError:
            pass
