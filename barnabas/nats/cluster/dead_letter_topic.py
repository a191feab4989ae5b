"""Producing to the topic of dead letters (nats.dead.letter.topic), which all modes share.

A record is produced as any producer would do it, with acks=all, and again for RETRIED_S when that fails for now, so that it
may be there twice. A topic that is missing is created by the broker's rules for that (auto.create.topics.enable). A record
that the topic does not take is cut: the first KEPT_BYTES of its value, and as little of its headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.cluster.topic_creation import have_topic_created
from barnabas.controller.operations.internal_topics import auto_created_topic
from barnabas.nats.cluster.foreign import ForeignProducer
from barnabas.nats.records.partitioners import positive_murmur2
from barnabas.nats.records.parts import SUBJECT_HEADER
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import Record, build_batch

if TYPE_CHECKING:
    from barnabas.broker.services import Services

TOPIC_HEADER: Final = "nats.topic"
ERROR_HEADER: Final = "nats.error"
SIZE_HEADER: Final = "nats.size"
KEPT_BYTES: Final = 1000
NAME_KEPT_CHARACTERS: Final = 200  # of headers of a message that is cut
RETRIED_S: Final = 30.0
RETRY_S: Final = 0.2  # at first, then later and later
RETRY_MAX_S: Final = 3.0
_SUBJECT: Final = SUBJECT_HEADER.decode()
TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
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

Done = Callable[[str], object]  # "" once the record is committed, else why it is not


class _Letter(msgspec.Struct, gc=False):
    record: Record
    done: Done
    until_s: float
    retry_s: float = RETRY_S
    is_cut: bool = False


def dead_letter_of(record: Record, for_topic: str, error: str) -> Record:
    """The record of a message as it stands in the topic of dead letters: `for_topic` does not take it, for this reason."""
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


class DeadLetterTopic:
    """Produces for one binding. All calls on the loop's thread; `topic` may be changed at any time, "" is none."""

    def __init__(self, services: Services, topic: str = "") -> None:
        self.topic = topic
        self._services = services
        self._producer: ForeignProducer | None = None
        self._waiting: list[_Letter] | None = None  # while the topic is being created
        self._is_closed = False

    def send(self, record: Record, done: Done) -> None:
        """`done(why)`, perhaps before this returns. `record` is `dead_letter_of`'s, and may be changed."""
        self._send(_Letter(record, done, self._services.runtime.monotonic() + RETRIED_S))

    def close(self) -> None:
        """What is on its way is given up: no `done` is called any more."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._waiting = None
        self._is_closed = True

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
        if self._is_closed:
            return
        if error in TOO_LARGE and not letter.is_cut:
            _cut(letter.record)
            letter.is_cut = True
            self._send(letter)
        elif error in _FOR_NOW and self._services.runtime.monotonic() < letter.until_s and self.topic:
            self._services.runtime.call_later(letter.retry_s, lambda: self._again(letter))
            letter.retry_s = min(2 * letter.retry_s, RETRY_MAX_S)
        elif error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            letter.done(f"topic {self.topic} for dead letters does not take it: {error.name}")
        else:
            letter.done("")

    def _again(self, letter: _Letter) -> None:
        if self._is_closed:
            return
        if self.topic:
            self._send(letter)
        else:
            letter.done("no topic for dead letters is named any more")

    def _create(self, letter: _Letter) -> None:
        if self._waiting is not None:
            self._waiting.append(letter)
            return
        services = self._services
        if not services.config.auto_create_topics_enable:
            letter.done(f"there is no topic {self.topic} for dead letters: create it")
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


def _cut(record: Record) -> None:
    """As little of it as any topic takes."""
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
