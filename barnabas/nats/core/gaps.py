"""The gaps of a binding: times in which messages may have been published that never came here.

Core NATS keeps nothing for those who are away. So a binding notes from when to when it was: a gap begins with the last
moment up to which all is known to be in the log (client/heartbeat.py), not when the trouble is noticed, and ends when the server
has the subscriptions again. Outside of gaps nothing is missing. Their times are those at which the server took the
messages, by this machine's clock.

A gap belongs to the binding and not to one of its subscriptions: it may begin with a connection, go on over a pause or a
restart, and end with another one. It is kept for as long as this broker knows the binding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from barnabas.nats.carrier import Gap

if TYPE_CHECKING:
    from barnabas.nats.carrier import CarrierStats

log = logging.getLogger("barnabas.nats")

CAUSE_CHARACTERS_MAX: Final = 400  # of a gap with many causes


def shown_time(time_ms: int) -> str:
    """A time in ms since the epoch, for people."""
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class GapLog:
    """Of one binding on this broker. `until_ms`: what the server had taken by then is in the log, but for the gaps; 0 when
    nothing is known."""

    def __init__(
        self, topic: str, stats: CarrierStats, now_ms: Callable[[], int], on_known: Callable[[], object]
    ) -> None:
        """`on_known()` is called when `until_ms` is known for the first time."""
        self.until_ms = 0
        self._on_known = on_known
        self.open: Gap | None = None
        self._topic = topic
        self._stats = stats
        self._now_ms = now_ms
        self._searches = 0  # for where it begins
        self._ends_ms = 0  # when the last one of them is over
        self._ends_whole = True
        self._is_left = False

    def begin(self, begin_ms: int, cause: str) -> None:
        """One has begun. If one is open it is the same one, with a further cause, and the earlier beginning."""
        gap = self.open
        self._ends_ms = 0
        if gap is None:
            self.open = Gap(begin_ms, 0, cause)
            self._stats.gaps.append(self.open)
            self._stats.gap_count += 1
            log.warning(
                "topic %s: messages published from %s on may be missing: %s",
                self._topic,
                shown_time(begin_ms),
                cause,
            )
            return
        gap.begin_ms = min(gap.begin_ms, begin_ms)
        if cause not in gap.cause and len(gap.cause) + len(cause) < CAUSE_CHARACTERS_MAX:
            gap.cause += f"; then {cause}"

    def end(self, *, is_whole: bool = True, at_ms: int = 0) -> None:
        """From now on, or from `at_ms` on, messages come, if they did not. `is_whole`: those that have come are in the log. If they still wait
        for it, `until_ms` stays where it is: they are lost if the broker ends before."""
        self._end(at_ms or self._now_ms(), is_whole)

    def fill(self) -> None:
        """The open one is none: others had the messages, and have put them into the logs."""
        gap, self.open = self.open, None
        self._ends_ms = 0
        if gap is not None:
            if gap in self._stats.gaps:
                self._stats.gaps.remove(gap)
            log.info(
                "topic %s: none of the messages published from %s on is missing: another broker has received them",
                self._topic,
                shown_time(gap.begin_ms),
            )

    def leave(self) -> None:
        """The broker stops: an open one goes on without it."""
        self._is_left = True
        if self.open is not None:
            log.warning(
                "topic %s: the broker stops while messages published from %s on may be missing: %s",
                self._topic,
                shown_time(self.open.begin_ms),
                self.open.cause,
            )

    def search(self) -> None:
        """Where the open one begins is being looked for: it is not told of before `found`."""
        self._searches += 1

    def found(self, begin_ms: int | None) -> None:
        """It may have begun there already; None when nothing more is known."""
        self._searches -= 1
        if self.open is not None and begin_ms is not None:
            self.open.begin_ms = min(self.open.begin_ms, begin_ms)
        if not self._searches and self._ends_ms:
            self._end(self._ends_ms, self._ends_whole)

    def _end(self, end_ms: int, is_whole: bool) -> None:
        gap = self.open
        if self._is_left:
            return
        if gap is not None and self._searches:
            if not self._ends_ms:
                self._ends_ms, self._ends_whole = end_ms, is_whole
            return
        if is_whole:
            is_news = not self.until_ms
            self.until_ms = max(self.until_ms, end_ms)
            if is_news:
                self._on_known()
        if gap is None:
            return
        self.open = None
        self._ends_ms = 0
        gap.end_ms = max(end_ms, gap.begin_ms)
        self._stats.gap_ms += gap.end_ms - gap.begin_ms
        log.warning(
            "topic %s: messages published from %s to %s (%.3f s) may be missing: %s",
            self._topic,
            shown_time(gap.begin_ms),
            shown_time(gap.end_ms),
            (gap.end_ms - gap.begin_ms) / 1000,
            gap.cause,
        )
