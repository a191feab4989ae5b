"""Why a partition is not published for now, and when it is tried again: later and later, as long as nothing goes well."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

FIRST_BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0


class Trouble:
    """Of one partition. `problem` is a state (`waiting: <why>` or `blocked: <what to do>`), "" while it is published."""

    def __init__(self, runtime: Runtime, topic: str, again: Callable[[], object]) -> None:
        """`again()`: a while has passed."""
        self.problem = ""
        self._runtime = runtime
        self._topic = topic
        self._again = again
        self._failures = 0  # in a row
        self._is_told = False  # of trouble, and not yet of its end
        self._timer: Timer | None = None

    @property
    def has_failed_again(self) -> bool:
        """Whether it is not the first time in a row."""
        return self._failures > 1

    def begin(self, problem: str) -> None:
        if problem != self.problem and self._failures == 0:
            log.warning("topic %s: %s", self._topic, problem)
            self._is_told = True
        self.problem = problem
        delay_s = min(FIRST_BACKOFF_S * 2 ** min(self._failures, 10), BACKOFF_MAX_S)
        self._failures += 1
        self.cancel()
        self._timer = self._runtime.call_later(delay_s * self._runtime.random.uniform(0.5, 1), self._is_over)

    def went_well(self) -> bool:
        """Something was acknowledged: the next trouble is a first one. Whether this is worth telling."""
        self._failures = 0
        is_news = self._is_told and not self.problem
        if is_news:
            self._is_told = False
        return is_news

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None
        self._again()
