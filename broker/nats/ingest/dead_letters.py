"""Messages of a binding that can't be stored as asked: records of the topic that nats.dead.letter.topic names.

Such a message asks for a partition that there is not, is larger than max.message.bytes, has no key where the topic is
compacted, or is for a topic that its template may not create. What becomes of it:

    key      the subject
    value    the payload; of one that this topic does not take either, the first KEPT_BYTES
    headers  nats.subject, nats.topic (the one it was for), nats.error (Kafka's name of the error, and what is wrong),
             nats.size (of the payload, where it is cut), and all that its record would have had

It is produced as any producer would do it, with acks=all, and again for RETRIED_S when that fails for now, so that it may
be there twice. The topic is created by the broker's rules for that (auto.create.topics.enable), or has to exist. Who waits
for an answer gets the error, once the record is there.

Without such a topic, and when it does not take the message, it is refused: counted, answered, and logged now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from barnabas.broker.nats.client.headers import MalformedHeaders, parse_headers
from barnabas.broker.nats.cluster.foreign import ForeignProducer
from barnabas.broker.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.broker.nats.records.partitioners import positive_murmur2
from barnabas.broker.nats.records.parts import RAW_HEADER, REPLY_HEADER, SUBJECT_HEADER
from barnabas.broker.topic_creation import have_topic_created
from barnabas.controller.operations.internal_topics import auto_created_topic
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import Record, build_batch
from barnabas.wire.records import decode_records

if TYPE_CHECKING:
    from barnabas.broker.nats.carrier import CarrierStats
    from barnabas.broker.nats.ingest.budget import Budget
    from barnabas.broker.services import Services

log = logging.getLogger("barnabas.nats")

TOPIC_HEADER: Final = "nats.topic"
ERROR_HEADER: Final = "nats.error"
SIZE_HEADER: Final = "nats.size"
KEPT_BYTES: Final = 1000
NAME_KEPT_CHARACTERS: Final = 200  # of headers of a message that is cut
RETRIED_S: Final = 30.0
RETRY_S: Final = 0.2  # at first, then later and later
RETRY_MAX_S: Final = 3.0
LETTER_BYTES: Final = (
    4096  # that each one counts for beside what is in it: it takes memory, and time when it is sent again
)
LOG_EVERY_S: Final = 60.0
_ANY_SIZE: Final = 1 << 40
_SUBJECT: Final = SUBJECT_HEADER.decode()
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_FOR_NOW: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

Answer = Callable[[ErrorCode, str], object]


class _Letter(msgspec.Struct, gc=False):
    record: Record
    error: ErrorCode
    why: str
    answer: Answer
    until_s: float
    size: int
    retry_s: float = RETRY_S
    is_cut: bool = False


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
        self.topic = ""
        self._services = services
        self._for_topic = for_topic
        self._stats = stats
        self._budget = budget
        self._producer: ForeignProducer | None = None
        self._waiting: list[_Letter] | None = None  # while their topic is being created
        self._size = 0  # of those on their way
        self._is_closed = False
        self._log_again_s = 0.0
        self._untold = 0  # refused since it was logged last

    def put(self, record: Record, error: ErrorCode, why: str, answer: Answer, for_topic: str = "") -> None:
        """`record` can't be stored; `answer(error, why)` is called when it is clear where it is."""
        if not self.topic:
            self._refuse(error, why, answer)
            return
        subject = next((value for name, value in record.headers if name == _SUBJECT), None) or b""
        rest = [pair for pair in record.headers if pair[0] != _SUBJECT]
        record.key = subject
        record.headers = [
            (_SUBJECT, subject),
            (TOPIC_HEADER, (for_topic or self._for_topic).encode()),
            (ERROR_HEADER, f"{error.name}: {why}".encode(errors="replace")),
            *rest,
        ]
        size = LETTER_BYTES + len(record.value or b"") + len(subject)
        self._size += size
        self._budget.note(self, self._size)
        until_s = self._services.runtime.monotonic() + RETRIED_S
        self._send(_Letter(record, error, why, answer, until_s, size))

    @property
    def is_idle(self) -> bool:
        """Whether none is on its way."""
        return not self._size

    def close(self) -> None:
        """Those on their way are given up: nobody is told anything any more."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._waiting = None
        self._size = 0
        self._budget.note(self, 0)
        self.topic = ""
        self._is_closed = True

    # -- on their way

    def _send(self, letter: _Letter) -> None:
        topic = self._services.controller.image.topics.get(self.topic)
        if topic is None:
            self._create(letter)
            return
        if self._producer is None:
            self._producer = ForeignProducer(self._services)
        partition = positive_murmur2(letter.record.key or b"") % len(topic.partitions)
        batch = build_batch([letter.record])
        self._producer.produce(topic.name, partition, batch, lambda error: self._sent(letter, error))

    def _sent(self, letter: _Letter, error: ErrorCode) -> None:
        if error in _TOO_LARGE and not letter.is_cut:
            _cut(letter)
            self._send(letter)
        elif error in _FOR_NOW and self._services.runtime.monotonic() < letter.until_s and self.topic:
            self._services.runtime.call_later(letter.retry_s, lambda: self._again(letter))
            letter.retry_s = min(2 * letter.retry_s, RETRY_MAX_S)
        elif error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._done(letter)
            why = f"{letter.why}; topic {self.topic} for dead letters does not take it: {error.name}"
            self._refuse(letter.error, why, letter.answer)
        else:
            self._done(letter)
            self._stats.dead_letters += 1
            letter.answer(letter.error, f"{letter.why}; it is in topic {self.topic}")

    def _again(self, letter: _Letter) -> None:
        if self._is_closed:
            return
        if self.topic:
            self._send(letter)
        else:  # none is named any more
            self._done(letter)
            self._refuse(letter.error, letter.why, letter.answer)

    def _done(self, letter: _Letter) -> None:
        self._size -= letter.size
        self._budget.note(self, self._size)

    def _create(self, letter: _Letter) -> None:
        if self._waiting is not None:
            self._waiting.append(letter)
            return
        services = self._services
        if not services.config.auto_create_topics_enable:
            self._done(letter)
            why = f"{letter.why}; there is no topic {self.topic} for dead letters: create it"
            self._refuse(letter.error, why, letter.answer)
            return
        self._waiting = [letter]

        def created(error: ErrorCode) -> None:
            waiting, self._waiting = self._waiting or [], None
            for each in waiting:
                if error or self.topic not in services.controller.image.topics:
                    self._sent(each, error or ErrorCode.LEADER_NOT_AVAILABLE)
                else:
                    self._send(each)

        have_topic_created(services.to_controller, auto_created_topic(self.topic, services.config), created)

    def _refuse(self, error: ErrorCode, why: str, answer: Answer) -> None:
        self._stats.refused += 1
        self._untold += 1
        now_s = self._services.runtime.monotonic()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_EVERY_S
            log.warning(
                "topic %s: a message from NATS is refused, %s: %s (%d since this was last told)",
                self._for_topic,
                error.name,
                why,
                self._untold,
            )
            self._untold = 0
        answer(error, why)


def _cut(letter: _Letter) -> None:
    """As little of it as any topic takes."""
    letter.is_cut = True
    record = letter.record
    value = record.value or b""
    record.value = value[:KEPT_BYTES]
    record.headers = [
        *((name, (text or b"")[:KEPT_BYTES]) for name, text in record.headers[:3]),
        (SIZE_HEADER, b"%d" % len(value)),
        *(
            (name[:NAME_KEPT_CHARACTERS], (text or b"")[:NAME_KEPT_CHARACTERS])
            for name, text in record.headers[3:13]
        ),
    ]
