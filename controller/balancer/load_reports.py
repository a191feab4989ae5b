"""Load reports: what each broker leads and holds, kept in the memory of the active controller only.

Reports are not metadata: they are never written to the log, and a new active controller waits for new ones. One that can't be true
(a negative number, NaN, a total below its parts) counts as missing, and so does an old one. Without a report of each active broker
the balancer makes no plan.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import msgspec

PARTITIONS_MAX: Final = 500  # in one report: the busiest
BROKERS_MAX: Final = 10_000  # replicas with hedges in one report
NUMBER_MAX: Final = 2**60
ROUNDING: Final = 1.001  # by which parts may exceed their total

SLOW_WINDOW_S: Final = 300.0
SLOW_HEDGES: Final = 20  # a replica with more hedges than this in the window is slow,
SLOW_LEADERS: Final = 2  # if so many leaders report some

log = logging.getLogger("barnabas.balancer")


class PartitionLoad(msgspec.Struct, array_like=True, frozen=True):
    """A partition that the sender leads: bytes per second from producers and to consumers, and the log's size in bytes."""

    topic_id: bytes
    partition: int
    bytes_in: float
    bytes_out: float
    size: int


class LoadReport(msgspec.Struct, array_like=True, frozen=True):
    """The load of one broker. `partitions`: the busiest that it leads; `bytes_in`, `bytes_out` and `size`: of all that it leads.
    `usable_bytes` of `total_bytes` are free in its log directories. `hedges`: broker id -> how often that replica has left an ISR
    since the last report, as it held up acknowledgements."""

    partitions: list[PartitionLoad]
    bytes_in: float
    bytes_out: float
    size: int
    usable_bytes: int
    total_bytes: int
    hedges: dict[int, int] = {}


def problem_of(report: LoadReport) -> str:
    """Why a report can't be true; empty when it can."""
    if len(report.partitions) > PARTITIONS_MAX or len(report.hedges) > BROKERS_MAX:
        return "it is too long"
    numbers = [report.bytes_in, report.bytes_out, report.size, report.usable_bytes, report.total_bytes]
    for each in report.partitions:
        numbers += (each.bytes_in, each.bytes_out, each.size)
    numbers += report.hedges.values()
    if not all(0 <= number <= NUMBER_MAX for number in numbers):  # not so for NaN
        return "it has numbers below zero, beyond all bounds, or NaN"
    if report.usable_bytes > report.total_bytes:
        return "more bytes are free than there are"
    for name in ("bytes_in", "bytes_out", "size"):
        if sum(getattr(each, name) for each in report.partitions) > getattr(report, name) * ROUNDING + 1:
            return f"{name} of its partitions is more than its total"
    return ""


class ClusterLoads:
    """The last report of each broker, and the hedges of the last five minutes. Times are seconds on the monotonic clock."""

    def __init__(self) -> None:
        self.reports: dict[int, LoadReport] = {}
        self.earlier: dict[int, LoadReport] = {}  # those before
        self._received: dict[int, float] = {}
        self._hedges: deque[tuple[float, int, int, int]] = deque()  # time, leader, replica, count
        self._counts: dict[int, Counter[int]] = {}  # of these: replica -> leader -> count
        self._slow_since: dict[int, float] = {}

    def clear(self) -> None:
        self.reports.clear()
        self.earlier.clear()
        self._received.clear()
        self._hedges.clear()
        self._counts.clear()
        self._slow_since.clear()

    def receive(self, broker_id: int, report: LoadReport, now: float) -> None:
        problem = problem_of(report)
        if problem:
            log.warning("the load report of broker %d is not used: %s", broker_id, problem)
            self.forget(broker_id)
            return
        if broker_id in self.reports:
            self.earlier[broker_id] = self.reports[broker_id]
        self.reports[broker_id] = report
        self._received[broker_id] = now
        for replica, count in report.hedges.items():
            if count and replica != broker_id:
                self._hedges.append((now, broker_id, replica, count))
                self._counts.setdefault(replica, Counter())[broker_id] += count
        self._find_slow(now)

    def forget(self, broker_id: int) -> None:
        self.reports.pop(broker_id, None)
        self.earlier.pop(broker_id, None)
        self._received.pop(broker_id, None)

    def age_s(self, broker_id: int, now: float) -> float:
        """Of the broker's last report; infinite without one."""
        return now - self._received.get(broker_id, -math.inf)

    def missing(self, brokers: Iterable[int], now: float, age_max_s: float) -> list[int]:
        """Those of the brokers without a report, or with an older one."""
        return sorted(each for each in brokers if self.age_s(each, now) > age_max_s)

    def slow(self, now: float) -> dict[int, float]:
        """Slow replicas: broker id -> for how many seconds it has been slow."""
        self._find_slow(now)
        return {replica: now - since for replica, since in self._slow_since.items()}

    def _find_slow(self, now: float) -> None:
        while self._hedges and self._hedges[0][0] < now - SLOW_WINDOW_S:
            _, leader, replica, count = self._hedges.popleft()
            counts = self._counts[replica]
            counts[leader] -= count
            if not counts[leader]:
                del counts[leader]
            if not counts:
                del self._counts[replica]
        slow = {
            replica
            for replica, counts in self._counts.items()
            if counts.total() > SLOW_HEDGES and len(counts) >= SLOW_LEADERS
        }
        for replica in slow:
            self._slow_since.setdefault(replica, now)
        for replica in self._slow_since.keys() - slow:
            del self._slow_since[replica]
