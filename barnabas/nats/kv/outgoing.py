"""A topic's records into a key-value bucket: what Kafka clients have written, and nothing that came from there.

A record that the bucket's own stream has brought carries its name and sequence, and its batch says that the ingest has
written it. A copy, which a client has written with the headers of what it had read, is published as any other. The last
sequence is kept with the position. They rise with the offsets of a partition, until the bucket is made anew.

A null value becomes a delete marker. What a bucket can't have as a key stops the partition.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from barnabas.nats.jetstream.positions import read_position
from barnabas.nats.kv.bucket import key_problem, stream_of, subject_prefix
from barnabas.nats.pub_ack import NO_STREAM
from barnabas.nats.reverse.message import MessageHeaders, Outgoing
from barnabas.nats.reverse.subject import SUBJECT_BYTES_MAX, Unpublishable

if TYPE_CHECKING:
    from barnabas.nats.reverse.message import Answer
    from barnabas.wire.record_batch import Record

DELETED: Final = b"KV-Operation: DEL\r\n"
_METADATA: Final = "kv-revision="
_DIGITS_MAX: Final = 20


class BucketOutgoing(Outgoing):
    """The messages of one partition (an Outgoing)."""

    def __init__(self, bucket: str, domain: str, cluster_id: str, topic: str, partition: int) -> None:
        super().__init__()
        self._domain_prefix = f"$JS.{domain}.API.".encode() if domain else b""
        self._prefix = self._domain_prefix + subject_prefix(bucket)
        self._stream = stream_of(bucket).encode()
        self._no_bucket = f"blocked: there is no bucket {bucket}: make it (nats kv add {bucket})"
        self._block = MessageHeaders(cluster_id, topic, partition).block
        self._revision = 0  # the last that stands in front of the next record
        self._stored_ns = 0  # when it was stored; 0: not known
        self._is_known = True  # whether it does, and no later one
        self._marks: deque[tuple[int, int]] = deque()  # next offset, the last revision in front of it

    def message(self, record: Record, *, is_bridged: bool) -> tuple[bytes, bytes, bytes] | None:
        if is_bridged and self._is_from_bucket(record):
            return None
        problem = key_problem(record.key)
        if problem:
            raise Unpublishable(problem)
        subject = self._prefix + (record.key or b"")
        if len(subject) > SUBJECT_BYTES_MAX:
            raise Unpublishable(f"its subject would have {len(subject)} bytes, more than {SUBJECT_BYTES_MAX}")
        return subject, self._block(record, removal=DELETED), record.value or b""

    def answer(self, offset: int, header_block: bytes, payload: bytes) -> Answer:
        outcome = super().answer(offset, header_block, payload)
        return self._no_bucket if outcome == NO_STREAM else outcome

    def restart(self, metadata: str | None) -> None:
        revision = (metadata or "").removeprefix(_METADATA)[:_DIGITS_MAX]
        is_told = (
            metadata is not None
            and metadata.startswith(_METADATA)
            and revision.isascii()
            and revision.isdigit()
        )
        self._is_known = is_told or metadata is None  # not where an admin has moved the group
        self._revision, self._stored_ns = int(revision) if is_told else 0, 0
        self._marks = deque([(0, self._revision if self._is_known else -1)])

    def metadata(self, offset: int) -> str:
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= offset:
            marks.popleft()
        revision = marks[0][1]
        return f"{_METADATA}{revision}" if revision >= 0 else ""

    def _is_from_bucket(self, record: Record) -> bool:
        """Whether it is of this bucket. To be asked once of each record that a stream has brought."""
        position = read_position(record, self._stream)
        if position is None:
            return False
        if position.sequence <= self._revision:
            self.made_anew()
        self._revision, self._stored_ns = position.sequence, position.timestamp_ns
        self._is_known = True
        self._marks.append((record.offset + 1, position.sequence))
        return True

    def made_anew(self) -> None:
        """The bucket is another one than that of the records before."""
