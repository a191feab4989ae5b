"""Publishes one partition's records, in their order, leaving none out.

Many messages are in flight at a time; the position is the first one that is not acknowledged. After a failure (an error or
no answer from the stream, a connection that ends) publishing starts again from there, after a pause that gets longer with
each failure in a row; a stream that had some of the messages already knows them by their ids. A record that no message can
be made of stops the partition there, until it can be or an administrator moves the group's position.

A PubAck acknowledges each message; in core NATS the PONG behind them does: the server has them then, and core NATS says no
more.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.nats.client.errors import NatsError, NotConnected, OutputFull
from barnabas.nats.reverse.reader import CommittedReader
from barnabas.nats.reverse.subject import Unpublishable
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import Record, RecordBatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.cluster.positions import Position
    from barnabas.nats.reverse.message import Outcome, Outgoing
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")


class PublishingBinding(Protocol):
    """The binding, as one of its partitions sees it."""

    runtime: Runtime
    client: NatsClient
    stats: CarrierStats
    inbox: bytes  # where PubAcks come, with the last dot; b"" in core NATS
    messages_max: int  # of one partition under way
    bytes_max: int

    def ask_position(self, publisher: PartitionPublisher) -> None:
        """Have `moved_to` called with where the group stands now."""
        ...

    def has_confirmed(self, publisher: PartitionPublisher) -> None:
        """Its position has moved."""
        ...

    def how_to_move(self, partition: Partition, offset: int) -> str:
        """What to type to move the group's position there."""
        ...


FIRST_BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0


class Backoff:
    """Of one partition. `problem` is a state (`waiting: <why>` or `blocked: <what to do>`), "" while it is published."""

    def __init__(self, runtime: Runtime, topic: str, again: Callable[[], object]) -> None:
        """`again()`: a while has passed."""
        self.problem = ""
        self._runtime = runtime
        self._topic = topic
        self._again = again
        self._failures = 0  # in a row
        self._is_logged = False  # of trouble, and not yet of its end
        self._timer: Timer | None = None

    @property
    def has_failed_again(self) -> bool:
        """Whether it is not the first time in a row."""
        return self._failures > 1

    def begin(self, problem: str) -> None:
        if problem != self.problem and self._failures == 0:
            log.warning("topic %s: %s", self._topic, problem)
            self._is_logged = True
        self.problem = problem
        delay_s = min(FIRST_BACKOFF_S * 2 ** min(self._failures, 10), BACKOFF_MAX_S)
        self._failures += 1
        self.cancel()
        self._timer = self._runtime.call_later(delay_s * self._runtime.random.uniform(0.5, 1), self._is_over)

    def went_well(self) -> bool:
        """Something was acknowledged: the next trouble is a first one. Whether this is worth telling."""
        self._failures = 0
        is_news = self._is_logged and not self.problem
        if is_news:
            self._is_logged = False
        return is_news

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None
        self._again()


ACK_TIMEOUT_S: Final = 5.0  # how long a message may be without an acknowledgement
_NONE: Final = -1


class InFlight:
    """By offset. False when there are none."""

    __slots__ = ("_sizes", "_watched", "_watched_since_s", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._sizes: dict[int, int] = {}  # offset -> bytes
        self._watched = _NONE  # the first one, and since when it is that
        self._watched_since_s = 0.0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, offset: int) -> bool:
        return offset in self._sizes

    @property
    def first(self) -> int:
        """-1 when there is none."""
        return next(iter(self._sizes), _NONE)

    def add(self, offset: int, size: int) -> None:
        self._sizes[offset] = size
        self.bytes += size

    def remove(self, offset: int) -> int:
        """It is acknowledged; its size."""
        size = self._sizes.pop(offset)
        self.bytes -= size
        return size

    def below(self, end_offset: int) -> list[int]:
        """Offsets are published in their order."""
        found: list[int] = []
        for offset in self._sizes:
            if offset >= end_offset:
                break
            found.append(offset)
        return found

    def clear(self) -> None:
        self._sizes.clear()
        self.bytes = 0

    def waits_too_long(self, now_s: float) -> bool:
        """Asked now and then: has the first one been the first for so long?"""
        first = self.first
        if first != self._watched:
            self._watched, self._watched_since_s = first, now_s
        elif first >= 0 and now_s - self._watched_since_s >= ACK_TIMEOUT_S:
            self._watched = _NONE
            return True
        return False


SLICE: Final = 128  # records between two looks at what else waits for the loop: 1 or 2 ms
UNCOMMITTED_MAX: Final = 100_000  # records that would be published twice after a crash


class PartitionPublisher:
    """See the module. `begin` when the position is known. All calls on the loop's thread."""

    def __init__(self, binding: PublishingBinding, partition: Partition, outgoing: Outgoing) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.committed = -1  # the position that the group has, -1 until it has one
        self._binding = binding
        self._runtime = binding.runtime
        self._client = binding.client
        self._outgoing = outgoing
        outgoing.on_settled = self._settled
        self._reader = CommittedReader(partition, binding.runtime, 0, self._pump)
        self._queue: deque[Record] = deque()  # taken at once, not published
        self._in_flight = InFlight()
        self._attempt = 0  # what is said of an earlier one does not count any more
        self._backoff = Backoff(binding.runtime, partition.topic, self._again)
        self._is_scheduled = False
        self._is_stopped = True
        self.has_position = False  # whether `confirmed` says anything
        self._is_waiting = False  # for more records
        self._removed = 0

    # -- life

    def begin(self, position: Position | None) -> None:
        """Publish from there on; from the first record there is where the group has no position yet."""
        self._is_stopped = False
        self.has_position = True
        if position is not None:
            self.committed = position.offset
        offset = self._start_offset(position)
        is_first = position is None and offset == 0
        self._go_to(offset, None if is_first else "" if position is None else position.metadata)
        self._schedule()

    def stop(self) -> None:
        """Publish nothing any more; `confirmed` stays as it is."""
        self._is_stopped = True
        self._stop_waiting()
        self._backoff.cancel()

    @property
    def problem(self) -> str:
        """Why nothing is published, as a state; "" when it is."""
        return self._backoff.problem

    @property
    def confirmed(self) -> int:
        """Everything below is acknowledged, or nothing to publish."""
        if self._in_flight:
            return self._in_flight.first
        return self._queue[0].offset if self._queue else self._reader.next_offset

    @property
    def is_begun(self) -> bool:
        return not self._is_stopped

    @property
    def is_in_flight(self) -> bool:
        """Whether messages wait for their acknowledgement."""
        return bool(self._in_flight)

    @property
    def lag(self) -> int:
        """Offsets between the position and what is committed."""
        return max(0, self.partition.last_stable_offset - self.confirmed)

    def metadata(self) -> str:
        return self._outgoing.metadata(self.confirmed)

    def committed_to(self, offset: int) -> None:
        """The group has this position now."""
        self.committed = offset
        if not self._is_waiting:
            self._schedule()

    def _start_offset(self, position: Position | None) -> int:
        partition = self.partition
        if position is None:
            return partition.log.log_start_offset
        name, end = partition.log.name, partition.log.log_end_offset
        offset = position.offset
        if position.leader_epoch >= 0:
            epoch_end = partition.epoch_end_offset(position.leader_epoch)[1]
            end = epoch_end if epoch_end >= 0 else end
        if offset > end:  # an unclean election has cut the log, or an admin has gone too far
            log.warning("%s: the position %d lies behind what there is: going on from %d", name, offset, end)
            return end
        return offset

    def _go_to(self, offset: int, metadata: str | None) -> None:
        self._attempt += 1
        self._stop_waiting()  # there is something to read again
        self._queue.clear()
        self._in_flight.clear()
        self._reader.seek(offset)
        self._outgoing.restart(metadata)

    # -- publishing

    def connected(self) -> None:
        """There is a connection again."""
        self._schedule()

    def disconnected(self) -> None:
        """What is under way may have come or not."""
        if not self._is_stopped:
            self._go_back()

    def _go_back(self) -> None:
        """To the first record that is not acknowledged."""
        self._go_to(self.confirmed, self.metadata())

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._runtime.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._is_stopped or self.problem or self._is_waiting or not self._client.is_connected:
            return
        if self.committed >= 0 and self.confirmed - self.committed > UNCOMMITTED_MAX:
            return
        try:
            is_at_end = self._publish_slice()
        except (StorageError, RecordBatchError) as error:
            self._cannot_read(error)
        except Exception as error:  # the other partitions go on
            log.exception("%s can't be published", self.partition.log.name)
            self._retry(f"waiting: {self.partition.log.name} can't be published: {error}")
        else:
            if is_at_end:
                self._wait()

    def _publish_slice(self) -> bool:
        """Publish some. True when there is nothing more to publish now."""
        attempt = self._attempt
        end = -1
        left = SLICE
        is_at_end = False
        while left > 0:
            if not self._queue:
                records = self._reader.take(left)
                if not records:
                    is_at_end = not self._reader.is_busy
                    break
                self._queue.extend(records)
            left -= 1
            record = self._queue[0]
            if not self._publish(record):
                break
            self._queue.popleft()
            end = record.offset + 1
        else:
            self._schedule()
        if self._reader.removed != self._removed:
            self._log_removed()
        if end >= 0 and self._in_flight and not self._binding.inbox:
            self._client.flush(partial(self._flushed, attempt, end))
        elif not self._in_flight:
            self._binding.has_confirmed(self)  # what is not published counts as well
        return is_at_end

    def _publish(self, record: Record) -> bool:
        """Send the record's message; False when that is for later."""
        binding = self._binding
        if not self._outgoing.is_ready(record):
            return False  # until an acknowledgement comes
        try:
            message = self._outgoing.message(record, is_bridged=self._reader.is_bridged)
        except Unpublishable as error:
            self._block(record, str(error))
            return False
        if message is None:
            return True
        size = len(message[1]) + len(message[2])
        in_flight = self._in_flight
        if in_flight and (
            len(in_flight) >= binding.messages_max or in_flight.bytes + size > binding.bytes_max
        ):
            return False  # until some are acknowledged
        info = self._client.info
        if info is None:
            return False
        if size > info.max_payload:
            self._block(
                record,
                f"its message would have {size} bytes, the server takes {info.max_payload}: raise max_payload there",
            )
            return False
        try:
            self._send(record.offset, message)
        except (NotConnected, OutputFull):
            return False  # until the listener hears that there is a connection, or room
        except ValueError as error:
            self._block(record, str(error))
            return False
        self._outgoing.sent(record, message)
        in_flight.add(record.offset, size)
        return True

    def _send(self, offset: int, message: tuple[bytes, bytes, bytes]) -> None:
        subject, headers, payload = message
        inbox, reply = self._binding.inbox, b""
        if inbox:
            reply = b"%b%d.%d.%d" % (inbox, self.partition.partition, self._attempt, offset)
        self._client.publish(subject, payload, reply=reply, headers=headers)

    # -- acknowledgements

    def answered(self, attempt: int, offset: int, header_block: bytes, payload: bytes) -> None:
        """A stream has answered to the message of this offset."""
        if attempt != self._attempt or self._is_stopped or offset not in self._in_flight:
            return
        outcome = self._outgoing.answer(offset, header_block, payload)
        if outcome is not None:
            self._settled(offset, outcome)

    def _settled(self, offset: int, outcome: Outcome) -> None:
        """It is known what has become of a message that is under way."""
        if self._is_stopped or offset not in self._in_flight:
            return
        if outcome == "":
            self._confirm(offset)
            self._go_on()
        elif isinstance(outcome, str):
            self._retry(f"{outcome} ({self.partition.log.name}, offset {offset})")
        else:
            try:
                self._send(offset, outcome)
            except NatsError as error:
                self._retry(
                    f"waiting: {self.partition.log.name}, offset {offset} could not be published: {error}"
                )

    def _flushed(self, attempt: int, end: int, error: NatsError | None) -> None:
        if attempt != self._attempt or self._is_stopped or error is not None:
            return  # the listener hears of the connection
        for offset in self._in_flight.below(end):
            self._confirm(offset)
        self._go_on()

    def _confirm(self, offset: int) -> None:
        size = self._in_flight.remove(offset)
        stats = self._binding.stats
        stats.messages_out += 1
        stats.bytes_out += size

    def _go_on(self) -> None:
        if self._backoff.went_well():
            log.info("%s is published again, up to offset %d so far", self.partition.log.name, self.confirmed)
        self._binding.has_confirmed(self)
        if not self._is_waiting:
            self._schedule()

    def check_timeout(self, now: float) -> None:
        """Called now and then: has the first message been waiting too long?"""
        if self._in_flight.waits_too_long(now):
            self._retry(
                f"waiting: no acknowledgement of {self.partition.log.name}, offset {self._in_flight.first} for {ACK_TIMEOUT_S:g} s: "
                "is the stream there, and may this user publish to it?"
            )

    def refused(self, text: str) -> None:
        """The server has refused a message of this binding, perhaps one of these."""
        if self._in_flight and not self._is_stopped:
            self._retry(f"blocked: the server has refused a message: {text}")

    # -- trouble

    def _retry(self, problem: str) -> None:
        self._go_back()
        self._rest(problem)

    def _block(self, record: Record, why: str) -> None:
        """This record can't be published. What is under way before it still counts."""
        self._rest(
            f"blocked: {self.partition.log.name} stands at offset {record.offset}: {why}. To leave the record out, move the "
            f"group's position behind it: {self._binding.how_to_move(self.partition, record.offset + 1)}"
        )

    def _cannot_read(self, error: StorageError | RecordBatchError) -> None:
        code = getattr(error, "error", ErrorCode.CORRUPT_MESSAGE)
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._wait()  # for the news of it
        else:
            self._rest(
                f"blocked: {self.partition.log.name} can't be read at offset {self._reader.next_offset}: {error}"
            )

    def _rest(self, problem: str) -> None:
        """Publish nothing for a while."""
        self._stop_waiting()
        self._backoff.begin(problem)

    def _again(self) -> None:
        if self._backoff.has_failed_again:
            self._binding.ask_position(self)
        else:
            self._resume()

    def moved_to(self, position: Position | None) -> None:
        """Where the group stands now, in answer to `ask_position`; None when it is not known."""
        if self._is_stopped or not self.problem:
            return
        if position is not None and self.committed >= 0 and position.offset != self.committed:
            log.info(
                "%s: going on from offset %d, where the group is now",
                self.partition.log.name,
                position.offset,
            )
            self.committed = position.offset
            self._go_to(self._start_offset(position), position.metadata)
        self._resume()

    def _resume(self) -> None:
        self._backoff.problem = ""
        self._schedule()

    def _log_removed(self) -> None:
        log.warning(
            "%s: %d offsets were removed from the log (retention) before they could be published",
            self.partition.log.name,
            self._reader.removed - self._removed,
        )
        self._binding.stats.lost_estimate += self._reader.removed - self._removed
        self._removed = self._reader.removed

    # -- waiting for records

    def _wait(self) -> None:
        self._is_waiting = True
        self.partition.fetch_waiters[self] = None

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        self.partition.fetch_waiters.pop(self, None)

    def appended(self, partition: Partition, byte_count: int) -> None:  # noqa: ARG002 - as a PartitionListener
        """There is more to read."""
        self._stop_waiting()
        self._schedule()

    def changed(self, partition: Partition) -> None:  # noqa: ARG002
        """The partition's start, leader or health has changed."""
        self._stop_waiting()
        self._schedule()

    def high_watermark_moved(self, partition: Partition) -> None:
        """Followers alone are told."""
