"""What is told of the metadata quorum: who leads, who votes, who follows, and how far each of them is."""

from __future__ import annotations

import msgspec

from barnabas.wire.primitives import ZERO_UUID


class QuorumReplica(msgspec.Struct, frozen=True):
    """A node that has the metadata. Times in milliseconds since the epoch, -1 when unknown.

    `last_fetch_ms`: when it last asked the leader for more. `last_caught_up_ms`: when it last had everything.
    """

    node_id: int
    log_end_offset: int
    directory_id: bytes = ZERO_UUID
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


class QuorumListener(msgspec.Struct, frozen=True):
    """Where a voter listens for the others."""

    name: str
    host: str
    port: int


class QuorumInfo(msgspec.Struct, frozen=True):
    """The quorum as its leader sees it. `high_watermark`: the offset of the next record that may be committed."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica] = []
    listeners: dict[int, list[QuorumListener]] = {}  # of the voters, by node id
