"""The lines that a client sends (docs.nats.io, "Client Protocol"; headers: ADR-4)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from barnabas.nats.client.server_info import shown


def connect_line(options: Mapping[str, object]) -> bytes:
    """CONNECT with these options (user, pass, verbose, ...)."""
    return b"CONNECT %b\r\n" % msgspec.json.encode(options)


def sub_line(subject: bytes, subscription_id: bytes, queue: bytes = b"") -> bytes:
    """SUB; ValueError for a subject or queue group that would be several words."""
    _check_word(subject)
    if queue:
        _check_word(queue)
        return b"SUB %b %b %b\r\n" % (subject, queue, subscription_id)
    return b"SUB %b %b\r\n" % (subject, subscription_id)


def unsub_line(subscription_id: bytes) -> bytes:
    """UNSUB, at once."""
    return b"UNSUB %b\r\n" % subscription_id


def pub(subject: bytes, payload: bytes, reply: bytes = b"", headers: bytes = b"") -> bytes:
    """PUB, or HPUB when `headers` is a block (b"NATS/1.0\\r\\nName: value\\r\\n\\r\\n"). ValueError for a subject that is none:
    empty or of several words, which the server would take for something else."""
    _check_word(subject)
    if reply:
        _check_word(reply)
        subject = b"%b %b" % (subject, reply)
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)
    header_bytes = len(headers)
    total_bytes = header_bytes + len(payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, header_bytes, total_bytes, headers, payload)


def _check_word(word: bytes) -> None:
    if word.split() != [word]:
        raise ValueError(f"{shown(word)} is no NATS subject: it is empty or has blanks")
