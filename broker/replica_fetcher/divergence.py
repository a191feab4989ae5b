"""Where a follower's log has to be cut so that it agrees with its leader's (KIP-101, KIP-279, KIP-595).

The leader answers a fetch whose last epoch does not fit with the largest epoch that it has up to that one, and where
that ended. What the follower has beyond is not the leader's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.storage.log.log import Log


def diverging_offset(log: Log, leader_epoch: int, leader_end_offset: int) -> int:
    """The offset to cut the log back to. When the follower knows nothing of that epoch this is where its own latest
    epoch before it ends, and the next fetch compares again. As Kafka's AbstractFetcherThread.getOffsetTruncationState."""
    end = log.log_end_offset
    if leader_end_offset < 0:  # the leader knows of no epoch up to that one
        return min(log.high_watermark, end)
    if leader_epoch < 0:
        return min(leader_end_offset, end)
    own_epoch, own_end_offset = log.epoch_end_offset(leader_epoch)
    if own_end_offset < 0:  # no epochs are known here
        return min(leader_end_offset, end)
    if own_epoch != leader_epoch:
        return min(own_end_offset, end)
    return min(own_end_offset, leader_end_offset, end)


def offset_out_of_range(log: Log, leader_start_offset: int, leader_end_offset: int) -> tuple[int, bool]:
    """(offset to go on at, whether everything here goes) when the leader has nothing at our end.

    A leader that ends before us was elected uncleanly, or has lost its disk: what we have beyond it goes. One that
    begins behind our end has removed what we lack: we begin anew there. Else it has caught up since, or it is the
    records in between that have gone. As Kafka's AbstractFetcherThread.fetchOffsetAndTruncate.
    """
    end = log.log_end_offset
    if leader_end_offset < end:
        return leader_end_offset, False
    if leader_start_offset > end:
        return leader_start_offset, True
    return end, False
