"""The messages that a publishing binding makes of records: headers and payload; subjects are made in reverse/subject.py.

`SubjectOutgoing` is for nats.publish.subject; kv/outgoing.py has the one for key-value buckets.

Headers of the message, in this order:

    the record's own, names and values as they are, in their order
    Kafka-Header     in the place of one that NATS can't hold or that a stream would obey: `name=value`, both
                     percent-encoded; `name` alone when the value is null
    Kafka-Tombstone  true, when the record has a null value; the payload is empty then
    Barnabas-Hops    the topics that it has come through, "cluster/topic" with commas between, this one last; a
                     binding does not take a message that has been in its topic before
    Nats-Msg-Id      "cluster/topic/partition/offset", by which a stream recognizes a duplicate

Headers that ingress has added to a message from NATS (nats.subject, nats.reply, ...) are removed again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote_from_bytes, unquote_to_bytes

from barnabas.nats.pub_ack import failure_of
from barnabas.nats.records.parts import (
    REPLY_HEADER,
    SEQUENCE_HEADER,
    STATUS_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
)
from barnabas.nats.reverse.subject import compile_subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.binding.templates import PublishTemplate
    from barnabas.wire.record_batch import Record

HOPS_HEADER: Final = "Barnabas-Hops"
ESCAPED_HEADER: Final = "Kafka-Header"
TOMBSTONE_HEADER: Final = "Kafka-Tombstone"
MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"

# What the ingest writes in front of a message's own headers: the first one always, then some of the others.
_FIRST_ADDED: Final = SUBJECT_HEADER.decode()
_ALSO_ADDED: Final = tuple(
    each.decode() for each in (REPLY_HEADER, STREAM_HEADER, SEQUENCE_HEADER, TIMESTAMP_HEADER, STATUS_HEADER)
)
# In lower case. What a stream obeys would be obeyed again, by another stream; and what we say ourselves can't be said
# by a record.
_RESERVED: Final = frozenset(
    each.lower()
    for each in (
        ESCAPED_HEADER,
        TOMBSTONE_HEADER,
        MESSAGE_ID_HEADER,
        "KV-Operation",
        "Nats-Rollup",
        "Nats-TTL",
        "Nats-Incr",
        "Nats-Marker-Reason",
        "Nats-Required-Api-Level",
    )
)
_RESERVED_PREFIXES: Final = ("nats-expected-", "nats-batch-", "nats-schedule")

_NAME: Final = re.compile(r"[!-9;-~]+")  # visible ASCII without ":"
# Clients take blanks away from the ends of a value, and no control character is safe with all of them.
_VALUE: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_FIRST_LINE: Final = b"NATS/1.0\r\n"
_NAMES_KEPT_MAX: Final = 1024


class MessageHeaders:
    """The header blocks of one partition's records."""

    def __init__(self, cluster_id: str, topic: str, partition: int) -> None:
        self._own_hop = f"{cluster_id}/{topic}".encode()
        message_id = f"{MESSAGE_ID_HEADER}: {cluster_id}/{topic}/{partition}/".encode()
        self._message_id = message_id
        hops = f"{HOPS_HEADER}: ".encode()
        self._usual = _FIRST_LINE + hops + self._own_hop + b"\r\n" + message_id
        self._names: dict[str, bytes | None] = {}  # name: and a blank; None for those that need a closer look

    def block(self, record: Record, *, removal: bytes = b"Kafka-Tombstone: true\r\n") -> bytes:
        """The header block of a record's message; with `removal`, lines of headers, when it has a null value."""
        if not record.headers and record.value is not None:
            return b"%b%d\r\n\r\n" % (self._usual, record.offset)
        lines = [_FIRST_LINE]
        hops = self._own_hop
        for name, value in own_headers(record.headers):
            known = self._names.get(name)
            if known is None:
                if name == HOPS_HEADER and value is not None and _VALUE.fullmatch(value):
                    hops = value + b"," + self._own_hop
                    continue
                known = self._learn(name)
            if known is None or value is None or not _VALUE.fullmatch(value):
                lines.append(escaped_header(name, value))
            else:
                lines.append(b"%b%b\r\n" % (known, value))
        if record.value is None:
            lines.append(removal)
        lines.append(
            b"%b: %b\r\n%b%d\r\n\r\n" % (HOPS_HEADER.encode(), hops, self._message_id, record.offset)
        )
        return b"".join(lines)

    def _learn(self, name: str) -> bytes | None:
        lower = name.lower()
        if (
            lower in _RESERVED
            or lower == HOPS_HEADER.lower()
            or lower.startswith(_RESERVED_PREFIXES)
            or not _NAME.fullmatch(name)
        ):
            return None
        if len(self._names) >= _NAMES_KEPT_MAX:
            self._names.clear()
        known = self._names[name] = f"{name}: ".encode()
        return known


def own_headers(headers: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Without those that the ingest has put in front."""
    if not headers or headers[0][0] != _FIRST_ADDED:
        return headers
    start, end = 1, len(headers)
    for name in _ALSO_ADDED:
        if start < end and headers[start][0] == name:
            start += 1
    return headers[start:]


def escaped_header(name: str, value: bytes | None) -> bytes:
    """The line of a header that NATS can't hold."""
    escaped = f"{ESCAPED_HEADER}: {quote_from_bytes(name.encode(), safe='')}"
    if value is not None:
        escaped += f"={quote_from_bytes(value, safe='')}"
    return f"{escaped}\r\n".encode()


def unescape_header(value: bytes) -> tuple[str, bytes | None]:
    """The name and value of the record's header that the value of a Kafka-Header stands for."""
    name, equals, rest = value.partition(b"=")
    return unquote_to_bytes(name).decode(errors="replace"), unquote_to_bytes(rest) if equals else None


# Of a message: "" it is dealt with, a state (`waiting: <why>`) that it is not, or what to publish instead.
Outcome: TypeAlias = "str | tuple[bytes, bytes, bytes]"
Answer: TypeAlias = "Outcome | None"  # None: `on_settled` tells


class Outgoing:
    """The messages of one partition. Records come in their order, again after `restart`."""

    def __init__(self) -> None:
        self.on_settled: Callable[[int, Outcome], object] = lambda _offset, _outcome: None

    def message(self, record: Record, *, is_bridged: bool) -> tuple[bytes, bytes, bytes] | None:
        """(subject, header block, payload); None when the record is not to be published. Raises Unpublishable.
        `is_bridged`: it is a stream's message, written by the ingest."""
        raise NotImplementedError

    def is_ready(self, record: Record) -> bool:  # noqa: ARG002 - for who has a reason to wait
        """False as long as the record has to wait for the acknowledgement of one before it."""
        return True

    def sent(self, record: Record, message: tuple[bytes, bytes, bytes]) -> None:
        """It is in flight."""

    def answer(self, offset: int, header_block: bytes, payload: bytes) -> Answer:  # noqa: ARG002
        """What a stream's answer to the message of this offset means."""
        return failure_of(header_block, payload)

    def restart(self, metadata: str | None) -> None:
        """Nothing is in flight; what comes next is the record behind a position with this metadata, or the first of all
        (None)."""

    def metadata(self, offset: int) -> str:  # noqa: ARG002
        """To be kept with the position `offset`, which never goes back but by `restart`."""
        return ""


class SubjectOutgoing(Outgoing):
    """Every record goes to the subject of the template."""

    def __init__(self, template: PublishTemplate, cluster_id: str, topic: str, partition: int) -> None:
        super().__init__()
        self._partition = partition
        self._subject = compile_subject(template, topic)
        self._block = MessageHeaders(cluster_id, topic, partition).block

    def message(
        self,
        record: Record,
        *,
        is_bridged: bool,  # noqa: ARG002 - all are published
    ) -> tuple[bytes, bytes, bytes] | None:
        return self._subject(self._partition, record), self._block(record), record.value or b""
