"""Which acknowledgement a message asks for, and the bytes of one.

The answer to a message is the JSON of JetStream's PubAck, so `js.publish()` of any client takes a bound topic for a
stream: the stream is the topic, the sequence is the record's offset plus one (JetStream counts from one), and a field
of ours tells the partition, which clients pass over. An error is JetStream's as well, its description begins with
Kafka's name of the error. Clients build their exception from the fields of "error", some from exactly those three:
whatever is ours stands beside it.

nats.acks says when a message asks:
- `header`: when it has a reply subject and the header Kafka-Ack. Answering unasked would hijack the requests of others,
  whose first answer counts.
- `reply`: when it has a reply subject.
- `off`: never.
Kafka-Ack is `all` (the high watermark is behind the record) or `leader` (it is appended); Kafka's own -1, 1 and 0 are
understood as well, 0 or `none` asks for none in any mode, and what is unknown is given the most. In mode `reply` no header
means `all`. A reply subject that begins with $ is never answered. It is the server's: $JS.ACK. is how a consumer
acknowledges to JetStream, which would take our answer for its own; and who may not publish to $KV. or $JS.API. is not to
have us do it.

Source: ADR-1 and ADR-22 (JetStream's API and publishing), nats-server's own answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from barnabas.wire.errors import ErrorCode

# What a message asks for.
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
_OF_SERVERS: Final = b"$"
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
    """The function (reply subject, value of Kafka-Ack or None) -> NO_ACK, ACK_LEADER or ACK_ALL of the nats.acks given;
    the reply is b"" when absent."""
    return {"header": _asked_by_header, "reply": _asked_by_reply}.get(mode, _never)


def _never(_reply: bytes, _asked: bytes | None) -> int:
    return NO_ACK


def _asked_by_header(reply: bytes, asked: bytes | None) -> int:
    if asked is None or not reply or reply.startswith(_OF_SERVERS):
        return NO_ACK
    level = _LEVELS.get(asked)
    return _level(asked) if level is None else level


def _asked_by_reply(reply: bytes, asked: bytes | None) -> int:
    if not reply or reply.startswith(_OF_SERVERS):
        return NO_ACK
    return ACK_ALL if asked is None else _level(asked)


def _level(asked: bytes) -> int:
    return _LEVELS.get(asked.strip().lower(), ACK_ALL)


class PubAckBytes:
    """The answers of one partition. Formatting one costs a third of a microsecond."""

    __slots__ = ("_error_end", "partition", "prefix", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        stream = json.dumps(topic)
        self.prefix = f'{{"stream":{stream},"partition":{partition},"seq":'.encode()
        self._error_end = f',"stream":{stream},"partition":{partition},"seq":0}}'

    def stored(self, offset: int) -> bytes:
        """The message is the record at `offset`."""
        return b"%b%d}" % (self.prefix, offset + 1)

    def duplicate(self, offset: int) -> bytes:
        """The message is one that came before and is the record at `offset`."""
        return b'%b%d,"duplicate":true}' % (self.prefix, offset + 1)

    def refused(self, code: int, number: int, description: str) -> bytes:
        """The message is no record. `code` is like HTTP's, `number` JetStream's for the error."""
        text = json.dumps(description[:_DESCRIPTION_CHARACTERS_MAX])
        return (
            f'{{"error":{{"code":{code},"err_code":{number},"description":{text}}}{self._error_end}'.encode()
        )

    def failed(self, error: ErrorCode, message: str = "") -> bytes:
        """The message is no record, or not as safe a one as was asked for, for a reason of Kafka's."""
        code, number = _CODES.get(error, _STORE_FAILED)
        return self.refused(code, number, f"{error.name}: {message}" if message else error.name)
