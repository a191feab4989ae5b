"""The subject that a record is published to, from the template of nats.publish.subject.

Keys and headers hold any bytes, subjects do not. These bytes of a value become "%" and two hexadecimal digits, so that two
values never give one subject, and the value can be restored:

    blanks and control bytes, "*", ">", "%"; a dot that would make an empty token (the first, the last, one after
    another); in values that are not UTF-8, every byte from 80 on

Other dots stay, so a key that was a subject is one again. In a subject that begins like the server's own ("$...",
"_INBOX.", ...) the first byte is escaped: otherwise a record could call the server's API. A record with an empty or missing
value has no subject.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from barnabas.nats.binding.templates import PublishTemplate, is_internal_subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.wire.records import Record

SUBJECT_BYTES_MAX: Final = 3500  # a server takes lines of 4096 bytes by default

_PLAIN: Final = re.compile(rb"[!-$&-)+\-/-=?-~]+(?:\.[!-$&-)+\-/-=?-~]+)*")
_UNSAFE: Final = re.compile(rb"[\x00-\x20\x7f%*>]|^\.|\.$|(?<=\.)\.")
_UNSAFE_BINARY: Final = re.compile(rb"[\x00-\x20\x7f-\xff%*>]|^\.|\.$|(?<=\.)\.")


class Unpublishable(Exception):
    """A record can't become a message. The text tells the administrator why."""


def escape_value(value: bytes) -> bytes:
    """A value as a part of a subject."""
    if _PLAIN.fullmatch(value):
        return value
    try:
        value.decode()
        unsafe = _UNSAFE
    except UnicodeDecodeError:
        unsafe = _UNSAFE_BINARY
    return unsafe.sub(lambda found: b"%%%02X" % found[0][0], value)


def compile_subject(template: PublishTemplate, topic: str) -> Callable[[int, Record], bytes]:
    """A function (partition number, record) -> subject. It raises Unpublishable."""
    pieces = [
        ("text", topic.encode()) if kind == "topic" else (kind, text.encode())
        for kind, text in template.parts
    ]
    if all(kind == "text" for kind, _ in pieces):
        only = b"".join(text for _, text in pieces)
        return lambda _partition, _record: only

    def subject_of(partition: int, record: Record) -> bytes:
        found: list[bytes] = []
        for kind, text in pieces:
            if kind == "text":
                found.append(text)
            elif kind == "partition":
                found.append(b"%d" % partition)
            else:
                value = record.key if kind == "key" else _header(record, text)
                if not value:
                    raise Unpublishable(_missing(kind, text, value))
                found.append(escape_value(value))
        subject = b"".join(found)
        if is_internal_subject(subject):
            subject = b"%%%02X" % subject[0] + subject[1:]
        check_size(subject)
        return subject

    return subject_of


def check_size(subject: bytes) -> None:
    """Raises Unpublishable for a subject that a server does not take."""
    if len(subject) > SUBJECT_BYTES_MAX:
        raise Unpublishable(f"its subject would have {len(subject)} bytes, more than {SUBJECT_BYTES_MAX}")


def _header(record: Record, name: bytes) -> bytes | None:
    """The last header of the name, as `lastHeader` of Kafka's clients."""
    wanted = name.decode()
    return next((value for header, value in reversed(record.headers) if header == wanted), None)


def _missing(kind: str, name: bytes, value: bytes | None) -> str:
    what = "key" if kind == "key" else f"header {name.decode()}"
    how = "no" if value is None else "an empty"
    return f"it has {how} {what}, which nats.publish.subject puts into the subject"
