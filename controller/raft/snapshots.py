"""Snapshots for the library: taken, written, sent to a follower in chunks, received in chunks.

In place of pysyncobj's Serializer, which forks, pickles and writes files by itself. The records of a snapshot are collected on the
loop, at one entry of the log; a thread writes them (files.py). The journal keeps some entries from before the snapshot, so a
follower that is a little behind does not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pysyncobj.config import SERIALIZER_STATE

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.files import Snapshot, decode_snapshot
from barnabas.controller.raft.journal import LibraryEntry, RaftJournal, from_library, to_library
from barnabas.controller.raft.messages import Entry, SnapshotChunk

CHUNK_BYTES: Final = 1 << 20
KEPT_ENTRIES: Final = 2000
SNAPSHOT_BYTES_MAX: Final = 1 << 30  # of a snapshot from a peer


class Outgoing(NamedTuple):
    """A chunk to send; the library reads `is_last`, by its position in the tuple."""

    chunk: SnapshotChunk
    is_first: bool
    is_last: bool


class _Incoming(NamedTuple):
    """Pieces of one snapshot from one connection, by position."""

    key: tuple[int, int, int, int, int]
    pieces: dict[int, bytes]


class RaftSnapshots:
    """Implements what SyncObj calls on pysyncobj.serializer.Serializer."""

    def __init__(
        self,
        journal: RaftJournal,
        snapshot: Snapshot,
        encoded: bytes,
        take: Callable[[Entry, Entry], Snapshot],
        kept_bytes: int,
    ) -> None:
        """`take(previous, last)` returns the current metadata, directly after the entry `last`. Entries of about `kept_bytes`
        from before a snapshot stay in the journal."""
        self._journal = journal
        self._take = take
        self._kept_bytes = kept_bytes
        self._last, self._encoded = snapshot.last, encoded
        self._writing: Snapshot | None = None
        self._written = False
        self._transfers: dict[int, tuple[Entry, bytes, int]] = {}  # node id -> (last, file, bytes sent)
        self._incoming: _Incoming | None = None
        self._installed: Snapshot | None = None

    @property
    def size(self) -> int:
        """Bytes of the snapshot on disk."""
        return len(self._encoded)

    @property
    def is_writing(self) -> bool:
        return self._writing is not None

    @property
    def index(self) -> int:
        """The last entry that the snapshot on disk covers."""
        return self._last.index

    # The library's side

    def serialize(self, data: tuple[object, LibraryEntry, LibraryEntry, object], id_: int) -> None:  # noqa: ARG002
        if self._writing is not None:
            return
        _, last, previous, _ = data
        snapshot = self._take(from_library(previous), from_library(last))
        self._writing, self._written = snapshot, False
        self._journal.keep_snapshot(snapshot)

    def checkSerializing(self) -> tuple[int, int | None]:  # noqa: N802 - the library's name
        if self._writing is None:
            return SERIALIZER_STATE.NOT_SERIALIZING, None
        if not self._written:
            return SERIALIZER_STATE.SERIALIZING, None
        last, self._writing = self._writing.last, None
        return SERIALIZER_STATE.SUCCESS, self._first_to_keep(last.index)

    def getTransmissionData(self, node: object) -> Outgoing:  # noqa: N802
        """The next chunk for this node; after the last one, the first again."""
        node_id: int = getattr(node, "id")  # noqa: B009 - the library's Node has no types
        last, encoded, position = self._transfers.get(node_id, (self._last, self._encoded, 0))
        data = encoded[position : position + CHUNK_BYTES]
        chunk = SnapshotChunk(0, last.index, last.term, position, len(encoded), data)
        is_last = position + len(data) == len(encoded)
        if is_last:
            self._transfers.pop(node_id, None)
        else:
            self._transfers[node_id] = (last, encoded, position + len(data))
        return Outgoing(chunk, position == 0, is_last)

    def cancelTransmisstion(self, node: object) -> None:  # noqa: N802
        """Nothing: the library calls this also for a node that gets no more in this step. `disconnected` ends a transfer."""

    def setTransmissionData(self, data: Snapshot | None) -> bool:  # noqa: N802
        """The transport collects the chunks, applies the snapshot and passes it as a whole."""
        self._installed = data
        return data is not None

    def deserialize(self) -> tuple[None, LibraryEntry, LibraryEntry, list[object]]:
        assert self._installed is not None
        snapshot, self._installed = self._installed, None
        return None, to_library(snapshot.last), to_library(snapshot.previous), []

    # Our side

    def disconnected(self, node_id: int) -> None:
        self._transfers.pop(node_id, None)

    def written(self, snapshot: Snapshot, encoded: bytes) -> None:
        """The snapshot is on disk."""
        if snapshot.last.index >= self._last.index:
            self._last, self._encoded = snapshot.last, encoded
        if snapshot is self._writing:
            self._written = True

    def collect(self, node_id: int, connection_number: int, chunk: SnapshotChunk) -> Snapshot | None:
        """Add a chunk, in any order; the snapshot when it is complete. A chunk of another snapshot or connection discards the
        earlier ones. MetadataError when the snapshot is damaged."""
        key = (node_id, connection_number, chunk.term, chunk.index, chunk.size)
        if chunk.size > SNAPSHOT_BYTES_MAX:
            raise MetadataError(f"a snapshot of {chunk.size} bytes is refused")
        incoming = self._incoming
        if incoming is None or incoming.key != key:
            incoming = self._incoming = _Incoming(key, {})
        incoming.pieces[chunk.position] = chunk.data
        if sum(len(piece) for piece in incoming.pieces.values()) < chunk.size:
            return None
        self._incoming = None
        pieces = [piece for _, piece in sorted(incoming.pieces.items())]
        snapshot = decode_snapshot(b"".join(pieces), f"the snapshot from node {node_id}")
        if snapshot.last.index != chunk.index or snapshot.last.term != chunk.index_term:
            raise MetadataError(f"the snapshot from node {node_id} is not the one that was announced")
        return snapshot

    def _first_to_keep(self, index: int) -> int:
        """Of the entries that a snapshot up to `index` covers, the first that the journal keeps: two at least."""
        first = index - 1
        size = 0
        while first > self._journal.first_index and index - first < KEPT_ENTRIES:
            entry = self._journal.entry_at(first - 1)
            size += len(entry[0]) if entry is not None else 0
            if size > self._kept_bytes:
                break
            first -= 1
        return first
