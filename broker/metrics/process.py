"""The metrics of the process, under the names of Prometheus's client libraries, and of its event loop.

A timer is due every TICK_S; its delay is the time that a turn of the loop, or several in a row, have taken. A process that was
stopped or got no processor is late as well, so the processor time of the loop's thread is a metric of its own. It runs only
where metrics are served.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.wall_clock import WallClock

TICK_S: Final = 0.02
IDLE_S: Final = 60.0  # over which `idle` is a mean, newer times having more weight
STALL_S: Final = 0.1  # for which a request may delay others (DESIGN.md)
_STATM: Final = Path("/proc/self/statm")
_STAT: Final = Path("/proc/self/stat")
_SYSTEM_STAT: Final = Path("/proc/stat")
_IO: Final = Path("/proc/self/io")
_DESCRIPTORS: Final = Path("/proc/self/fd")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_START_TIME: Final = 19  # the place of starttime behind the name in /proc/self/stat (proc(5))


# The calling thread, which is the loop's; outside of Linux the process.
_USAGE_OF: Final = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def _processor_s() -> float:
    usage = resource.getrusage(_USAGE_OF)
    return usage.ru_utime + usage.ru_stime


class EventLoopLag:
    """Measures one loop. `start` and `stop` once each. `processor_s()`: processor time so far."""

    def __init__(self, runtime: Runtime, processor_s: Callable[[], float] = _processor_s) -> None:
        self._runtime = runtime
        self._processor_s = processor_s
        self._processor_before_s = 0.0
        self._due_at = 0.0
        self._timer: Timer | None = None
        self.stalls = 0  # of more than STALL_S
        self.longest_s = 0.0
        self.longest_busy_s = 0.0  # processor time between two ticks
        self.idle = 1.0  # the part of the last minute, about, in which the loop's thread had nothing to do

    def start(self) -> None:
        """Measure from the loop's first turn on: the work of the start before it delays no request."""
        self._runtime.call_soon(self._later)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self) -> None:
        self._processor_before_s = self._processor_s()
        self._due_at = self._runtime.monotonic() + TICK_S
        self._timer = self._runtime.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        late_s = self._runtime.monotonic() - self._due_at
        self.longest_s = max(self.longest_s, late_s)
        busy_s = self._processor_s() - self._processor_before_s
        self.longest_busy_s = max(self.longest_busy_s, busy_s)
        passed_s = late_s + TICK_S
        self.idle += (1 - min(busy_s / passed_s, 1) - self.idle) * min(passed_s / IDLE_S, 1)
        self.stalls += late_s > STALL_S
        self._later()


def event_loop_metrics(lag: EventLoopLag) -> Iterable[Family]:
    yield one(
        "barnabas_event_loop_stalls_total",
        lag.stalls,
        "How often the event loop has kept everything waiting for more than 0.1 s, or the process did not run",
        COUNTER,
    )
    yield one(
        "barnabas_event_loop_longest_stall_seconds",
        lag.longest_s,
        "The longest of those since the start",
    )
    yield one(
        "barnabas_event_loop_longest_busy_seconds",
        lag.longest_busy_s,
        "The most processor time that the event loop has taken at a stretch since the start",
    )


def process_metrics() -> Iterable[Family]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield one(
        "process_cpu_seconds_total",
        usage.ru_utime + usage.ru_stime,
        "Processor time of this process, user and system",
        COUNTER,
    )
    memory = Family("process_resident_memory_bytes", GAUGE, "Resident memory of this process")
    virtual = Family("process_virtual_memory_bytes", GAUGE, "Virtual memory of this process")
    started = Family("process_start_time_seconds", GAUGE, "When this process was started, since the epoch")
    descriptors = Family("process_open_fds", GAUGE, "Open file descriptors of this process")
    try:
        total, resident = map(int, _STATM.read_text().split()[:2])
        memory.add(resident * _PAGE_BYTES)
        virtual.add(total * _PAGE_BYTES)
        started.add(_start_time_s())
        descriptors.add(sum(1 for _ in _DESCRIPTORS.iterdir()))
    except OSError:  # not Linux
        pass
    yield from (memory, virtual, descriptors, started)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield one("process_max_fds", limit, "How many file descriptors this process may open")


def disk_metrics() -> Iterable[Family]:
    """As Kafka's LinuxIoMetricsCollector: nothing outside of Linux, or where /proc can't be read."""
    try:
        counts = dict(line.split(": ") for line in _IO.read_text().splitlines())
    except OSError:
        return
    for name, field, what in (("read", "read_bytes", "read from"), ("write", "write_bytes", "written to")):
        yield one(
            f"kafka_server_kafkaserver_linux_disk_{name}_bytes",
            int(counts[field]),
            f"Bytes that this process has {what} disks since its start, without what the page cache had or still has",
        )


def _start_time_s() -> float:
    booted_at = next(line for line in _SYSTEM_STAT.read_text().splitlines() if line.startswith("btime "))
    after_name = _STAT.read_text().rpartition(")")[2].split()  # the name may hold anything
    return int(booted_at.split()[1]) + int(after_name[_START_TIME]) / _TICKS


def wall_clock_metrics(wall_clock: WallClock) -> Iterable[Family]:
    yield one(
        "barnabas_wall_clock_trusted",
        wall_clock.is_trusted,
        "0 while nothing is deleted by its age, as the wall clock differs from most other nodes' or none has been heard",
    )
    yield one(
        "barnabas_wall_clock_ahead_seconds",
        wall_clock.ahead_ms / 1000,
        "How far the wall clock is ahead of the median of all nodes'",
    )
