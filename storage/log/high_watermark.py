"""The high watermark of a log: up to where consumers may read.

A log that is the only replica is committed up to its end, or up to what has been synced while flush.messages holds
records back, so its high watermark is not kept anywhere. Of a replicated log it is what the leader has worked out
from its followers, or what a follower was told: it moves by `set_high_watermark` alone, never back, unless the log
itself is cut. A start goes on from the checkpoint, and until the log has its role, which may take as long as the
controllers are away, no more is known: the log's end may hold what was never committed.
"""

from __future__ import annotations

from barnabas.storage.log.flusher import SyncedLog


class WatermarkedLog(SyncedLog):
    """The part of `Log` that knows what is committed. `Log` sets these attributes."""

    __slots__ = ("_high_watermark", "checkpointed_high_watermark")

    _high_watermark: int  # of a replicated log; -1: this is the only replica
    # As the last run noted it, maybe beyond what a crash has left of the log; None once the log has its role.
    checkpointed_high_watermark: int | None

    @property
    def high_watermark(self) -> int:
        """Offset up to which (exclusive) every in-sync replica has the log, as far as is known here. With one
        replica: its end, or the end of what has been synced while flush.messages holds records back."""
        high_watermark = self._high_watermark
        if high_watermark >= 0:
            return high_watermark
        checkpointed = self.checkpointed_high_watermark
        if checkpointed is not None:
            return min(max(checkpointed, self.log_start_offset), self.log_end_offset)
        held_from = self._held_from
        return self.log_end_offset if held_from < 0 else held_from

    @property
    def replica_end_offset(self) -> int:
        """The end of what counts as held here: records that flush.messages holds back do not count yet."""
        held_from = self._held_from
        return self.log_end_offset if held_from < 0 else held_from

    @property
    def is_replicated(self) -> bool:
        """Whether the high watermark is what `set_high_watermark` has said."""
        return self._high_watermark >= 0

    def replicate(self) -> None:
        """There are other replicas from now on. What was committed stays so; at a start: what the checkpoint says
        was."""
        if self._high_watermark < 0:
            self._high_watermark = self.high_watermark
            self._limit_high_watermark()
            self.checkpointed_high_watermark = None

    def be_the_only_replica(self) -> None:
        """There are no other replicas from now on."""
        self._high_watermark = -1
        self.checkpointed_high_watermark = None

    def set_high_watermark(self, offset: int) -> bool:
        """Everything below `offset` is committed, as far as it is here; whether that is news. It never goes back."""
        offset = min(offset, self.log_end_offset)
        if offset <= self._high_watermark:
            return False
        assert self._high_watermark >= 0, "the only replica's high watermark follows from its end"
        self._high_watermark = offset
        return True

    def take_high_watermark(self, other: WatermarkedLog) -> None:
        """Stand for a log that was the same one."""
        self.checkpointed_high_watermark = other.checkpointed_high_watermark
        if other._high_watermark >= 0:
            self._high_watermark = min(max(other._high_watermark, self.log_start_offset), self.log_end_offset)

    def _limit_high_watermark(self) -> None:
        """After the log's start or end has moved."""
        if self._high_watermark >= 0:
            self._high_watermark = min(max(self._high_watermark, self.log_start_offset), self.log_end_offset)
