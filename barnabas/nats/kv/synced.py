"""A topic's records into a bucket that others write to as well: both sides end with the same value for each key.

A bucket numbers its values one after the other, and the topic takes in what others put, in that order. So the bucket decides
where a record's value belongs between theirs: it is published on the condition that the last revision of its key is one that
stands in front of the record in the topic (Nats-Expected-Last-Subject-Sequence), or one of our own. If there is a newer one, the topic
gets it behind the record, where it replaces the record's value; to publish that now would bring back the older value on one
side alone. The record counts as superseded then. Of a key whose last revision is not known here (after a start), none is
expected, and the bucket is asked when it has one.

Of one key one message at a time is under way. All this is for records in the partition that the bucket's own values of the key
go to; who writes a key to another partition has no order to keep, and is published as it comes. So is what follows a position
that an admin has set, up to the next value from the bucket.

Source: ADR-8 (key-value store), ADR-48 and the server's publish headers.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.headers import find_header
from barnabas.nats.jetstream.api import nanoseconds_of
from barnabas.nats.kv.outgoing import BucketOutgoing
from barnabas.nats.pub_ack import read_ack
from barnabas.nats.reverse.message import HOPS_HEADER, MESSAGE_ID_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.errors import NatsError
    from barnabas.nats.client.subscriptions import Message
    from barnabas.nats.reverse.message import Answer, Outcome
    from barnabas.wire.record_batch import Record

WRONG_LAST_SEQUENCE: Final = (10071, 10164)
MESSAGE_NOT_FOUND: Final = 10037
KEYS_MAX: Final = 100_000  # whose last revision is remembered
TIMEOUT_S: Final = 5.0


class _Sent(msgspec.Struct, gc=False):
    key: bytes
    message: tuple[bytes, bytes, bytes]  # without the condition
    ingested: int  # the last revision in front of the record in the topic
    ingested_ns: int  # when it was stored, 0 if that is not known
    expected: int


class _Stored(msgspec.Struct):
    seq: int = 0
    time: str = ""
    hdrs: str = ""


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Got(msgspec.Struct):
    message: _Stored = msgspec.field(default_factory=_Stored)
    error: _Error | None = None


class SyncedOutgoing(BucketOutgoing):
    """The messages of one partition (an Outgoing)."""

    def __init__(
        self,
        bucket: str,
        domain: str,
        cluster_id: str,
        topic: str,
        partition: int,
        *,
        client: NatsClient,
        stats: CarrierStats,
        is_home: Callable[[bytes], bool],
    ) -> None:
        """`is_home(key)`: whether the bucket's own values of the key go to this partition."""
        super().__init__(bucket, domain, cluster_id, topic, partition)
        self._client = client
        self._stats = stats
        self._is_home = is_home
        self._own_hop = f"{cluster_id}/{topic}".encode()
        self._own_id = f"{cluster_id}/{topic}/{partition}".encode()
        self._get = f"{f'$JS.{domain}.API' if domain else '$JS.API'}.STREAM.MSG.GET.KV_{bucket}".encode()
        self._revisions: dict[bytes, int] = {}  # the oldest first
        self._in_flight: dict[int, _Sent] = {}  # by offset
        self._keys: set[bytes] = set()  # of these
        self._attempt = 0

    def is_ready(self, record: Record) -> bool:
        return record.key not in self._keys

    def message(self, record: Record, *, is_bridged: bool) -> tuple[bytes, bytes, bytes] | None:
        message = super().message(record, is_bridged=is_bridged)
        key = record.key or b""
        if message is None:
            self._remember(key, self._revision)
            return None
        if not self._is_ordered(key):
            return message
        return _on_condition(message, self._revisions.get(key, 0))

    def sent(self, record: Record, message: tuple[bytes, bytes, bytes]) -> None:
        key = record.key or b""
        if self._is_ordered(key):
            subject, block, payload = message
            plain = subject, block[: block.rindex(b"Nats-Expected-")] + b"\r\n", payload
            self._keys.add(key)
            expected = self._revisions.get(key, 0)
            self._in_flight[record.offset] = _Sent(key, plain, self._revision, self._stored_ns, expected)

    def _is_ordered(self, key: bytes) -> bool:
        """Whether it can be told which of the bucket's values stand in front of the record."""
        return self._is_known and self._is_home(key)

    def restart(self, metadata: str | None) -> None:
        super().restart(metadata)
        self._revisions.clear()  # some may stand behind what comes next
        self._in_flight.clear()
        self._keys.clear()
        self._attempt += 1

    def answer(self, offset: int, header_block: bytes, payload: bytes) -> Answer:
        sent = self._in_flight.get(offset)
        ack = read_ack(payload) if sent is not None else None
        if sent is None or ack is None:
            return super().answer(offset, header_block, payload)
        if ack.error is None:
            self._remember(sent.key, ack.seq)
            self._forget(offset, sent)
            return ""
        if ack.error.err_code not in WRONG_LAST_SEQUENCE:
            return super().answer(offset, header_block, payload)
        self._ask(offset, sent)
        return None

    # -- what the bucket has

    def _ask(self, offset: int, sent: _Sent) -> None:
        """Which revision of the key is there, and whose is it?"""
        attempt = self._attempt
        subject = sent.message[0][len(self._domain_prefix) :]

        def told(message: Message | None, error: NatsError | None) -> None:
            if attempt == self._attempt and self._in_flight.get(offset) is sent:
                self.on_settled(offset, self._judge(offset, sent, message, error))

        body = msgspec.json.encode({"last_by_subj": subject.decode()})
        self._client.request(self._get, body, timeout_s=TIMEOUT_S, done=told)

    def _judge(self, offset: int, sent: _Sent, message: Message | None, error: NatsError | None) -> Outcome:
        got = _read(message)
        if got is None or (got.error is not None and got.error.err_code != MESSAGE_NOT_FOUND):
            why = error if got is None or got.error is None else got.error.description
            return f"waiting: the bucket does not tell what it has: {why or 'an answer that cannot be read'}"
        actual = 0 if got.error is not None else got.message.seq
        if actual and _is_behind(sent, got.message) and not self._is_ours(got.message.hdrs, offset):
            self._stats.superseded += 1
            self._forget(offset, sent)
            return ""
        # Expected from now on: it is ours, or stands in front of the record, or was removed.
        sent.expected = actual
        if self._revisions.get(sent.key, 0) > actual:
            self._revisions[sent.key] = actual
        return _on_condition(sent.message, actual)

    def _is_ours(self, encoded: str, offset: int) -> bool:
        """Whether the headers are those of a message that was made of a record before this offset. One behind it has been
        published by a leader before this one, and replaces this record's value as well."""
        try:
            block = base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            return False
        hops = find_header(block, HOPS_HEADER.encode())
        if hops is None or hops.rpartition(b",")[2] != self._own_hop:
            return False
        partition, _, number = (find_header(block, MESSAGE_ID_HEADER.encode()) or b"").rpartition(b"/")
        return partition != self._own_id or not number.isdigit() or int(number[:20]) < offset

    def made_anew(self) -> None:
        self._revisions.clear()
        for sent in self._in_flight.values():  # none of what the bucket holds now stands in front of these
            sent.ingested = sent.ingested_ns = sent.expected = 0

    def _forget(self, offset: int, sent: _Sent) -> None:
        del self._in_flight[offset]
        self._keys.discard(sent.key)

    def _remember(self, key: bytes, revision: int) -> None:
        revisions = self._revisions
        known = revisions.pop(key, 0)
        revisions[key] = max(known, revision)
        if len(revisions) > KEYS_MAX:
            del revisions[next(iter(revisions))]


def _on_condition(message: tuple[bytes, bytes, bytes], revision: int) -> tuple[bytes, bytes, bytes]:
    """The message, to be stored if this is the last revision of its key; 0: if there is none."""
    subject, block, payload = message
    return subject, b"%bNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (block[:-2], revision), payload


def _is_behind(sent: _Sent, last: _Stored) -> bool:
    """Whether the last revision of the key comes, or will come, behind the record in the topic; not of ours alone. In a
    bucket that was made anew numbers are small and times are late."""
    if last.seq > sent.ingested:
        return last.seq > sent.expected
    try:
        return 0 < sent.ingested_ns < nanoseconds_of(last.time)
    except ValueError:
        return False


def _read(message: Message | None) -> _Got | None:
    if message is None:
        return None
    try:
        return msgspec.json.decode(message.payload, type=_Got)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
