"""Exactly once: each message of a stream becomes one record, in the stream's order.

Every broker that leads partitions of the binding reads the stream for itself, through a consumer of its own that needs no
acknowledgements, and keeps what belongs to its partitions. What a partition has come to stands in its log, in the headers of
the records (jetstream_positions.py), so the record and the knowledge that it is there are one. A consumer is made to begin
behind what the partition that is furthest behind has come to; what the others have already is dropped.

Nothing is ever delivered a second time to a consumer like this. If something is missing (the consumer's own numbers tell),
or the connection, the consumer or the leadership is lost, the consumer is given up and another one begins behind what was
taken last: so the order holds, too.

A stream whose messages go once they have been acknowledged can't be read like this. A message that its partition will
never take (it is too large, say) stops the binding rather than being skipped, or goes to the dead letters, if there are any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.nats.jetstream_acks import numbers_start, parse_ack_subject
from barnabas.broker.nats.jetstream_api import LIMITS, NANOSECONDS, ConsumerConfig, StreamInfo
from barnabas.broker.nats.jetstream_carrier import Source, StreamCarrier
from barnabas.broker.nats.jetstream_checkpoint import Checkpoint
from barnabas.broker.nats.jetstream_intake import (
    RECORD_OVERHEAD_BYTES,
    Intake,
    ValueOf,
    batch_bytes_max,
)
from barnabas.broker.nats.jetstream_origin import (
    Reached,
    Stream,
    before_of_new,
    later_of,
    look_at,
    still_counts,
)
from barnabas.broker.nats.jetstream_positions import find_position
from barnabas.broker.nats.jetstream_pull import Puller, PullLimits
from barnabas.broker.nats.jetstream_setup import (
    Blocked,
    Consumer,
    consumer_name,
    delete,
    find_stream,
    make_consumer,
)
from barnabas.broker.nats.jetstream_steps import Steps
from barnabas.broker.nats.partitioners import BadPartition
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.nats.client import Subscription
    from barnabas.broker.nats.jetstream_checkpoint import Checkpoints
    from barnabas.broker.nats.keys import KeyFunction
    from barnabas.broker.partition import Partition
    from barnabas.controller.nats.binding import Binding
    from barnabas.storage.runtime import Runtime, Timer

log = logging.getLogger("barnabas.nats")

INACTIVE_S: Final = 60  # a consumer that nobody asks any more goes after this time
CHECKPOINT_EVERY_S: Final = 5.0
_FOR_NOW: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
_NO_PREFIX: Final = b"\0"  # no reply subject begins with it


class ExactlyOnce(StreamCarrier):
    """Reads the binding's stream into the partitions that are led here; a Carrier."""

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        binding: Binding,
        *,
        partition_count: Callable[[], int],
        cluster_id: str,
        checkpoints: Checkpoints | None = None,
        key_of: KeyFunction | None = None,
        value_of: ValueOf | None = None,
    ) -> None:
        """`key_of` instead of the binding's own key; `value_of(header_block, payload)` instead of the payload, None is
        null. Without `checkpoints` the log alone tells what has been reached."""
        super().__init__(runtime, source, binding)
        self.missing = 0  # messages that the stream had lost (or removed) before they were taken
        self._partition_count = partition_count
        self._checkpoints = checkpoints
        self._intake = Intake(binding, self.stats, cluster_id, key_of=key_of, value_of=value_of)
        self._intake.on_refused = self._refused
        self._intake.on_committed = self._refill
        self._reached: dict[int, Reached] = {}  # by partition, where it is known
        self._created = ""  # when the stream was
        self._stream = ""
        self._checkpoint_timer: Timer | None = None
        self._checkpointed = -1
        # of the run
        self._subscription: Subscription | None = None
        self._puller: Puller | None = None
        self._consumer = ""
        self._takes_all = False
        self._prefix = _NO_PREFIX  # of the reply subjects
        self._numbers_start = 0
        self._next = 1  # of the consumer's own numbers
        self._cursor = 0  # the last message that was dealt with
        self._cursor_time = b"0"
        self._ahead = 0  # up to here some partition has come already
        self._count = self._bytes = 0  # that came since the last `on_read`
        self._last_reply = b""
        self._tail_max = 0
        self._trouble: tuple[bool, str] | None = None  # is blocked, why: nothing more is taken

    # -- roles

    def start(self, leading: Mapping[int, Partition]) -> None:
        self._intake.serve(leading, self._partition_count())
        super().start(leading)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        self._end_run()  # what was taken counts for those that stay
        for index in self._intake.serve(leading, self._partition_count()):
            self._reached.pop(index, None)
        for index in [index for index in self._reached if index not in leading]:
            del self._reached[index]
        super().roles_changed(leading)

    def _stopped(self) -> None:
        self._note_checkpoints()
        if self._checkpoints is not None:
            self._checkpoints.stop()
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
            self._checkpoint_timer = None
        self._reached.clear()

    # -- a run's beginning

    async def _set_up(self) -> None:
        if not self.leading:
            return
        info = await find_stream(self._api, self.binding)
        name = info.config.name
        if info.config.retention != LIMITS:
            raise Blocked(
                f"the stream {name} removes what has been acknowledged (retention {info.config.retention}), so it can't be read"
                " exactly once: set nats.delivery=at-least-once"
            )
        if info.created != self._created or name != self._stream:
            self._reached.clear()
            self._created, self._stream = info.created, name
            self._intake.of_stream(name)
        consumer = self._consumer = consumer_name(
            "barnabas", self.binding.topic, self._runtime.random_bytes(6).hex()
        )
        stream = await look_at(self._api, info, self.binding.start, consumer)
        await self._find_reached(stream)
        first = min(each.sequence for each in self._reached.values()) + 1
        config = ConsumerConfig(
            name=consumer,
            description=f"topic {self.binding.topic}, exactly once",
            deliver_policy="by_start_sequence" if first > 1 else "all",
            opt_start_seq=first if first > 1 else 0,
            ack_policy="none",
            inactive_threshold=INACTIVE_S * NANOSECONDS,
            num_replicas=1,
            mem_storage=True,
        )
        made = await make_consumer(self._api, info, config, self.binding.patterns)
        self._run(made, self._note_removed(info, first))

    async def _find_reached(self, stream: Stream) -> None:
        """Fill `_reached` for the partitions of which it is not known."""
        unknown = [index for index in sorted(self.leading) if index not in self._reached]
        if not unknown:
            return
        count = self._partition_count()
        checkpoints = await self._checkpoints.fetch(range(count)) if self._checkpoints is not None else {}
        running = [each.sequence for each in self._reached.values()]
        found: dict[int, Reached] = {}
        begun: dict[int, Checkpoint] = {}
        for index in unknown:
            partition = self.leading[index]
            reached = await self._reached_by(partition, checkpoints.get(index), stream)
            if reached is None:
                before = before_of_new(index, checkpoints, self._stream, running)
                reached = Reached(stream.before_start if before is None else before)
                end = partition.high_watermark
                begun[index] = Checkpoint(end, self._stream, reached.sequence, reached.timestamp_ns, count)
            found[index] = reached
        if begun and self._checkpoints is not None:
            await self._checkpoints.commit(begun)
        self._reached.update(found)

    async def _reached_by(
        self, partition: Partition, checkpoint: Checkpoint | None, stream: Stream
    ) -> Reached | None:
        name, end = self._stream, partition.log.log_end_offset
        is_of_this = checkpoint is not None and checkpoint.stream == name and checkpoint.offset <= end
        floor = checkpoint.offset if checkpoint is not None and is_of_this else 0
        position = await find_position(self._runtime, partition, name, floor)
        reached = later_of(position, checkpoint, name, end)
        if reached is None:
            return None
        is_bounded = self.binding.start.kind in ("seq", "time")
        if not await still_counts(self._api, stream, reached, self._name):
            return Reached(stream.before_start if is_bounded else 0)
        if is_bounded and reached.sequence < stream.before_start:
            return Reached(stream.before_start)
        return reached

    def _note_removed(self, info: StreamInfo, first: int) -> int:
        """What was removed from the front of the stream before it could be taken; returns the first that is left."""
        left = min(info.state.first_seq, info.state.last_seq + 1)
        if first == 1 or left <= first:
            return first
        self.missing += left - first
        self.stats.lost_estimate = self.missing
        log.warning(
            "%s: the stream %s has removed messages %d to %d before they were taken (%d at most that were the binding's)",
            self._name,
            self._stream,
            first,
            left - 1,
            left - first,
        )
        return left

    def _run(self, made: Consumer, first: int) -> None:
        client = self._client
        inbox = client.new_inbox()
        self._takes_all = made.takes_all
        self._prefix = _NO_PREFIX
        self._next = 1
        self._cursor = first - 1
        self._ahead = max(each.sequence for each in self._reached.values())
        self._trouble = None
        self._tail_max = min(batch_bytes_max(each) for each in self.leading.values()) - RECORD_OVERHEAD_BYTES
        self.stats.lag = made.info.num_pending
        self._subscription = client.subscribe(inbox.decode(), self._take)
        self._puller = Puller(
            self._runtime,
            client,
            self._api.next_subject(self._stream, self._consumer),
            inbox,
            self.binding.buffer_bytes,
            PullLimits(),
            self._pull_failed,
        )
        self._refill()
        if self._checkpoint_timer is None:
            self._checkpoint_timer = self._runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)

    # -- messages

    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        if not reply.startswith(self._prefix):
            self._take_other(subject, reply, header_block, payload)
            return
        if self._trouble is not None:
            return
        try:
            numbers = reply[self._numbers_start :].split(b".")
            sequence = int(numbers[1])
            timestamp = numbers[3]
            if int(numbers[2]) != self._next:
                self._trouble = False, f"message {self._next} of the consumer did not come"
                return
            encoded = self._intake.encode(subject, header_block, payload, numbers[1], timestamp)
            if encoded is not None:
                partition, special, tail = encoded
                lane = self._intake.lanes.get(partition)
                if lane is None or (
                    sequence <= self._ahead and sequence <= self._reached[partition].sequence
                ):
                    pass
                elif special is not None and self._intake.has_looped(header_block):
                    self.stats.looped += 1
                else:
                    if len(tail) > self._tail_max:
                        self._trouble = True, _too_large(sequence, len(tail))
                        return
                    lane.builder.add_at(tail, int(timestamp[:-6]))
        except BadPartition as error:
            self._trouble = True, f"message {sequence} of the stream can't be taken: {error}"
            return
        except (ValueError, IndexError):
            self._trouble = False, f"a message came with a reply subject that can't be read: {reply[:200]!r}"
            return
        if self._takes_all and sequence != self._cursor + 1:
            self._note_gap(sequence)
        self._next += 1
        self._cursor = sequence
        self._cursor_time = timestamp
        self._last_reply = reply
        self._count += 1
        self._bytes += len(subject) + len(reply) + len(header_block) + len(payload)

    def _take_other(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        """The first message, or what is none."""
        if not reply:
            if self._puller is not None:
                self._puller.status(header_block)
            return
        delivery = parse_ack_subject(reply)
        if delivery is None or delivery.stream != self._stream or delivery.consumer != self._consumer:
            log.warning("%s: a message that is not of its consumer came: %r", self._name, reply[:200])
            return
        self._numbers_start = numbers_start(reply)
        self._prefix = reply[: self._numbers_start]
        self._take(subject, reply, header_block, payload)

    def _note_gap(self, sequence: int) -> None:
        if self._cursor:  # in front of the first that was ever asked for nothing is missing
            self.missing += max(0, sequence - self._cursor - 1)
            self.stats.lost_estimate = self.missing

    def on_read(self) -> None:
        """Append what came together, and ask for more."""
        self._close()
        if self._puller is None:
            return
        if self._trouble is None:
            self._refill()
            return
        is_blocked, why = self._trouble
        if is_blocked:
            self.block(why)
        else:
            self.restart(why)

    def _close(self) -> None:
        count, size = self._count, self._bytes
        if not count:
            return
        self._count = self._bytes = 0
        stats = self.stats
        stats.messages_in += count
        stats.bytes_in += size
        pending = self._last_reply[self._numbers_start :].split(b".")[4]
        stats.lag = int(pending) if pending.isdigit() else 0
        self._intake.close_batches(size)
        if self._trouble is None:
            self.went_well()
        if self._puller is not None:
            self._puller.received(count, size)

    def _refill(self) -> None:
        if self._puller is not None:
            self._puller.refill(self._intake.room)

    def _pull_failed(self, why: str) -> None:
        """Called while data is read, or by a timer."""
        self._trouble = self._trouble or (False, why)
        self._runtime.call_soon(self.on_read)

    def _refused(self, index: int, _count: int, error: ErrorCode, why: str) -> None:
        """A partition did not take a batch. Where it stands its log knows."""
        self._reached.pop(index, None)
        what = f"{self.binding.topic}-{index} does not take messages of the stream: {error.name}: {why}"
        self._trouble = error not in _FOR_NOW, what

    # -- a run's end

    def _end_run(self) -> None:
        puller, subscription = self._puller, self._subscription
        if puller is None or subscription is None:
            return
        puller.stop()
        subscription.unsubscribe()
        self._close()
        self._puller = self._subscription = None
        time = int(self._cursor_time)
        for index, reached in self._reached.items():
            if reached.sequence < self._cursor:
                self._reached[index] = Reached(self._cursor, time)
        if self._client.is_connected:
            Steps(delete(self._api, self._stream, self._consumer), lambda _error: None)

    # -- checkpoints

    def _checkpoint(self) -> None:
        self._checkpoint_timer = self._runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)
        self._note_checkpoints()

    def _note_checkpoints(self) -> None:
        """Remember what has been reached, once it is committed."""
        checkpoints, cursor = self._checkpoints, self._cursor
        if checkpoints is None or cursor == self._checkpointed:
            return
        self._checkpointed = cursor
        time, count, stream = int(self._cursor_time), self._partition_count(), self._stream
        for index, lane in self._intake.lanes.items():
            reached = self._reached.get(index)
            if reached is None:
                continue
            later = reached if reached.sequence > cursor else Reached(cursor, time)
            end = lane.partition.log.log_end_offset
            checkpoint = Checkpoint(end, stream, later.sequence, later.timestamp_ns, count)

            def committed(error: ErrorCode, index: int = index, checkpoint: Checkpoint = checkpoint) -> None:
                if not error:
                    checkpoints.keep(index, checkpoint)

            lane.partition.when_committed(end, committed)


def _too_large(sequence: int, size: int) -> str:
    return (
        f"message {sequence} of the stream would be a record of {size} bytes: raise max.message.bytes, or set"
        " nats.dead.letter.topic"
    )
