"""Messages of a stream that no partition will ever take: records of a topic for what is left over (nats.dead.letter.topic).

The key is the subject, the value the payload, and the headers tell what the message was and why it is here:
nats.subject, nats.stream, nats.seq, nats.timestamp, nats.topic (which it was for), nats.error, and the message's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from barnabas.broker.nats.client.headers import MalformedHeaders, parse_headers
from barnabas.broker.nats.records.partitioners import positive_murmur2
from barnabas.broker.nats.records.parts import (
    RAW_HEADER,
    SEQUENCE_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import Record, build_batch

if TYPE_CHECKING:
    from barnabas.broker.nats.cluster.foreign import ForeignProducer

log = logging.getLogger("barnabas.nats")

TOPIC_HEADER: Final = b"nats.topic"
ERROR_HEADER: Final = b"nats.error"


class DeadLetter(msgspec.Struct, gc=False):
    """A message as it came, and what is wrong with it."""

    subject: bytes
    header_block: bytes
    payload: bytes
    stream: str
    sequence: int
    timestamp_ns: bytes
    why: str


Send = Callable[[DeadLetter, Callable[[ErrorCode], object]], object]


def dead_letters_to(
    producer: ForeignProducer, topic: str, partition_count: Callable[[str], int], for_topic: str
) -> Send:
    """Sends what `for_topic` does not take to a topic. `partition_count(topic)` is 0 while there is no such topic."""

    def send(letter: DeadLetter, done: Callable[[ErrorCode], object]) -> None:
        count = partition_count(topic)
        if not count:
            log.warning("there is no topic %s for dead letters; create it", topic)
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        batch = build_batch([record_of(letter, for_topic)])
        producer.produce(topic, positive_murmur2(letter.subject) % count, batch, done)

    return send


def record_of(letter: DeadLetter, for_topic: str) -> Record:
    own: list[tuple[bytes, bytes]]
    try:
        own = parse_headers(letter.header_block) if letter.header_block else []
        for name, _ in own:
            name.decode()
    except (MalformedHeaders, UnicodeDecodeError):
        own = [(RAW_HEADER, letter.header_block)]
    headers = [
        (SUBJECT_HEADER, letter.subject),
        (STREAM_HEADER, letter.stream.encode()),
        (SEQUENCE_HEADER, b"%d" % letter.sequence),
        (TIMESTAMP_HEADER, letter.timestamp_ns),
        (TOPIC_HEADER, for_topic.encode()),
        (ERROR_HEADER, letter.why.encode()),
        *own,
    ]
    return Record(
        offset=0,
        timestamp=int(letter.timestamp_ns[:-6] or b"0"),
        key=letter.subject,
        value=letter.payload,
        headers=[(name.decode(), value) for name, value in headers],
    )
