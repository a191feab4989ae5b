"""Messages of a stream on their way into the partitions that are led here.

What came together becomes one batch a partition; each record carries the time at which the stream stored it and says
in its headers where it stands there. Nothing waits here: what a partition does not take is refused, and whoever reads the
stream asks for it again. `in_flight_bytes` counts what has been taken and is not committed yet, which is what
fetching is limited by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.nats.binding.subjects import compile_filter
from barnabas.nats.records.batch_builder import BatchBuilder, TooLarge
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.keys import KeyFunction, compile_key
from barnabas.nats.records.loops import HOPS_HEADER, has_come_through, hop_of
from barnabas.nats.records.partitioners import PARTITION_HEADER, compile_partitioner
from barnabas.nats.records.parts import (
    SEQUENCE_HEADER,
    STREAM_HEADER,
    TIMESTAMP_HEADER,
    VARINT_COUNT,
    VARINTS,
    make_header_adder,
    sized,
)
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import varint

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.records.encoder import Encoded

RECORD_OVERHEAD_BYTES: Final = (
    61 + 32
)  # the batch's header, and what stands in front of a record's tail at most

_FOUR_HEADERS: Final = VARINTS[4]
_COUNT_PLACE: Final = 3  # among the parts of a record: the number of headers
_PARTS_OF_FOUR: Final = 11
_SEQUENCE_PART: Final = sized(SEQUENCE_HEADER)
_TIMESTAMP_PART: Final = sized(TIMESTAMP_HEADER)

ValueOf = Callable[[bytes, bytes], "bytes | None"]
Refused = Callable[[int, int, ErrorCode, str], object]  # partition, how many records, error, why
# Of the records that were gathered for a partition, these (from `first` on, so many) begin at an offset.
Appended = Callable[[int, int, int, int], object]  # partition, first, count, base offset


class Lane:
    """What has been gathered for one partition, as of one epoch of its leadership."""

    __slots__ = ("builder", "epoch", "partition", "tail_max")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.builder = BatchBuilder(is_bridged=True)
        self.tail_max = 0  # such a record fits

    def read_limits(self) -> None:
        """The topic's configs may have changed."""
        self.tail_max = batch_bytes_max(self.partition) - RECORD_OVERHEAD_BYTES


class _Round:
    """What one `close_batches` appended: committed when every partition's part is."""

    __slots__ = ("byte_count", "parts")

    def __init__(self, byte_count: int) -> None:
        self.byte_count = byte_count
        self.parts = 1  # one for the round itself, until all are under way


class Intake:
    """The lanes of one binding, and what encodes for them."""

    def __init__(
        self,
        binding: Binding,
        stats: CarrierStats,
        cluster_id: str,
        *,
        on_refused: Refused,
        on_committed: Callable[[], object],
        key_of: KeyFunction | None = None,
        value_of: ValueOf | None = None,
    ) -> None:
        """`on_refused` is called when a partition does not take records, none of which it has; `on_committed` when fewer
        bytes are in flight. `key_of` replaces the binding's own key; `value_of(header_block, payload)` replaces the
        payload, None is null."""
        self.lanes: dict[int, Lane] = {}
        self._on_refused = on_refused
        self._on_committed = on_committed
        self.in_flight_bytes = 0
        self._binding = binding
        self._hop = hop_of(cluster_id, binding.topic)
        self._stats = stats
        self._key_of = key_of
        self._value_of = value_of
        self.partition_count = 0
        self._encoder: Encoder | None = None
        self._stream_parts: tuple[bytes, ...] = ()
        self._add_headers = make_header_adder(lambda name: name in (HOPS_HEADER, PARTITION_HEADER))
        self._front = b""  # what four headers begin with, behind that of the subject

    def serve(self, leading: Mapping[int, Partition], partition_count: int) -> list[int]:
        """These partitions are led here now, of so many. Returns those that are new, or led anew: nothing is known of
        them. What was gathered for others is dropped."""
        if partition_count != self.partition_count or self._encoder is None:
            self.partition_count = partition_count
            self._encoder = self._make_encoder(partition_count)
        for index, lane in list(self.lanes.items()):
            if leading.get(index) is not lane.partition or lane.epoch != lane.partition.leader_epoch:
                del self.lanes[index]
        new = [index for index in sorted(leading) if index not in self.lanes]
        for index in new:
            self.lanes[index] = Lane(leading[index])
        return new

    def _make_encoder(self, partition_count: int) -> Encoder:
        binding = self._binding

        def unused(*_arguments: object) -> None:
            """Of the encoder's own sink, which is not used here."""

        return Encoder(
            self._key_of or compile_key(binding.key),
            compile_partitioner(binding.partitioner, partition_count, binding.key),
            partition_count,
            {},
            special=unused,
            refused=unused,
            wanted=compile_filter(binding.patterns, binding.unwanted),
            is_special=lambda name: name == HOPS_HEADER,
        )

    def of_stream(self, stream: str) -> None:
        """What comes from now on is of this stream."""
        name = stream.encode()
        self._stream_parts = (sized(STREAM_HEADER), VARINTS[len(name)], name, _SEQUENCE_PART)
        self._front = b"".join(self._stream_parts)

    def encode(
        self, subject: bytes, header_block: bytes, payload: bytes, sequence: bytes, timestamp_ns: bytes
    ) -> Encoded | None:
        """(partition, special headers, tail of the record); None for a subject that is not wanted. Raises BadPartition.
        The numbers are decimal text, of less than 64 digits."""
        assert self._encoder is not None
        extra = (
            *self._stream_parts,
            VARINTS[len(sequence)],
            sequence,
            _TIMESTAMP_PART,
            VARINTS[len(timestamp_ns)],
            timestamp_ns,
        )
        value = payload if self._value_of is None else self._value_of(header_block, payload)
        return self._encoder.encode(subject, b"", header_block, value, extra)

    def gather(
        self, subject: bytes, header_block: bytes, payload: bytes, sequence: bytes, timestamp_ns: bytes
    ) -> bool:
        """Take a message that its subject says all of, a subject that has been seen before, and no special header. False:
        nothing has happened. What most messages are is done here in one go."""
        assert self._encoder is not None
        route = self._encoder.routes.by_subject.get(subject)
        if route is None or route.partition < 0 or self._value_of is not None:
            return False
        lane = self.lanes.get(route.partition)
        if lane is None:
            return not header_block  # a header may ask for another partition
        size = len(payload)
        parts = [
            route.key_part,
            VARINTS[size] if size < VARINT_COUNT else varint(size),
            payload,
            _FOUR_HEADERS,
            route.subject_part,
            self._front,
            VARINTS[len(sequence)],
            sequence,
            _TIMESTAMP_PART,
            VARINTS[len(timestamp_ns)],
            timestamp_ns,
        ]
        if header_block:
            if self._add_headers(header_block, parts) is not None:
                return False
            count = 4 + (len(parts) - _PARTS_OF_FOUR) // 3
            parts[_COUNT_PLACE] = VARINTS[count] if count < VARINT_COUNT else varint(count)
        tail = b"".join(parts)
        if len(tail) > lane.tail_max:
            return False
        builder = lane.builder
        builder.timestamps.append(int(timestamp_ns[:-6]))
        builder.tails.append(tail)
        return True

    def drop(self) -> None:
        """Forget what has been gathered."""
        for lane in self.lanes.values():
            lane.builder = BatchBuilder(is_bridged=True)

    def has_looped(self, header_block: bytes) -> bool:
        """Whether a message with special headers was a record of this very topic."""
        return has_come_through(header_block, self._hop)

    def close_batches(self, byte_count: int, appended: Appended | None = None) -> None:
        """Append what has been gathered; it came as so many bytes."""
        this_round = _Round(byte_count)
        self.in_flight_bytes += byte_count
        for lane in list(self.lanes.values()):
            if len(lane.builder):
                self._append(lane, this_round, appended)
        self._part_is_done(this_round)

    @property
    def room(self) -> int:
        """How many bytes more may be on their way."""
        return self._binding.buffer_bytes - self.in_flight_bytes

    def _append(self, lane: Lane, this_round: _Round, appended: Appended | None) -> None:
        """Once something is refused, nothing behind it is appended: the order is the stream's."""
        partition, total = lane.partition, len(lane.builder)
        end_offset = -1
        for batch in lane.builder.finish(0, batch_bytes_max(partition)):
            if isinstance(batch, TooLarge):
                error, why = (
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a record would take {batch.size} bytes, more than max.message.bytes of the topic",
                )
                self._on_refused(partition.partition, total - batch.first, error, why)
                break
            try:
                result = partition.append(batch.records, batch.header, ACKS_ALL, from_client=False)
            except StorageError as problem:
                self._on_refused(partition.partition, total - batch.first, problem.error, str(problem))
                break
            count = batch.header.record_count
            self._stats.appended += count
            end_offset = result.base_offset + count
            if appended is not None:
                appended(partition.partition, batch.first, count, result.base_offset)
        if end_offset >= 0:
            this_round.parts += 1
            partition.when_committed(end_offset, lambda _error: self._part_is_done(this_round))

    def _part_is_done(self, this_round: _Round) -> None:
        this_round.parts -= 1
        if this_round.parts == 0:
            self.in_flight_bytes -= this_round.byte_count
            self._on_committed()


def batch_bytes_max(partition: Partition) -> int:
    """What the partition takes in one batch."""
    config = partition.log.config
    return min(config.max_message_bytes, config.segment_bytes)
