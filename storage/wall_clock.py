"""Decides whether this node's wall clock can be trusted to delete what is too old.

Everything that is deleted by its age depends on the wall clock: segments (retention.ms), tombstones and the records that
compaction may remove (delete.retention.ms, min.compaction.lag.ms), producer ids, committed offsets. The other nodes send what
their wall clocks show (controller/link/clocks.py). While more than half of all clocks that are known, this node's among them,
are within TOLERANCE_MS of this node's, it deletes by age; otherwise it keeps everything, and its log says so.

- Another node's time is kept as the difference to the monotonic clock here, so a wall clock that is set while the node
  runs, or while it receives nothing from others, is compared with what was received last.
- A node that is one of several deletes nothing by age before it has heard of another. One that is alone, and has heard of
  no other, trusts its own clock.
- Of two nodes that differ neither can tell which is right, so neither deletes. Where most clocks are wrong in the same way,
  they are followed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

TOLERANCE_MS: Final = (
    300_000  # clocks set by NTP differ by much less; records may be deleted so much too early
)

logger = logging.getLogger("barnabas.storage")


class WallClock:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, *, is_alone: bool = True) -> None:
        """`is_alone`: there need be no other nodes."""
        self._runtime = runtime
        self._is_alone = is_alone
        self._others: dict[int, float] = {}  # node id -> its wall clock - our monotonic clock, in ms
        self._has_warned = False

    def heard(self, node_id: int, time_ms: int) -> None:
        """Another node's wall clock shows `time_ms` now."""
        self._others[node_id] = time_ms - self._runtime.monotonic() * 1000
        self._check()

    def deletion_time_ms(self) -> int | None:
        """The time by which to delete what is too old; None while nothing may be deleted by its age."""
        return self._runtime.time_ms() if self._check() else None

    @property
    def is_trusted(self) -> bool:
        """Whether this node may delete by its wall clock."""
        if not self._others:
            return self._is_alone
        agreeing = 1 + sum(abs(behind) <= TOLERANCE_MS for behind in self._behind().values())
        return 2 * agreeing > len(self._others) + 1

    @property
    def ahead_ms(self) -> int:
        """How far this node's clock is ahead of the median of all that are known."""
        differences = sorted([0.0, *self._behind().values()])
        return round(differences[len(differences) // 2])

    def _behind(self) -> dict[int, float]:
        """Node id -> how far its clock is behind this node's, in ms."""
        own = self._runtime.time_ms() - self._runtime.monotonic() * 1000
        return {node_id: own - other for node_id, other in self._others.items()}

    def _check(self) -> bool:
        """Whether the clock is trusted; logs when that has changed."""
        is_trusted = self.is_trusted
        if is_trusted and self._has_warned:
            self._has_warned = False
            logger.info("the wall clock agrees with most other nodes' again: what is too old is deleted")
        elif not is_trusted and self._others and not self._has_warned:
            self._has_warned = True
            logger.error(
                "the wall clock here differs too much from the other nodes' (%s): nothing is deleted by its age until "
                "more than half of them are within %d s of it",
                ", ".join(
                    f"node {node_id} is {abs(behind) / 1000:.0f} s {'behind' if behind > 0 else 'ahead'}"
                    for node_id, behind in sorted(self._behind().items())
                ),
                TOLERANCE_MS // 1000,
            )
        return is_trusted
