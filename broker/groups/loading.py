"""What counts of a partition of __consumer_offsets: everything outside of transactions, and of transactions
(offsets that a producer commits with its records) what a marker has committed, at the place of the marker.

This broker writes no transactions yet; a partition that Kafka wrote may hold them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from barnabas.storage.transaction_marker import read_marker
from barnabas.wire.record_batch import Record, iterate_records, read_header

log = logging.getLogger(__name__)


def settled_records(name: str, batches: Iterable[bytes]) -> Iterator[Record]:
    """The records that count, in the order in which they do. RecordBatchError when a batch can't be read.

    A key keeps what was written to it last, also when a transaction commits that had written to it before, as
    in Kafka. What belongs to a transaction without an end is left out, with a log line
    that begins with `name`.
    """
    pending: dict[int, list[Record]] = {}  # by producer id
    written_meanwhile: dict[bytes | None, int] = {}  # key -> offset of what counts
    for batch in batches:
        header = read_header(batch)
        if header.is_control:
            marker = read_marker(batch)
            ended = pending.pop(header.producer_id, []) if marker is not None else []
            counted = ended if marker is not None and marker.commit else []
        elif header.is_transactional:
            pending.setdefault(header.producer_id, []).extend(iterate_records(batch))
            continue
        else:
            counted = list(iterate_records(batch))
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
    if pending:
        log.warning(
            "%s: %d records of transactions that have not ended are passed over",
            name,
            sum(map(len, pending.values())),
        )
