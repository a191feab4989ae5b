"""Requests to JetStream: JSON to subjects below $JS.API, JSON back.

Only what bindings need, and of each answer only the fields that are read; what a newer server adds is passed over.
Times of configurations are nanoseconds, moments are RFC 3339 text. An answer with an error is a JetStreamError, which
tells by its number what happened; no answer is one of the client's errors.

Source: docs.nats.io, "JetStream wire API Reference"; ADR-1 (JSON API), ADR-13 (pull), ADR-34 (several filter subjects).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from barnabas.nats.client.errors import NatsError

if TYPE_CHECKING:
    from barnabas.nats.client.client import Message, NatsClient

REQUEST_TIMEOUT_S: Final = 5.0
ERROR_CHARACTERS_MAX: Final = 1000  # of what a server says
NANOSECONDS: Final = 1_000_000_000

# err_code of an ApiError
CONSUMER_NOT_FOUND: Final = 10014
STREAM_NOT_FOUND: Final = 10059
MESSAGE_NOT_FOUND: Final = 10037
FILTERS_OVERLAP: Final = 10138
DUPLICATE_FILTERS: Final = 10136
ONE_CONSUMER_ALLOWED: Final = 10099  # of a work queue, unless they filter
FILTER_NOT_UNIQUE: Final = 10100  # another consumer of a work queue takes these subjects

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LIMITS: Final = "limits"  # the retention that does not depend on who has read

T = TypeVar("T")
Done = Callable[["T | None", "NatsError | None"], object]  # exactly one of them is there


class JetStreamError(NatsError):
    """The server's answer to a request is an error, or can't be read (code 0)."""

    def __init__(self, description: str, code: int = 0, err_code: int = 0) -> None:
        super().__init__(description)
        self.description = description
        self.code = code  # as of HTTP
        self.err_code = err_code  # what it is in particular


class BadMoment(JetStreamError, ValueError):
    """Text that is no time of RFC 3339."""


class ApiError(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class StreamConfig(msgspec.Struct, frozen=True):
    name: str = ""
    subjects: tuple[str, ...] | None = None
    retention: str = LIMITS
    mirror: dict[str, Any] | None = None
    sources: list[Any] | None = None


class StreamState(msgspec.Struct, frozen=True):
    """Of an empty stream `first_seq` is `last_seq` + 1, or both are 0."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


class StreamInfo(msgspec.Struct, frozen=True):
    config: StreamConfig = StreamConfig()
    created: str = ""
    state: StreamState = StreamState()


class StoredMessage(msgspec.Struct, frozen=True):
    """Without the message itself."""

    subject: str = ""
    seq: int = 0
    time: str = ""


class ConsumerConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a consumer is to be; also what the server says that it is."""

    name: str = ""
    durable_name: str = ""
    description: str = ""
    deliver_policy: str = ""  # always sent: a policy has no default that all versions share
    opt_start_seq: int = 0
    opt_start_time: str = ""
    ack_policy: str = ""
    ack_wait: int = 0  # ns
    max_deliver: int = 0
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] | None = None
    max_ack_pending: int = 0
    max_waiting: int = 0
    inactive_threshold: int = 0  # ns
    num_replicas: int = 0
    mem_storage: bool = False
    deliver_subject: str = ""
    max_batch: int = 0
    max_bytes: int = 0
    max_expires: int = 0  # ns

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects that it takes; empty for all."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else ())


class SequencePair(msgspec.Struct, frozen=True):
    consumer_seq: int = 0
    stream_seq: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True):
    stream_name: str = ""
    name: str = ""
    created: str = ""
    config: ConsumerConfig = ConsumerConfig()
    delivered: SequencePair = SequencePair()
    ack_floor: SequencePair = SequencePair()
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0  # pulls
    num_pending: int = 0


class NextRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A pull: at most `batch` messages and `max_bytes`, until `expires` ns have passed; word every `idle_heartbeat` ns."""

    batch: int
    max_bytes: int = 0
    expires: int = 0
    idle_heartbeat: int = 0
    no_wait: bool = False


class _Error(msgspec.Struct):
    error: ApiError | None = None


class _Names(msgspec.Struct):
    streams: tuple[str, ...] | None = None


class _SubjectsState(msgspec.Struct):
    subjects: dict[str, int] | None = None
    num_subjects: int = 0


class _Subjects(msgspec.Struct):
    state: _SubjectsState = msgspec.field(default_factory=_SubjectsState)
    total: int = 0


class _Got(msgspec.Struct):
    message: StoredMessage = StoredMessage()


class _Success(msgspec.Struct):
    success: bool = False


_encode = msgspec.json.Encoder().encode
_decode_error = msgspec.json.Decoder(_Error).decode
_decode_names = msgspec.json.Decoder(_Names).decode
_decode_stream = msgspec.json.Decoder(StreamInfo).decode
_decode_subjects = msgspec.json.Decoder(_Subjects).decode
_decode_consumer = msgspec.json.Decoder(ConsumerInfo).decode
_decode_got = msgspec.json.Decoder(_Got).decode
_decode_success = msgspec.json.Decoder(_Success).decode


class JetStreamApi:
    """JetStream of one connection, or of one domain beyond it. Every `done(result, error)` is called once, later."""

    def __init__(self, client: NatsClient, domain: str = "", timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._client = client
        self._prefix = f"$JS.{domain}.API." if domain else "$JS.API."
        self._timeout_s = timeout_s

    def stream_names(self, subject: str, done: Done[tuple[str, ...]]) -> None:
        """The streams that take messages of this subject, or of a part of this pattern."""
        body = _encode({"subject": subject})
        self._ask("STREAM.NAMES", body, lambda data: tuple(sorted(_decode_names(data).streams or ())), done)

    def stream_info(self, stream: str, done: Done[StreamInfo]) -> None:
        self._ask(f"STREAM.INFO.{stream}", b"", _decode_stream, done)

    def stream_subjects(self, stream: str, offset: int, done: Done[tuple[tuple[str, ...], int]]) -> None:
        """A page of the subjects of which the stream holds messages, from number `offset` on, and how many there are."""

        def read(data: bytes) -> tuple[tuple[str, ...], int]:
            found = _decode_subjects(data)
            return tuple(found.state.subjects or ()), max(found.total, found.state.num_subjects)

        self._ask(f"STREAM.INFO.{stream}", _encode({"subjects_filter": ">", "offset": offset}), read, done)

    def message(self, stream: str, sequence: int, done: Done[StoredMessage]) -> None:
        """One message of the stream; MESSAGE_NOT_FOUND when it is not there (any more)."""
        body = _encode({"seq": sequence})
        self._ask(f"STREAM.MSG.GET.{stream}", body, lambda data: _decode_got(data).message, done)

    def create_consumer(self, stream: str, config: ConsumerConfig, done: Done[ConsumerInfo]) -> None:
        """Make a consumer of this name, or change it. A server before 2.10 does not know filter_subjects and passes
        them over: compare what it answers (jetstream_filters.py)."""
        assert config.name, "consumers have names of our choice"
        subject = f"CONSUMER.CREATE.{stream}.{config.name}"
        if config.filter_subject:
            subject += f".{config.filter_subject}"  # where permissions may tell it from others
        body = _encode({"stream_name": stream, "config": config})
        self._ask(subject, body, _decode_consumer, done)

    def consumer_info(self, stream: str, name: str, done: Done[ConsumerInfo]) -> None:
        self._ask(f"CONSUMER.INFO.{stream}.{name}", b"", _decode_consumer, done)

    def delete_consumer(self, stream: str, name: str, done: Done[bool]) -> None:
        self._ask(f"CONSUMER.DELETE.{stream}.{name}", b"", lambda data: _decode_success(data).success, done)

    def next_subject(self, stream: str, consumer: str) -> bytes:
        """Where pulls are published to, with the inbox as reply."""
        return f"{self._prefix}CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()

    def _ask(self, subject: str, body: bytes, decode: Callable[[bytes], T], done: Done[T]) -> None:
        def answered(message: Message | None, error: NatsError | None) -> None:
            if message is None:
                done(None, error or JetStreamError(f"no answer to {subject}"))
                return
            try:
                refused = _decode_error(message.payload).error
                result = decode(message.payload) if refused is None else None
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
                done(None, JetStreamError(f"the answer to {subject} can't be read: {problem}"))
                return
            if refused is not None:
                said = refused.description[:ERROR_CHARACTERS_MAX]
                done(None, JetStreamError(said, refused.code, refused.err_code))
            else:
                done(result, None)

        try:
            self._client.request(
                (self._prefix + subject).encode(), body, timeout_s=self._timeout_s, done=answered
            )
        except NatsError as error:
            done(None, error)


def encode_next(request: NextRequest) -> bytes:
    return _encode(request)


def nanoseconds_of(moment: str) -> int:
    """Nanoseconds since the epoch of RFC 3339 text, which may be finer than microseconds. BadMoment when it is none."""
    try:
        if len(moment) < 20:
            raise ValueError
        digits, end = "", 19
        if moment[19] == ".":
            end = 20
            while end < len(moment) and moment[end].isdigit():
                end += 1
            digits = moment[20:end]
        text = moment[:19] + moment[end:].upper().replace("Z", "+00:00")
        seconds = (datetime.datetime.fromisoformat(text) - EPOCH) // datetime.timedelta(seconds=1)
        return seconds * NANOSECONDS + int(digits[:9].ljust(9, "0"))
    except (ValueError, TypeError, OverflowError):  # TypeError: without its zone
        raise BadMoment(f"no moment: {moment[:60]!r}") from None
