"""A topic's records into a key-value bucket: those that Kafka clients have written, without those from the bucket itself.

Ingress marks the batches of the bucket's stream, and their records carry its name and their sequence. A record that a
client has copied with these headers is published like any other. The last sequence is committed with the position. Sequences
grow with the offsets of a partition until the bucket is deleted and recreated.

A null value becomes a delete marker. A key that a bucket can't have stops the partition.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from barnabas.nats.egress.message import MessageHeaders, Outgoing
from barnabas.nats.egress.subject import Unpublishable, check_size
from barnabas.nats.jetstream.log_position import read_position
from barnabas.nats.kv.bucket import key_problem, stream_of, subject_prefix
from barnabas.nats.pub_ack import NO_STREAM, failure_of

if TYPE_CHECKING:
    from barnabas.nats.egress.message import PublishedMessage, Settled
    from barnabas.wire.records import Record

DELETED: Final = b"KV-Operation: DEL\r\n"
_METADATA: Final = "kv-revision="
_DIGITS_MAX: Final = 20


class BucketOutgoing(Outgoing):
    """The messages of one partition for a bucket that only the topic writes to."""

    def __init__(
        self, bucket: str, domain: str, cluster_id: str, topic: str, topic_id: bytes, partition: int
    ) -> None:
        self._domain_prefix = f"$JS.{domain}.API.".encode() if domain else b""
        self._prefix = self._domain_prefix + subject_prefix(bucket)
        self._stream = stream_of(bucket).encode()
        self._no_bucket = f"blocked: there is no bucket {bucket}: make it (nats kv add {bucket})"
        self._block = MessageHeaders(cluster_id, topic, topic_id, partition).block
        self._revision = 0  # the last one from the bucket before the next record
        self._stored_ns = 0  # when it was stored; 0: unknown
        self._is_known = True  # whether `_revision` is right
        self._revisions_at: deque[tuple[int, int]] = deque()  # offset, the last revision before it

    def message(self, record: Record, *, is_bridged: bool) -> PublishedMessage | None:
        if is_bridged and self._is_from_bucket(record):
            return None
        problem = key_problem(record.key)
        if problem:
            raise Unpublishable(problem)
        subject = self._prefix + (record.key or b"")
        check_size(subject)
        return subject, self._block(record, removal=DELETED), record.value or b""

    def answer(self, offset: int, header_block: bytes, payload: bytes, settled: Settled) -> None:
        failure = failure_of(header_block, payload)
        settled(offset, self._no_bucket if failure == NO_STREAM else failure)

    def restart(self, metadata: str | None) -> None:
        revision = (metadata or "").removeprefix(_METADATA)[:_DIGITS_MAX]
        has_revision = (
            metadata is not None
            and metadata.startswith(_METADATA)
            and revision.isascii()
            and revision.isdigit()
        )
        self._is_known = has_revision or metadata is None  # an administrator's position has no revision
        self._revision, self._stored_ns = int(revision) if has_revision else 0, 0
        self._revisions_at = deque([(0, self._revision if self._is_known else -1)])

    def metadata(self, offset: int) -> str:
        revisions = self._revisions_at
        while len(revisions) > 1 and revisions[1][0] <= offset:
            revisions.popleft()
        revision = revisions[0][1]
        return f"{_METADATA}{revision}" if revision >= 0 else ""

    def _is_from_bucket(self, record: Record) -> bool:
        """Whether a record of a stream is from this bucket; notes its revision."""
        position = read_position(record, self._stream)
        if position is None:
            return False
        if position.sequence <= self._revision:
            self.bucket_recreated()
        self._revision, self._stored_ns = position.sequence, position.timestamp_ns
        self._is_known = True
        self._revisions_at.append((record.offset + 1, position.sequence))
        return True

    def bucket_recreated(self) -> None:
        """Records from here on are of another bucket of the same name."""
