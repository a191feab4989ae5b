"""Exactly once: each message of a stream becomes one record, in the stream's order.

Every broker that leads partitions of the binding reads the whole stream, through its own consumer without acknowledgements,
and keeps the messages of its partitions. A partition's position is in its log, in the headers of the records
(jetstream/log_position.py), so a record and its position can't differ. A consumer starts behind the lowest position of these
partitions; messages that a partition already has are dropped.

Such a consumer delivers each message once. When messages are missing (the consumer sequence shows that), or the connection,
the consumer or the leadership is lost, the consumer is replaced by one that starts behind the last message taken, so the
order is kept as well.

A stream that removes acknowledged messages can't be read this way. A message that its partition will never take, for instance
because it is too large, is not skipped: it goes to the dead letters, or without a topic for them stops the binding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.nats.dead_letters import StreamMessage, shown_subject
from barnabas.nats.jetstream.ack_subject import FIRST_DELIVERY, NUMBERS, Delivery, is_position
from barnabas.nats.jetstream.api import LIMITS, NANOSECONDS, ConsumerConfig, JetStreamApi, StreamInfo
from barnabas.nats.jetstream.consumer import Source, StreamConsumer
from barnabas.nats.jetstream.progress import Progress
from barnabas.nats.jetstream.pull import PullConsumer, PullLimits
from barnabas.nats.jetstream.setup import (
    Blocked,
    Consumer,
    consumer_name,
    delete,
    make_consumer,
)
from barnabas.nats.jetstream.stream import Stream, inspect_stream
from barnabas.nats.records.partitioners import BadPartition
from barnabas.runtime.procedures import Procedure
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.dead_letters import DeadLetterTopic
    from barnabas.nats.jetstream.appender import Message, StreamAppender
    from barnabas.nats.jetstream.checkpoint import Checkpoints
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

INACTIVE_S: Final = 60  # after which the server removes a consumer that is not pulled from
CHECKPOINT_EVERY_S: Final = 5.0
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


OnRecreated = Callable[[JetStreamApi, Stream, "Partition"], Coroutine[Any, Any, object]]


class _Failure(NamedTuple):
    """Why nothing more is taken in this run. `letter`: the message that can't be stored, if that is why."""

    why: str
    is_blocked: bool = False
    letter: StreamMessage | None = None


class ExactlyOnce(StreamConsumer):
    """Reads the binding's stream into the partitions that are led here."""

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        binding: Binding,
        appender: StreamAppender,
        *,
        checkpoints: Checkpoints | None = None,
        dead_letters: DeadLetterTopic | None = None,
        on_recreated: OnRecreated | None = None,
    ) -> None:
        """Without `checkpoints` positions are in the log alone. `on_recreated` is awaited for each partition with records of
        an earlier stream of the same name, before it takes messages of this one."""
        super().__init__(runtime, source, binding, appender, dead_letters)
        self.missing = 0  # messages that the stream lost or removed before they were taken
        self._on_recreated = on_recreated
        self._progress = Progress(runtime, binding, checkpoints)
        self._reached = self._progress.reached
        self._checkpoint_timer: Timer | None = None
        # of the run
        self._consumer = ""
        self._takes_all = False
        self._next = 1  # consumer sequence
        self._cursor = 0  # stream sequence of the last message taken
        self._cursor_time = 0  # when it was stored, ns
        self._ahead = 0  # the highest position of a partition
        self._is_behind = True  # the next messages may be in some partition already
        self._failure: _Failure | None = None
        self._sending: StreamMessage | None = None  # the dead letter that is being produced
        self._counted_large = 0  # the last message that was too large
        self._gathered: list[Message] = []  # since the last `on_read`

    # -- roles

    def start(self, leading: Mapping[int, Partition]) -> None:
        self._appender.serve(leading)
        super().start(leading)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        self._sending = None
        self._end_run()  # while `_reached` has the partitions that stay
        for index in self._appender.serve(leading):
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

    # -- setting up

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
        self._appender.set_stream(name)
        consumer = self._consumer = consumer_name(
            "barnabas", self.binding.topic, self._runtime.random_bytes(6).hex()
        )
        stream = await inspect_stream(self._api, info, self.binding.start, consumer)
        await self._progress.find(self._api, stream, self.leading, self._appender.partition_count)
        if self._on_recreated is not None:
            for index in sorted(self._progress.recreated & self.leading.keys()):
                await self._on_recreated(self._api, stream, self.leading[index])
                self._progress.recreated.discard(index)
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
        """Counts the messages from `first` on that the stream has removed; returns the first one that it has."""
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
        for lane in self._appender.lanes.values():
            lane.read_limits()
        self._failure = None
        self._sending = None
        self.stats.lag = made.info.num_pending
        self._begin_run(self._consumer, PullLimits())
        if self._checkpoint_timer is None:
            self._checkpoint_timer = self._runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)

    # -- messages

    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        if reply:
            self._gathered.append((subject, reply, header_block, payload))
        elif self._run is not None:
            self._run.puller.status(header_block)

    def _close_read(self) -> None:
        self._add_gathered()
        super()._close_read()

    def _add_gathered(self) -> None:
        """Adds the messages of one read, up to one that can't be taken."""
        messages, self._gathered = self._gathered, []
        run = self._run
        if run is None or not messages:
            return
        try:
            self._add_messages(run, messages)
        except Exception as error:
            log.exception("%s: a message can't be read", self._name)
            self._failure = _Failure(repr(error))

    def _add_messages(self, run: PullConsumer, messages: list[Message]) -> None:
        takes_plain = self._appender.takes_plain and not self._is_behind
        position, count = 0, len(messages)
        while position < count and self._failure is None:
            if takes_plain:
                end = self._appender.add_plain(messages, position, run.prefix + FIRST_DELIVERY)
                if end > position:
                    self._last_reply = messages[end - 1][1]
                    self._count += end - position
                    self._bytes += sum(map(len, chain.from_iterable(messages[position:end])))
                    position = end
                    continue
            self._take_any(run, *messages[position])
            position += 1

    def _take_any(
        self, run: PullConsumer, subject: bytes, reply: bytes, header_block: bytes, payload: bytes
    ) -> None:
        if not (reply.startswith(run.prefix) or run.accepts(reply, header_block)):
            return
        numbers = reply[len(run.prefix) :].split(b".")
        if len(numbers) < NUMBERS or not (is_position(numbers[1]) and is_position(numbers[3])):
            self._failure = _Failure(f"a message came with a malformed reply subject: {reply[:200]!r}")
            return
        self._add(subject, header_block, payload, numbers[1], numbers[3])
        if self._failure is None:
            self._last_reply = reply
            self._count += 1
            self._bytes += len(subject) + len(reply) + len(header_block) + len(payload)

    def _add(
        self, subject: bytes, header_block: bytes, payload: bytes, number: bytes, timestamp: bytes
    ) -> None:
        """Adds any message, also one that its partition already has, or with special headers, or with a new subject."""
        sequence = int(number)
        try:
            encoded = self._appender.encode(subject, header_block, payload, number, timestamp)
        except BadPartition as error:
            if error.partition in self._appender.lanes and sequence > self._reached[error.partition].sequence:
                letter = StreamMessage(
                    subject, header_block, payload, self._stream, sequence, timestamp, str(error)
                )
                why = f"message {sequence} of the stream can't be taken: {error}"
                self._failure = _Failure(why, is_blocked=True, letter=letter)
            return
        if encoded is None:
            return
        partition, special, tail = encoded
        lane = self._appender.lanes.get(partition)
        if lane is None or sequence <= self._reached[partition].sequence:
            return
        if special is not None and self._appender.has_looped(header_block):
            self.stats.looped += 1
        elif len(tail) > lane.tail_max:
            why = _too_large(sequence, subject, len(payload), len(tail))
            if sequence > self._counted_large:  # it is delivered again until it is taken
                self._counted_large = sequence
                self.stats.too_large += 1
            letter = StreamMessage(subject, header_block, payload, self._stream, sequence, timestamp, why)
            self._failure = _Failure(why, is_blocked=True, letter=letter)
        else:
            lane.builder.add_at(tail, int(timestamp) // 1_000_000)

    def on_read(self) -> None:
        self._close_read()
        if self._run is None:
            return
        failure = self._failure
        if failure is None:
            self._refill()
        elif failure.letter is not None and self._dead_letters is not None:
            self._send_dead_letter(failure.letter, self._dead_letters)
        elif failure.is_blocked:
            self._block(failure.why)
        else:
            self._restart(failure.why)

    def _send_dead_letter(self, letter: StreamMessage, dead_letters: DeadLetterTopic) -> None:
        """The messages before it are appended; those behind it wait until it is stored."""
        self._cancel_set_up()
        self._end_run()
        self._sending = letter
        self._state = f"waiting: message {letter.sequence} goes to the dead letters"

        def sent(problem: str) -> None:
            if self._sending is not letter or not self._is_started:
                return  # the partitions led here have changed: it is delivered again
            self._sending = None
            if problem:
                self._restart(f"message {letter.sequence} of the stream can't be taken, and {problem}")
                return
            self.stats.dead_letters += 1
            self._progress.advance(letter.sequence, int(letter.timestamp_ns))
            self._start_over()

        dead_letters.send(letter.dead_letter(self.binding.topic), sent)

    def _received(self, count: int, size: int, last: Delivery | None) -> None:
        if last is None or last.consumer_sequence != self._next + count - 1:
            self._appender.clear()
            self._failure = _Failure(f"messages of the consumer did not come, from its {self._next}th on")
            return
        if self._takes_all and self._cursor:  # before the first message of a stream none can be missing
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
        self._append(size)
        if self._failure is None:
            self._backoff.reset()

    def _pull_failed(self, why: str) -> None:
        self._add_gathered()  # they came before
        self._failure = self._failure or _Failure(why)
        self._runtime.call_soon(self.on_read)

    def _refused(self, index: int, _count: int, error: ErrorCode, why: str) -> None:
        self._progress.forget(index)  # its position is read from its log again
        what = f"{self.binding.topic}-{index} does not take messages of the stream: {error.name}: {why}"
        letter = self._failure.letter if self._failure is not None else None
        self._failure = _Failure(what, is_blocked=error not in _RETRIABLE, letter=letter)

    def _run_ended(self) -> None:
        self._progress.advance(self._cursor, self._cursor_time)
        if self._client.is_connected:
            Procedure(delete(self._api, self._stream, self._consumer), lambda _error: None).start()

    # -- checkpoints

    def _checkpoint(self) -> None:
        self._checkpoint_timer = self._runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)
        self._note_progress()

    def _note_progress(self) -> None:
        partitions = {index: lane.partition for index, lane in self._appender.lanes.items()}
        if self._run is not None:
            self._progress.note(partitions, self._cursor, self._cursor_time)
        else:  # the cursor is not valid for partitions that have come since the run
            self._progress.note(partitions, 0, 0)


def _too_large(sequence: int, subject: bytes, size: int, record_size: int) -> str:
    return (
        f"message {sequence} of the stream, {size} bytes on {shown_subject(subject)}, would be a record of {record_size} bytes:"
        " raise max.message.bytes, or set nats.dead.letter.topic"
    )
