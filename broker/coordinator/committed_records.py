"""What counts of a partition that state machines are rebuilt from: everything outside of transactions, and of
transactions (offsets that a producer commits with its records) what a marker has committed, at the place of the
marker.

This broker writes no transactions yet; a partition that Kafka wrote may hold them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from barnabas.storage.segment.transaction_marker import read_marker
from barnabas.wire.record_batch import Record, iterate_records, read_header

log = logging.getLogger(__name__)


class SettledRecords:
    """Takes the batches of one partition in their order and gives the records that count, in the order in which
    they do.

    A key keeps what was written to it last, also when a transaction commits that had written to it before, as in
    Kafka. What belongs to a transaction without an end is left out.
    """

    def __init__(self) -> None:
        self._pending: dict[int, list[Record]] = {}  # by producer id
        self._written_meanwhile: dict[bytes | None, int] = {}  # key -> offset of what counts

    @property
    def has_pending(self) -> bool:
        """Whether a transaction has no end yet, so that all that comes has to pass here."""
        return bool(self._pending)

    def of(self, batch: bytes) -> Iterator[Record]:
        """The records that count now that this batch is there. RecordBatchError when it can't be read."""
        header = read_header(batch)
        pending, written_meanwhile = self._pending, self._written_meanwhile
        if header.is_control:
            marker = read_marker(batch)
            ended = pending.pop(header.producer_id, []) if marker is not None else []
            counted = iter(ended if marker is not None and marker.commit else ())
        elif header.is_transactional:
            pending.setdefault(header.producer_id, []).extend(iterate_records(batch))
            return
        else:
            counted = iterate_records(batch)
        for record in counted:
            if written_meanwhile.get(record.key, -1) > record.offset:
                continue
            if record.value is None:
                written_meanwhile.pop(record.key, None)
            elif pending:
                written_meanwhile[record.key] = record.offset
            yield record
        if not pending:
            written_meanwhile.clear()

    def end(self, name: str) -> None:
        """That was the last batch. Says in the log what is left out; `name` is the partition's."""
        if self._pending:
            log.warning(
                "%s: %d records of transactions that have not ended are passed over",
                name,
                sum(map(len, self._pending.values())),
            )
