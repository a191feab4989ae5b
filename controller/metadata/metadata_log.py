"""The interface of the metadata log, which keeps the controller's records in one order.

A single node keeps them in a local journal (local_log.py). In a cluster a Raft engine stands behind the same
interface: proposals are ordered by the leader, every node applies what has been committed, and the term is
the controller's epoch.

Rules of the interface, all on the loop's thread:
- A group of records is applied whole, in the order of proposal, once it can't be lost any more.
- `apply` runs on every node; `done` only where the group was proposed, after `apply` of the same group.
- A node that has fallen far behind gets a snapshot: `replace` with the records that lead to the state after the
  record of the given offset; what it had applied before counts no more.
- `done` is called exactly once for each proposal, with None or with what went wrong. After an error the
  group has not been applied here; whether it is lost for good is known for the local journal only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Apply = Callable[[Sequence[bytes]], None]
Replace = Callable[[Sequence[bytes], int], None]
Done = Callable[[Exception | None], None]


class MetadataLog(Protocol):
    """Keeps groups of encoded metadata records (records.py) in one order."""

    @property
    def is_leader(self) -> bool:
        """Whether proposals made here can be committed: this node leads, and has applied all that its predecessors
        have committed."""
        ...

    @property
    def term(self) -> int:
        """The controller's epoch; grows with every change of leadership."""
        ...

    def open(self, apply: Apply, snapshot: Callable[[], list[bytes]], replace: Replace) -> int:
        """Apply everything known to be committed; blocking. Returns the offset of the last record, -1 for none.

        `snapshot` gives, whenever it is called, the records that lead to the state of everything applied.
        Raises MetadataError when the kept records can't be read.
        """
        ...

    def serve(self) -> None:
        """End of starting: until now a local proposal was committed before `propose` returned, because no
        loop runs yet; from now on committing happens off the loop."""
        ...

    def propose(self, records: Sequence[bytes], done: Done) -> None:
        """Where this node does not lead, or has ceased to: `done(NotController)`."""
        ...

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """Call back with (is_leader, term) when leadership changes."""
        ...

    def close(self) -> None:
        """No more proposals; those in flight end with an error or are committed."""
        ...
