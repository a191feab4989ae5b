"""Makes logs and batches, on a memory disk and a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.runtime.slices import run_through
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.verification import Verification
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import iterate_whole_headers, read_header
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

NOW = 1_700_000_000_000


class InlineRuntime(VirtualRuntime):
    """Work for a thread is done at once."""

    def run_in_thread(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
        *,
        remote: bool = False,
        background: bool = False,
    ) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed over, as a thread pool does
            done(None, error)
        else:
            done(result, None)


def offset_for_timestamp(log: Log, timestamp: int) -> Any:
    """The first record at or after `timestamp`; None when all are older."""
    return run_through(log.timestamp_lookup(timestamp))


def max_timestamp_offset(log: Log) -> Any:
    """The first record that has the largest timestamp; None in an empty log."""
    return run_through(log.timestamp_lookup(None))


def aborted_transactions(log: Log, start: int, end: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions that a reader of [start, end) must leave out."""
    return [(found.producer_id, found.first_offset) for found in log.producers.collect_aborted(start, end)]


def verified(log: Log, batch: bytes) -> Verification | None:
    """What a transactional batch brings along to its append once the transaction coordinator has verified it."""
    header = read_header(batch)
    return log.begin_verification(
        header.producer_id, header.producer_epoch, header.base_sequence, supports_epoch_bump=False
    )


def read_batches(log: Log, max_bytes: int, offset: int | None = None) -> Iterator[bytes]:
    """Every batch from `offset`, or the log's start, on, as a consumer reads them; up to a gap at the log's end that compaction
    has left."""
    offset = log.log_start_offset if offset is None else offset
    while offset < log.log_end_offset:
        data = b"".join(region.read() for region in log.read(offset, max_bytes).regions)
        if not data:
            return
        found = list(iterate_whole_headers(data))
        assert found, f"no whole batch at {offset}"
        for position, header in found:
            assert header.base_offset >= offset or position == 0
            yield data[position : position + header.size]
            offset = header.next_offset


class Workshop:
    """Makes logs on a memory disk and batches to put in them."""

    now = NOW

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("/logs", parents=True)
        self.disk.make_directory("/logs/t-0", parents=True)
        self.runtime = InlineRuntime(start_ms=NOW)

    def log(
        self,
        *,
        clean: bool = True,
        recovery_point: int = 0,
        start: int = 0,
        high_watermark: int | None = None,
        **settings: Any,
    ) -> Log:
        return Log.open(
            self.disk,
            self.runtime,
            "/logs",
            "t",
            0,
            b"i" * 16,
            LogConfig(**settings),
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=start,
            high_watermark=high_watermark,
        )

    @staticmethod
    def batch(
        count: int = 1,
        *,
        size: int = 10,
        timestamp: int = NOW,
        codec: Codec = Codec.NONE,
        key: bytes | None = b"k",
        **fields: Any,
    ) -> bytes:
        """`count` records of `size` bytes, one ms apart."""
        records = [Record(i, timestamp + i, key, bytes([i % 251]) * size) for i in range(count)]
        return build_batch(records, codec=codec, **fields)

    @staticmethod
    def content(log: Log, max_bytes: int = 1 << 20) -> list[bytes]:
        """Every batch up to the log's end."""
        batches = list(read_batches(log, max_bytes))
        assert (
            read_header(batches[-1]).next_offset if batches else log.log_start_offset
        ) == log.log_end_offset
        return batches


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def make_workshop() -> Callable[[], Workshop]:
    """For property tests, which need a new one per example."""
    return Workshop
