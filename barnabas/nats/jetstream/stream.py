"""A stream as a binding finds it: where nats.start lies in it, and whether a position is still valid.

A stream of the same name may be another one than when the position was taken:

- It was recreated: the message at this sequence is another one or gone, and the stream is younger than the message that was
  taken. It is read from its start. (A mirror is younger than its messages and keeps their sequences, so its age says
  nothing.)
- It ends before the position, though it is older than the message: it was restored from an older copy. New messages will get
  sequences that were taken already, and can't be told from the old ones. So this is Blocked, until nats.start names a time
  behind the last message that was taken.

nats.start is always a lower bound: a partition without a position begins there, and moving it ahead later skips messages.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.errors import RequestTimedOut
from barnabas.nats.jetstream.api import (
    NANOSECONDS,
    ConsumerConfig,
    JetStreamApi,
    JetStreamError,
    StoredMessage,
    StreamInfo,
    nanoseconds_of,
)
from barnabas.nats.jetstream.setup import Blocked, create, delete
from barnabas.runtime.procedures import Call

if TYPE_CHECKING:
    from barnabas.nats.binding.keys import StartSpec

log = logging.getLogger("barnabas.nats")

PROBE_INACTIVE_S: Final = 10


class Reached(msgspec.Struct, frozen=True):
    """A position: all messages up to `sequence` are taken. That one was stored at `timestamp_ns` (0: unknown)."""

    sequence: int
    timestamp_ns: int = 0


class Stream(msgspec.Struct, frozen=True):
    info: StreamInfo
    created_ns: int
    before_start: int  # the sequence before the first message that nats.start allows
    start_ns: int  # of nats.start=time:..., or 0


async def inspect_stream(api: JetStreamApi, info: StreamInfo, start: StartSpec, probe_name: str) -> Stream:
    """Finds where nats.start lies in the stream; `probe_name` is the name of a consumer for that."""
    start_ns = nanoseconds_of(start.time) if start.kind == "time" else 0
    if start.kind == "seq":
        before = start.sequence - 1
    elif start.kind == "new":
        before = info.state.last_seq
    elif start.kind == "time":
        before = await _before_time(api, info.config.name, start.time, probe_name)
    else:
        before = 0
    return Stream(info, nanoseconds_of(info.created), before, start_ns)


async def _before_time(api: JetStreamApi, stream: str, time: str, name: str) -> int:
    """The sequence before the first message at or after the time, from a consumer that would begin there."""
    config = ConsumerConfig(
        name=name,
        deliver_policy="by_start_time",
        opt_start_time=time,
        ack_policy="none",
        inactive_threshold=PROBE_INACTIVE_S * NANOSECONDS,
        num_replicas=1,
        mem_storage=True,
    )
    made = await create(api, stream, config)
    await delete(api, stream, name)
    return made.delivered.stream_seq


async def is_still_valid(api: JetStreamApi, stream: Stream, reached: Reached, topic: str) -> bool:
    """Whether a position in a stream of this name is a position in this stream. Blocked when that is unknown."""
    if reached.sequence == 0:
        return True
    config, state = stream.info.config, stream.info.state
    if stream.start_ns > reached.timestamp_ns > 0:
        return False  # nats.start was set after the message was taken
    known = await _message(api, config.name, reached.sequence)
    if known is not None and reached.timestamp_ns:
        if nanoseconds_of(known.time) == reached.timestamp_ns:
            return True
    elif known is not None:
        return True
    if config.mirror is None and 0 < reached.timestamp_ns < stream.created_ns:
        log.warning(
            "topic %s: the stream %s was recreated after its message %d was taken; it is read from its start",
            topic,
            config.name,
            reached.sequence,
        )
        return False
    if reached.timestamp_ns == 0 and reached.sequence > state.last_seq:
        return False  # nothing was taken yet, and the stream ends before the first position
    if known is not None or reached.sequence > state.last_seq:
        raise Blocked(
            f"the stream {config.name} is not as it was: its message {reached.sequence} has been taken, and "
            + ("is another one now" if known is not None else f"it ends at {state.last_seq}")
            + " (restored from a copy?). Set nats.start=time:T, T behind the last message that was taken, to go on there"
        )
    return True


async def _message(api: JetStreamApi, stream: str, sequence: int) -> StoredMessage | None:
    """None when it is gone, or may not be read."""
    try:
        return await Call[StoredMessage](lambda done: api.message(stream, sequence, done))
    except (JetStreamError, RequestTimedOut) as error:
        if not isinstance(error, JetStreamError) or error.code != 404:
            log.info("stream %s: message %d can't be read: %s", stream, sequence, error)
        return None
