"""The metadata quorum for DescribeQuorum: leader, voters, observers, and the progress of each, in offsets of records."""

from __future__ import annotations

import msgspec

from barnabas.wire.primitives import ZERO_UUID


class QuorumReplica(msgspec.Struct, frozen=True):
    """A voter or observer. Times in milliseconds since the epoch, -1 when unknown.

    `log_end_offset`: one past the last record that it has on disk, -1 when unknown. `last_fetch_ms`: when it last answered or
    fetched. `last_caught_up_ms`: when it last had all records.
    """

    node_id: int
    log_end_offset: int
    directory_id: bytes = ZERO_UUID
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


class QuorumListener(msgspec.Struct, frozen=True):
    """A controller listener of a voter."""

    name: str
    host: str
    port: int


class QuorumInfo(msgspec.Struct, frozen=True):
    """The quorum as a node knows it. `leader_id`: -1 for none. `high_watermark`: offset of the next record to be committed."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica] = []
    voted_for: int = -1  # by this node, in this epoch
    listeners: dict[int, list[QuorumListener]] = {}  # of the voters, by node id
