"""What comes in for the partitions of one topic that are led here: from messages to batches in the log.

Subscriptions hand each message to an encoder (encoder.py); `close` appends what was gathered, one batch a partition,
after each piece of data that was read. A message that asks for something, by a reply subject or a header, takes the way
through `_special`, which decides whether it is stored and who is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.nats.acks import ACK_ALL, NO_ACK, ack_level
from barnabas.broker.nats.dedup import MESSAGE_ID, DedupWindow, message_id
from barnabas.broker.nats.encoder import Encoder
from barnabas.broker.nats.expectations import concern_topic, expects, refusal, refusal_now
from barnabas.broker.nats.headers import find_header
from barnabas.broker.nats.keys import compile_key
from barnabas.broker.nats.lane import Appended, Lane
from barnabas.broker.nats.partitioners import BadPartition, compile_partitioner
from barnabas.broker.nats.pending_acks import AckStats, PartitionAcks, Publish
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.nats.carrier import CarrierStats
    from barnabas.broker.nats.headers import Pairs
    from barnabas.broker.nats.routes import Wanted
    from barnabas.broker.partition import Partition
    from barnabas.controller.nats.bound import Binding
    from barnabas.storage.runtime import Runtime

# Topics that a message has come from, as <cluster>/<topic>, comma-separated: added where records are published.
HOPS_HEADER: Final = b"Barnabas-Hops"
_SPECIAL: Final = frozenset(
    {MESSAGE_ID, b"Kafka-Ack", b"Nats-TTL", b"Nats-Rollup", b"Nats-Incr", HOPS_HEADER}
)
_SPECIAL_PREFIXES: Final = (b"Nats-Expected-", b"Nats-Schedule", b"Nats-Batch-")
RESUME_SHARE: Final = 0.5  # of the byte budget: below it reading goes on


def _is_special(name: bytes) -> bool:
    return name in _SPECIAL or name.startswith(_SPECIAL_PREFIXES)


class Ingest:
    """Of one binding. `publish` sends acknowledgements. `on_full(bool)` is told when more than the byte budget waits for
    a log, and when it does no longer."""

    def __init__(
        self,
        runtime: Runtime,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        cluster_id: str,
        publish: Publish,
    ) -> None:
        self.binding = binding
        self.stats = stats
        self.ack_stats = AckStats()
        self.lanes: dict[int, Lane] = {}
        self.on_full: Callable[[bool], object] = lambda _: None
        self.on_appended: Callable[[int], Appended] | None = None  # of a partition; set before `serve`
        self._runtime = runtime
        self._partition_count = partition_count
        self._publish = publish
        self._hop = f"{cluster_id}/{binding.topic}".encode()
        self._key_of = compile_key(binding.key)
        self._partition_of = compile_partitioner(binding.partitioner, partition_count, binding.key)
        self._level_of = ack_level(binding.acks)
        self._encoders: list[Encoder] = []
        self._is_full = False

    def encoder(self, wanted: Wanted | None = None) -> Encoder:
        """One for each subscription; `wanted` says of a subject whether this one takes it."""
        encoder = Encoder(
            self._key_of,
            self._partition_of,
            self._partition_count,
            self._takes(),
            special=self._special,
            refused=self._bad_partition,
            wanted=wanted,
            is_special=_is_special,
            reply_is_special=self.binding.acks == "reply",
        )
        self._encoders.append(encoder)
        return encoder

    def serve(self, leading: Mapping[int, Partition]) -> None:
        """These partitions are led here from now on, and no others."""
        for index in [
            index for index, lane in self.lanes.items() if leading.get(index) is not lane.partition
        ]:
            self.lanes.pop(index).close()
        for index in sorted(leading):
            if index not in self.lanes:
                self.lanes[index] = self._open_lane(leading[index])
        takes = self._takes()
        for encoder in self._encoders:
            encoder.serve(takes)

    def close(self) -> None:
        """Append what was gathered."""
        now_ms = self._runtime.time_ms()
        now_s = self._runtime.monotonic()
        for lane in self.lanes.values():
            if lane.builder.tails:
                if lane.is_holding:
                    lane.count_held()
                else:
                    lane.append(now_ms, now_s)

    def end(self) -> None:
        """For good: append what is gathered, and drop what waits."""
        self.close()
        for lane in self.lanes.values():
            lane.close()
        self.lanes.clear()

    def _takes(self) -> dict[int, Callable[[bytes], object]]:
        return {index: lane.builder.tails.append for index, lane in self.lanes.items()}

    def _open_lane(self, partition: Partition) -> Lane:
        acks = PartitionAcks(partition, self._publish, self.ack_stats, self._runtime.monotonic)
        dedup = DedupWindow(self.binding.dedup_window_ms, f"{partition.topic}-{partition.partition}")
        lane = Lane(partition, self._runtime, self.stats, acks, dedup)
        lane.on_held = self._held
        if self.on_appended is not None:
            lane.on_appended = self.on_appended(partition.partition)
        return lane

    def _held(self) -> None:
        held = sum(lane.held_bytes for lane in self.lanes.values())
        budget = self.binding.buffer_bytes
        if not self._is_full and held > budget:
            self._is_full = True
            self.on_full(True)
        elif self._is_full and held <= budget * RESUME_SHARE:
            self._is_full = False
            self.on_full(False)

    # -- messages that ask for something

    def _special(self, index: int, reply: bytes, header_block: bytes, found: Pairs, tail: bytes) -> None:
        lane = self.lanes[index]
        acks, dedup = lane.acks, lane.dedup
        assert acks is not None
        assert dedup is not None
        if found and self._has_been_here(header_block):
            self.stats.looped += 1
            return
        level = self._level_of(reply, header_block)
        expecting = bool(found) and expects(header_block)
        if expecting:
            expecting = concern_topic(self.binding.acks, level, reply, header_block)
        if expecting and (refused := refusal(header_block, self.binding.topic)) is not None:
            self.stats.refused += 1
            acks.refuse(reply if level != NO_ACK else b"", refused)
            return
        identity = message_id(header_block) if found else b""
        if identity:
            known = dedup.find(identity, self._runtime.time_ms())
            if known is not None:
                self.stats.duplicates += 1
                if known >= 0:
                    acks.repeated(known, reply, level)
                elif level != NO_ACK:
                    lane.owed.append((~known, reply, level, True))
                return
        if level == ACK_ALL and acks.refuses_all():
            self.stats.refused += 1
            acks.refuse_for_replicas(reply)
            return
        place = len(lane.builder.tails)
        if expecting:
            end_offset = lane.partition.log.log_end_offset
            last_id = dedup.last_id(end_offset, place)
            refused = refusal_now(header_block, end_offset + place, last_id)
            if refused is not None:
                self.stats.refused += 1
                acks.refuse(reply if level != NO_ACK else b"", refused)
                return
        lane.builder.tails.append(tail)
        if identity:
            dedup.open(identity, place)
        if level != NO_ACK:
            lane.owed.append((place, reply, level, False))

    def _has_been_here(self, header_block: bytes) -> bool:
        hops = find_header(header_block, HOPS_HEADER) if HOPS_HEADER in header_block else None
        return hops is not None and self._hop in hops.replace(b" ", b"").split(b",")

    def _bad_partition(
        self, _subject: bytes, reply: bytes, header_block: bytes, _payload: bytes, error: BadPartition
    ) -> None:
        self.stats.refused += 1
        lane = self.lanes.get(error.partition)
        if lane is not None and lane.acks is not None and self._level_of(reply, header_block) != NO_ACK:
            lane.acks.fail(reply, ErrorCode.INVALID_REQUEST, str(error))
