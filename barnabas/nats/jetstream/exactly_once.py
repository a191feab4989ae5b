"""Exactly once: each message of a stream becomes one record, in the stream's order.

Every broker that leads partitions of the binding reads the stream for itself, through a consumer of its own that needs no
acknowledgements, and keeps what belongs to its partitions. What a partition has come to stands in its log, in the headers of
the records (jetstream/positions.py), so the record and the knowledge that it is there are one. A consumer is made to begin
behind what the partition that is furthest behind has come to; what the others have already is dropped.

Nothing is ever delivered a second time to a consumer like this. If something is missing (the consumer's own numbers tell),
or the connection, the consumer or the leadership is lost, the consumer is given up and another one begins behind what was
taken last: so the order holds, too.

A stream whose messages go once they have been acknowledged can't be read like this. A message that its partition will
never take (it is too large, say) stops the binding rather than being skipped, or goes to the dead letters, if there are any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from barnabas.nats.dead_letters import StreamMessage, shown_subject
from barnabas.nats.jetstream.ack_subject import Delivery, is_position
from barnabas.nats.jetstream.api import LIMITS, NANOSECONDS, ConsumerConfig, JetStreamApi, StreamInfo
from barnabas.nats.jetstream.consumer import Source, StreamConsumer
from barnabas.nats.jetstream.intake import ValueOf
from barnabas.nats.jetstream.origin import Stream, look_at
from barnabas.nats.jetstream.progress import Progress
from barnabas.nats.jetstream.pull import PullLimits
from barnabas.nats.jetstream.setup import (
    Blocked,
    Consumer,
    consumer_name,
    delete,
    make_consumer,
)
from barnabas.nats.jetstream.steps import Steps
from barnabas.nats.records.partitioners import BadPartition
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.dead_letters import DeadLetterTopic
    from barnabas.nats.jetstream.checkpoint import Checkpoints
    from barnabas.nats.records.keys import KeyFunction
    from barnabas.runtime.interface import Runtime, Timer

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


MadeAnew = Callable[[JetStreamApi, Stream, "Partition"], Coroutine[Any, Any, object]]


class ExactlyOnce(StreamConsumer):
    """Reads the binding's stream into the partitions that are led here."""

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
        dead_letters: DeadLetterTopic | None = None,
        made_anew: MadeAnew | None = None,
    ) -> None:
        """Without `checkpoints` only the log says what has been reached. `made_anew` is awaited for each partition that
        has records of an earlier stream of the name, before it takes messages of this one."""
        super().__init__(
            runtime,
            source,
            binding,
            partition_count=partition_count,
            cluster_id=cluster_id,
            dead_letters=dead_letters,
            key_of=key_of,
            value_of=value_of,
        )
        self.missing = 0  # messages that the stream had lost (or removed) before they were taken
        self._made_anew = made_anew
        self._progress = Progress(runtime, binding, checkpoints)
        self._reached = self._progress.reached
        self._checkpoint_timer: Timer | None = None
        # of the run
        self._consumer = ""
        self._takes_all = False
        self._next = 1  # of the consumer's own numbers
        self._cursor = 0  # the last message that was dealt with
        self._cursor_time = 0  # when it was stored, ns
        self._ahead = 0  # up to here some partition has come already
        self._is_behind = True  # there may be messages that some partition has
        self._trouble: tuple[bool, str] | None = None  # is blocked, why: nothing more is taken
        self._letter: StreamMessage | None = None  # the message that can't be stored
        self._counted_large = 0  # the last message that was too large

    # -- roles

    def start(self, leading: Mapping[int, Partition]) -> None:
        self._intake.serve(leading, self._partition_count())
        super().start(leading)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        self._letter = None
        self._end_run()  # what was taken counts for those that stay
        for index in self._intake.serve(leading, self._partition_count()):
            self._progress.forget(index)
        for index in [index for index in self._reached if index not in leading]:
            self._progress.forget(index)
        super().roles_changed(leading)

    def _stopped(self) -> None:
        self._note_progress()
        self._progress.stop()
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
            self._checkpoint_timer = None

    # -- a run's beginning

    async def _set_up(self) -> None:
        if not self.leading:
            return
        info = await self._find_stream()
        name = info.config.name
        if info.config.retention != LIMITS:
            raise Blocked(
                f"the stream {name} removes what has been acknowledged (retention {info.config.retention}), so it can't be read"
                " exactly once: set nats.delivery=at-least-once"
            )
        self._stream = name
        self._intake.of_stream(name)
        consumer = self._consumer = consumer_name(
            "barnabas", self.binding.topic, self._runtime.random_bytes(6).hex()
        )
        stream = await look_at(self._api, info, self.binding.start, consumer)
        await self._progress.find(self._api, stream, self.leading, self._intake.partition_count)
        if self._made_anew is not None:
            for index in sorted(self._progress.made_anew & self.leading.keys()):
                await self._made_anew(self._api, stream, self.leading[index])
                self._progress.made_anew.discard(index)
        first = self._progress.first
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
        self._start_run(made, self._note_removed(info, first))

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

    def _start_run(self, made: Consumer, first: int) -> None:
        self._takes_all = made.takes_all
        self._next = 1
        self._cursor = first - 1
        self._ahead = self._progress.last
        self._is_behind = self._cursor < self._ahead
        for lane in self._intake.lanes.values():
            lane.read_limits()
        self._trouble = None
        self._letter = None
        self.stats.lag = made.info.num_pending
        self._begin_run(self._consumer, PullLimits())
        if self._checkpoint_timer is None:
            self._checkpoint_timer = self._runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)

    # -- messages

    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        run = self._run
        if run is None or self._trouble is not None:
            return
        if not reply.startswith(run.prefix):
            run.other(subject, reply, header_block, payload)
            return
        try:
            numbers = reply[run.numbers_start :].split(b".")
            if not (is_position(numbers[1]) and is_position(numbers[3])):
                raise ValueError
            if self._is_behind or not self._intake.gather(
                subject, header_block, payload, numbers[1], numbers[3]
            ):
                self._take_carefully(subject, header_block, payload, numbers[1], numbers[3])
        except (ValueError, IndexError):
            self._trouble = False, f"a message came with a reply subject that can't be read: {reply[:200]!r}"
        if self._trouble is None:
            self._last_reply = reply
            self._count += 1
            self._bytes += len(subject) + len(reply) + len(header_block) + len(payload)

    def _take_carefully(
        self, subject: bytes, header_block: bytes, payload: bytes, number: bytes, timestamp: bytes
    ) -> None:
        """A message that may be here already, or asks for something, or is the first one of its subject."""
        sequence = int(number)
        try:
            encoded = self._intake.encode(subject, header_block, payload, number, timestamp)
        except BadPartition as error:
            if error.partition in self._intake.lanes and sequence > self._reached[error.partition].sequence:
                self._trouble = True, f"message {sequence} of the stream can't be taken: {error}"
                self._letter = StreamMessage(
                    subject, header_block, payload, self._stream, sequence, timestamp, str(error)
                )
            return
        if encoded is None:
            return
        partition, special, tail = encoded
        lane = self._intake.lanes.get(partition)
        if lane is None or sequence <= self._reached[partition].sequence:
            return
        if special is not None and self._intake.has_looped(header_block):
            self.stats.looped += 1
        elif len(tail) > lane.tail_max:
            why = _too_large(sequence, subject, len(payload), len(tail))
            if sequence > self._counted_large:  # it comes again until it is taken
                self._counted_large = sequence
                self.stats.too_large += 1
            self._trouble = True, why
            self._letter = StreamMessage(
                subject, header_block, payload, self._stream, sequence, timestamp, why
            )
        else:
            lane.builder.add_at(tail, int(timestamp[:-6]))

    def on_read(self) -> None:
        self._close()
        if self._run is None:
            return
        if self._trouble is None:
            self._refill()
            return
        is_blocked, why = self._trouble
        if self._letter is not None and self._dead_letters is not None:
            self._bury(self._letter, self._dead_letters)
        elif is_blocked:
            self.block(why)
        else:
            self.restart(why)

    def _bury(self, letter: StreamMessage, dead_letters: DeadLetterTopic) -> None:
        """Everything before it has been dealt with; what is behind it waits until it has its place."""
        self._rest()
        self._end_run()
        self._state = f"waiting: message {letter.sequence} goes to the dead letters"

        def sent(problem: str) -> None:
            if self._letter is not letter or not self._is_started:
                return  # other partitions are led here now: it comes again
            self._letter = None
            if problem:
                self.restart(f"message {letter.sequence} of the stream can't be taken, and {problem}")
                return
            self.stats.dead_letters += 1
            self._progress.came_to(letter.sequence, int(letter.timestamp_ns))
            self._begin_anew()

        dead_letters.send(letter.dead_letter(self.binding.topic), sent)

    def _received(self, count: int, size: int, last: Delivery | None) -> None:
        if last is None or last.consumer_sequence != self._next + count - 1:
            self._intake.drop()
            self._letter = None
            self._trouble = False, f"messages of the consumer did not come, from its {self._next}th on"
            return
        if (
            self._takes_all and self._cursor
        ):  # nothing is missing in front of the first that was ever asked for
            self.missing += last.stream_sequence - self._cursor - count
        self._next += count
        self._cursor = last.stream_sequence
        self._cursor_time = last.timestamp_ns
        self._is_behind = self._cursor < self._ahead
        stats = self.stats
        stats.messages_in += count
        stats.bytes_in += size
        stats.lag = last.pending
        stats.lost_estimate = self.missing
        self._intake.close_batches(size)
        if self._trouble is None:
            self.went_well()

    def _pull_failed(self, why: str) -> None:
        self._trouble = self._trouble or (False, why)
        self._runtime.call_soon(self.on_read)

    def _refused(self, index: int, _count: int, error: ErrorCode, why: str) -> None:
        """A partition did not take a batch. Where it stands its log knows."""
        self._progress.forget(index)
        what = f"{self.binding.topic}-{index} does not take messages of the stream: {error.name}: {why}"
        self._trouble = error not in _FOR_NOW, what

    # -- a run's end

    def _run_ended(self) -> None:
        self._progress.came_to(self._cursor, self._cursor_time)
        if self._client.is_connected:
            Steps(delete(self._api, self._stream, self._consumer), lambda _error: None)

    # -- checkpoints

    def _checkpoint(self) -> None:
        self._checkpoint_timer = self._runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)
        self._note_progress()

    def _note_progress(self) -> None:
        partitions = {index: lane.partition for index, lane in self._intake.lanes.items()}
        if self._run is not None:
            self._progress.note(partitions, self._cursor, self._cursor_time)
        else:  # the cursor is that of a run which knew nothing of partitions that have come since
            self._progress.note(partitions, 0, 0)


def _too_large(sequence: int, subject: bytes, size: int, record_size: int) -> str:
    return (
        f"message {sequence} of the stream, {size} bytes on {shown_subject(subject)}, would be a record of {record_size} bytes:"
        " raise max.message.bytes, or set nats.dead.letter.topic"
    )
