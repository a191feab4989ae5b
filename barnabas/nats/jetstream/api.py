"""JetStream's API: requests with JSON to subjects below $JS.API.

Only the requests that bindings need, and of each answer only the fields that are read; unknown fields are ignored. Durations
are nanoseconds, times are RFC 3339 text. An answer with an error is a JetStreamError; without an answer it is one of the
client's errors.

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
ERROR_CHARACTERS_MAX: Final = 1000
NANOSECONDS: Final = 1_000_000_000

# err_code of an ApiError
CONSUMER_NOT_FOUND: Final = 10014
STREAM_NOT_FOUND: Final = 10059
MESSAGE_NOT_FOUND: Final = 10037
FILTERS_OVERLAP: Final = 10138
DUPLICATE_FILTERS: Final = 10136
ONE_CONSUMER_ALLOWED: Final = 10099  # a work queue has another consumer, and this one has no filter
FILTER_NOT_UNIQUE: Final = 10100  # another consumer of a work queue takes these subjects

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LIMITS: Final = "limits"  # the retention policy that does not depend on acknowledgements

T = TypeVar("T")
Done = Callable[["T | None", "NatsError | None"], object]  # one of them is None


class JetStreamError(NatsError):
    """The server's answer to a request is an error, or can't be read (code 0)."""

    def __init__(self, description: str, code: int = 0, err_code: int = 0) -> None:
        super().__init__(description)
        self.description = description
        self.code = code  # like HTTP's
        self.err_code = err_code  # JetStream's number for the error


class BadMoment(JetStreamError, ValueError):
    """Text that is not a time of RFC 3339."""


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
    """In an empty stream `first_seq` is `last_seq` + 1, or both are 0."""

    first_seq: int = 0
    last_seq: int = 0


class StreamInfo(msgspec.Struct, frozen=True):
    config: StreamConfig = StreamConfig()
    created: str = ""
    state: StreamState = StreamState()


class StoredMessage(msgspec.Struct, frozen=True):
    """A message of a stream, without its payload. `hdrs` is the header block in base64."""

    seq: int = 0
    time: str = ""
    hdrs: str = ""


class ConsumerConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A consumer's configuration, as requested or as answered by the server."""

    name: str = ""
    durable_name: str = ""
    description: str = ""
    deliver_policy: str = ""  # the default differs between versions
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
        """The subjects that it delivers; empty for all."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else ())


class SequencePair(msgspec.Struct, frozen=True):
    consumer_seq: int = 0  # counts deliveries, the repeated ones as well
    stream_seq: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True):
    name: str = ""
    created: str = ""
    config: ConsumerConfig = ConsumerConfig()
    delivered: SequencePair = SequencePair()
    num_ack_pending: int = 0
    num_waiting: int = 0  # pulls
    num_pending: int = 0


class NextRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A pull: at most `batch` messages and `max_bytes`, for `expires` ns, with a heartbeat every `idle_heartbeat` ns."""

    batch: int
    max_bytes: int = 0
    expires: int = 0
    idle_heartbeat: int = 0


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
    """The API of a connection's JetStream, or of a domain's. Every `done(result, error)` is called once."""

    def __init__(self, client: NatsClient, domain: str = "", timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._client = client
        self._prefix = f"$JS.{domain}.API." if domain else "$JS.API."
        self._timeout_s = timeout_s

    def stream_names(self, subject: str, done: Done[tuple[str, ...]]) -> None:
        """The streams that take messages of this subject, or of some subject that the pattern matches."""
        body = _encode({"subject": subject})
        self._ask("STREAM.NAMES", body, lambda data: tuple(sorted(_decode_names(data).streams or ())), done)

    def stream_info(self, stream: str, done: Done[StreamInfo]) -> None:
        self._ask(f"STREAM.INFO.{stream}", b"", _decode_stream, done)

    def stream_subjects(self, stream: str, offset: int, done: Done[tuple[tuple[str, ...], int]]) -> None:
        """A page of the subjects that the stream holds messages of, from number `offset` on, and their total number."""

        def read(data: bytes) -> tuple[tuple[str, ...], int]:
            found = _decode_subjects(data)
            return tuple(found.state.subjects or ()), max(found.total, found.state.num_subjects)

        self._ask(f"STREAM.INFO.{stream}", _encode({"subjects_filter": ">", "offset": offset}), read, done)

    def message(self, stream: str, sequence: int, done: Done[StoredMessage]) -> None:
        """One message of the stream; MESSAGE_NOT_FOUND when the stream does not hold it."""
        self._get_message(stream, {"seq": sequence}, done)

    def last_message(self, stream: str, subject: str, done: Done[StoredMessage]) -> None:
        """The last message of a subject; MESSAGE_NOT_FOUND when the stream holds none."""
        self._get_message(stream, {"last_by_subj": subject}, done)

    def _get_message(self, stream: str, which: dict[str, int | str], done: Done[StoredMessage]) -> None:
        body = _encode(which)
        self._ask(f"STREAM.MSG.GET.{stream}", body, lambda data: _decode_got(data).message, done)

    def create_consumer(self, stream: str, config: ConsumerConfig, done: Done[ConsumerInfo]) -> None:
        """Creates or changes the consumer `config.name`. A server before 2.10 ignores filter_subjects, so its answer must
        be compared (jetstream/setup.py)."""
        assert config.name, "a consumer without a name"
        subject = f"CONSUMER.CREATE.{stream}.{config.name}"
        if config.filter_subject:
            subject += f".{config.filter_subject}"  # for permissions
        body = _encode({"stream_name": stream, "config": config})
        self._ask(subject, body, _decode_consumer, done)

    def consumer_info(self, stream: str, name: str, done: Done[ConsumerInfo]) -> None:
        self._ask(f"CONSUMER.INFO.{stream}.{name}", b"", _decode_consumer, done)

    def delete_consumer(self, stream: str, name: str, done: Done[bool]) -> None:
        self._ask(f"CONSUMER.DELETE.{stream}.{name}", b"", lambda data: _decode_success(data).success, done)

    def next_subject(self, stream: str, consumer: str) -> bytes:
        """The subject for pulls, with the inbox as reply."""
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


def nanoseconds_of(moment: str) -> int:
    """Nanoseconds since the epoch, of RFC 3339 text with up to nanoseconds. BadMoment."""
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
    except (ValueError, TypeError, OverflowError):  # TypeError: without a time zone
        raise BadMoment(f"no moment: {moment[:60]!r}") from None
