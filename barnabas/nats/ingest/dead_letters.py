"""Messages of a binding that can't be stored as asked: records of the topic that nats.dead.letter.topic names.

Such a message asks for a partition that there is not, is larger than max.message.bytes, has no key where the topic is
compacted, or is for a topic that its template may not create. What becomes of it:

    key      the subject
    value    the payload; of one that this topic does not take either, the first KEPT_BYTES
    headers  nats.subject, nats.topic (the one it was for), nats.error (Kafka's name of the error, and what is wrong),
             nats.size (of the payload, where it is cut), and all that its record would have had

How it gets there: cluster/dead_letter_topic.py. Who waits for an answer gets the error, once the record is there.

Without such a topic, and when it does not take the message, it is refused: counted, answered, and logged now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.headers import MalformedHeaders, parse_headers
from barnabas.nats.cluster.dead_letter_topic import TOO_LARGE, DeadLetterTopic, dead_letter_of
from barnabas.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.nats.records.parts import RAW_HEADER, REPLY_HEADER, SUBJECT_HEADER
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import Record
from barnabas.wire.records import decode_records

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.ingest.budget import Budget

log = logging.getLogger("barnabas.nats")

LETTER_BYTES: Final = (
    4096  # that each one counts for beside what is in it: it takes memory, and time when it is sent again
)
LOG_EVERY_S: Final = 60.0
SUBJECT_LOGGED_BYTES: Final = 200
_ANY_SIZE: Final = 1 << 40
_SUBJECT: Final = SUBJECT_HEADER.decode()
Answer = Callable[[ErrorCode, str], object]


def record_of_message(
    subject: bytes, reply: bytes, header_block: bytes, payload: bytes, timestamp_ms: int
) -> Record:
    """What a message's record would be, were it stored; its partition is nobody's matter."""
    headers: list[tuple[str, bytes | None]] = [(_SUBJECT, subject)]
    if reply:
        headers.append((REPLY_HEADER.decode(), reply))
    try:
        headers += [
            (name.decode(), value) for name, value in (parse_headers(header_block) if header_block else ())
        ]
    except (MalformedHeaders, UnicodeDecodeError):
        headers.append((RAW_HEADER.decode(), header_block))
    return Record(0, timestamp_ms, subject, payload, headers)


def record_of_tail(tail: bytes, timestamp_ms: int) -> Record:
    """What is in the tail of a record (records/parts.py)."""
    builder = BatchBuilder()
    builder.add(tail)
    (batch,) = builder.finish(timestamp_ms, _ANY_SIZE)
    assert isinstance(batch, Batch)
    (record,) = decode_records(batch.records, _ANY_SIZE)
    return record


class DeadLetters:
    """Of one binding. All calls on the loop's thread."""

    def __init__(self, services: Services, for_topic: str, stats: CarrierStats, budget: Budget) -> None:
        """`topic` is to be set: the name of the topic they go to, "" for none."""
        self._to = DeadLetterTopic(services)
        self._runtime = services.runtime
        self._for_topic = for_topic
        self._stats = stats
        self._budget = budget
        self._size = 0  # of those on their way
        self._log_again_s = 0.0
        self._unlogged = 0  # refused since it was logged last

    @property
    def topic(self) -> str:
        return self._to.topic

    @topic.setter
    def topic(self, name: str) -> None:
        self._to.topic = name

    def put(self, record: Record, error: ErrorCode, why: str, answer: Answer, for_topic: str = "") -> None:
        """`record` can't be stored; `answer(error, why)` is called when it is clear where it is."""
        size = len(record.value or b"")
        self._stats.too_large += error in TOO_LARGE
        if not self.topic:
            self._refuse(record, size, error, why)
            answer(error, why)
            return
        letter = dead_letter_of(record, for_topic or self._for_topic, f"{error.name}: {why}")
        counted = LETTER_BYTES + size + len(letter.key or b"")
        self._size += counted
        self._budget.note(self, self._size)

        def sent(problem: str) -> None:
            self._size -= counted
            self._budget.note(self, self._size)
            if problem:
                self._refuse(letter, size, error, f"{why}; {problem}")
                answer(error, f"{why}; {problem}")
            else:
                self._stats.dead_letters += 1
                answer(error, f"{why}; it is in topic {self.topic}")

        self._to.send(letter, sent)

    @property
    def is_idle(self) -> bool:
        """Whether none is on its way."""
        return not self._size

    def close(self) -> None:
        """Those on their way are given up: no answer is called any more."""
        self._to.close()
        self._to.topic = ""
        self._size = 0
        self._budget.note(self, 0)

    def _refuse(self, record: Record, size: int, error: ErrorCode, why: str) -> None:
        self._stats.refused += 1
        self._unlogged += 1
        now_s = self._runtime.monotonic()
        if now_s < self._log_again_s:
            return
        self._log_again_s = now_s + LOG_EVERY_S
        subject = next((value for name, value in record.headers if name == _SUBJECT), None) or b""
        log.warning(
            "topic %s: a message from NATS is refused, %d bytes on %s, %s: %s (%d since this was last logged)",
            self._for_topic,
            size,
            subject[:SUBJECT_LOGGED_BYTES].decode(errors="replace"),
            error.name,
            why,
            self._unlogged,
        )
        self._unlogged = 0
