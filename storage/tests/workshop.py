"""A runtime whose clock stands still until it is advanced, and helpers that make logs and batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from barnabas.runtime.slices import run_through
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import Record, build_batch, read_header

NOW = 1_700_000_000_000


class _Timer:
    def __init__(self, due_s: float, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualRuntime:
    """Threads run at once, timers when `advance` passes them."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.now_s = NOW / 1000
        self.timers: list[_Timer] = []

    def time_ms(self) -> int:
        return round(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    def random_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.call_later(0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(self.now_s + delay_s, callback)
        self.timers.append(timer)
        return timer

    def run_in_thread(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], object]
    ) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed over, as a thread pool does
            done(None, error)
        else:
            done(result, None)

    def run_all(self, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        return [self._error_of(work) for work in works]

    @staticmethod
    def _error_of(work: Callable[[], object]) -> BaseException | None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - handed over, as a thread pool does
            return error
        return None

    def listen(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        tls: Any = None,
    ) -> Any:
        raise NotImplementedError

    def connect(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        failed: Callable[[OSError], object],
        *,
        tls: Any = None,
    ) -> Any:
        raise NotImplementedError

    def start_tls(
        self,
        transport: Any,
        protocol: Any,
        tls: Any,
        server_name: str,
        done: Callable[[Any, OSError | None], object],
    ) -> None:
        raise NotImplementedError

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        raise NotImplementedError

    def remove_writer(self, descriptor: int) -> None:
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in [timer for timer in self.timers if timer.due_s <= self.now_s]:
            self.timers.remove(timer)
            if timer.callback is not None:
                timer.callback()


def offset_for_timestamp(log: Log, timestamp: int) -> Any:
    """The first record at or after `timestamp`; None when all are older."""
    return run_through(log.timestamp_lookup(timestamp))


def max_timestamp_offset(log: Log) -> Any:
    """The first record that has the largest timestamp; None in an empty log."""
    return run_through(log.timestamp_lookup(None))


def aborted_transactions(log: Log, start: int, end: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions that a reader of [start, end) must leave out."""
    return [(found.producer_id, found.first_offset) for found in log.collect_aborted(start, end)]


class Workshop:
    """Makes logs on a memory disk and batches to put in them."""

    now = NOW

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("/logs", parents=True)
        self.disk.make_directory("/logs/t-0", parents=True)
        self.runtime = ManualRuntime()

    def log(self, *, clean: bool = True, recovery_point: int = 0, start: int = 0, **settings: Any) -> Log:
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
        """Every batch, as a reader who follows the offsets gets them."""
        batches = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = b"".join(region.read() for region in log.read(offset, max_bytes).regions)
            position = 0
            while position + 12 <= len(data):
                size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
                if position + size > len(data):
                    break
                batches.append(data[position : position + size])
                offset = read_header(data, position).next_offset
                position += size
            assert position, f"nothing whole at {offset}"
        return batches


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def make_workshop() -> Callable[[], Workshop]:
    """For property tests, which need a new one per example."""
    return Workshop
