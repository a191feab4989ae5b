"""The interface of the metadata log, which orders the controller's records.

A single node has a local journal (local_log.py). In a cluster Raft implements the interface: the leader orders proposals, every
node applies committed groups, and the term is the controller's epoch.

Rules of the interface, all on the loop's thread:
- A group of records is applied as a whole, in the order of proposals, once it is committed.
- `apply` runs on every node; `done` only where the group was proposed, after `apply` of the same group.
- A node that is far behind gets a snapshot: `replace` with records that lead to the state after the record of the given offset.
  They replace everything applied before.
- `done` is called exactly once for each proposal, with None or with the error. After an error the group has not been applied
  here. With the local journal it is lost; with Raft it may still be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Apply = Callable[[Sequence[bytes]], None]
Replace = Callable[[Sequence[bytes], int], None]
Done = Callable[[Exception | None], None]


class MetadataLog(Protocol):
    """Orders and keeps groups of encoded metadata records (records.py)."""

    @property
    def is_leader(self) -> bool:
        """Whether proposals made here can be committed: this node leads, and has applied everything that earlier leaders
        committed."""
        ...

    @property
    def term(self) -> int:
        """The controller's epoch; grows with every change of leadership."""
        ...

    def open(self, apply: Apply, snapshot: Callable[[], list[bytes]], replace: Replace) -> int:
        """Blocking: apply everything known to be committed. Returns the offset of the last record, -1 for none.

        `snapshot()` returns records that lead to the applied state, at any time. MetadataError when the files can't be read.
        """
        ...

    def serve(self) -> None:
        """The loop is about to run: until now a local proposal was committed before `propose` returned; from now on commits
        take place off the loop."""
        ...

    def propose(self, records: Sequence[bytes], done: Done) -> None:
        """`done(NotController)` when this node does not lead."""
        ...

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """Call back with (is_leader, term) when leadership changes."""
        ...

    def close(self) -> None:
        """Accept no more proposals; those in flight fail or are committed."""
        ...
