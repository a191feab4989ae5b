"""Warnings about peers, bounded in number: the first line at once, then one with a count per interval.

Lines are counted by the peer's address and by a reason. Text that a peer chooses (ports, numbers, names) is part of the line
and not of the reason, or the number of reasons per peer bounds it. So a peer that sends garbage causes a few lines a minute.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.runtime.interface import Runtime, Timer

INTERVAL_S: Final = 60.0
REASONS_MAX: Final = 10  # of one peer within an interval; all others are counted together
PEERS_MAX: Final = 256  # within an interval; all others are counted together
_OTHER: Final = "other"


def one_line(text: str) -> str:
    """A text from outside, without line ends and other control characters: it must not pass for a line of the broker's own."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class _Repeated:
    __slots__ = ("count", "level", "line")

    def __init__(self) -> None:
        self.count = 0  # since it was logged
        self.line = ""  # the last one that was not
        self.level = logging.WARNING


class RepeatedWarnings:
    """All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, log: logging.Logger) -> None:
        self._runtime = runtime
        self._log = log
        self._peers: dict[str, dict[str, _Repeated]] = {}  # by address, then by reason
        self._timer: Timer | None = None  # while there are any

    def warn(
        self,
        peer: str,
        reason: str,
        line: str,
        *,
        level: int = logging.WARNING,
        error: BaseException | None = None,
    ) -> bool:
        """Log `line`, and the traceback of `error`, unless one of the same peer (an address without its port) and reason was
        logged within the interval: then it is counted. Returns whether it was logged."""
        line = one_line(line)
        if self._timer is None:
            self._timer = self._runtime.call_later(INTERVAL_S, self._log_counts)
        if peer not in self._peers and len(self._peers) >= PEERS_MAX:
            peer = _OTHER
        reasons = self._peers.setdefault(peer, {})
        if reason not in reasons and len(reasons) >= REASONS_MAX:
            reason = _OTHER
        repeated = reasons.get(reason)
        if repeated is None:
            reasons[reason] = _Repeated()
            self._log.log(level, "%s", line, exc_info=error)
            return True
        repeated.count += 1
        repeated.line = line
        repeated.level = level
        return False

    def forget(self, peer: str) -> None:
        """The peer works again, or is gone: the next line about it is logged at once."""
        self._peers.pop(peer, None)
        if not self._peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log_counts(self) -> None:
        """At the end of an interval: log the counts, and forget the reasons that have not occurred again."""
        for peer, reasons in tuple(self._peers.items()):
            for reason, repeated in tuple(reasons.items()):
                if not repeated.count:
                    del reasons[reason]
                    continue
                self._log.log(repeated.level, "%s (%d times more since)", repeated.line, repeated.count)
                repeated.count = 0
            if not reasons:
                del self._peers[peer]
        self._timer = self._runtime.call_later(INTERVAL_S, self._log_counts) if self._peers else None
