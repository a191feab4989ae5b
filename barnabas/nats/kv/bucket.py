"""The messages of a NATS key-value bucket.

A bucket B is the stream KV_B with the subjects $KV.B.>. The rest of the subject is the key, the payload the value and the
sequence the revision. The header KV-Operation is DEL (a delete marker) or PURGE (one that has removed the older revisions);
both are tombstones in Kafka. So is the marker that the server writes when a value expires (Nats-Marker-Reason).

Source: ADR-8 (key-value store), ADR-43 (limit markers).
"""

from __future__ import annotations

import re
from typing import Final

from barnabas.nats.binding.keys import SUBJECT_KEY
from barnabas.nats.client.headers import find_header
from barnabas.nats.records.keys import SUBJECT, KeyFunction

OPERATION_HEADER: Final = b"KV-Operation"
MARKER_HEADER: Final = b"Nats-Marker-Reason"
REMOVALS: Final = (b"DEL", b"PURGE")
MARKERS: Final = (b"MaxAge", b"Purge", b"Remove")

_KEY: Final = re.compile(rb"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*")


def stream_of(bucket: str) -> str:
    """The name of the bucket's stream."""
    return f"KV_{bucket}"


def subject_prefix(bucket: str) -> bytes:
    """The part of a subject before the key."""
    return f"$KV.{bucket}.".encode()


def key_of(subject: bytes) -> bytes:
    """The key of a message, from its subject."""
    return subject.split(b".", 2)[2] if subject.count(b".") >= 2 else b""


def bucket_key() -> KeyFunction:
    """The key function of records from a bucket."""
    return KeyFunction(SUBJECT_KEY, SUBJECT, key_of)


def is_removal(header_block: bytes) -> bool:
    """Whether a message removes the key."""
    if not header_block:
        return False
    return (
        find_header(header_block, OPERATION_HEADER) in REMOVALS
        or find_header(header_block, MARKER_HEADER) in MARKERS
    )


def value_of(header_block: bytes, payload: bytes) -> bytes | None:
    """The value of a message's record; None for a tombstone."""
    return None if is_removal(header_block) else payload


def key_problem(key: bytes | None) -> str:
    """Why a bucket can't have this key; "" when it can."""
    if key is None:
        return "it has no key, which a bucket needs"
    if not _KEY.fullmatch(key):
        return (
            f"a bucket can't have the key {key[:100]!r}: NATS takes letters, digits, - / _ = and single dots between "
            "them"
        )
    return ""
