"""Replication of committed metadata to brokers that do not vote: the voter's side.

A follower gets each group as soon as it is committed here, or a snapshot when it is too far behind. A voter keeps only the
position of a follower; groups that exceed its window are read again later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from barnabas.controller.link import messages
from barnabas.controller.link.messages import (
    METADATA_PIECE_BYTES,
    METADATA_WINDOW_BYTES,
    Acknowledge,
    Groups,
    SnapshotPart,
    Subscribe,
    Unsubscribe,
    decode_metadata,
    encode,
)
from barnabas.controller.metadata.local_journal import Snapshot, encode_snapshot

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer
    from barnabas.controller.metadata.committed_groups import CommittedGroup

_RECORD_COST = 8  # bytes, beside its own


class CommittedMetadata(Protocol):
    """A metadata log whose committed groups can be read."""

    def on_commit(self, callback: Callable[[], object]) -> None: ...

    def read_committed(self, after_offset: int, bytes_max: int = ...) -> Sequence[CommittedGroup] | None: ...

    def read_snapshot(self) -> tuple[list[bytes], int]: ...


class _Follower:
    """One broker. `offset`: of the last record sent. `snapshot`, `position`: of the snapshot in transfer."""

    def __init__(self, peer: Peer, subscription: int, offset: int) -> None:
        self.peer = peer
        self.subscription = subscription
        self.offset = offset
        self.end_sent = -2
        self.sent = 0
        self.taken = 0
        self.snapshot: bytes | None = None
        self.position = 0


class MetadataFeed:
    """Serves all followers of this voter. Constructed when the log is open."""

    def __init__(
        self,
        links: Links,
        log: CommittedMetadata,
        end_offset: Callable[[], int],
        has_begun: Callable[[], bool] = lambda: True,
    ) -> None:
        """`end_offset()`: one past the last record that is committed here. `has_begun()`: whether this node has any metadata; one that
        joins a quorum waits for its first snapshot, and so do its followers."""
        self._log = log
        self._has_begun = has_begun
        self._end_offset = end_offset
        self._followers: dict[int, _Follower] = {}  # by link number
        self._snapshot: tuple[bytes, int] | None = None  # the latest, and its offset
        links.handle(messages.METADATA, self._received)
        links.add_listener(lambda _: None, self._disconnected)
        log.on_commit(self._committed)

    def offsets(self) -> dict[int, int]:
        """Node id -> offset of the last record sent to it."""
        return {follower.peer.node_id: follower.offset for follower in self._followers.values()}

    def _disconnected(self, peer: Peer) -> None:
        self._followers.pop(peer.number, None)
        if not self._followers:
            self._snapshot = None

    def _received(self, peer: Peer, payload: bytes) -> None:
        message = decode_metadata(payload)
        follower = self._followers.get(peer.number)
        if isinstance(message, Subscribe):
            follower = _Follower(peer, message.subscription, message.offset)
            self._followers[peer.number] = follower
            self._push(follower)
        elif follower is None or message.subscription != follower.subscription:
            return
        elif isinstance(message, Acknowledge):
            follower.taken = min(message.total, follower.sent)
            self._push(follower)
        elif isinstance(message, Unsubscribe):
            del self._followers[peer.number]

    def _committed(self) -> None:
        for follower in list(self._followers.values()):
            self._push(follower)

    def _push(self, follower: _Follower) -> None:
        """Send what the window allows."""
        if not self._has_begun():
            return
        while follower.peer.is_open and follower.sent - follower.taken < METADATA_WINDOW_BYTES:
            if follower.snapshot is not None:
                self._push_snapshot(follower)
                continue
            groups = self._log.read_committed(follower.offset, METADATA_PIECE_BYTES)
            if groups is None:
                follower.snapshot, follower.offset = self._shared_snapshot()
                follower.position = 0
                continue
            end_offset = self._end_offset()
            if not groups and follower.end_sent == end_offset:
                return
            cost = sum(_RECORD_COST + len(record) for group in groups for record in group.records)
            message = Groups(
                follower.subscription,
                follower.offset + 1,
                [list(group.records) for group in groups],
                end_offset,
                cost,
            )
            if not follower.peer.send(messages.METADATA, encode(message)):
                follower.peer.connection.abort(BufferError("it does not read the metadata"))
                return
            follower.end_sent = end_offset
            follower.sent += cost
            follower.offset += sum(len(group.records) for group in groups)

    def _push_snapshot(self, follower: _Follower) -> None:
        content = follower.snapshot
        assert content is not None
        data = content[follower.position : follower.position + METADATA_PIECE_BYTES]
        part = SnapshotPart(follower.subscription, follower.position, len(content), data)
        if not follower.peer.send(messages.METADATA, encode(part)):
            follower.peer.connection.abort(BufferError("it does not read a snapshot of the metadata"))
            return
        follower.sent += len(data)
        follower.position += len(data)
        if follower.position == len(content):
            follower.snapshot = None

    def _shared_snapshot(self) -> tuple[bytes, int]:
        """A snapshot and its offset: one for all followers that need it at about the same time."""
        kept = self._snapshot
        if kept is None or self._log.read_committed(kept[1], 1) is None:
            records, offset = self._log.read_snapshot()
            kept = self._snapshot = encode_snapshot(Snapshot(0, offset, records)), offset
        return kept
