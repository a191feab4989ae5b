"""At least once: a durable consumer, whose messages are acknowledged when their records are committed.

One broker owns the durable, the one that leads the topic's partition 0; what belongs to partitions led elsewhere it
produces to their leaders (remote_producer.py). A message is acknowledged after the high watermark has passed its record and
min.insync.replicas are met; until then the server is told now and then that it is in progress.

JetStream delivers again out of order, so when something fails nothing behind it is taken: fetching stops, what the server
still owes comes and is put with what failed, and after a while all of that is given back at once, to be delivered again in
the stream's order. After a connection or a server was lost, messages may be under way that never came; the server
delivers those again when their time is up, and nothing is asked for before.

A message that no partition will take is tried nats.max.deliver times, then it goes to the dead letters (or, without such a
topic, is given up with a line in the log); with -1 it is tried forever, and stops the binding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.server_pool import FailureLog
from barnabas.nats.dead_letters import StreamMessage
from barnabas.nats.jetstream.ack_subject import Delivery, is_position
from barnabas.nats.jetstream.api import NANOSECONDS
from barnabas.nats.jetstream.consumer import Source, StreamConsumer
from barnabas.nats.jetstream.deliveries import Delivered, Deliveries
from barnabas.nats.jetstream.durable import ACK_WAIT_S, SETTLES_S, open_durable, wait_for_others
from barnabas.nats.jetstream.intake import RECORD_OVERHEAD_BYTES, batch_bytes_max
from barnabas.nats.jetstream.pull import PullLimits
from barnabas.nats.jetstream.redelivery import DeliveryAttempts, Redelivery
from barnabas.nats.records.partitioners import BadPartition
from barnabas.nats.remote_producer import RemoteBatches
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.protocol import ServerInfo
    from barnabas.nats.dead_letters import DeadLetterTopic
    from barnabas.nats.remote_producer import RemoteProducer
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

OWNING_PARTITION: Final = 0
EXPIRES_S: Final = 2.0  # of a pull: how long it takes until the server owes nothing
ISR_AGAIN_S: Final = 0.5
_PASSING: Final = frozenset(
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
        *,
        partition_count: Callable[[], int],
        cluster_id: str,
        producer: RemoteProducer,  # closed with it
        dead_letters: DeadLetterTopic | None = None,
        ack_wait_s: float = ACK_WAIT_S,
    ) -> None:
        super().__init__(
            runtime,
            source,
            binding,
            partition_count=partition_count,
            cluster_id=cluster_id,
            dead_letters=dead_letters,
        )
        self._cluster_id = cluster_id
        self._ack_wait_s = ack_wait_s
        self._unreadable = FailureLog(self._name, runtime)
        self._known_stream: tuple[str, str] | None = None  # and when it was made
        self._deliveries = Deliveries(runtime, source.client)
        self._owned_epoch = -1
        self._is_leaving = False
        self._attempts = DeliveryAttempts(binding, self.stats, self._deliveries, dead_letters, self._fail)
        self._redelivery = Redelivery(runtime, source.client, self._deliveries, self._name, self._go_on)
        self._progress_timer: Timer | None = None
        self._wants_care = False  # a batch was refused, and nobody knows which of its messages was why
        self._careful = 0  # so many messages are appended one by one
        self._remote: RemoteBatches[Delivered] = RemoteBatches(producer, binding.topic, self._produced)
        self._tail_max = 0
        # what came since the last `on_read`
        self._gathered: dict[int, list[Delivered]] = {}  # by partition
        self._needless: list[Delivered] = []

    @property
    def state(self) -> str:
        if self._is_started and OWNING_PARTITION not in self.leading:
            return f"standing by: the leader of partition {OWNING_PARTITION} reads the stream"
        return f"waiting: {self._redelivery.why}" if self._redelivery.why else super().state

    # -- roles

    def start(self, leading: Mapping[int, Partition]) -> None:
        self._serve(leading)
        super().start(leading)
        self._progress_timer = self._runtime.call_later(self._ack_wait_s / 3, self._in_progress)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        self._close()
        before = self._owned_epoch
        self._serve(leading)
        if self._owned_epoch == before:
            self.leading = dict(leading)
        elif self._owned_epoch < 0 and self._run is not None:
            self.leading = dict(leading)
            self._run.puller.hold()
            self._retire()
        else:
            super().roles_changed(leading)

    def _retire(self) -> None:
        """Another broker owns the durable: take what has been asked for, then end. It waits for that."""
        if self._owned_epoch >= 0 or self._run is None:
            return
        if self._run.puller.is_idle:
            self._end_run()
            self._deliveries.give_back()
        else:
            self._runtime.call_later(SETTLES_S, self._retire)

    def _serve(self, leading: Mapping[int, Partition]) -> None:
        self._intake.serve(leading, self._partition_count())
        owning = leading.get(OWNING_PARTITION)
        self._owned_epoch = -1 if owning is None else owning.leader_epoch

    def connected(self, info: ServerInfo) -> None:
        self._deliveries.connected()
        super().connected(info)

    def leave(self, left: Callable[[], object]) -> None:
        """Before `stop`, while there are leaders to produce to: leave nothing delivered and open with the durable, whose next
        owner would have to wait until the server delivers it again. `left()` is called when what has come is committed
        and acknowledged, or given back, which may take for ever.

        It asks for nothing more and waits until the server owes nothing. To unsubscribe at once would lose what the
        server is about to send."""
        self._is_leaving = True
        self._rest()
        if self._run is not None:
            self._run.puller.hold()

        def settle() -> None:
            run = self._run if self._is_started and self._client.is_connected else None
            if run is not None and (not run.puller.is_idle or self._deliveries.open):
                self._runtime.call_later(SETTLES_S, settle)
            else:
                self._deliveries.give_back()
                self._client.flush(lambda _error: left())

        settle()

    def _stopped(self) -> None:
        self._deliveries.hand_back()
        self._deliveries.stop()
        self._remote.close()
        if self._progress_timer is not None:
            self._progress_timer.cancel()

    # -- a run's beginning

    async def _set_up(self) -> None:
        if OWNING_PARTITION not in self.leading or self._is_leaving:
            return
        info = await self._find_stream()
        known, self._known_stream = self._known_stream, (info.config.name, info.created)
        if known not in (None, self._known_stream):  # numbers are other messages' now
            self._deliveries.forget()
        durable = await open_durable(self._api, info, self.binding, self._cluster_id, self._ack_wait_s)
        stream, name = info.config.name, durable.info.name
        config = durable.info.config
        ack_wait_s = (config.ack_wait or 30 * NANOSECONDS) / NANOSECONDS
        api, deliveries = self._api, self._deliveries
        await wait_for_others(self._runtime, self._client, api, stream, name, deliveries, ack_wait_s)
        self._deliveries.give_back()  # what has failed meanwhile
        self._stream = stream
        self._intake.of_stream(stream)
        self._redelivery.end()
        self._read_limits()
        self.stats.lag = durable.info.num_pending
        limits = PullLimits(config.max_batch, config.max_bytes, config.max_expires, config.max_waiting)
        limits.expires_ns = min(limits.expires_ns, int(EXPIRES_S * NANOSECONDS))
        self._begin_run(name, limits)

    def _read_limits(self) -> None:
        limits = [batch_bytes_max(each) for each in self.leading.values()]
        self._tail_max = min(limits, default=0) - RECORD_OVERHEAD_BYTES

    # -- messages

    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        run = self._run
        if run is None:
            return
        if not reply.startswith(run.prefix):
            run.other(subject, reply, header_block, payload)
            return
        try:
            numbers = reply[run.numbers_start :].split(b".")
            sequence, timestamp = int(numbers[1]), numbers[3]
            timestamp_ms = int(timestamp[:-6])
            if not (is_position(numbers[1]) and is_position(timestamp)):
                raise ValueError
        except (ValueError, IndexError):
            self._unreadable.write(f"a reply subject can't be read: {reply[:200]!r}", "reply subject")
            return
        self._count += 1
        self._bytes += len(subject) + len(reply) + len(header_block) + len(payload)
        self._last_reply = reply
        if numbers[0] != b"1":
            self.stats.redelivered += 1
        if not self._deliveries.came(sequence, reply):
            return
        delivered = sequence, reply
        if self._redelivery.why:
            self._deliveries.fail((delivered,))
            return
        why = ""
        try:
            encoded = self._intake.encode(subject, header_block, payload, numbers[1], timestamp)
        except BadPartition as error:
            why = str(error)
        else:
            if encoded is None:
                self._needless.append(delivered)
                return
            partition, special, tail = encoded
            if special is not None and self._intake.has_looped(header_block):
                self.stats.looped += 1
                self._needless.append(delivered)
                return
            if len(tail) > self._tail_max:
                why = f"its record would take {len(tail)} bytes, more than max.message.bytes of the topic"
                self.stats.too_large += numbers[0] == b"1"  # it comes again until it is taken
        if why or self._attempts.is_last(sequence):
            letter = StreamMessage(subject, header_block, payload, self._stream, sequence, timestamp, why)
            self._attempts.refuse(letter, delivered)
            return
        lane = self._intake.lanes.get(partition)
        if lane is None or self._remote.has_in_flight(partition):  # to the leader before
            self._remote.add(partition, tail, timestamp_ms, delivered)
        else:
            lane.builder.add_at(tail, timestamp_ms)
            self._gathered.setdefault(partition, []).append(delivered)
        if self._careful:
            self._careful -= 1
            self._append()

    def _received(self, count: int, size: int, last: Delivery | None) -> None:
        self.stats.messages_in += count
        self.stats.bytes_in += size
        self.stats.lag = last.pending if last is not None else 0
        self._append(size)

    def _append(self, size: int = 0) -> None:
        """What was gathered goes its ways."""
        if self._needless:
            needless, self._needless = self._needless, []
            self._deliveries.settled(needless)
        self._remote.send(self._tail_max + RECORD_OVERHEAD_BYTES)
        self._intake.close_batches(size, self._appended)
        self._gathered.clear()

    @property
    def _room(self) -> int:
        return self._intake.room - self._remote.bytes_in_flight

    def _pull_failed(self, why: str) -> None:
        self._runtime.call_soon(lambda: self.restart(why))

    # -- what becomes of them

    def _appended(self, index: int, first: int, count: int, base_offset: int) -> None:
        delivered = self._gathered[index][first : first + count]
        self._when_committed(self._intake.lanes[index].partition, base_offset + count, delivered)

    def _when_committed(self, partition: Partition, end_offset: int, delivered: list[Delivered]) -> None:
        def ended(error: ErrorCode) -> None:
            if error != ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                self._ended(delivered, error)
                return
            # They are there; what is missing are replicas, and the server is told that it goes on.
            again = partial(self._when_committed, partition, end_offset, delivered)
            self._runtime.call_later(ISR_AGAIN_S, again)

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
            self._redelivery.went_well()
            self._deliveries.settled(delivered)
            self.went_well()
            self._attempts.forget(delivered)
            return
        if error not in _PASSING:
            if len(delivered) == 1:
                self._attempts.count(delivered[0][0])
            self._wants_care = True
        self._fail(delivered, f"{error.name}: {why}" if why else error.name)

    # -- failures

    def _fail(self, delivered: list[Delivered], why: str) -> None:
        """Take nothing more, until these have been delivered again."""
        self._deliveries.fail(delivered)
        if not self._redelivery.why and self._is_started:
            self.resets += 1
            self._redelivery.begin(why, self._run.puller if self._run is not None else None)

    def _go_on(self, count: int) -> None:
        """What failed has been given back."""
        self._careful = count if self._wants_care else 0
        self._wants_care = False
        self._read_limits()
        if self._run is not None and self._owned_epoch >= 0 and not self._is_leaving:
            self._run.puller.let_go()
            self._refill()

    def _in_progress(self) -> None:
        after_s = self._ack_wait_s / 3
        self._progress_timer = self._runtime.call_later(after_s, self._in_progress)
        if self._client.is_connected:
            if self._owned_epoch < 0 or not self._redelivery.why:
                self._deliveries.give_back()  # nobody else is about to
            self._deliveries.say_in_progress(after_s)

    # -- a run's end

    def _run_ended(self) -> None:
        self._redelivery.cancel()
