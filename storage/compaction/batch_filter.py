"""Filters one batch for compaction: it is kept, replaced by a smaller or an empty one, or removed.

A batch that loses no record is kept byte for byte. One that loses records is encoded again with its own codec; offsets, leader
epoch, producer fields and the last offset stay, the timestamps are those of the remaining records. The first cleaning that
finds a tombstone, or a marker whose transaction has no batch left, notes in the batch when it may be removed (KIP-534): the
base timestamp becomes that delete horizon, and attribute bit 6 is set. An empty batch is kept if it has the last sequence of
a known producer, or the last offset of the cleaned section.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from barnabas.storage.compaction.cleaned_transactions import CleanedTransactions
from barnabas.storage.compaction.offset_map import OffsetMap
from barnabas.storage.compaction.record_walk import Spans, encode_spans, latest_spans, live_spans
from barnabas.wire.compression import Bytes, Codec
from barnabas.wire.record_batch import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    NO_TIMESTAMP,
    BatchHeader,
    assemble_batch,
    read_header,
    verify_crc,
)
from barnabas.wire.records import compress_records, iterate_records, records_payload

if TYPE_CHECKING:
    from mmap import mmap

UNKNOWN_TYPE = -1  # of control records other than transaction markers; they stay

# Of each producer of the log: (last offset of its data or -1, epoch).
LastRecords = Mapping[int, tuple[int, int]]


class FilterSettings(msgspec.Struct, frozen=True):
    """The rules of one cleaning; times in ms since the epoch."""

    now_ms: int
    delete_retention_ms: int
    first_dirty_offset: int
    end_offset: int  # (exclusive) of the section that could be cleaned, whether the map reaches it or not
    last_records: LastRecords


class BatchFilter:
    """Goes through the batches of one log in offset order."""

    def __init__(
        self, settings: FilterSettings, offsets: OffsetMap, transactions: CleanedTransactions
    ) -> None:
        """`offsets` must be sealed."""
        self._settings = settings
        self._offsets = offsets
        self._transactions = transactions
        self.records_read = 0
        self.records_kept = 0

    def filter(self, batch: Bytes, header: BatchHeader) -> tuple[Bytes, BatchHeader] | None:
        """The batch to keep in place of `batch`, which may be `batch` itself; None when nothing has to be kept.

        RecordBatchError when it can't be read.
        """
        self.records_read += header.record_count
        if header.is_control:
            left = self._filter_control(batch, header)
        elif self._transactions.is_aborted(header):
            left = None
        else:
            left = self._filter_data(batch, header)
        if left is None:
            return self._empty(header) if self._must_stay(header) else None
        self.records_kept += left[1].record_count
        return left

    def _filter_control(self, batch: Bytes, header: BatchHeader) -> tuple[Bytes, BatchHeader] | None:
        may_go = self._transactions.marker_may_go(header, control_type(batch))
        horizon = header.delete_horizon_ms
        if header.record_count == 0 or (may_go and horizon is not None and horizon <= self._settings.now_ms):
            return None
        if not may_go or horizon is not None or header.record_count != 1:
            return batch, header
        return self._encode(batch, header, records_payload(batch, header), None)

    def _filter_data(self, batch: Bytes, header: BatchHeader) -> tuple[Bytes, BatchHeader] | None:
        """A batch that lies wholly in the dirty section is filtered by its offsets, any other by its keys."""
        settings, offsets = self._settings, self._offsets
        count = header.record_count
        if (
            header.base_offset >= settings.first_dirty_offset
            and header.last_offset <= offsets.latest_offset
            and header.delete_horizon_ms is None
        ):
            live = offsets.live_between(header.base_offset, header.last_offset)
            if not live:
                return None
            if len(live) == count and not any(value & 1 for value in live):
                return batch, header
            payload = records_payload(batch, header)
            spans = live_spans(payload, header, live)
        else:
            payload = records_payload(batch, header)
            horizon = header.delete_horizon_ms
            spans = latest_spans(payload, header, offsets, horizon is None or settings.now_ms < horizon)
            if not spans.starts:
                return None
        sets_horizon = spans.has_tombstone and header.delete_horizon_ms is None
        if len(spans.starts) == count and not sets_horizon:
            return batch, header
        return self._encode(batch, header, payload, spans)

    def _must_stay(self, header: BatchHeader) -> bool:
        last = self._settings.last_records.get(header.producer_id) if header.has_producer_id else None
        if last is not None:
            last_data_offset, epoch = last
            if last_data_offset >= 0:
                if header.last_offset == last_data_offset:
                    return True
            elif header.is_control and header.producer_epoch == epoch:
                return True
        return header.next_offset == self._settings.end_offset

    def _encode(
        self, batch: Bytes, header: BatchHeader, payload: bytes | mmap, spans: Spans | None
    ) -> tuple[bytes, BatchHeader]:
        """The batch with these records alone (None: all), and with a delete horizon where one is due.

        The CRC is checked first: a damaged batch must not get a valid one.
        """
        verify_crc(batch, 0, header)
        settings = self._settings
        horizon = header.delete_horizon_ms
        if horizon is None and (spans is None or spans.has_tombstone):
            horizon = settings.now_ms + settings.delete_retention_ms
        if spans is None:
            spans = Spans()
            spans.starts, spans.ends = [0], [len(payload)]
        encoded = encode_spans(payload, header, spans, horizon)
        changed = msgspec.structs.replace(
            header,
            attributes=header.attributes | (DELETE_HORIZON_FLAG if horizon is not None else 0),
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            record_count=len(spans.starts),
        )
        codec = Codec(header.codec)
        written = assemble_batch(changed, compress_records(codec, encoded.payload))
        return written, read_header(written)

    @staticmethod
    def _empty(header: BatchHeader) -> tuple[bytes, BatchHeader]:
        kept = header.attributes & ~CODEC_MASK & ~DELETE_HORIZON_FLAG
        empty = msgspec.structs.replace(header, attributes=kept, base_timestamp=NO_TIMESTAMP, record_count=0)
        written = assemble_batch(empty, b"")
        return written, read_header(written)


def control_type(batch: Bytes) -> int | None:
    """The type of a control batch's record (transaction_marker.py), None when it holds none. RecordBatchError
    when it can't be read."""
    record = next(iterate_records(batch), None)
    if record is None:
        return None
    return int.from_bytes((record.key or b"")[2:4], "big") if len(record.key or b"") >= 4 else UNKNOWN_TYPE
