"""A batch of a member's messages, the same each time that it is produced, and who waits for which of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.wire.record_batch import seal_batch

if TYPE_CHECKING:
    from barnabas.nats.ingest.acks import Owed

_ANY_SIZE: Final = 1 << 40


class GroupBatch(msgspec.Struct, gc=False):
    """See the module. `is_perhaps_there`: an attempt has had no answer."""

    tails: list[bytes]
    owed: list[Owed]  # places among the tails
    received_ms: int
    received_s: float
    is_perhaps_there: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.tails))

    def part(self, first: int, count: int) -> GroupBatch:
        """These of its records as a batch of their own."""
        owed = [
            (place - first, reply, level, again)
            for place, reply, level, again in self.owed
            if first <= place < first + count
        ]
        return GroupBatch(self.tails[first : first + count], owed, self.received_ms, self.received_s)

    def leave_out_those_who_ask(self) -> int:
        """How many records it has less now."""
        places = {place for place, *_ in self.owed}
        self.tails = [tail for place, tail in enumerate(self.tails) if place not in places]
        self.owed = []
        return len(places)

    def encode(self, producer_id: int, sequence: int) -> bytearray:
        """The bytes to produce."""
        builder = BatchBuilder()
        builder.tails += self.tails
        (made,) = builder.finish(self.received_ms, _ANY_SIZE)
        assert isinstance(made, Batch)
        header, records = made.header, bytearray(made.records)
        header.producer_id, header.producer_epoch, header.base_sequence = producer_id, 0, sequence
        seal_batch(records, header)
        return records
