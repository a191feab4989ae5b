"""Messages that ask for something: an acknowledgement, to be stored once, to be stored only if a condition holds.

They ask by a reply subject or by headers (`is_special`), and are stored or refused one by one; a stored one goes into the
batch that its partition's lane gathers, between the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.nats.binding.keys import SUBJECT_KEY
from barnabas.nats.ingress.dedup import MESSAGE_ID, kept_id
from barnabas.nats.ingress.expectations import concern_topic, expects, refusal, refusal_now
from barnabas.nats.pub_ack import ACK_ALL, KAFKA_ACK, NO_ACK, ack_level
from barnabas.nats.records.loops import HOPS_HEADER
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.ingress.lane import Lane
    from barnabas.nats.ingress.standby import Asked
    from barnabas.runtime.interface import Runtime

_SPECIAL: Final = frozenset({MESSAGE_ID, KAFKA_ACK, b"Nats-TTL", b"Nats-Rollup", b"Nats-Incr", HOPS_HEADER})
_SPECIAL_PREFIXES: Final = (b"Nats-Expected-", b"Nats-Schedule", b"Nats-Batch-")


def is_special(name: bytes) -> bool:
    """Whether a message with a header of this name asks for something."""
    return name in _SPECIAL or name.startswith(_SPECIAL_PREFIXES)


class Asking:
    """Of one binding, as it is now. `level_of` says which acknowledgement a message asks for."""

    __slots__ = ("_binding", "_runtime", "_stats", "level_of")

    def __init__(self, runtime: Runtime, binding: Binding, stats: CarrierStats) -> None:
        self.level_of = ack_level(binding.acks)
        self._runtime = runtime
        self._binding = binding
        self._stats = stats

    def store(self, lane: Lane, tail: bytes, asked: Asked) -> None:
        """A message of a partition that is led here: store it, or tell why not."""
        reply, header_block, found = asked
        acks, dedup = lane.acks, lane.dedup
        identity = asked_level = None
        expecting = False
        for name, value in found:  # of each the first counts
            if name == MESSAGE_ID:
                if identity is None:
                    identity = kept_id(value)
            elif name == KAFKA_ACK:
                if asked_level is None:
                    asked_level = value
            elif name != HOPS_HEADER:
                expecting = True
        level = self.level_of(reply, asked_level)
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
        """Whether the log is. If not, the message's publisher has been told."""
        acks, dedup = lane.acks, lane.dedup
        if lane.builder.tails:  # what stands before it may be refused, too
            lane.append(self._runtime.time_ms(), self._runtime.monotonic())
        if lane.is_holding:  # others may append first, so nobody knows where it will stand
            if level != NO_ACK:
                acks.fail(reply, ErrorCode.KAFKA_STORAGE_ERROR, "the log takes nothing now")
            return False
        end_offset = lane.partition.log.log_end_offset
        keeps_last = self._binding.key == SUBJECT_KEY and lane.partition.log.config.is_compacted
        refused = refusal_now(
            header_block, end_offset, dedup.last_id(end_offset, 0), keeps_last_by_subject=keeps_last
        )
        if refused is None:
            return True
        acks.refuse(reply if level != NO_ACK else b"", refused)
        return False
