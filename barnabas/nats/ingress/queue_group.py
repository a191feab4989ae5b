"""Lanes of a queue group's member: its messages go to the leaders of their partitions, on any broker.

Only this member receives its messages, so it keeps each one until the record is committed. A batch has a producer id and a
sequence number; without an answer it is produced again, to the partition's leader of that time, and the log has it once. One
batch of a partition is in flight at a time; messages received meanwhile form the next one.

A member can't read logs of other brokers: Nats-Msg-Ids are stored, not looked up, and a message that expects something of the
log is refused. Partitions whose only replica is on this broker have no lane here: the member appends to them as it does without
a group. When a partition becomes such a one, or ceases to be, batches in flight still arrive.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.controller.metadata.image import NO_LEADER
from barnabas.nats.ingress.acks import AckSender, owed_of
from barnabas.nats.ingress.expectations import Refusal, concern_topic, expects, expects_of_log, refusal
from barnabas.nats.pub_ack import ACK_ALL, KAFKA_ACK, NO_ACK
from barnabas.nats.records.batch_builder import Batch, BatchBuilder, TooLarge
from barnabas.nats.remote_producer import RemoteProducer
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import seal_batch

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.ingress.acks import AckStats, Owed, Send
    from barnabas.nats.ingress.lane import OnRefused
    from barnabas.nats.ingress.special_messages import Special
    from barnabas.nats.pub_ack import AckLevel
    from barnabas.nats.remote_producer import Produced
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
SEQUENCE_END: Final = 1 << 31
NO_PRODUCER_ID: Final = -1
_ANY_SIZE: Final = 1 << 40
_DEFAULT_SIZE_MAX: Final = 1_048_588  # max.message.bytes, unless a log here knows it
_TOO_FEW: Final = "fewer replicas are in sync than min.insync.replicas"
NOT_IN_GROUPS: Final = Refusal(
    400, 10003, "a member of a queue group can't say what the partition holds: expect nothing of it"
)

_APPENDED: Final = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
# The leader has lost what it knew of the producer.
_UNKNOWN_PRODUCER: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
# Because of one record: the next attempt fails as well.
_REFUSED: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_REQUEST,
)
_NOT_APPENDED: Final = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)

Produce = Callable[[bytearray, "Produced"], object]
NextProducerId = Callable[[Callable[[int, ErrorCode], object]], object]


class _Batch(msgspec.Struct, gc=False):
    """Messages of one batch, the same bytes at each attempt, and the acknowledgements that they owe."""

    tails: list[bytes]
    owed: list[Owed]
    received_ms: int
    received_s: float
    may_be_appended: bool = False  # an attempt has had no answer

    @property
    def size(self) -> int:
        return sum(map(len, self.tails))

    def part(self, first: int, count: int) -> _Batch:
        """Some of its records as a batch of their own."""
        owed = owed_of(self.owed, first, count)
        return _Batch(self.tails[first : first + count], owed, self.received_ms, self.received_s)

    def remove_owed(self) -> int:
        """Removes the messages that ask for an acknowledgement, and returns their number."""
        places = {place for place, *_ in self.owed}
        self.tails = [tail for place, tail in enumerate(self.tails) if place not in places]
        self.owed = []
        return len(places)

    def encode(self, producer_id: int, sequence: int) -> bytearray:
        builder = BatchBuilder()
        builder.tails += self.tails
        (made,) = builder.finish(self.received_ms, _ANY_SIZE)
        assert isinstance(made, Batch)
        header, records = made.header, bytearray(made.records)
        header.producer_id, header.producer_epoch, header.base_sequence = producer_id, 0, sequence
        seal_batch(records, header)
        return records


class GroupLane:
    """One partition's messages. The encoder appends to `builder.tails`; `owed` are acknowledgements by place in it."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        stats: CarrierStats,
        acks: AckSender,
        produce: Produce,
        leader: Callable[[], int],
        next_id: NextProducerId,
        size_max: Callable[[], int],
        on_refused: OnRefused,
        on_settled: Callable[[], object],
    ) -> None:
        """`leader()` returns the node id of the partition's leader, `size_max()` the largest batch that it takes; `next_id` hands
        out producer ids. `on_refused` is called for a record that the log never takes, `on_settled` when `held_bytes` has become
        less."""
        self.name = name
        self.acks = acks
        self.builder = BatchBuilder()
        self.owed: list[Owed] = []
        self.held_bytes = 0  # gathered, or not committed yet
        self._lacks_replicas = False  # at the last attempt
        self._on_refused = on_refused
        self._on_settled = on_settled
        self._runtime = runtime
        self._stats = stats
        self._produce = produce
        self._leader = leader
        self._next_id = next_id
        self._size_max = size_max
        self._batches: deque[_Batch] = deque()
        self._counted = 0  # of the records gathered, those in `held_bytes`
        self._producer_id = NO_PRODUCER_ID
        self._sequence = 0
        self._attempt = 0  # the number of the attempt in flight
        self._attempt_leader = NO_LEADER
        self._in_flight = False
        self._awaits_id = False
        self._is_sending = False  # answers may come before a call returns
        self._retry: Timer | None = None
        self._retry_s = RETRY_S
        self._warnings = RepeatedWarnings(runtime, log)
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """The number of messages that are not known to be stored."""
        return len(self.builder.tails) + sum(len(batch.tails) for batch in self._batches)

    def take(self, tail: bytes, special: Special | None, binding: Binding, level_of: AckLevel) -> None:
        """Stores or refuses a message."""
        if special is None:
            self.builder.tails.append(tail)
            return
        reply, header_block, found = special
        level = level_of(reply, next((value for name, value in found if name == KAFKA_ACK), None))
        if expects(header_block) and concern_topic(binding.acks, level, reply, header_block):
            refused = refusal(header_block, binding.topic)
            if refused is None and expects_of_log(header_block):
                refused = NOT_IN_GROUPS
            if refused is not None:
                self._stats.refused += 1
                self.acks.refuse(reply if level != NO_ACK else b"", refused)
                return
        if level == ACK_ALL and self._lacks_replicas and self._batches:  # until a retry succeeds
            self._stats.refused += 1
            self.acks.fail(reply, ErrorCode.NOT_ENOUGH_REPLICAS, _TOO_FEW)
            return
        if level != NO_ACK:
            self.owed.append((len(self.builder.tails), reply, level, False))
        self.builder.tails.append(tail)

    def take_over(self, tails: list[bytes], owed: list[Owed]) -> None:
        """Adds messages that another lane has gathered."""
        first = len(self.builder.tails)
        self.builder.tails += tails
        self.owed += [(first + place, reply, level, again) for place, reply, level, again in owed]

    def send(self) -> None:
        """Sends the gathered messages, after the batches before them."""
        tails = self.builder.tails
        if len(tails) > self._counted:
            self.held_bytes += sum(map(len, tails[self._counted :]))
            self._counted = len(tails)
        self._send_next()

    def leader_changed(self) -> None:
        """The partition may have another leader, and the one before may never answer."""
        if self._in_flight and self._leader() != self._attempt_leader:
            self._answered(self._attempt, ErrorCode.NETWORK_EXCEPTION, -1)
        elif self._retry is not None:
            self._retry.cancel()
            self._try_again()

    def close(self) -> None:
        """The binding ends: messages that are not committed are lost."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._stats.lost_estimate += self.waiting
        self.builder.tails.clear()
        self._batches.clear()
        self.owed = []
        self.held_bytes = self._counted = 0

    # -- one batch after the other

    def _send_next(self) -> None:
        if self._is_sending:
            return
        self._is_sending = True
        while not (self._in_flight or self._awaits_id or self._retry or self._is_closed):
            if self._batches and self._producer_id == NO_PRODUCER_ID:
                self._awaits_id = True
                self._next_id(self._id_assigned)
            elif self._batches:
                self._in_flight = True
                self._send_batch(self._batches[0])
            elif self.builder.tails:
                self._make_batches()
            else:
                break
        self._is_sending = False

    def _make_batches(self) -> None:
        now_ms, now_s = self._runtime.time_ms(), self._runtime.monotonic()
        owed, self.owed, self._counted = self.owed, [], 0
        gathered = _Batch(self.builder.tails.copy(), owed, now_ms, now_s)
        for batch in self.builder.finish(now_ms, self._size_max()):
            count = 1 if isinstance(batch, TooLarge) else batch.header.record_count
            mine = gathered.part(batch.first, count)
            if isinstance(batch, TooLarge):
                why = f"the record would take {batch.size} bytes, more than max.message.bytes of the topic"
                self._refuse(mine, ErrorCode.MESSAGE_TOO_LARGE, why)
            else:
                self._batches.append(mine)

    def _id_assigned(self, producer_id: int, error: ErrorCode) -> None:
        self._awaits_id = False
        if self._is_closed:
            return
        if error:
            self._wait(error)
        else:
            self._producer_id, self._sequence = producer_id, 0
            self._send_next()

    def _send_batch(self, batch: _Batch) -> None:
        records = batch.encode(self._producer_id, self._sequence)
        self._attempt += 1
        self._attempt_leader = self._leader()
        self._produce(records, partial(self._answered, self._attempt))

    def _answered(self, attempt: int, error: ErrorCode, base_offset: int) -> None:
        if attempt != self._attempt or not self._in_flight or self._is_closed:
            return
        self._in_flight = False
        self._lacks_replicas = error == ErrorCode.NOT_ENOUGH_REPLICAS
        batch = self._batches[0]
        if error in _APPENDED:
            self._batches.popleft()
            self._appended(batch, error, base_offset)
        elif error in _REFUSED:
            self._batches.popleft()
            if len(batch.tails) == 1:
                self._refuse(batch, error, error.name)
            else:  # because of one record, such as one without a key in a compacted topic
                self._batches.extendleft(
                    batch.part(place, 1) for place in range(len(batch.tails) - 1, -1, -1)
                )
        elif error == ErrorCode.NOT_ENOUGH_REPLICAS and batch.owed and not batch.may_be_appended:
            self._refuse_owed(batch)
        else:
            if error in _UNKNOWN_PRODUCER:
                self._producer_id = NO_PRODUCER_ID
            elif error not in _NOT_APPENDED:
                batch.may_be_appended = True
            self._wait(error)
        self._send_next()
        self._on_settled()

    def _appended(self, batch: _Batch, error: ErrorCode, base_offset: int) -> None:
        count, size = len(batch.tails), batch.size
        self.held_bytes -= size
        self._sequence = (self._sequence + count) % SEQUENCE_END
        self._retry_s = RETRY_S
        self._stats.appended += count
        self._stats.appended_bytes += size
        if error:
            self.acks.fail_all(batch.owed, error)
        elif batch.owed:
            self.acks.stored(base_offset, batch.owed, batch.received_s)

    def _refuse_owed(self, batch: _Batch) -> None:
        """Messages that ask for an acknowledgement are refused; the others wait for replicas."""
        self.acks.fail_all(batch.owed, ErrorCode.NOT_ENOUGH_REPLICAS, _TOO_FEW)
        self.held_bytes -= batch.size
        self._stats.refused += batch.remove_owed()
        self.held_bytes += batch.size
        if not batch.tails:
            self._batches.popleft()

    def _refuse(self, batch: _Batch, error: ErrorCode, why: str) -> None:
        """Refuses a batch of one record."""
        (tail,) = batch.tails
        self.held_bytes -= len(tail)

        def answer(error: ErrorCode, why: str) -> None:
            self.acks.fail_all(batch.owed, error, why)

        self._on_refused(tail, error, why, answer)

    def _wait(self, error: ErrorCode) -> None:
        self._warnings.warn(self.name, error.name, f"{self.name}: messages from NATS wait: {error.name}")
        self._retry = self._runtime.call_later(self._retry_s, self._try_again)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _try_again(self) -> None:
        self._retry = None
        self._send_next()


class GroupLanes:
    """The lanes of one binding's partitions. All calls on the loop's thread."""

    def __init__(
        self,
        host: ExtensionHost,
        topic: str,
        send_acks: Send,
        stats: CarrierStats,
        ack_stats: AckStats,
        on_refused: OnRefused,
        on_held: Callable[[], object],
    ) -> None:
        """`on_refused` is called for a record that a log never takes, `on_held` when `held_bytes` has changed."""
        self.lanes: dict[int, GroupLane] = {}  # also of partitions that were served before
        self.served: list[int] = []
        self.producer = RemoteProducer(host)
        self._on_held = on_held
        self._on_refused = on_refused
        self._host = host
        self._topic = topic
        self._send_acks = send_acks
        self._stats = stats
        self._ack_stats = ack_stats

    @property
    def held_bytes(self) -> int:
        """Bytes that are gathered or not committed yet."""
        return sum(lane.held_bytes for lane in self.lanes.values())

    @property
    def waiting(self) -> int:
        """The number of messages that are not known to be stored."""
        return sum(lane.waiting for lane in self.lanes.values())

    def serve(self, indices: Iterable[int]) -> None:
        """Serves these partitions and no others; their leaders may have changed."""
        self.served = sorted(indices)
        for index in self.served:
            if index not in self.lanes:
                self.lanes[index] = self._open(index)
        for lane in tuple(self.lanes.values()):
            lane.leader_changed()

    def send(self) -> None:
        """Sends the gathered messages."""
        gathered = [lane for lane in self.lanes.values() if lane.builder.tails]
        for lane in gathered:
            lane.send()
        if gathered:
            self._on_held()

    def close(self) -> None:
        """Ends for good: messages that are not committed are lost."""
        self.served = []
        for lane in self.lanes.values():
            lane.close()
        self.producer.close()

    def _open(self, index: int) -> GroupLane:
        runtime = self._host.runtime
        return GroupLane(
            f"{self._topic}-{index}",
            runtime,
            self._stats,
            AckSender(self._topic, index, self._send_acks, self._ack_stats, runtime.monotonic),
            partial(self._produce, index),
            partial(self.producer.leader, self._topic, index),
            self._host.producer_ids.next,
            self._size_max,
            self._on_refused,
            self._on_held,
        )

    def _produce(self, index: int, records: bytearray, done: Produced) -> None:
        self.producer.send(self._topic, index, memoryview(records), done)

    def _size_max(self) -> int:
        """The largest batch that the log takes; all partitions of a topic have the same configs."""
        for partition in self._host.partitions.of_topic(self._topic).values():
            config = partition.log.config
            return min(config.max_message_bytes, config.segment_bytes)
        return _DEFAULT_SIZE_MAX
