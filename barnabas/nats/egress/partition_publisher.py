"""Publishes all records of one partition, in their order.

Many messages are in flight at a time; the position is the first one without an acknowledgement. A stream acknowledges each
message with a PubAck. Core NATS has no acknowledgements; there the PONG behind a message shows that the server has it.

After a failure (a stream's error, no answer, a lost connection) publishing starts again at the position, after a pause that
grows with each failure in a row. A stream drops the messages that it already has by their ids. A record that can't become a
message stops its partition until it can, or until an administrator moves the group's position.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.nats.client.errors import NatsError, NotConnected, OutputFull
from barnabas.nats.egress.reader import CommittedReader
from barnabas.nats.egress.subject import Unpublishable
from barnabas.runtime.backoff import Backoff
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import RecordBatchError
from barnabas.wire.records import Record

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.cluster.positions import Position
    from barnabas.nats.egress.message import Outcome, Outgoing, PublishedMessage
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")


ACK_TIMEOUT_S: Final = 5.0  # for the first message in flight
SLICE: Final = 128  # records published in a turn of the loop: 1 or 2 ms
UNCOMMITTED_MAX: Final = 100_000  # records that would be published twice after a crash
_NONE: Final = -1


class PublishingBinding(Protocol):
    """What a partition's publisher needs of its binding."""

    runtime: Runtime
    client: NatsClient
    stats: CarrierStats
    inbox: bytes  # prefix of the subjects for PubAcks, with the last dot; b"" in core NATS
    messages_max: int  # in flight, of one partition
    bytes_max: int

    def ask_position(self, publisher: PartitionPublisher) -> None:
        """Fetches the group's position and passes it to `moved_to`."""
        ...

    def has_confirmed(self, publisher: PartitionPublisher) -> None:
        """`confirmed` may have grown."""
        ...

    def reset_command(self, partition: Partition, offset: int) -> str:
        """The shell command that moves the group's position to `offset`."""
        ...


class InFlight:
    """The messages without an acknowledgement, by offset, in the order of offsets."""

    __slots__ = ("_oldest", "_oldest_since_s", "_sizes", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._sizes: dict[int, int] = {}  # offset -> bytes
        self._oldest = _NONE  # the first one when `is_overdue` was last called
        self._oldest_since_s = 0.0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, offset: int) -> bool:
        return offset in self._sizes

    @property
    def first(self) -> int:
        """The lowest offset; -1 when none is in flight."""
        return next(iter(self._sizes), _NONE)

    def add(self, offset: int, size: int) -> None:
        self._sizes[offset] = size
        self.bytes += size

    def remove(self, offset: int) -> int:
        """Removes an acknowledged message and returns its size."""
        size = self._sizes.pop(offset)
        self.bytes -= size
        return size

    def below(self, end_offset: int) -> list[int]:
        """The offsets below `end_offset`."""
        found: list[int] = []
        for offset in self._sizes:
            if offset >= end_offset:
                break
            found.append(offset)
        return found

    def clear(self) -> None:
        self._sizes.clear()
        self.bytes = 0

    def is_overdue(self, now_s: float) -> bool:
        """Whether the same message has been the first one for ACK_TIMEOUT_S. To be called every second or so."""
        first = self.first
        if first != self._oldest:
            self._oldest, self._oldest_since_s = first, now_s
        elif first >= 0 and now_s - self._oldest_since_s >= ACK_TIMEOUT_S:
            self._oldest = _NONE
            return True
        return False


class PartitionPublisher:
    """Publishes one partition, from `begin` to `stop`. `problem` is empty while it does, otherwise a state that says why it
    pauses: `waiting: <why>` or `blocked: <what to do>`. All calls on the loop's thread."""

    def __init__(self, binding: PublishingBinding, partition: Partition, outgoing: Outgoing) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.committed = -1  # the group's position; -1 without one
        self.problem = ""
        self.is_begun = False
        self.has_position = False  # whether `confirmed` is valid: from the first `begin` on
        self._binding = binding
        self._runtime = binding.runtime
        self._client = binding.client
        self._outgoing = outgoing
        self._reader = CommittedReader(partition, binding.runtime, 0, self._pump)
        self._queue: deque[Record] = deque()  # read, not published
        self._in_flight = InFlight()
        self._attempt = 0  # grows when publishing starts again; answers to earlier attempts are ignored
        self._backoff = Backoff(binding.runtime)
        self._backoff_timer: Timer | None = None
        self._is_problem_logged = False
        self._is_scheduled = False
        self._is_waiting = False  # for more records
        self._removed = 0

    # -- start and stop

    def begin(self, position: Position | None) -> None:
        """Publishes from the group's position on; without one, from the first record of the log."""
        self.is_begun = True
        self.has_position = True
        if position is not None:
            self.committed = position.offset
        offset = self._start_offset(position)
        is_first = position is None and offset == 0
        self._go_to(offset, None if is_first else "" if position is None else position.metadata)
        self._schedule()

    def stop(self) -> None:
        """Publishes nothing more; `confirmed` keeps its value."""
        self.is_begun = False
        self._stop_waiting()
        self._cancel_backoff()

    @property
    def confirmed(self) -> int:
        """All records below this offset are acknowledged, or are not published at all."""
        if self._in_flight:
            return self._in_flight.first
        return self._queue[0].offset if self._queue else self._reader.next_offset

    @property
    def is_in_flight(self) -> bool:
        """Whether messages wait for their acknowledgement."""
        return bool(self._in_flight)

    @property
    def lag(self) -> int:
        """Offsets between the position and the last stable offset."""
        return max(0, self.partition.last_stable_offset - self.confirmed)

    def metadata(self) -> str:
        return self._outgoing.metadata(self.confirmed)

    def committed_to(self, offset: int) -> None:
        """The group has committed this position."""
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
        if offset > end:  # after an unclean election, or a reset by an administrator
            log.warning(
                "%s: the position %d is behind the end of the log; publishing continues at %d",
                name,
                offset,
                end,
            )
            return end
        return offset

    def _go_to(self, offset: int, metadata: str | None) -> None:
        self._attempt += 1
        self._stop_waiting()
        self._queue.clear()
        self._in_flight.clear()
        self._reader.seek(offset)
        self._outgoing.restart(metadata)

    # -- publishing

    def connected(self) -> None:
        """The client has a connection, or room in its output buffer."""
        self._schedule()

    def disconnected(self) -> None:
        """Whether the server has the messages in flight is unknown."""
        if self.is_begun:
            self._go_back()

    def _go_back(self) -> None:
        """Starts again at the first record without an acknowledgement."""
        self._go_to(self.confirmed, self.metadata())

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._runtime.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if not self.is_begun or self.problem or self._is_waiting or not self._client.is_connected:
            return
        if self.committed >= 0 and self.confirmed - self.committed > UNCOMMITTED_MAX:
            return
        try:
            is_at_end = self._publish_slice()
        except (StorageError, RecordBatchError) as error:
            self._cannot_read(error)
        except Exception as error:  # the other partitions continue
            log.exception("%s can't be published", self.partition.log.name)
            self._retry(f"waiting: {self.partition.log.name} can't be published: {error}")
        else:
            if is_at_end:
                self._wait()

    def _publish_slice(self) -> bool:
        """Publishes at most SLICE records. True when all committed records are published."""
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
            self._binding.has_confirmed(self)  # of records that are not published
        return is_at_end

    def _publish(self, record: Record) -> bool:
        """Sends the record's message; False when it can't be sent yet."""
        binding = self._binding
        if not self._outgoing.is_ready(record):
            return False  # the next acknowledgement continues
        try:
            message = self._outgoing.message(record, is_bridged=self._reader.is_bridged)
        except Unpublishable as error:
            self._stop_at(record, str(error))
            return False
        if message is None:
            return True
        size = len(message[1]) + len(message[2])
        in_flight = self._in_flight
        if in_flight and (
            len(in_flight) >= binding.messages_max or in_flight.bytes + size > binding.bytes_max
        ):
            return False  # the next acknowledgement continues
        info = self._client.info
        if info is None:
            return False
        if size > info.max_payload:
            self._stop_at(
                record,
                f"its message would have {size} bytes, the server takes {info.max_payload}: raise max_payload there",
            )
            return False
        try:
            self._send(record.offset, message)
        except (NotConnected, OutputFull):
            return False  # `connected` continues
        except ValueError as error:
            self._stop_at(record, str(error))
            return False
        self._outgoing.sent(record, message)
        in_flight.add(record.offset, size)
        return True

    def _send(self, offset: int, message: PublishedMessage) -> None:
        subject, headers, payload = message
        inbox, reply = self._binding.inbox, b""
        if inbox:
            reply = b"%b%d.%d.%d" % (inbox, self.partition.partition, self._attempt, offset)
        self._client.publish(subject, payload, reply=reply, headers=headers)

    # -- acknowledgements

    def answered(self, attempt: int, offset: int, header_block: bytes, payload: bytes) -> None:
        """A stream has answered the message of this offset."""
        if attempt == self._attempt and self.is_begun and offset in self._in_flight:
            self._outgoing.answer(offset, header_block, payload, self._settled)

    def _settled(self, offset: int, outcome: Outcome) -> None:
        """The outcome of a message in flight is known."""
        if not self.is_begun or offset not in self._in_flight:
            return
        if outcome == "":
            self._confirm(offset)
            self._continue()
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
        if attempt != self._attempt or not self.is_begun or error is not None:
            return  # after an error `disconnected` follows
        for offset in self._in_flight.below(end):
            self._confirm(offset)
        self._continue()

    def _confirm(self, offset: int) -> None:
        size = self._in_flight.remove(offset)
        stats = self._binding.stats
        stats.messages_out += 1
        stats.bytes_out += size

    def _continue(self) -> None:
        """Messages were acknowledged."""
        self._backoff.reset()
        if self._is_problem_logged and not self.problem:
            self._is_problem_logged = False
            log.info("%s is published again, up to offset %d so far", self.partition.log.name, self.confirmed)
        self._binding.has_confirmed(self)
        if not self._is_waiting:
            self._schedule()

    def check_timeout(self, now: float) -> None:
        """Starts again when an acknowledgement is overdue. To be called every second or so."""
        if self._in_flight.is_overdue(now):
            self._retry(
                f"waiting: no acknowledgement of {self.partition.log.name}, offset {self._in_flight.first} for {ACK_TIMEOUT_S:g} s: "
                "is the stream there, and may this user publish to it?"
            )

    def refused(self, text: str) -> None:
        """The server has refused a message of this binding, perhaps of this partition."""
        if self._in_flight and self.is_begun:
            self._retry(f"blocked: the server has refused a message: {text}")

    # -- failures

    def _retry(self, problem: str) -> None:
        self._go_back()
        self._pause(problem)

    def _stop_at(self, record: Record, why: str) -> None:
        """This record can't be published. Messages before it stay in flight."""
        self._pause(
            f"blocked: {self.partition.log.name} stands at offset {record.offset}: {why}. To leave the record out, move the "
            f"group's position behind it: {self._binding.reset_command(self.partition, record.offset + 1)}"
        )

    def _cannot_read(self, error: StorageError | RecordBatchError) -> None:
        code = getattr(error, "error", ErrorCode.CORRUPT_MESSAGE)
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._wait()  # until the image says so
        else:
            self._pause(
                f"blocked: {self.partition.log.name} can't be read at offset {self._reader.next_offset}: {error}"
            )

    def _pause(self, problem: str) -> None:
        """Publishes nothing for a while."""
        self._stop_waiting()
        if problem != self.problem and self._backoff.failures == 0:
            log.warning("topic %s: %s", self.partition.topic, problem)
            self._is_problem_logged = True
        self.problem = problem
        self._cancel_backoff()
        self._backoff_timer = self._runtime.call_later(self._backoff.next_s(), self._pause_ended)

    def _cancel_backoff(self) -> None:
        if self._backoff_timer is not None:
            self._backoff_timer.cancel()
            self._backoff_timer = None

    def _pause_ended(self) -> None:
        if self._backoff.failures > 1:  # an administrator may have moved the position meanwhile
            self._binding.ask_position(self)
        else:
            self._resume()

    def moved_to(self, position: Position | None) -> None:
        """The group's position, in answer to `ask_position`; None when it is unknown."""
        if not self.is_begun or not self.problem:
            return
        if position is not None and self.committed >= 0 and position.offset != self.committed:
            log.info(
                "%s: publishing continues at offset %d, to which the group was moved",
                self.partition.log.name,
                position.offset,
            )
            self.committed = position.offset
            self._go_to(self._start_offset(position), position.metadata)
        self._resume()

    def _resume(self) -> None:
        self.problem = ""
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
        """More records can be read."""
        self._stop_waiting()
        self._schedule()

    def changed(self, partition: Partition) -> None:  # noqa: ARG002
        """The partition's start, leader or health has changed."""
        self._stop_waiting()
        self._schedule()

    def high_watermark_moved(self, partition: Partition) -> None:
        """For followers only."""
