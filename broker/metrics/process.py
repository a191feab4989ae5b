"""The metrics of the process and its event loop, under the names of Prometheus's client libraries where those have one."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, one

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.broker.metrics.event_loop_lag import EventLoopLag
    from barnabas.storage.wall_clock import WallClock

_STATM: Final = Path("/proc/self/statm")
_STAT: Final = Path("/proc/self/stat")
_SYSTEM_STAT: Final = Path("/proc/stat")
_DESCRIPTORS: Final = Path("/proc/self/fd")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_START_TIME: Final = 19  # the place of starttime behind the name in /proc/self/stat (proc(5))


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
