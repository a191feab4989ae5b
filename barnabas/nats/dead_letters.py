"""Dead letters: messages that can't be stored, as records of the topic that nats.dead.letter.topic names.

Such a message asks for a partition that does not exist, is larger than max.message.bytes, has no key where the topic is
compacted, or is for a topic that its template may not create. Its record:

    key      the subject
    value    the payload; the first KEPT_BYTES of it when the dead letter topic does not take all of it
    headers  nats.subject, nats.topic (its destination), nats.error (Kafka's name of the error, and the reason),
             nats.size (of the payload, where it is cut), and all headers that its own record would have had; of a
             message of a stream nats.stream, nats.seq and nats.timestamp

The record is produced with acks=all, and retried for RETRIED_S after retriable errors, so it may be there twice. A missing
topic is created by the broker's rules (auto.create.topics.enable). Without nats.dead.letter.topic,
and when that topic does not take it either, a message of a core binding is refused: counted, answered, and logged at most
once a minute for each error. Streams deliver theirs again: see jetstream/.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.cluster.topic_creation import create_topic
from barnabas.controller.operations.internal_topics import auto_created_topic
from barnabas.nats.client.headers import MalformedHeaders, parse_headers
from barnabas.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.nats.records.partitioners import positive_murmur2
from barnabas.nats.records.parts import (
    RAW_HEADER,
    REPLY_HEADER,
    SEQUENCE_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
)
from barnabas.nats.remote_producer import RemoteProducer
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.records import Record, build_batch, iterate_records

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.ingress.backpressure import Budget

log = logging.getLogger("barnabas.nats")

TOPIC_HEADER: Final = "nats.topic"
ERROR_HEADER: Final = "nats.error"
SIZE_HEADER: Final = "nats.size"
KEPT_BYTES: Final = 1000
NAME_KEPT_CHARACTERS: Final = 200  # of headers of a message that is cut
RETRIED_S: Final = 30.0
RETRY_S: Final = 0.2  # at first, then doubled
RETRY_MAX_S: Final = 3.0
LETTER_BYTES: Final = 4096  # counted for each one in addition to its contents
SUBJECT_SHOWN_BYTES: Final = 200
_ANY_SIZE: Final = 1 << 40
_SUBJECT: Final = SUBJECT_HEADER.decode()
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_RETRIABLE: Final = frozenset(
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

Done = Callable[[str], object]  # "" once the record is committed, else why it is not
Answer = Callable[[ErrorCode, str], object]


# -- records


def shown_subject(subject: bytes) -> str:
    """A subject as logs and states show it."""
    return subject[:SUBJECT_SHOWN_BYTES].decode(errors="replace")


def record_of_message(
    subject: bytes,
    reply: bytes,
    header_block: bytes,
    payload: bytes,
    timestamp_ms: int,
    origin: Sequence[tuple[bytes, bytes]] = (),
) -> Record:
    """The record that a message would have become; `origin` are the headers of its origin."""
    headers: list[tuple[str, bytes | None]] = [(_SUBJECT, subject)]
    if reply:
        headers.append((REPLY_HEADER.decode(), reply))
    headers += [(name.decode(), value) for name, value in origin]
    try:
        headers += [
            (name.decode(), value) for name, value in (parse_headers(header_block) if header_block else ())
        ]
    except (MalformedHeaders, UnicodeDecodeError):
        headers.append((RAW_HEADER.decode(), header_block))
    return Record(0, timestamp_ms, subject, payload, headers)


def record_of_tail(tail: bytes, timestamp_ms: int) -> Record:
    """The record with this tail (records/parts.py)."""
    builder = BatchBuilder()
    builder.add(tail)
    (batch,) = builder.finish(timestamp_ms, _ANY_SIZE)
    assert isinstance(batch, Batch)
    (record,) = iterate_records(batch.records, _ANY_SIZE)
    return record


class StreamMessage(msgspec.Struct, gc=False):
    """A message of a stream that can't be stored in its partition, and why."""

    subject: bytes
    header_block: bytes
    payload: bytes
    stream: str
    sequence: int
    timestamp_ns: bytes  # decimal
    why: str

    def dead_letter(self, for_topic: str) -> Record:
        origin = (
            (STREAM_HEADER, self.stream.encode()),
            (SEQUENCE_HEADER, b"%d" % self.sequence),
            (TIMESTAMP_HEADER, self.timestamp_ns),
        )
        timestamp_ms = int(self.timestamp_ns[:-6] or b"0")
        record = record_of_message(self.subject, b"", self.header_block, self.payload, timestamp_ms, origin)
        return dead_letter_of(record, for_topic, self.why)


def dead_letter_of(record: Record, for_topic: str, error: str) -> Record:
    """Turns a record that can't be stored in `for_topic` into its dead letter."""
    subject = next((value for name, value in record.headers if name == _SUBJECT), None) or b""
    rest = [pair for pair in record.headers if pair[0] != _SUBJECT]
    record.key = subject
    record.headers = [
        (_SUBJECT, subject),
        (TOPIC_HEADER, for_topic.encode()),
        (ERROR_HEADER, error.encode(errors="replace")),
        *rest,
    ]
    return record


def _cut(record: Record) -> None:
    """Cuts a dead letter to a size below any max.message.bytes in use."""
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


# -- the topic


class _Letter(msgspec.Struct, gc=False):
    record: Record
    done: Done
    until_s: float
    retry_s: float = RETRY_S
    is_cut: bool = False


class DeadLetterTopic:
    """Produces dead letters of one binding. All calls on the loop's thread; `topic` may change at any time, "" is none."""

    def __init__(self, host: ExtensionHost, topic: str = "") -> None:
        self.topic = topic
        self._host = host
        self._producer: RemoteProducer | None = None
        self._waiting: list[_Letter] | None = None  # while the topic is being created
        self._is_closed = False

    def send(self, record: Record, done: Done) -> None:
        """`done(why)` may be called before this returns. `record` is made by `dead_letter_of`; it may be changed here."""
        self._send(_Letter(record, done, self._host.runtime.monotonic() + RETRIED_S))

    def close(self) -> None:
        """Drops what is not committed yet; no `done` is called any more."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._waiting = None
        self._is_closed = True

    def _send(self, letter: _Letter) -> None:
        topic = self._host.controller.image.topics.get(self.topic)
        if topic is None:
            self._create(letter)
            return
        if self._producer is None:
            self._producer = RemoteProducer(self._host)
        partition = positive_murmur2(letter.record.key or b"") % len(topic.partitions)
        batch = build_batch([letter.record])
        self._producer.produce(topic.name, partition, batch, lambda error: self._sent(letter, error))

    def _sent(self, letter: _Letter, error: ErrorCode) -> None:
        if self._is_closed:
            return
        if error in _TOO_LARGE and not letter.is_cut:
            _cut(letter.record)
            letter.is_cut = True
            self._send(letter)
        elif error in _RETRIABLE and self._host.runtime.monotonic() < letter.until_s and self.topic:
            self._host.runtime.call_later(letter.retry_s, lambda: self._retry(letter))
            letter.retry_s = min(2 * letter.retry_s, RETRY_MAX_S)
        elif error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            letter.done(f"topic {self.topic} for dead letters refuses it: {error.name}")
        else:
            letter.done("")

    def _retry(self, letter: _Letter) -> None:
        if self._is_closed:
            return
        if self.topic:
            self._send(letter)
        else:
            letter.done("nats.dead.letter.topic is not set any more")

    def _create(self, letter: _Letter) -> None:
        if self._waiting is not None:
            self._waiting.append(letter)
            return
        host = self._host
        if not host.config.auto_create_topics_enable:
            letter.done(f"there is no topic {self.topic} for dead letters: create it")
            return
        self._waiting = [letter]

        def created(error: ErrorCode) -> None:
            waiting, self._waiting = self._waiting or [], None
            for each in waiting:
                if error or self.topic not in host.controller.image.topics:
                    self._sent(each, error or ErrorCode.LEADER_NOT_AVAILABLE)
                else:
                    self._send(each)

        create_topic(host.controller_channel, auto_created_topic(self.topic, host.config), created)


# -- core bindings


class DeadLetters:
    """Dead letters of one core binding, or refusals where no topic takes them. All calls on the loop's thread."""

    def __init__(self, host: ExtensionHost, binding: Binding, stats: CarrierStats, budget: Budget) -> None:
        self._to = DeadLetterTopic(host, binding.dead_letter_topic)
        self._runtime = host.runtime
        self._for_topic = binding.topic
        self._stats = stats
        self._budget = budget
        self._size = 0  # bytes of those that are not committed yet
        self._refusals = RepeatedWarnings(host.runtime, log)

    @property
    def topic(self) -> str:
        """The dead letter topic; "" when there is none."""
        return self._to.topic

    def rebind(self, binding: Binding) -> None:
        """The binding has other configs now."""
        self._to.topic = binding.dead_letter_topic

    def put_message(
        self,
        message: tuple[bytes, bytes, bytes, bytes],
        error: ErrorCode,
        why: str,
        answer: Answer,
        for_topic: str,
    ) -> None:
        """`message` (subject, reply, header block, payload) can't be stored; `answer(error, why)` is called once its dead
        letter is committed, or it is refused."""
        self._put(record_of_message(*message, self._runtime.time_ms()), error, why, answer, for_topic)

    def put_tail(self, tail: bytes, error: ErrorCode, why: str, answer: Answer, for_topic: str) -> None:
        """As `put_message`, for a record that the log does not take."""
        self._put(record_of_tail(tail, self._runtime.time_ms()), error, why, answer, for_topic)

    @property
    def is_idle(self) -> bool:
        """Whether all are committed or refused."""
        return not self._size

    def close(self) -> None:
        """Drops what is not committed yet; no answer is called any more."""
        self._to.close()
        self._to.topic = ""
        self._size = 0
        self._budget.note(self, 0)

    def _put(self, record: Record, error: ErrorCode, why: str, answer: Answer, for_topic: str) -> None:
        size = len(record.value or b"")
        self._stats.too_large += error in _TOO_LARGE
        if not self.topic:
            self._refuse(record, size, error, why)
            answer(error, why)
            return
        letter = dead_letter_of(record, for_topic, f"{error.name}: {why}")
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

    def _refuse(self, record: Record, size: int, error: ErrorCode, why: str) -> None:
        self._stats.refused += 1
        subject = shown_subject(
            next((value for name, value in record.headers if name == _SUBJECT), None) or b""
        )
        what = f"a message from NATS is refused, {size} bytes on {subject}, {error.name}: {why}"
        self._refusals.warn(self._for_topic, error.name, f"topic {self._for_topic}: {what}")
