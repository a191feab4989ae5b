"""What DescribeQuorum tells of the voters, in offsets of metadata records."""

from __future__ import annotations

from typing import NamedTuple


class VoterProgress(NamedTuple):
    """One voter, as the leader knows it; the times are wall clock in ms, -1 for unknown."""

    node_id: int
    log_end_offset: int  # behind the last record that it holds on disk; -1 for unknown
    last_fetch_ms: int  # when it last answered
    last_caught_up_ms: int  # when it last held all that the leader had


class QuorumView(NamedTuple):
    """As this node sees it; only the leader knows of the others' progress."""

    leader_id: int  # -1: none is known
    term: int
    high_watermark: int  # behind the last record that is committed
    voters: tuple[VoterProgress, ...]  # by node id
