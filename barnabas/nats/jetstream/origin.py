"""Where each partition goes on in its stream, or begins.

What a partition has come to is the later of its log's last message of the stream and its checkpoint. Then the stream is
looked at, because the one of that name may not be the one of then:

- It was made anew: the message at that number is another one, or gone, and the stream is younger than the message that
  was taken. Nothing of the new stream has been taken, so it is read from its start. (A mirror is younger than its
  messages and keeps their numbers, so it is not judged by its age.)
- It ends before that number, though it is older than the message: it was restored from an older copy. New messages will
  come under numbers that are taken already, and nobody can tell them from the old ones; so this is Blocked, until
  nats.start names a time behind the last message that was taken.

nats.start is a lower bound at all times: it says where a partition begins that has come to nothing yet, and moving it
ahead later skips what lies between.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.errors import RequestTimedOut
from barnabas.nats.jetstream.api import (
    ConsumerConfig,
    JetStreamApi,
    JetStreamError,
    StoredMessage,
    StreamInfo,
    nanoseconds_of,
)
from barnabas.nats.jetstream.setup import Blocked, create, delete
from barnabas.nats.jetstream.steps import Answer

if TYPE_CHECKING:
    from barnabas.nats.binding.keys import StartSpec
    from barnabas.nats.jetstream.checkpoint import Checkpoint
    from barnabas.nats.jetstream.positions import LogPosition

log = logging.getLogger("barnabas.nats")

PROBE_SECONDS: Final = 10


class Reached(msgspec.Struct, frozen=True):
    """All messages up to `sequence` are dealt with; that one was stored at `timestamp_ns` (0 when it is not known)."""

    sequence: int
    timestamp_ns: int = 0


class Stream(msgspec.Struct, frozen=True):
    """A stream as it was found, and since when there is something for those who begin: the number before the first
    message that `nats.start` allows."""

    info: StreamInfo
    created_ns: int
    before_start: int
    start_ns: int  # of nats.start=time:..., or 0


async def look_at(api: JetStreamApi, info: StreamInfo, start: StartSpec, probe_name: str) -> Stream:
    """Find out where nats.start lies in the stream."""
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
    """The number before the first message at or after the time: a consumer that would begin there tells."""
    config = ConsumerConfig(
        name=name,
        deliver_policy="by_start_time",
        opt_start_time=time,
        ack_policy="none",
        inactive_threshold=PROBE_SECONDS * 1_000_000_000,
        num_replicas=1,
        mem_storage=True,
    )
    made = await create(api, stream, config)
    await delete(api, stream, name)
    return made.delivered.stream_seq


async def still_counts(api: JetStreamApi, stream: Stream, reached: Reached, whose: str) -> bool:
    """Whether what was reached in the stream of that name is a place in this stream. Blocked when that can't be known.

    `whose` is named in messages.
    """
    if reached.sequence == 0:
        return True
    config, state = stream.info.config, stream.info.state
    if stream.start_ns > reached.timestamp_ns > 0:
        return False  # whoever set nats.start has seen what was taken, and means it
    known = await _message(api, config.name, reached.sequence)
    if known is not None and reached.timestamp_ns:
        if nanoseconds_of(known.time) == reached.timestamp_ns:
            return True
    elif known is not None:
        return True
    if config.mirror is None and 0 < reached.timestamp_ns < stream.created_ns:
        log.warning(
            "%s: the stream %s was made anew after its message %d was taken; it is read from its start",
            whose,
            config.name,
            reached.sequence,
        )
        return False
    if reached.timestamp_ns == 0 and reached.sequence > state.last_seq:
        return False  # nothing has been taken yet, and the stream ends before where it was to begin
    if known is not None or reached.sequence > state.last_seq:
        raise Blocked(
            f"the stream {config.name} is not as it was: its message {reached.sequence} has been taken, and "
            + ("is another one now" if known is not None else f"it ends at {state.last_seq}")
            + " (restored from a copy?). Set nats.start=time:T, T behind the last message that was taken, to go on there"
        )
    return True


async def _message(api: JetStreamApi, stream: str, sequence: int) -> StoredMessage | None:
    """None when it is gone, or when we may not look."""
    try:
        return await Answer[StoredMessage](lambda done: api.message(stream, sequence, done))
    except (JetStreamError, RequestTimedOut) as error:
        if not isinstance(error, JetStreamError) or error.code != 404:
            log.info("stream %s: message %d can't be looked at: %s", stream, sequence, error)
        return None


def later_of(position: LogPosition | None, checkpoint: Checkpoint | None) -> Reached | None:
    """What a partition has come to."""
    found: list[Reached] = []
    if position is not None:
        found.append(Reached(position.sequence, position.timestamp_ns))
    if checkpoint is not None:
        found.append(Reached(checkpoint.sequence, checkpoint.timestamp_ns))
    return max(found, key=lambda each: (each.timestamp_ns, each.sequence), default=None)


def was_added(partition: int, checkpoints: Mapping[int, Checkpoint], stream: str) -> bool:
    """Whether a partition was added after others had begun without it."""
    return any(each.stream == stream and each.partition_count <= partition for each in checkpoints.values())
