"""One partition's share of what a member of a queue group is given, wherever the partition is led: batches under a producer
id, produced to its leader with acks=all.

Nobody but this member has its messages, so each is kept until its record is committed, and a batch without an answer is
produced again, to whoever leads the partition then. As the sequence number is the same each time, it is in the log once.
One batch is under way at a time; what comes meanwhile is the next one.

What a local leader would find in its log is not to be had here: ids are not looked up, and a message that expects something
of the log is refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.groups.batch import GroupBatch
from barnabas.nats.ingest.expectations import Refusal, concern_topic, expects, expects_of_log, refusal
from barnabas.nats.pub_ack import ACK_ALL, KAFKA_ACK, NO_ACK
from barnabas.nats.records.batch_builder import BatchBuilder, TooLarge
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.cluster.foreign import Placed
    from barnabas.nats.core.shadow import Asked
    from barnabas.nats.ingest.acks import AckSender, Owed
    from barnabas.nats.ingest.lane import OnRefused
    from barnabas.nats.pub_ack import AckLevel
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
LOG_AGAIN_S: Final = 60.0
SEQUENCE_END: Final = 1 << 31
NO_ID: Final = -1
NOBODY: Final = -1
_TOO_FEW: Final = "fewer replicas are in sync than min.insync.replicas"
NOT_IN_GROUPS: Final = Refusal(
    400, 10003, "a member of a queue group can't say what the partition holds: expect nothing of it"
)

_APPENDED: Final = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
# The leader has lost what it knew of the producer.
_UNKNOWN: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
# It is one of the records, and will be the next time.
_REFUSED: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_REQUEST,
)
# Nothing was appended.
_BEFORE: Final = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)

# (records, done)
Produce = Callable[[bytearray, "Placed"], object]
NextId = Callable[[int, ErrorCode], object]


class GroupLane:
    """See the module. `builder.tails` is what the encoder appends to; `owed` says who waits for which place of it."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        stats: CarrierStats,
        acks: AckSender,
        produce: Produce,
        leader: Callable[[], int],
        next_id: Callable[[NextId], object],
        size_max: Callable[[], int],
        on_refused: OnRefused,
        on_settled: Callable[[], object],
    ) -> None:
        """`leader()` is the node id of the partition's leader, `size_max()` how large a batch it takes, `next_id` hands
        out producer ids. `on_refused` is called for a record that the log will never take, `on_settled` when `held_bytes`
        has become less."""
        self.name = name
        self.acks = acks
        self.builder = BatchBuilder()
        self.owed: list[Owed] = []
        self.held_bytes = 0  # gathered, or under way
        self._on_refused = on_refused
        self._on_settled = on_settled
        self.lacks_replicas = False  # when something was tried last
        self._runtime = runtime
        self._stats = stats
        self._produce = produce
        self._leader = leader
        self._next_id = next_id
        self._size_max = size_max
        self._batches: deque[GroupBatch] = deque()
        self._counted = 0  # of the records gathered, those in `held_bytes`
        self._producer_id = NO_ID
        self._sequence = 0
        self._attempt = 0  # the number of the one under way
        self._asked = NOBODY  # who was asked
        self._is_under_way = False
        self._awaits_id = False
        self._is_going_on = False  # answers may come at once
        self._retry: Timer | None = None
        self._retry_s = RETRY_S
        self._log_again_s = -LOG_AGAIN_S
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many messages are not known to be stored."""
        return len(self.builder.tails) + sum(len(batch.tails) for batch in self._batches)

    def take_asking(self, tail: bytes, asked: Asked, binding: Binding, level_of: AckLevel) -> None:
        """A message with special headers or a reply: it is stored, or told why not."""
        reply, header_block, found = asked
        level = level_of(reply, next((value for name, value in found if name == KAFKA_ACK), None))
        if expects(header_block) and concern_topic(binding.acks, level, reply, header_block):
            refused = refusal(header_block, binding.topic)
            if refused is None and expects_of_log(header_block):
                refused = NOT_IN_GROUPS
            if refused is not None:
                self._stats.refused += 1
                self.acks.refuse(reply if level != NO_ACK else b"", refused)
                return
        if (
            level == ACK_ALL and self.lacks_replicas and self._batches
        ):  # what is tried again tells when no more
            self._stats.refused += 1
            self.acks.fail(reply, ErrorCode.NOT_ENOUGH_REPLICAS, _TOO_FEW)
            return
        if level != NO_ACK:
            self.owed.append((len(self.builder.tails), reply, level, False))
        self.builder.tails.append(tail)

    def take_over(self, tails: list[bytes], owed: list[Owed]) -> None:
        """What was gathered elsewhere."""
        first = len(self.builder.tails)
        self.builder.tails += tails
        self.owed += [(first + place, reply, level, again) for place, reply, level, again in owed]

    def send(self) -> None:
        """What was gathered goes, after what is under way."""
        tails = self.builder.tails
        if len(tails) > self._counted:
            self.held_bytes += sum(map(len, tails[self._counted :]))
            self._counted = len(tails)
        self._go_on()

    def leader_changed(self) -> None:
        """Perhaps: then who was asked may never answer."""
        if self._is_under_way and self._leader() != self._asked:
            self._answered(self._attempt, ErrorCode.NETWORK_EXCEPTION, -1)
        elif self._retry is not None:
            self._retry.cancel()
            self._again()

    def close(self) -> None:
        """The binding ends: what waits has no place to go."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._stats.lost_estimate += self.waiting
        self.builder.tails.clear()
        self._batches.clear()
        self.owed = []
        self.held_bytes = self._counted = 0

    # -- one after the other

    def _go_on(self) -> None:
        if self._is_going_on:
            return
        self._is_going_on = True
        while not (self._is_under_way or self._awaits_id or self._retry or self._is_closed):
            if self._batches and self._producer_id == NO_ID:
                self._awaits_id = True
                self._next_id(self._identified)
            elif self._batches:
                self._is_under_way = True
                self._try(self._batches[0])
            elif self.builder.tails:
                self._cut()
            else:
                break
        self._is_going_on = False

    def _cut(self) -> None:
        """Make batches of what was gathered."""
        now_ms, now_s = self._runtime.time_ms(), self._runtime.monotonic()
        owed, self.owed, self._counted = self.owed, [], 0
        all_of_it = GroupBatch(self.builder.tails.copy(), owed, now_ms, now_s)
        for batch in self.builder.finish(now_ms, self._size_max()):
            count = 1 if isinstance(batch, TooLarge) else batch.header.record_count
            mine = all_of_it.part(batch.first, count)
            if isinstance(batch, TooLarge):
                why = f"the record would take {batch.size} bytes, more than max.message.bytes of the topic"
                self._refuse(mine, ErrorCode.MESSAGE_TOO_LARGE, why)
            else:
                self._batches.append(mine)

    def _identified(self, producer_id: int, error: ErrorCode) -> None:
        self._awaits_id = False
        if self._is_closed:
            return
        if error:
            self._wait(error)
        else:
            self._producer_id, self._sequence = producer_id, 0
            self._go_on()

    def _try(self, batch: GroupBatch) -> None:
        records = batch.encode(self._producer_id, self._sequence)
        self._attempt += 1
        self._asked = self._leader()
        self._produce(records, partial(self._answered, self._attempt))

    def _answered(self, attempt: int, error: ErrorCode, base_offset: int) -> None:
        if attempt != self._attempt or not self._is_under_way or self._is_closed:
            return
        self._is_under_way = False
        self.lacks_replicas = error == ErrorCode.NOT_ENOUGH_REPLICAS
        batch = self._batches[0]
        if error in _APPENDED:
            self._batches.popleft()
            self._appended(batch, error, base_offset)
        elif error in _REFUSED:
            self._batches.popleft()
            if len(batch.tails) == 1:
                self._refuse(batch, error, error.name)
            else:  # for one of them, such as one without a key in a compacted topic
                self._batches.extendleft(
                    batch.part(place, 1) for place in range(len(batch.tails) - 1, -1, -1)
                )
        elif error == ErrorCode.NOT_ENOUGH_REPLICAS and batch.owed and not batch.is_perhaps_there:
            self._without_those_who_ask(batch)
        else:
            if error in _UNKNOWN:
                self._producer_id = NO_ID
            elif error not in _BEFORE:
                batch.is_perhaps_there = True
            self._wait(error)
        self._go_on()
        self._on_settled()

    def _appended(self, batch: GroupBatch, error: ErrorCode, base_offset: int) -> None:
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

    def _without_those_who_ask(self, batch: GroupBatch) -> None:
        """Who wants to be sure is told that it isn't; the others' messages wait for replicas."""
        error = ErrorCode.NOT_ENOUGH_REPLICAS
        self.acks.fail_all(batch.owed, error, _TOO_FEW)
        self.held_bytes -= batch.size
        self._stats.refused += batch.leave_out_those_who_ask()
        self.held_bytes += batch.size
        if not batch.tails:
            self._batches.popleft()

    def _refuse(self, batch: GroupBatch, error: ErrorCode, why: str) -> None:
        """A single record."""
        (tail,) = batch.tails
        self.held_bytes -= len(tail)

        def answer(error: ErrorCode, why: str) -> None:
            self.acks.fail_all(batch.owed, error, why)

        self._on_refused(tail, error, why, answer)

    def _wait(self, error: ErrorCode) -> None:
        now_s = self._runtime.monotonic()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_AGAIN_S
            log.warning("%s: what comes for it from NATS waits: %s", self.name, error.name)
        self._retry = self._runtime.call_later(self._retry_s, self._again)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _again(self) -> None:
        self._retry = None
        self._go_on()
