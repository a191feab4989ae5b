"""The timeouts of members.

- SESSION: a member that sends nothing for so long has failed.
- REBALANCE: a member that has to give up partitions does so in this time, or it is fenced.
- JOIN, SYNC: a member of the classic protocol joins again when a heartbeat says so, and sends its SyncGroup after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.timers import DeadlineTimer

if TYPE_CHECKING:
    from barnabas.broker.groups.modern.group import AnyGroup
    from barnabas.runtime.interface import Runtime

SESSION: Final = "session"
REBALANCE: Final = "rebalance"
JOIN: Final = "join"
SYNC: Final = "sync"

REASONS: Final = {
    SESSION: "the member session expired",
    REBALANCE: "it did not give up its partitions in time",
    JOIN: "the classic member failed to join within the rebalance timeout",
    SYNC: "the member failed to sync within timeout",
}


class Timeouts:
    """See the module. `expired(group id, member id, kind)` when one has passed."""

    def __init__(self, runtime: Runtime, expired: Callable[[str, str, str], object]) -> None:
        self._runtime = runtime
        self._expired = expired

    def begin(self, group: AnyGroup, member_id: str, kind: str, timeout_ms: int) -> None:
        """Begin it, or begin it again."""
        timer = group.timers.get((member_id, kind))
        if timer is None:
            group_id = group.group_id
            timer = DeadlineTimer(self._runtime, lambda: self._expired(group_id, member_id, kind))
            group.timers[member_id, kind] = timer
        timer.set(timeout_ms)

    def end(self, group: AnyGroup, member_id: str, kind: str) -> None:
        timer = group.timers.pop((member_id, kind), None)
        if timer is not None:
            timer.cancel()
