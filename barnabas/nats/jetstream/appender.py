"""Appends the messages of a stream to the partitions that are led here.

Messages that were read together become one batch a partition. Each record has the time at which the stream stored its
message, and its position in the stream in headers. Nothing is queued here: records that a partition does not take are
refused, and their messages are read again. Pulling is limited by the bytes that are appended and not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.nats.binding.subjects import compile_filter
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.records.batch_builder import BatchBuilder, TooLarge
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.hops import HOPS_HEADER, has_come_through, hop_of
from barnabas.nats.records.keys import KeyFunction, compile_key
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
    from barnabas.nats.records.encoder import Encoded

RECORD_OVERHEAD_BYTES: Final = 61 + 32  # the batch's header, and the most that precedes a record's tail

_FOUR_HEADERS: Final = VARINTS[4]
_COUNT_PLACE: Final = 3  # of the number of headers among a record's parts
_PARTS_OF_FOUR: Final = 10
_DIGITS: Final = 19  # of nanoseconds since 1970, from 2001 until 2286; a sequence has no more
_SEQUENCE_PART: Final = sized(SEQUENCE_HEADER)
_TIMESTAMP_PART: Final = sized(TIMESTAMP_HEADER)
_TIMESTAMP_START: Final = _TIMESTAMP_PART + VARINTS[_DIGITS]

Message: TypeAlias = "tuple[bytes, bytes, bytes, bytes]"  # subject, reply subject, header block, payload
ValueOf = Callable[[bytes, bytes], "bytes | None"]
Appended = Callable[[int, int, int, int], object]  # partition, number of the first record, count, base offset
Refused = Callable[[int, int, ErrorCode, str], object]  # partition, count of records, error, why


class Lane:
    """The records gathered for one partition, in one epoch of its leader."""

    __slots__ = ("builder", "epoch", "partition", "tail_max")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.builder = BatchBuilder(is_bridged=True)
        self.tail_max = 0  # of a record that fits

    def read_limits(self) -> None:
        """Reads the topic's configs, which may have changed."""
        self.tail_max = batch_bytes_max(self.partition) - RECORD_OVERHEAD_BYTES


class _Round:
    """The batches of one `append`, which are committed when those of all partitions are."""

    __slots__ = ("byte_count", "committed", "uncommitted")

    def __init__(self, byte_count: int, committed: Callable[[], object]) -> None:
        self.byte_count = byte_count
        self.committed = committed
        self.uncommitted = 1  # partitions, and one more until all batches are appended


class StreamAppender:
    """Encodes the messages of one binding, and appends them to its partitions."""

    def __init__(
        self,
        binding: Binding,
        cluster_id: str,
        partition_count: Callable[[], int],
        *,
        key_of: KeyFunction | None = None,
        value_of: ValueOf | None = None,
    ) -> None:
        """`key_of` replaces the binding's key; `value_of(header_block, payload)` replaces the payload, None is null.
        `takes_plain`: messages can be plain (`add_plain`)."""
        self.stats = CarrierStats()
        self.lanes: dict[int, Lane] = {}
        self.partition_count = partition_count()
        self._current_partition_count = partition_count
        self._binding = binding
        self._hop = hop_of(cluster_id, binding.topic)
        self._key_of = key_of
        self._value_of = value_of
        self._in_flight_bytes = 0
        self.takes_plain = value_of is None and (key_of or compile_key(binding.key)).of_subject_only
        self._encoder = self._make_encoder()
        self._add_headers = make_header_adder(lambda name: name in (HOPS_HEADER, PARTITION_HEADER))
        self._stream_parts: tuple[bytes, ...] = ()
        self._stream_front = b""  # the same, joined

    def serve(self, leading: Mapping[int, Partition]) -> list[int]:
        """These partitions are led here now. Returns those that are new or have a new epoch. Records gathered for others are
        dropped."""
        partition_count = self._current_partition_count()
        if partition_count != self.partition_count:
            self.partition_count = partition_count
            self._encoder = self._make_encoder()
        for index, lane in list(self.lanes.items()):
            if leading.get(index) is not lane.partition or lane.epoch != lane.partition.leader_epoch:
                del self.lanes[index]
        new = [index for index in sorted(leading) if index not in self.lanes]
        for index in new:
            self.lanes[index] = Lane(leading[index])
        return new

    def _make_encoder(self) -> Encoder:
        binding = self._binding

        def unused(*_arguments: object) -> None:
            """For the encoder's sink, which is not used here."""

        return Encoder(
            self._key_of or compile_key(binding.key),
            compile_partitioner(binding.partitioner, self.partition_count, binding.key),
            self.partition_count,
            {},
            special=unused,
            refused=unused,
            wanted=compile_filter(binding.patterns, binding.unwanted),
            is_special=lambda name: name == HOPS_HEADER,
        )

    def set_stream(self, stream: str) -> None:
        """Sets the stream of the messages that follow."""
        name = stream.encode()
        self._stream_parts = (sized(STREAM_HEADER), VARINTS[len(name)], name, _SEQUENCE_PART)
        self._stream_front = b"".join(self._stream_parts)

    def encode(
        self, subject: bytes, header_block: bytes, payload: bytes, sequence: bytes, timestamp_ns: bytes
    ) -> Encoded | None:
        """(partition, special headers, tail of the record); None for a subject that is not bound. Raises BadPartition.
        The numbers are decimal text of less than 64 digits."""
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

    def add_plain(self, messages: Sequence[Message], start: int, front: bytes) -> int:
        """The fast path: adds messages from number `start` on, up to one that is not plain, and returns the number of that one.
        Plain are those whose reply subject is `front` and four numbers, and no more, whose subject was seen before and determines
        key and partition, and that have no special header. Only where `takes_plain`."""
        route_of, lane_of, stream_parts = (
            self._encoder.routes.by_subject.get,
            self.lanes.get,
            self._stream_front,
        )
        milliseconds, timestamp_ms = b"", 0  # of the message before: most have the same
        for position in range(start, len(messages)):
            subject, reply, header_block, payload = messages[position]
            numbers = reply.rsplit(b".", 4)
            route = route_of(subject)
            if numbers[0] != front or route is None or route.partition < 0:
                return position
            sequence, timestamp_ns = numbers[1], numbers[3]
            if not (
                sequence.isdigit()
                and timestamp_ns.isdigit()
                and len(sequence) <= _DIGITS == len(timestamp_ns)
            ):
                return position
            lane = lane_of(route.partition)
            if lane is None:
                if header_block:  # a header may name another partition
                    return position
                continue
            size = len(payload)
            parts = [
                route.key_part,
                VARINTS[size] if size < VARINT_COUNT else varint(size),
                payload,
                _FOUR_HEADERS,
                route.subject_part,
                stream_parts,
                VARINTS[len(sequence)],
                sequence,
                _TIMESTAMP_START,
                timestamp_ns,
            ]
            if header_block:
                if self._add_headers(header_block, parts) is not None:
                    return position
                count = 4 + (len(parts) - _PARTS_OF_FOUR) // 3
                parts[_COUNT_PLACE] = VARINTS[count] if count < VARINT_COUNT else varint(count)
            tail = b"".join(parts)
            if len(tail) > lane.tail_max:
                return position
            if timestamp_ns[:-6] != milliseconds:
                milliseconds = timestamp_ns[:-6]
                timestamp_ms = int(milliseconds)
            builder = lane.builder
            builder.timestamps.append(timestamp_ms)
            builder.tails.append(tail)
        return len(messages)

    def clear(self) -> None:
        """Drops the gathered records."""
        for lane in self.lanes.values():
            lane.builder = BatchBuilder(is_bridged=True)

    def has_looped(self, header_block: bytes) -> bool:
        """Whether a message with special headers was a record of this topic before."""
        return has_come_through(header_block, self._hop)

    def append(
        self, byte_count: int, appended: Appended, refused: Refused, committed: Callable[[], object]
    ) -> None:
        """Appends the gathered records, which came in messages of `byte_count` bytes. `appended` is called for each batch,
        `refused` for records that a partition does not take, `committed` when all others are committed."""
        this_round = _Round(byte_count, committed)
        self._in_flight_bytes += byte_count
        for lane in list(self.lanes.values()):
            if len(lane.builder):
                self._append_lane(lane, this_round, appended, refused)
        self._part_committed(this_round)

    @property
    def room(self) -> int:
        """How many bytes more may be in flight."""
        return self._binding.buffer_bytes - self._in_flight_bytes

    def _append_lane(self, lane: Lane, this_round: _Round, appended: Appended, refused: Refused) -> None:
        """After a refused record nothing is appended, to keep the stream's order."""
        partition, total = lane.partition, len(lane.builder)
        end_offset = -1
        for batch in lane.builder.finish(0, batch_bytes_max(partition)):
            if isinstance(batch, TooLarge):
                why = f"a record would take {batch.size} bytes, more than max.message.bytes of the topic"
                refused(partition.partition, total - batch.first, ErrorCode.MESSAGE_TOO_LARGE, why)
                break
            try:
                result = partition.append(batch.records, batch.header, ACKS_ALL, from_client=False)
            except StorageError as problem:
                refused(partition.partition, total - batch.first, problem.error, str(problem))
                break
            count = batch.header.record_count
            self.stats.appended += count
            end_offset = result.base_offset + count
            appended(partition.partition, batch.first, count, result.base_offset)
        if end_offset >= 0:
            this_round.uncommitted += 1
            partition.when_committed(end_offset, lambda _error: self._part_committed(this_round))

    def _part_committed(self, this_round: _Round) -> None:
        this_round.uncommitted -= 1
        if this_round.uncommitted == 0:
            self._in_flight_bytes -= this_round.byte_count
            this_round.committed()


def batch_bytes_max(partition: Partition) -> int:
    """The largest batch that the partition takes."""
    config = partition.log.config
    return min(config.max_message_bytes, config.segment_bytes)
