"""At least once: a durable consumer, whose messages are acknowledged when their records are committed.

The broker that leads the topic's partition 0 owns the durable. Records for partitions that others lead are produced to their
leaders (remote_producer.py). A message is acknowledged once the high watermark has passed its record with
min.insync.replicas met; until then it is reported to be in progress.

JetStream redelivers out of order. So after a failure no later message is taken: pulling stops, messages that were pulled
arrive and join the failed ones, and after a pause all of them are returned (NAK) at once, to be redelivered in the stream's
order.

Deliveries may be open at other clients: with the previous owner, which may return some of them early and others late, or lost with a
connection, until their ack wait is over. So a run begins when there are none: the owner pulls as many messages as are missing
until it has them all, stores none of them, and returns them together. Each delivery of the durable has a number. When one is
skipped during a run, another client has pulled (a previous owner that does not know yet), and the run begins anew.

A message that no partition takes is tried nats.max.deliver times. Then it goes to the dead letters, or without a topic for
them is dropped with a line in the log. With -1 it is tried forever, and stops the binding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.dead_letters import StreamMessage
from barnabas.nats.jetstream.ack_subject import FIRST_DELIVERY, Delivery, is_position
from barnabas.nats.jetstream.api import NANOSECONDS
from barnabas.nats.jetstream.appender import RECORD_OVERHEAD_BYTES, batch_bytes_max
from barnabas.nats.jetstream.consumer import Source, StreamConsumer
from barnabas.nats.jetstream.deliveries import Delivered, Deliveries
from barnabas.nats.jetstream.durable import ACK_WAIT_S, SETTLE_S, open_durable, wait_for_others
from barnabas.nats.jetstream.pull import PullLimits
from barnabas.nats.jetstream.redelivery import DeliveryAttempts, Redelivery
from barnabas.nats.records.partitioners import BadPartition
from barnabas.nats.remote_producer import RemoteBatches
from barnabas.runtime.procedures import Call, pause
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.protocol import ServerInfo
    from barnabas.nats.dead_letters import DeadLetterTopic
    from barnabas.nats.jetstream.appender import StreamAppender
    from barnabas.nats.jetstream.pull import PullConsumer
    from barnabas.nats.remote_producer import RemoteProducer
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

OWNING_PARTITION: Final = 0
EXPIRES_S: Final = 2.0  # of a pull, and so the longest time until no pull is open
COLLECT_AFTER_S: Final = 1.0  # a previous owner that is alive has returned its messages by then
COLLECT_TRIES: Final = 4  # in vain, one at first and then one each ack wait
ISR_RETRY_S: Final = 0.5
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)


class AtLeastOnce(StreamConsumer):
    """Reads the binding's stream where partition 0 is led."""

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        binding: Binding,
        appender: StreamAppender,
        *,
        durable: str,
        producer: RemoteProducer,
        dead_letters: DeadLetterTopic | None = None,
        ack_wait_s: float = ACK_WAIT_S,
    ) -> None:
        """`durable`: the consumer's name. `producer` is closed with it."""
        super().__init__(runtime, source, binding, appender, dead_letters)
        self._durable = durable
        self._ack_wait_s = ack_wait_s
        self._unreadable = RepeatedWarnings(runtime, log)
        self._known_stream: tuple[str, str] | None = None  # name, time of its creation
        self._deliveries = Deliveries(runtime, source.client)
        self._owned_epoch = -1
        self._is_leaving = False
        self._attempts = DeliveryAttempts(binding, self.stats, self._deliveries, dead_letters, self._fail)
        self._redelivery = Redelivery(runtime, source.client, self._deliveries, self._name, self._redelivered)
        self._progress_timer: Timer | None = None
        self._is_cause_unknown = False  # which message of a refused batch was the reason
        self._single_appends = 0  # so many messages are appended one by one, to find it
        self._remote: RemoteBatches[Delivered] = RemoteBatches(producer, binding.topic, self._produced)
        self._tail_max = 0
        self._next_delivery = 0  # its consumer sequence; 0: not known, or another client pulls as well
        # since the last `on_read`
        self._gathered: dict[int, list[Delivered]] = {}  # by partition
        self._without_record: list[Delivered] = []

    @property
    def state(self) -> str:
        if self._is_started and OWNING_PARTITION not in self.leading:
            return f"standby: the leader of partition {OWNING_PARTITION} reads the stream"
        return f"waiting: {self._redelivery.why}" if self._redelivery.why else super().state

    # -- roles

    def start(self, leading: Mapping[int, Partition]) -> None:
        self._serve(leading)
        super().start(leading)
        self._progress_timer = self._runtime.call_later(self._ack_wait_s / 3, self._report_in_progress)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        self._close_read()
        before = self._owned_epoch
        self._serve(leading)
        if self._owned_epoch == before:
            self.leading = dict(leading)
        elif self._owned_epoch < 0 and self._run is not None:
            self.leading = dict(leading)
            self._cancel_set_up()
            self._run.puller.hold()
            self._retire()
        else:
            super().roles_changed(leading)

    def _retire(self) -> None:
        """Another broker owns the durable, and waits: takes the messages that were pulled, then ends the run."""
        if self._owned_epoch >= 0 or self._run is None:
            return
        if self._run.puller.is_idle:
            self._end_run()
            self._deliveries.return_failed()
        else:
            self._runtime.call_later(SETTLE_S, self._retire)

    def _serve(self, leading: Mapping[int, Partition]) -> None:
        self._appender.serve(leading)
        owning = leading.get(OWNING_PARTITION)
        self._owned_epoch = -1 if owning is None else owning.leader_epoch

    def connected(self, info: ServerInfo) -> None:
        self._deliveries.connected()
        super().connected(info)

    def leave(self, left: Callable[[], object]) -> None:
        """Leaves no open delivery with the durable, for which its next owner would have to wait. To be called before `stop`,
        while there are leaders to produce to. `left()` is called when all messages are acknowledged or returned, perhaps
        never.

        It waits until no pull is open: to unsubscribe at once would lose messages that the server is sending."""
        self._is_leaving = True
        self._cancel_set_up()
        if self._run is not None:
            self._run.puller.hold()

        def settle() -> None:
            run = self._run if self._is_started and self._client.is_connected else None
            if run is not None and (not run.puller.is_idle or self._deliveries.open):
                self._runtime.call_later(SETTLE_S, settle)
            else:
                self._deliveries.return_failed()
                self._client.flush(lambda _error: left())

        settle()

    def _stopped(self) -> None:
        self._deliveries.return_all()
        self._deliveries.stop()
        self._remote.close()
        if self._progress_timer is not None:
            self._progress_timer.cancel()

    # -- setting up

    async def _set_up(self) -> None:
        if OWNING_PARTITION not in self.leading or self._is_leaving:
            self._redelivery.end()
            self._deliveries.return_failed()
            return
        info = await self._find_stream()
        known, self._known_stream = self._known_stream, (info.config.name, info.created)
        if known not in (None, self._known_stream):  # its sequences are of other messages
            self._deliveries.forget()
        durable = await open_durable(self._api, info, self.binding, self._durable, self._ack_wait_s)
        self._stream, name = info.config.name, durable.info.name
        config = durable.info.config
        limits = PullLimits(config.max_batch, config.max_bytes, config.max_expires, config.max_waiting)
        limits.expires_ns = min(limits.expires_ns, int(EXPIRES_S * NANOSECONDS))
        ack_wait_s = (config.ack_wait or 30 * NANOSECONDS) / NANOSECONDS + 4 * SETTLE_S
        self._redelivery.hold("earlier deliveries of its messages are collected")
        while self._deliveries.open:
            await pause(self._runtime, SETTLE_S)
        self._deliveries.return_failed()  # another owner may have stored them
        await self._collect(name, limits, ack_wait_s)
        self._deliveries.return_failed()
        await Call[bool](lambda done: self._client.flush(lambda error: done(error is None, error)))
        await pause(self._runtime, SETTLE_S)
        self._appender.set_stream(self._stream)
        self._redelivery.end()
        self._read_limits()
        self.stats.lag = durable.info.num_pending
        self._begin_run(name, limits)

    async def _collect(self, name: str, limits: PullLimits, ack_wait_s: float) -> None:
        """Pulls the messages whose deliveries other clients hold, until all are here and have failed, or are stored. The server
        redelivers messages before it delivers new ones, so it takes as many pulled messages as are missing; new ones among
        them fail as well."""
        stream, before, tries, open_s = self._stream, 0, 0, min(COLLECT_AFTER_S, ack_wait_s)
        redelivered_at = self._runtime.monotonic() + ack_wait_s
        self._next_delivery = 0
        while True:
            found = await wait_for_others(
                self._runtime, self._client, self._api, stream, name, self._deliveries, ack_wait_s, open_s
            )
            if found.is_shared:
                log.warning("stream %s: another client pulls messages of consumer %s as well", stream, name)
                return
            if not found.held_by_others:
                self._next_delivery = found.next_delivery
                return
            if tries and found.held_by_others < before:
                tries, open_s = 1, SETTLE_S
            elif tries == COLLECT_TRIES:
                text = "stream %s: another client has %d messages of consumer %s; they may be stored behind later ones"
                log.warning(text, stream, found.held_by_others, name)
                return
            else:
                tries, open_s = tries + 1, max(SETTLE_S, redelivered_at - self._runtime.monotonic())
                redelivered_at += ack_wait_s
            before = found.held_by_others
            await self._pull(name, limits, found.held_by_others)

    async def _pull(self, name: str, limits: PullLimits, count: int) -> None:
        """Pulls so many messages, which fail, or none for a while."""
        limits = PullLimits(min(count, limits.messages), limits.bytes, limits.expires_ns, 1)
        self._begin_run(name, limits)
        assert self._run is not None
        puller = self._run.puller
        puller.hold()
        while not puller.is_idle:
            await pause(self._runtime, SETTLE_S)
        self._end_run()

    def _read_limits(self) -> None:
        limits = [batch_bytes_max(each) for each in self.leading.values()]
        self._tail_max = min(limits, default=0) - RECORD_OVERHEAD_BYTES

    # -- messages

    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        run = self._run
        if run is None or not (reply.startswith(run.prefix) or run.accepts(reply, header_block)):
            return
        try:
            numbers = reply[len(run.prefix) :].split(b".")
            sequence, number, timestamp = int(numbers[1]), int(numbers[2]), numbers[3]
            timestamp_ms = int(timestamp[:-6])
            if not (is_position(numbers[1]) and is_position(timestamp)):
                raise ValueError
        except (ValueError, IndexError):
            line = f"{self._name}: a reply subject can't be read: {reply[:200]!r}"
            self._unreadable.warn(self._name, "reply subject", line)
            return
        self._count += 1
        self._bytes += len(subject) + len(reply) + len(header_block) + len(payload)
        self._last_reply = reply
        if numbers[0] != FIRST_DELIVERY:
            self.stats.redelivered += 1
        if self._next_delivery:
            if number != self._next_delivery:
                self._skipped(run)
            else:
                self._next_delivery += 1
        if not self._deliveries.received(sequence, reply):
            return
        delivered = sequence, reply
        if self._redelivery.why:
            self._deliveries.fail((delivered,))
            return
        why = ""
        try:
            encoded = self._appender.encode(subject, header_block, payload, numbers[1], timestamp)
        except BadPartition as error:
            why = str(error)
        else:
            if encoded is None:
                self._without_record.append(delivered)
                return
            partition, special, tail = encoded
            if special is not None and self._appender.has_looped(header_block):
                self.stats.looped += 1
                self._without_record.append(delivered)
                return
            if len(tail) > self._tail_max:
                why = f"its record would take {len(tail)} bytes, more than max.message.bytes of the topic"
                self.stats.too_large += numbers[0] == FIRST_DELIVERY  # at its first delivery
        if why or self._attempts.is_last(sequence):
            letter = StreamMessage(subject, header_block, payload, self._stream, sequence, timestamp, why)
            self._attempts.refuse(letter, delivered)
            return
        lane = self._appender.lanes.get(partition)
        if lane is None or self._remote.has_in_flight(partition):  # another broker led it until a moment ago
            self._remote.add(partition, tail, timestamp_ms, delivered)
        else:
            lane.builder.add_at(tail, timestamp_ms)
            self._gathered.setdefault(partition, []).append(delivered)
        if self._single_appends:
            self._single_appends -= 1
            self._append(0)

    def _received(self, count: int, size: int, last: Delivery | None) -> None:
        self.stats.messages_in += count
        self.stats.bytes_in += size
        self.stats.lag = last.pending if last is not None else 0
        self._append(size)

    def _append(self, size: int) -> None:
        if self._without_record:
            settled, self._without_record = self._without_record, []
            self._deliveries.settled(settled)
        self._remote.send(self._tail_max + RECORD_OVERHEAD_BYTES)
        super()._append(size)
        self._gathered.clear()

    @property
    def _room(self) -> int:
        return self._appender.room - self._remote.bytes_in_flight

    def _pull_failed(self, why: str) -> None:
        self._runtime.call_soon(lambda: self._restart(why))

    # -- outcomes

    def _appended(self, index: int, first: int, count: int, base_offset: int) -> None:
        delivered = self._gathered[index][first : first + count]
        self._when_committed(self._appender.lanes[index].partition, base_offset + count, delivered)

    def _when_committed(self, partition: Partition, end_offset: int, delivered: list[Delivered]) -> None:
        def ended(error: ErrorCode) -> None:
            if error != ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                self._ended(delivered, error)
                return
            # The records are appended; the ISR is too small.
            again = partial(self._when_committed, partition, end_offset, delivered)
            self._runtime.call_later(ISR_RETRY_S, again)

        partition.when_committed(end_offset, ended)

    def _produced(self, delivered: list[Delivered], error: ErrorCode) -> None:
        self._ended(delivered, error)
        if not error:
            self.stats.appended += len(delivered)
            self._refill()

    def _refused(self, index: int, count: int, error: ErrorCode, why: str) -> None:
        self._ended(self._gathered[index][-count:], error, why)

    def _ended(self, delivered: list[Delivered], error: ErrorCode, why: str = "") -> None:
        if not error:
            self._redelivery.backoff.reset()
            self._deliveries.settled(delivered)
            self._backoff.reset()
            self._attempts.forget(delivered)
            return
        if error not in _RETRIABLE:
            if len(delivered) == 1:
                self._attempts.count(delivered[0][0])
            self._is_cause_unknown = True
        self._fail(delivered, f"{error.name}: {why}" if why else error.name)

    # -- failures

    def _fail(self, delivered: list[Delivered], why: str) -> None:
        """Takes no message until these have been returned for redelivery."""
        self._deliveries.fail(delivered)
        if not self._redelivery.why and self._is_started:
            self.resets += 1
            self._redelivery.begin(why, self._run.puller if self._run is not None else None)

    def _skipped(self, run: PullConsumer) -> None:
        """A delivery did not come here. Takes no message until the next run has collected it."""
        self._next_delivery = 0
        self._redelivery.hold("a message was delivered to another client")
        run.puller.hold()
        self._runtime.call_soon(partial(self._end_skipped, run))

    def _end_skipped(self, run: PullConsumer) -> None:
        """Ends the run when no pull is open."""
        if self._run is not run or self._owned_epoch < 0 or self._is_leaving:
            return
        if run.puller.is_idle:
            self._restart(self._redelivery.why)
        else:
            self._runtime.call_later(SETTLE_S, partial(self._end_skipped, run))

    def _redelivered(self, count: int) -> None:
        """So many failed messages have been returned."""
        self._single_appends = count if self._is_cause_unknown else 0
        self._is_cause_unknown = False
        self._read_limits()
        if self._run is not None and self._owned_epoch >= 0 and not self._is_leaving:
            self._run.puller.release()
            self._refill()

    def _report_in_progress(self) -> None:
        after_s = self._ack_wait_s / 3
        self._progress_timer = self._runtime.call_later(after_s, self._report_in_progress)
        if self._client.is_connected:
            if self._owned_epoch < 0 or not self._redelivery.why:
                self._deliveries.return_failed()
            self._deliveries.report_in_progress(after_s)

    def _run_ended(self) -> None:
        self._redelivery.cancel()
