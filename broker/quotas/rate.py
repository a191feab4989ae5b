"""The rate of Kafka's quotas: what was recorded in the last windows, by the second (org.apache.kafka.common.metrics.stats.Rate).

A new rate is measured as if all windows but one had passed, so a burst that fills them is allowed. All times are those of
Runtime.monotonic, in seconds.
"""

from __future__ import annotations

from collections import deque

NO_LIMIT = float("inf")


class Rate:
    """Amounts of the last `window_count` windows of `window_s`, and of the one that overlaps their beginning."""

    __slots__ = ("_age_max_s", "_full_windows", "_samples", "_window_s", "recorded")

    def __init__(self, window_count: int = 11, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._full_windows = window_count - 1
        self._age_max_s = window_count * window_s
        self._samples: deque[list[float]] = deque()  # [when it began, when it was last added to, amount]
        self.recorded = 0.0  # in the windows, and perhaps before: it is forgotten late

    def record(self, amount: float, now: float) -> None:
        """Add an amount; a negative one takes back what was recorded."""
        samples = self._samples
        self.recorded += amount
        if samples:
            latest = samples[-1]
            if now - latest[0] < self._window_s:
                latest[1] = now
                latest[2] += amount
                return
        samples.append([now, now, amount])
        self._forget(now)

    def is_idle(self, now: float) -> bool:
        """Whether nothing was recorded in the last windows."""
        self._forget(now)
        return not self._samples

    def total(self, now: float) -> float:
        self._forget(now)
        return self.recorded

    def excess_s(self, limit: float, now: float, more: float = 0.0) -> float:
        """For how long nothing may be recorded until the rate is `limit` a second again; 0 or less when it is not above. `more`: to be
        counted in addition."""
        samples = self._samples
        if samples and now - samples[0][1] >= self._age_max_s:
            self._forget(now)
        return (self.recorded + more) / limit - self._measured_s(now)

    def _measured_s(self, now: float) -> float:
        """The time over which the total is measured."""
        elapsed_s = now - self._samples[0][0] if self._samples else 0.0
        missing = self._full_windows - int(elapsed_s / self._window_s)
        if missing > 0:
            elapsed_s += missing * self._window_s
        return max(elapsed_s, 0.001)

    def _forget(self, now: float) -> None:
        samples = self._samples
        while samples and now - samples[0][1] >= self._age_max_s:
            self.recorded -= samples.popleft()[2]
        if not samples:
            self.recorded = 0.0


class TokenBucket:
    """Tokens that come at `rate` a second until there are enough for all windows; they may be overdrawn (KIP-599)."""

    __slots__ = ("_at", "_tokens", "_windows_s", "rate")

    def __init__(self, rate: float, now: float, window_count: int = 11, window_s: float = 1.0) -> None:
        self.rate = rate
        self._windows_s = window_count * window_s
        self._tokens = 0.0
        self._at = now - self._windows_s  # it begins full

    def take(self, count: float, now: float) -> None:
        self._tokens = self.tokens(now) - count
        self._at = now

    def tokens(self, now: float) -> float:
        """How many there are; negative when it is overdrawn."""
        return min(self._tokens + (now - self._at) * self.rate, self._windows_s * self.rate)

    def missing_s(self, now: float) -> float:
        """For how long it stays overdrawn."""
        return max(-self.tokens(now) / self.rate, 0.0)
