"""Messages of a stream that no partition will ever take: records of a topic for what is left over (nats.dead.letter.topic).

The key is the subject, the value the payload, and the headers tell what the message was and why it is here:
nats.subject, nats.topic (which it was for), nats.error, nats.stream, nats.seq, nats.timestamp, and the message's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.headers import MalformedHeaders, parse_headers
from barnabas.nats.cluster.dead_letter_topic import dead_letter_of
from barnabas.nats.records.parts import (
    RAW_HEADER,
    SEQUENCE_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
)
from barnabas.wire.record_batch import Record

if TYPE_CHECKING:
    from barnabas.nats.cluster.dead_letter_topic import DeadLetterTopic, Done


SUBJECT_SHOWN_BYTES: Final = 200


class DeadLetter(msgspec.Struct, gc=False):
    """A message as it came, and what is wrong with it."""

    subject: bytes
    header_block: bytes
    payload: bytes
    stream: str
    sequence: int
    timestamp_ns: bytes
    why: str


class StreamDeadLetters:
    """Of one binding: what `for_topic` does not take."""

    def __init__(self, topic: DeadLetterTopic, for_topic: str) -> None:
        self._topic = topic
        self._for_topic = for_topic

    def send(self, letter: DeadLetter, done: Done) -> None:
        """`done(why)`: "" once it is committed there, else why it is not."""
        self._topic.send(record_of(letter, self._for_topic), done)

    def close(self) -> None:
        """No `done` is called any more."""
        self._topic.close()


def shown_subject(subject: bytes) -> str:
    """As a log and a state may show it."""
    return subject[:SUBJECT_SHOWN_BYTES].decode(errors="replace")


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
        *own,
    ]
    record = Record(
        offset=0,
        timestamp=int(letter.timestamp_ns[:-6] or b"0"),
        key=letter.subject,
        value=letter.payload,
        headers=[(name.decode(), value) for name, value in headers],
    )
    return dead_letter_of(record, for_topic, letter.why)
