"""Reports this broker's load to the active controller's balancer (barnabas.balancer), while it is not off.

Rates are those since the last report, of the partitions that this broker leads. The busiest are reported one by one, the others in the
totals. A partition that it did not lead at the last report has no rate yet, and is in neither. Partitions are read in slices.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Protocol

from barnabas.controller.balancer.load_reports import PARTITIONS_MAX, LoadReport, PartitionLoad
from barnabas.runtime.slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.manager.directory import LogDirectories


class ReportSettings(Protocol):
    """The properties of a broker that reports read, as they are now."""

    barnabas_balancer: str
    barnabas_balancer_report_interval_ms: int


class LoadReporter:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        settings: ReportSettings,
        partitions: PartitionManager,
        directories: LogDirectories,
        hedges: Mapping[int, int],
        send: Callable[[LoadReport], object],
    ) -> None:
        """`hedges`: broker id -> how often it has left an ISR here (isr_hedge.py); it grows."""
        self._runtime = runtime
        self._settings = settings
        self._partitions = partitions
        self._directories = directories
        self._hedges = hedges
        self._send = send
        self._timer: Timer | None = None  # None: stopped, or off
        self._is_started = False
        self._since: float | None = None  # when the counters were read last, on the monotonic clock
        self._counted: dict[Partition, tuple[int, int]] = {}  # bytes in and out at that time
        self._counted_hedges: dict[int, int] = {}

    def start(self) -> None:
        self._is_started = True
        self.configs_changed()

    def stop(self) -> None:
        self._is_started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def configs_changed(self) -> None:
        """Begin to report, if the balancer has been switched on."""
        if self._timer is None and self._is_started and self._settings.barnabas_balancer != "off":
            self._later()

    def _later(self) -> None:
        interval_s = self._settings.barnabas_balancer_report_interval_ms / 1000
        self._timer = self._runtime.call_later(interval_s, self._report)

    def _report(self) -> None:
        if self._settings.barnabas_balancer == "off":
            self._timer = None
            self._since = None
            self._counted.clear()
            return
        now = self._runtime.monotonic()
        elapsed_s = 0.0 if self._since is None else now - self._since
        self._since = now
        loads: list[PartitionLoad] = []
        timer = self._timer

        def done() -> None:
            if elapsed_s > 0:
                self._send(self._report_of(loads))
            self._counted_hedges = dict(self._hedges)
            if self._timer is timer:  # not stopped meanwhile, and perhaps started again
                self._later()

        in_slices(self._runtime, self._measure(elapsed_s, loads), done)

    def _measure(self, elapsed_s: float, loads: list[PartitionLoad]) -> Iterator[None]:
        before, self._counted = self._counted, {}
        for partition in self._partitions.all():
            yield
            if not partition.is_leader:
                continue
            counted = (partition.bytes_in, partition.bytes_out)
            self._counted[partition] = counted
            last = before.get(partition)
            if last is not None and elapsed_s > 0:
                bytes_in, bytes_out = (
                    (now - then) / elapsed_s for now, then in zip(counted, last, strict=True)
                )
                size = partition.log.size
                loads.append(
                    PartitionLoad(partition.topic_id, partition.partition, bytes_in, bytes_out, size)
                )

    def _report_of(self, loads: list[PartitionLoad]) -> LoadReport:
        directories = self._directories
        volumes = [directories.volume(path) for path in directories.paths if path not in directories.offline]
        return LoadReport(
            nlargest(PARTITIONS_MAX, loads, key=lambda load: load.bytes_in + load.bytes_out),
            sum(load.bytes_in for load in loads),
            sum(load.bytes_out for load in loads),
            sum(load.size for load in loads),
            usable_bytes=sum(max(usable, 0) for _, usable in volumes),
            total_bytes=sum(max(total, 0) for total, _ in volumes),
            hedges={
                replica: count - self._counted_hedges.get(replica, 0)
                for replica, count in self._hedges.items()
                if count > self._counted_hedges.get(replica, 0)
            },
        )
