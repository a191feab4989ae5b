"""PubAck: JetStream's answer to a published message, written for topics and read from streams.

A bound topic answers as a stream does, so `js.publish()` of any client works: the stream is the topic, the sequence is the
record's offset plus one (JetStream counts from one), and the extra field `partition`, which clients ignore, names the
partition. Errors have JetStream's form as well; the description begins with Kafka's name of the error. Some clients build
their exception from exactly the three fields of "error", so additional fields stand beside it.

nats.acks says which messages ask for an answer:
- `header`: those with a reply subject and the header Kafka-Ack. Answering others would hijack requests, whose first
  answer counts.
- `reply`: those with a reply subject.
- `off`: none.
Kafka-Ack is `all` (the high watermark has passed the record) or `leader` (it is appended); Kafka's own -1, 1 and 0 are
accepted as well, 0 or `none` asks for no answer in any mode, and an unknown value means `all`. In mode `reply` no header
means `all`. A reply subject that begins with $ is never answered: it belongs to the server. JetStream would take an answer to
$JS.ACK. for a consumer's acknowledgement, and a publisher without permission for $KV. or $JS.API. must not make the broker
publish there.

Source: ADR-1 and ADR-22 (JetStream's API and publishing), nats-server's own answers. A status of 503 means that the subject
has no subscriber.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import msgspec

from barnabas.nats.client.subscriptions import NO_RESPONDERS
from barnabas.wire.errors import ErrorCode

# Acknowledgements that a message may ask for.
NO_ACK: Final = 0
ACK_LEADER: Final = 1
ACK_ALL: Final = 2

AckLevel = Callable[[bytes, bytes | None], int]

KAFKA_ACK: Final = b"Kafka-Ack"
_LEVELS: Final = {
    b"all": ACK_ALL,
    b"-1": ACK_ALL,
    b"leader": ACK_LEADER,
    b"1": ACK_LEADER,
    b"none": NO_ACK,
    b"0": NO_ACK,
}
_SERVER_PREFIX: Final = b"$"
_DESCRIPTION_CHARACTERS_MAX: Final = 512

# HTTP-like code and JetStream's number, where one means the same. 10077 is "the store has failed", 10008 "temporarily
# unavailable", 10003 "bad request".
_TEMPORARY: Final = (503, 10008)
_STORE_FAILED: Final = (503, 10077)
_BAD_REQUEST: Final = (400, 10003)
_CODES: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: _TEMPORARY,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _TEMPORARY,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _TEMPORARY,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _TEMPORARY,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _TEMPORARY,
    ErrorCode.KAFKA_STORAGE_ERROR: _STORE_FAILED,
    ErrorCode.MESSAGE_TOO_LARGE: (400, 10054),
    ErrorCode.RECORD_LIST_TOO_LARGE: (400, 10054),
    ErrorCode.INVALID_RECORD: _BAD_REQUEST,
    ErrorCode.INVALID_TIMESTAMP: _BAD_REQUEST,
    ErrorCode.INVALID_REQUEST: _BAD_REQUEST,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (403, 10035),
}


def ack_level(mode: str) -> AckLevel:
    """The function (reply subject or b"", value of Kafka-Ack or None) -> NO_ACK, ACK_LEADER or ACK_ALL for a value of
    nats.acks."""
    return {"header": _asked_by_header, "reply": _asked_by_reply}.get(mode, _never)


def _never(_reply: bytes, _asked: bytes | None) -> int:
    return NO_ACK


def _asked_by_header(reply: bytes, asked: bytes | None) -> int:
    if asked is None or not reply or reply.startswith(_SERVER_PREFIX):
        return NO_ACK
    level = _LEVELS.get(asked)
    return _level(asked) if level is None else level


def _asked_by_reply(reply: bytes, asked: bytes | None) -> int:
    if not reply or reply.startswith(_SERVER_PREFIX):
        return NO_ACK
    return ACK_ALL if asked is None else _level(asked)


def _level(asked: bytes) -> int:
    return _LEVELS.get(asked.strip().lower(), ACK_ALL)


class PubAckBytes:
    """Formats the answers of one partition, a third of a microsecond each."""

    __slots__ = ("_error_end", "partition", "prefix", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        stream = json.dumps(topic)
        self.prefix = f'{{"stream":{stream},"partition":{partition},"seq":'.encode()
        self._error_end = f',"stream":{stream},"partition":{partition},"seq":0}}'

    def stored(self, offset: int) -> bytes:
        """Answers a message that is the record at `offset`."""
        return b"%b%d}" % (self.prefix, offset + 1)

    def duplicate(self, offset: int) -> bytes:
        """Answers a duplicate of the record at `offset`."""
        return b'%b%d,"duplicate":true}' % (self.prefix, offset + 1)

    def refused(self, code: int, number: int, description: str) -> bytes:
        """Answers a message that was not stored. `code` is like HTTP's, `number` is JetStream's for the error."""
        text = json.dumps(description[:_DESCRIPTION_CHARACTERS_MAX])
        return (
            f'{{"error":{{"code":{code},"err_code":{number},"description":{text}}}{self._error_end}'.encode()
        )

    def failed(self, error: ErrorCode, message: str = "") -> bytes:
        """Answers a message that was not stored, or not as safely as it asked for, with an error of Kafka's."""
        code, number = _CODES.get(error, _STORE_FAILED)
        return self.refused(code, number, f"{error.name}: {message}" if message else error.name)


# -- answers of streams

NO_STREAM: Final = (
    "blocked: no stream takes messages of this subject: create one, or set nats.publish.jetstream=false"
)


class PubAckError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: PubAckError | None = None


def read_ack(payload: bytes) -> PubAck | None:
    """Decodes the answer of a stream; None for anything else."""
    try:
        ack = msgspec.json.decode(payload, type=PubAck)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return ack if ack.stream or ack.error is not None else None


def failure_of(header_block: bytes, payload: bytes) -> str:
    """Why a stream did not store a message, as a state (`waiting: <why>` or `blocked: <what to do>`); "" when it stored it,
    now or before."""
    if payload.startswith(b'{"stream":') and b'"error"' not in payload:
        return ""
    if not payload and header_block.startswith(NO_RESPONDERS):
        return NO_STREAM
    ack = read_ack(payload)
    if ack is None:
        return f"blocked: the answer is not that of a stream: {payload[:100]!r}"
    if ack.error is not None:
        return f"waiting: the stream has refused a message: {ack.error.description} ({ack.error.err_code or ack.error.code})"
    return ""
