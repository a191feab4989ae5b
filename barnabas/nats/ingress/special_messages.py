"""Special messages: those that want an acknowledgement, deduplication, or to be stored on a condition.

A reply subject or a header makes a message special (`is_special`). Special messages are stored or refused one by one; a
stored one goes into the batch that its partition's lane gathers, in its place among the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.nats.binding.keys import SUBJECT_KEY
from barnabas.nats.client.headers import Pairs
from barnabas.nats.ingress.dedup import MESSAGE_ID, kept_id
from barnabas.nats.ingress.expectations import concern_topic, expects, refusal, refusal_now
from barnabas.nats.pub_ack import ACK_ALL, KAFKA_ACK, NO_ACK, ack_level
from barnabas.nats.records.hops import HOPS_HEADER
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.ingress.lane import Lane
    from barnabas.runtime.interface import Runtime

# Reply subject, header block and special headers of a message.
Special: TypeAlias = tuple[bytes, bytes, Pairs]

_SPECIAL: Final = frozenset({MESSAGE_ID, KAFKA_ACK, b"Nats-TTL", b"Nats-Rollup", b"Nats-Incr", HOPS_HEADER})
_SPECIAL_PREFIXES: Final = (b"Nats-Expected-", b"Nats-Schedule", b"Nats-Batch-")


def is_special(name: bytes) -> bool:
    """Whether a header of this name makes a message special."""
    return name in _SPECIAL or name.startswith(_SPECIAL_PREFIXES)


class SpecialMessages:
    """Stores or refuses the special messages of one binding. `level_of` returns which acknowledgement one asks for."""

    __slots__ = ("_binding", "_runtime", "_stats", "level_of")

    def __init__(self, runtime: Runtime, binding: Binding, stats: CarrierStats) -> None:
        self.level_of = ack_level(binding.acks)
        self._runtime = runtime
        self._binding = binding
        self._stats = stats

    def store(self, lane: Lane, tail: bytes, special: Special) -> None:
        """Stores a message of a partition that is led here, or answers why not."""
        reply, header_block, found = special
        acks, dedup = lane.acks, lane.dedup
        identity = level_header = None
        expecting = False
        for name, value in found:  # the first of each name counts
            if name == MESSAGE_ID:
                if identity is None:
                    identity = kept_id(value)
            elif name == KAFKA_ACK:
                if level_header is None:
                    level_header = value
            elif name != HOPS_HEADER:
                expecting = True
        level = self.level_of(reply, level_header)
        expecting = (
            expecting
            and expects(header_block)
            and concern_topic(self._binding.acks, level, reply, header_block)
        )
        if expecting and (refused := refusal(header_block, self._binding.topic)) is not None:
            self._stats.refused += 1
            acks.refuse(reply if level != NO_ACK else b"", refused)
            return
        if identity:
            known = dedup.find(identity, self._runtime.time_ms())
            if known is not None:
                self._stats.duplicates += 1
                if known >= 0:
                    acks.repeated(known, reply, level)
                elif level != NO_ACK:
                    lane.owed.append((~known, reply, level, True))
                return
        if level == ACK_ALL and acks.refuses_all():
            self._stats.refused += 1
            acks.refuse_for_replicas(reply)
            return
        if expecting and not self._is_as_expected(lane, reply, header_block, level):
            self._stats.refused += 1
            return
        place = len(lane.builder.tails)
        lane.builder.tails.append(tail)
        if identity:
            dedup.open(identity, place)
        if level != NO_ACK:
            lane.owed.append((place, reply, level, False))

    def _is_as_expected(self, lane: Lane, reply: bytes, header_block: bytes, level: int) -> bool:
        """Whether the log meets the message's expectations; if not, the message is answered."""
        acks, dedup = lane.acks, lane.dedup
        if lane.builder.tails:  # messages before this one may be refused, too
            lane.append(self._runtime.time_ms(), self._runtime.monotonic())
        if lane.is_holding:  # its offset is unknown: others may append first
            if level != NO_ACK:
                acks.fail(reply, ErrorCode.KAFKA_STORAGE_ERROR, "the log takes nothing now")
            return False
        end_offset = lane.partition.log.log_end_offset
        keeps_last = self._binding.key == SUBJECT_KEY and lane.partition.log.config.is_compacted
        refused = refusal_now(
            header_block, end_offset, dedup.last_id(end_offset), keeps_last_by_subject=keeps_last
        )
        if refused is None:
            return True
        acks.refuse(reply if level != NO_ACK else b"", refused)
        return False
