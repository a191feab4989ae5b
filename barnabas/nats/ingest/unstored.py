"""Messages that no partition takes as they are: dead letters where there are any, else refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.nats.client.headers import find_header
from barnabas.nats.ingest.dead_letters import record_of_message, record_of_tail
from barnabas.nats.pub_ack import KAFKA_ACK, NO_ACK
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.ingest.acks import AckSender
    from barnabas.nats.ingest.dead_letters import Answer, DeadLetters
    from barnabas.nats.pub_ack import AckLevel
    from barnabas.nats.records.partitioners import BadPartition
    from barnabas.runtime.interface import Runtime


class Unstored:
    """Of one topic. Without `letters` all are refused."""

    def __init__(
        self, runtime: Runtime, topic: str, stats: CarrierStats, letters: DeadLetters | None
    ) -> None:
        self._runtime = runtime
        self._topic = topic
        self._stats = stats
        self._letters = letters

    def bad_partition(
        self,
        message: tuple[bytes, bytes, bytes, bytes],
        error: BadPartition,
        acks: AckSender | None,
        level_of: AckLevel,
    ) -> None:
        """It asks for a partition that there is not. `message`: subject, reply, header block, payload."""
        _, reply, header_block, _ = message
        level = level_of(reply, find_header(header_block, KAFKA_ACK))

        def answer(error: ErrorCode, why: str) -> None:
            if acks is not None and level != NO_ACK:
                acks.fail(reply, error, why)

        if self._letters is None:
            self._stats.refused += 1
            answer(ErrorCode.INVALID_REQUEST, str(error))
            return
        record = record_of_message(*message, self._runtime.time_ms())
        self._letters.put(record, ErrorCode.INVALID_REQUEST, str(error), answer, self._topic)

    def refused(self, tail: bytes, error: ErrorCode, why: str, answer: Answer) -> None:
        """The log will never take the record with this tail. Where there are dead letters alone."""
        assert self._letters is not None
        record = record_of_tail(tail, self._runtime.time_ms())
        self._letters.put(record, error, why, answer, self._topic)
