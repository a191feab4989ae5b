"""The quotas of remote storage (KIP-956): bytes a second that a broker copies to the object store, and that readers get from there.

remote.log.manager.(copy|fetch).max.bytes.per.second, measured over ...quota.window.num windows of ...quota.window.size.seconds as all
of Kafka's quotas (broker/quotas/rate.py). Kafka looks at the copy quota before each segment; here before each part of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import Family, one
from barnabas.broker.quotas.rate import Rate
from barnabas.runtime.locks import Lock, pause

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.runtime.interface import Runtime

NO_LIMIT: Final = (1 << 63) - 1  # the default
PAUSE_MAX_S: Final = 0.5  # after which a raised limit, or the stop of the broker, is noticed
_METRIC_AGE_S: Final = 60.0  # of what an average and a maximum are of, as in Kafka
_METRIC_SAMPLES_MAX: Final = 10_000


class QuotaStopped(OSError):
    """The broker stops: an upload that waits for the quota ends."""


class RemoteQuota:
    """One of the two. Threads may share it."""

    def __init__(
        self,
        runtime: Runtime,
        limit: Callable[[], int],
        window_count: int,
        window_s: float,
    ) -> None:
        """`limit()`: bytes a second; NO_LIMIT without one."""
        self._runtime = runtime
        self._limit = limit
        self._rate = Rate(window_count, window_s)
        self._lock = Lock()
        self._is_stopped = False
        self._waits: deque[tuple[float, float]] = deque(maxlen=_METRIC_SAMPLES_MAX)  # (when, s)

    def stop(self) -> None:
        """Uploads that wait end."""
        self._is_stopped = True

    def record(self, size: int) -> None:
        """Count what has been transferred."""
        with self._lock:
            self._rate.record(size, self._runtime.monotonic())

    def is_exceeded(self) -> bool:
        """Whether nothing may be transferred now; it counts as a wait of the time that is missing."""
        with self._lock:
            missing_s = self._missing_s()
        if missing_s > 0:
            self._waits.append((self._runtime.monotonic(), missing_s))
        return missing_s > 0

    def wait(self, size: int) -> None:
        """In a thread: wait until the quota allows more, and count these bytes. QuotaStopped."""
        began = self._runtime.monotonic()
        while True:
            with self._lock:
                missing_s = self._missing_s()
                if missing_s <= 0:
                    self._rate.record(size, self._runtime.monotonic())
                    break
            if self._is_stopped:
                raise QuotaStopped("the broker stops, and the copy quota has no room")
            pause(min(missing_s, PAUSE_MAX_S))
        waited_s = self._runtime.monotonic() - began
        if waited_s > 0:
            self._waits.append((began + waited_s, waited_s))

    def throttle_times_ms(self) -> tuple[float, float]:
        """(average, largest) wait of the last minute, in ms; 0 without one."""
        since = self._runtime.monotonic() - _METRIC_AGE_S
        found = [waited_s * 1000 for at, waited_s in self._waits.copy() if at >= since]
        return (sum(found) / len(found), max(found)) if found else (0.0, 0.0)

    def metrics(self, side: str) -> Iterable[Family]:
        """`side`: copy or fetch. Kafka's RemoteLogManager metrics remote-*-throttle-time-avg and -max."""
        average_ms, max_ms = self.throttle_times_ms()
        for kind, value_ms in (("avg", average_ms), ("max", max_ms)):
            yield one(
                f"kafka_server_remotelogmanager_remote_{side}_throttle_time_{kind}",
                value_ms,
                f"How long the quota of remote {side} held back in the last minute, in ms: {kind}",
            )

    def _missing_s(self) -> float:
        limit = self._limit()
        return 0.0 if limit >= NO_LIMIT else self._rate.excess_s(limit, self._runtime.monotonic())


def make_quotas(runtime: Runtime, config: BrokerConfig) -> tuple[RemoteQuota, RemoteQuota]:
    """Of copies and of fetches, with the limits that the dynamic configs have at any time."""
    return (
        RemoteQuota(
            runtime,
            lambda: config.remote_log_manager_copy_max_bytes_per_second,
            config.remote_log_manager_copy_quota_window_num,
            config.remote_log_manager_copy_quota_window_size_seconds,
        ),
        RemoteQuota(
            runtime,
            lambda: config.remote_log_manager_fetch_max_bytes_per_second,
            config.remote_log_manager_fetch_quota_window_num,
            config.remote_log_manager_fetch_quota_window_size_seconds,
        ),
    )
