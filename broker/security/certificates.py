"""X.509 certificates: the subject's name and the alternative names, read from DER.

`ssl.SSLSocket.getpeercert()` loses the order and the encoding of names, and Kafka's principals are the exact text that Java
prints (RFC 2253), so the few fields that are needed are read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

# Attribute types that RFC 2253 names. Others are printed as OID=#DER.
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_TEXT_TAGS: Final = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E)  # UTF8, Printable, T61, IA5, General, BMP
_ESCAPED: Final = ',=+<>#;"\\'
_INTEGER, _OCTETS, _OBJECT_ID, _SEQUENCE, _SET = 0x02, 0x04, 0x06, 0x30, 0x31
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_DNS, _URI, _MAIL, _ADDRESS = 0x82, 0x86, 0x81, 0x87


class CertificateError(ValueError):
    """Bytes that are no certificate."""


class Element(NamedTuple):
    """One element of DER: its tag, the whole of it and its content."""

    tag: int
    whole: memoryview
    content: memoryview


def elements(data: memoryview) -> Iterator[Element]:
    """The elements that lie one behind the other in `data`. CertificateError when it is not DER."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise CertificateError("a truncated element")
        length, start = data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or start + count > len(data):
                raise CertificateError("a length that is not DER")
            length = int.from_bytes(data[start : start + count], "big")
            start += count
        stop = start + length
        if stop > len(data):
            raise CertificateError("a truncated element")
        yield Element(data[at], data[at:stop], data[start:stop])
        at = stop


def sequence(data: memoryview) -> list[Element]:
    """The elements of the one SEQUENCE that `data` is."""
    outer = list(elements(data))
    if len(outer) != 1 or outer[0].tag != _SEQUENCE:
        raise CertificateError("no SEQUENCE")
    return list(elements(outer[0].content))


def object_id(content: memoryview) -> str:
    """The dotted text of an OBJECT IDENTIFIER."""
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise CertificateError("an empty OBJECT IDENTIFIER")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def subject_name(certificate: bytes) -> str:
    """The subject as Java's X500Principal prints it: RFC 2253, the last RDN first."""
    names = [_relative_name(each) for each in elements(_subject(certificate))]
    return ",".join(reversed(names))


def alternative_names(certificate: bytes) -> frozenset[str]:
    """The subject's alternative names, each with its type: `DNS:localhost`, `IP:127.0.0.1`."""
    for each in _body(certificate):
        if each.tag == _EXTENSIONS:
            for extension in sequence(each.content):
                parts = list(elements(extension.content))
                if parts and object_id(parts[0].content) == _ALTERNATIVE_NAMES:
                    return frozenset(map(_alternative_name, sequence(parts[-1].content)))
    return frozenset()


def _body(certificate: bytes) -> list[Element]:
    """The fields of the signed part."""
    outer = sequence(memoryview(certificate))
    if not outer:
        raise CertificateError("an empty certificate")
    return list(elements(outer[0].content))


def _subject(certificate: bytes) -> memoryview:
    fields = _body(certificate)
    index = 5 if fields and fields[0].tag == _VERSION else 4  # behind serial, algorithm, issuer and validity
    if len(fields) <= index or fields[index].tag != _SEQUENCE:
        raise CertificateError("a certificate without a subject")
    return fields[index].content


def _relative_name(element: Element) -> str:
    if element.tag != _SET:
        raise CertificateError("a name that is not made of sets")
    return "+".join(map(_attribute, elements(element.content)))


def _attribute(element: Element) -> str:
    parts = list(elements(element.content))
    if len(parts) != 2 or parts[0].tag != _OBJECT_ID:
        raise CertificateError("a name's attribute without a type or a value")
    kind, value = object_id(parts[0].content), parts[1]
    if kind not in _KEYWORDS or value.tag not in _TEXT_TAGS:
        return f"{_KEYWORDS.get(kind, kind)}=#{value.whole.hex()}"
    return f"{_KEYWORDS[kind]}={_escaped(bytes(value.content).decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    trail = len(text) - lead - len(inner)
    escaped = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in inner)
    return "\\ " * lead + escaped + "\\ " * trail


def _alternative_name(element: Element) -> str:
    content = bytes(element.content)
    if element.tag == _ADDRESS and len(content) in (4, 16):
        from ipaddress import ip_address  # late: slow to import

        return f"IP:{ip_address(content)}"
    kind = {_DNS: "DNS", _URI: "URI", _MAIL: "email"}.get(element.tag)
    if kind is None:
        return f"{element.tag & 0x1F}:#{content.hex()}"
    return f"{kind}:{content.decode('latin-1')}"
