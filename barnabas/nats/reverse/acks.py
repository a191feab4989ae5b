"""What a stream says to a message that was published to it.

Source: docs.nats.io, JetStream's PubAck; ADR-1 for its errors. 503 in the status line is the server's own word that nobody
is subscribed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from barnabas.nats.client.requests import NO_RESPONDERS

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
    """The answer of a stream; None when it is something else."""
    try:
        ack = msgspec.json.decode(payload, type=PubAck)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return ack if ack.stream or ack.error is not None else None


def failure_of(header_block: bytes, payload: bytes) -> str:
    """Why a stream did not take a message, as a state (`waiting: <why>` or `blocked: <what to do>`); "" when it did, perhaps
    before."""
    if payload.startswith(b'{"stream":') and b'"error"' not in payload:
        return ""
    if not payload and header_block.startswith(NO_RESPONDERS):
        return NO_STREAM
    ack = read_ack(payload)
    if ack is None:
        return f"blocked: what has answered is no stream: {payload[:100]!r}"
    if ack.error is not None:
        return f"waiting: the stream has refused a message: {ack.error.description} ({ack.error.err_code or ack.error.code})"
    return ""
