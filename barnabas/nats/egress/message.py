"""Messages made of records: headers and payload (egress/subject.py makes the subject).

`SubjectOutgoing` is for nats.publish.subject; kv/outgoing.py has the one for key-value buckets.

Headers of the message, in this order:

    the record's own headers, unchanged and in their order
    Kafka-Header     replaces a header that NATS can't hold or that a stream would act on: `name=value`, both
                     percent-encoded; only `name` when the value is null
    Kafka-Tombstone  true when the record's value is null; the payload is empty then
    Barnabas-Hops    the topics that the message has passed through, `cluster/topic` separated by commas, this one
                     last; a binding ignores a message that was in its topic before
    Nats-Msg-Id      `topic id/partition/offset`, by which a stream detects duplicates. The id: a topic that is created again
                     begins with the same offsets

Headers that ingress has added to a message from NATS (nats.subject, nats.reply, ...) are removed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote_from_bytes

from barnabas.nats.egress.subject import compile_subject
from barnabas.nats.pub_ack import failure_of
from barnabas.nats.records.parts import (
    REPLY_HEADER,
    SEQUENCE_HEADER,
    STATUS_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
)
from barnabas.wire.uuids import uuid_to_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.binding.templates import PublishTemplate
    from barnabas.wire.records import Record

HOPS_HEADER: Final = "Barnabas-Hops"
ESCAPED_HEADER: Final = "Kafka-Header"
TOMBSTONE_HEADER: Final = "Kafka-Tombstone"
MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"

# What ingress writes in front of a message's own headers: always the first one, then some of the others.
_FIRST_ADDED: Final = SUBJECT_HEADER.decode()
_ALSO_ADDED: Final = tuple(
    each.decode() for each in (REPLY_HEADER, STREAM_HEADER, SEQUENCE_HEADER, TIMESTAMP_HEADER, STATUS_HEADER)
)
# In lower case: headers that a stream acts on (another stream would act on them again), and those that are added here.
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
# Clients strip blanks at the ends of a value, and not all of them accept control characters.
_VALUE: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_FIRST_LINE: Final = b"NATS/1.0\r\n"
_NAMES_KEPT_MAX: Final = 1024


class MessageHeaders:
    """The header blocks of one partition's records."""

    def __init__(self, cluster_id: str, topic: str, topic_id: bytes, partition: int) -> None:
        self._own_hop = f"{cluster_id}/{topic}".encode()
        message_id = f"{MESSAGE_ID_HEADER}: {uuid_to_string(topic_id)}/{partition}/".encode()
        self._message_id = message_id
        hops = f"{HOPS_HEADER}: ".encode()
        self._usual = _FIRST_LINE + hops + self._own_hop + b"\r\n" + message_id
        self._encoded_names: dict[str, bytes] = {}  # with the colon and a blank

    def block(self, record: Record, *, removal: bytes = b"Kafka-Tombstone: true\r\n") -> bytes:
        """The header block of a record's message. `removal`: header lines that are added when the value is null."""
        if not record.headers and record.value is not None:
            return b"%b%d\r\n\r\n" % (self._usual, record.offset)
        lines = [_FIRST_LINE]
        hops = self._own_hop
        for name, value in own_headers(record.headers):
            encoded = self._encoded_names.get(name)
            if encoded is None:
                if name == HOPS_HEADER and value is not None and _VALUE.fullmatch(value):
                    hops = value + b"," + self._own_hop
                    continue
                encoded = self._encode_name(name)
            if encoded is None or value is None or not _VALUE.fullmatch(value):
                lines.append(escaped_header(name, value))
            else:
                lines.append(b"%b%b\r\n" % (encoded, value))
        if record.value is None:
            lines.append(removal)
        lines.append(
            b"%b: %b\r\n%b%d\r\n\r\n" % (HOPS_HEADER.encode(), hops, self._message_id, record.offset)
        )
        return b"".join(lines)

    def _encode_name(self, name: str) -> bytes | None:
        """None for a name that must be escaped."""
        lower = name.lower()
        if (
            lower in _RESERVED
            or lower == HOPS_HEADER.lower()
            or lower.startswith(_RESERVED_PREFIXES)
            or not _NAME.fullmatch(name)
        ):
            return None
        if len(self._encoded_names) >= _NAMES_KEPT_MAX:
            self._encoded_names.clear()
        encoded = self._encoded_names[name] = f"{name}: ".encode()
        return encoded


def own_headers(headers: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """The headers without those that ingress has written in front of them."""
    if not headers or headers[0][0] != _FIRST_ADDED:
        return headers
    start, end = 1, len(headers)
    for name in _ALSO_ADDED:
        if start < end and headers[start][0] == name:
            start += 1
    return headers[start:]


def escaped_header(name: str, value: bytes | None) -> bytes:
    """The Kafka-Header line for a header that NATS can't hold."""
    escaped = f"{ESCAPED_HEADER}: {quote_from_bytes(name.encode(), safe='')}"
    if value is not None:
        escaped += f"={quote_from_bytes(value, safe='')}"
    return f"{escaped}\r\n".encode()


PublishedMessage: TypeAlias = tuple[bytes, bytes, bytes]  # subject, header block, payload
# Of a message: "" when it is acknowledged or superseded, a state (`waiting: <why>`) after a failure, or the message to
# publish in its place.
Outcome: TypeAlias = str | PublishedMessage
Settled: TypeAlias = "Callable[[int, Outcome], object]"  # offset, outcome


class Outgoing(ABC):
    """Makes the messages of one partition and reads the answers to them. Records come in the order of their offsets, and
    again after `restart`. The methods that are not abstract are for messages without conditions or position metadata."""

    @abstractmethod
    def message(self, record: Record, *, is_bridged: bool) -> PublishedMessage | None:
        """The record's message; None when the record is not published. Raises Unpublishable. `is_bridged`: its batch was
        written by ingress from a stream."""

    def is_ready(self, record: Record) -> bool:  # noqa: ARG002
        """False while the record must wait for the acknowledgement of an earlier one."""
        return True

    def sent(self, record: Record, message: PublishedMessage) -> None:  # noqa: B027
        """The record's message is in flight."""

    def answer(self, offset: int, header_block: bytes, payload: bytes, settled: Settled) -> None:
        """Reads a stream's answer to the message of this offset and calls `settled`, perhaps later."""
        settled(offset, failure_of(header_block, payload))

    def restart(self, metadata: str | None) -> None:  # noqa: B027
        """Nothing is in flight any more. The next record is the one at a position with this metadata; None: the first
        record of all."""

    def metadata(self, offset: int) -> str:  # noqa: ARG002
        """Metadata to be committed with the position `offset`. Offsets grow until `restart`."""
        return ""


class SubjectOutgoing(Outgoing):
    """Publishes every record to the subject of the template."""

    def __init__(
        self, template: PublishTemplate, cluster_id: str, topic: str, topic_id: bytes, partition: int
    ) -> None:
        self._partition = partition
        self._subject = compile_subject(template, topic)
        self._block = MessageHeaders(cluster_id, topic, topic_id, partition).block

    def message(self, record: Record, *, is_bridged: bool) -> PublishedMessage | None:  # noqa: ARG002
        return self._subject(self._partition, record), self._block(record), record.value or b""
