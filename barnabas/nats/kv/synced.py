"""A topic's records into a bucket that NATS clients write to as well: both end with the same value for each key.

A bucket gives its values revisions, and the topic takes the values of others in that order. So the bucket's order decides: a
record is published on the condition (Nats-Expected-Last-Subject-Sequence) that the last revision of its key is before the
record in the topic, or was published from this topic. If the bucket has a newer value, that one follows the record in the
topic and replaces it there; publishing the record then would restore the older value in the bucket alone. Such a record is
superseded and not published. After a start the last revision of a key is unknown; the record is published on the condition
that the key has none, and if it has one, the bucket is asked for it.

One message of a key is in flight at a time. All of this holds for records in the partition that the bucket's values of the
key go to. A record with the same key in another partition has no order to keep and is published without a condition; so are
records behind a position that an administrator has set, up to the next value from the bucket.

Source: ADR-8 (key-value store), ADR-48 and the server's publish headers.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.headers import find_header
from barnabas.nats.egress.message import HOPS_HEADER, MESSAGE_ID_HEADER
from barnabas.nats.jetstream.api import (
    MESSAGE_NOT_FOUND,
    JetStreamApi,
    JetStreamError,
    StoredMessage,
    nanoseconds_of,
)
from barnabas.nats.kv.bucket import stream_of, subject_prefix
from barnabas.nats.kv.outgoing import BucketOutgoing
from barnabas.nats.pub_ack import read_ack
from barnabas.nats.records.partitioners import compile_partitioner
from barnabas.wire.uuids import uuid_to_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.errors import NatsError
    from barnabas.nats.egress.message import Outcome, PublishedMessage, Settled
    from barnabas.wire.records import Record

WRONG_LAST_SEQUENCE: Final = (10071, 10164)
KEYS_MAX: Final = 100_000  # whose last revision is remembered


class BucketMessages:
    """Makes the Outgoing of each partition of a topic that is published to a bucket."""

    def __init__(self, binding: Binding, host: ExtensionHost, client: NatsClient) -> None:
        self._binding = binding
        self._host = host
        self._client = client
        self._partition_count = 1
        self._partition_of = compile_partitioner(binding.partitioner, 1)

    def __call__(self, partition: Partition, stats: CarrierStats) -> BucketOutgoing:
        binding, client = self._binding, self._client
        domain, cluster_id = client.settings.jetstream_domain, self._host.cluster_id
        if not binding.ingests:
            return BucketOutgoing(
                binding.bucket, domain, cluster_id, binding.topic, partition.topic_id, partition.partition
            )
        return SyncedOutgoing(
            binding.bucket,
            domain,
            cluster_id,
            binding.topic,
            partition.topic_id,
            partition.partition,
            client=client,
            stats=stats,
            is_home=lambda key: self._home_of(key) == partition.partition,
        )

    def _home_of(self, key: bytes) -> int:
        """The partition that the bucket's values of this key go to; -1 without the topic."""
        topic = self._host.controller.image.topics.get(self._binding.topic)
        if topic is None:
            return -1
        count = len(topic.partitions)
        if count != self._partition_count:
            self._partition_count = count
            self._partition_of = compile_partitioner(self._binding.partitioner, count)
        return self._partition_of(subject_prefix(self._binding.bucket) + key, key)


class _Sent(msgspec.Struct, gc=False):
    key: bytes
    message: PublishedMessage  # without the condition
    ingested: int  # the last revision before the record in the topic
    ingested_ns: int  # when it was stored; 0: unknown
    expected: int  # the revision in the condition


class SyncedOutgoing(BucketOutgoing):
    """The messages of one partition, each on the condition that it is newer than the bucket's value."""

    def __init__(
        self,
        bucket: str,
        domain: str,
        cluster_id: str,
        topic: str,
        topic_id: bytes,
        partition: int,
        *,
        client: NatsClient,
        stats: CarrierStats,
        is_home: Callable[[bytes], bool],
    ) -> None:
        """`is_home(key)`: whether the bucket's values of the key go to this partition."""
        super().__init__(bucket, domain, cluster_id, topic, topic_id, partition)
        self._api = JetStreamApi(client, domain)
        self._bucket_stream = stream_of(bucket)
        self._stats = stats
        self._is_home = is_home
        self._own_hop = f"{cluster_id}/{topic}".encode()
        self._own_id = f"{uuid_to_string(topic_id)}/{partition}".encode()

        self._revisions: dict[bytes, int] = {}  # the last known one of each key, the oldest first
        self._in_flight: dict[int, _Sent] = {}  # by offset
        self._keys: set[bytes] = set()  # of the messages in flight
        self._attempt = 0

    def is_ready(self, record: Record) -> bool:
        return record.key not in self._keys

    def message(self, record: Record, *, is_bridged: bool) -> PublishedMessage | None:
        message = super().message(record, is_bridged=is_bridged)
        key = record.key or b""
        if message is None:
            self._remember(key, self._revision)
            return None
        if not self._is_ordered(key):
            return message
        return _on_condition(message, self._revisions.get(key, 0))

    def sent(self, record: Record, message: PublishedMessage) -> None:
        key = record.key or b""
        if self._is_ordered(key):
            subject, block, payload = message
            plain = subject, block[: block.rindex(b"Nats-Expected-")] + b"\r\n", payload
            self._keys.add(key)
            expected = self._revisions.get(key, 0)
            self._in_flight[record.offset] = _Sent(key, plain, self._revision, self._stored_ns, expected)

    def _is_ordered(self, key: bytes) -> bool:
        """Whether it is known which of the bucket's values of this key are before the next record."""
        return self._is_known and self._is_home(key)

    def restart(self, metadata: str | None) -> None:
        super().restart(metadata)
        self._revisions.clear()  # some may belong behind the next record
        self._in_flight.clear()
        self._keys.clear()
        self._attempt += 1

    def answer(self, offset: int, header_block: bytes, payload: bytes, settled: Settled) -> None:
        sent = self._in_flight.get(offset)
        ack = read_ack(payload) if sent is not None else None
        if sent is not None and ack is not None and ack.error is None:
            self._remember(sent.key, ack.seq)
            self._forget(offset, sent)
            settled(offset, "")
        elif sent is not None and ack is not None and ack.error and ack.error.err_code in WRONG_LAST_SEQUENCE:
            self._fetch_value(offset, sent, settled)
        else:
            super().answer(offset, header_block, payload, settled)

    # -- the bucket's value of a key

    def _fetch_value(self, offset: int, sent: _Sent, settled: Settled) -> None:
        """Asks the bucket for the last value of the message's key, and decides."""
        attempt = self._attempt
        subject = sent.message[0][len(self._domain_prefix) :]

        def fetched(last: StoredMessage | None, error: NatsError | None) -> None:
            if attempt == self._attempt and self._in_flight.get(offset) is sent:
                settled(offset, self._decide(offset, sent, last, error))

        self._api.last_message(self._bucket_stream, subject.decode(), fetched)

    def _decide(
        self, offset: int, sent: _Sent, last: StoredMessage | None, error: NatsError | None
    ) -> Outcome:
        """Publish with another condition, or drop the record because the bucket's value is newer."""
        has_none = isinstance(error, JetStreamError) and error.err_code == MESSAGE_NOT_FOUND
        if last is None and not has_none:
            return f"waiting: the bucket's value of the key can't be read: {error}"
        actual = last.seq if last is not None else 0
        if last is not None and actual and _is_newer(sent, last) and not self._is_ours(last.hdrs, offset):
            self._stats.superseded += 1
            self._forget(offset, sent)
            return ""
        sent.expected = actual  # it was published from here, or is before the record, or was removed
        if self._revisions.get(sent.key, 0) > actual:
            self._revisions[sent.key] = actual
        return _on_condition(sent.message, actual)

    def _is_ours(self, encoded: str, offset: int) -> bool:
        """Whether the headers are those of a message made of a record before this offset. A later record was published by
        an earlier leader, and replaces this record's value as well."""
        try:
            block = base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            return False
        hops = find_header(block, HOPS_HEADER.encode())
        if hops is None or hops.rpartition(b",")[2] != self._own_hop:
            return False
        partition, _, number = (find_header(block, MESSAGE_ID_HEADER.encode()) or b"").rpartition(b"/")
        return partition != self._own_id or not number.isdigit() or int(number[:20]) < offset

    def bucket_recreated(self) -> None:
        self._revisions.clear()
        for sent in self._in_flight.values():  # no value of the new bucket is before these
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


def _on_condition(message: PublishedMessage, revision: int) -> PublishedMessage:
    """The message, to be stored only if this is the last revision of its key; 0: only if the key has none."""
    subject, block, payload = message
    return subject, b"%bNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (block[:-2], revision), payload


def _is_newer(sent: _Sent, last: StoredMessage) -> bool:
    """Whether the last revision of the key is, or will be, behind the record in the topic, whoever published it. After the
    bucket was recreated its revisions are small, so times decide."""
    if last.seq > sent.ingested:
        return last.seq > sent.expected
    try:
        return 0 < sent.ingested_ns < nanoseconds_of(last.time)
    except ValueError:
        return False
