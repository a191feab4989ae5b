"""The last committed groups of records, for brokers that do not vote and follow the metadata.

They are kept in memory up to a bound; a follower that is further behind starts from a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

GROUPS_BYTES_MAX: Final = 8 << 20
_GROUP_COST: Final = 100  # bytes, beside its records


class CommittedGroup(NamedTuple):
    """Records that are applied together; the first of them has `base_offset`."""

    base_offset: int
    records: Sequence[bytes]


class CommittedGroups:
    """Begins empty after the record `offset`."""

    def __init__(self, offset: int, bytes_max: int = GROUPS_BYTES_MAX) -> None:
        self._groups: deque[CommittedGroup] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max
        self.end_offset = offset + 1

    def append(self, records: Sequence[bytes]) -> None:
        """An empty group is not kept: it only confirms to its proposer that earlier ones are committed."""
        if not records:
            return
        self._groups.append(CommittedGroup(self.end_offset, records))
        self.end_offset += len(records)
        self._bytes += _cost(records)
        while self._bytes > self._bytes_max and len(self._groups) > 1:
            self._bytes -= _cost(self._groups.popleft().records)

    def restart(self, offset: int) -> None:
        """Begin again after the record `offset`: this node has not seen all groups up to it."""
        self._groups.clear()
        self._bytes = 0
        self.end_offset = offset + 1

    def after(self, offset: int, bytes_max: int = GROUPS_BYTES_MAX) -> list[CommittedGroup] | None:
        """Groups after the record `offset`: at least one if there is any, about `bytes_max` at most. None when the next one is
        no longer kept."""
        if offset + 1 >= self.end_offset:
            return []
        found: deque[CommittedGroup] = deque()
        for group in reversed(self._groups):
            if group.base_offset <= offset:
                break
            found.appendleft(group)
        if not found or found[0].base_offset != offset + 1:
            return None
        return _up_to(found, bytes_max)


def _up_to(groups: deque[CommittedGroup], bytes_max: int) -> list[CommittedGroup]:
    taken: list[CommittedGroup] = []
    size = 0
    for group in groups:
        size += _cost(group.records)
        if taken and size > bytes_max:
            break
        taken.append(group)
    return taken


def _cost(records: Sequence[bytes]) -> int:
    return _GROUP_COST + sum(len(record) for record in records)
