"""Bounds what the groups of a broker hold in memory for their members. Kafka has none of these bounds but group.max.size.

A member's bytes are what it said of itself: protocols with their metadata, names, and what an object costs. A group whose
members say more than max.message.bytes of __consumer_offsets can't complete a generation, so that honest ones stay far
below. An id that was given out with MEMBER_ID_REQUIRED is forgotten early when too many are; its client, told
UNKNOWN_MEMBER_ID, asks for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PENDING_JOINS_MAX: Final = 10_000  # of the broker
MEMBER_BYTES_OF_GROUP_MAX: Final = 16 * 1024 * 1024
MEMBER_BYTES_MAX: Final = 256 * 1024 * 1024  # of the broker
MEMBER_OVERHEAD_BYTES: Final = 1000
PROTOCOL_OVERHEAD_BYTES: Final = 200


class GroupUsage:
    """Shared by all groups of a broker."""

    def __init__(self) -> None:
        self.member_bytes = 0
        self._pending_joins: dict[str, Callable[[], object]] = {}  # the oldest first

    def add_pending_join(self, member_id: str, forget: Callable[[], object]) -> None:
        """An id was given out; `forget()` once another needs its place, unless `remove_pending_join` comes first."""
        if len(self._pending_joins) >= PENDING_JOINS_MAX:
            self._pending_joins.pop(next(iter(self._pending_joins)))()
        self._pending_joins[member_id] = forget

    def remove_pending_join(self, member_id: str) -> None:
        self._pending_joins.pop(member_id, None)
