"""What the balancer plans: moves of partitions, and how far brokers are from the average."""

from __future__ import annotations

import json
from typing import Final, TypeAlias

import msgspec

Key: TypeAlias = tuple[bytes, int]  # a partition: topic id, index

GOALS: Final = ("bytes_in", "bytes_out", "replicas")
GONE: Final = "gone"  # Move.reason: the broker is gone


class Move(msgspec.Struct, frozen=True):
    """A partition's replicas, in order of preference and without observers, before and after. `leader`: before. `size`: bytes to copy,
    0 where only the leader changes, to the first replica. `reason`: the goal, or gone, drain, slow, racks or disk."""

    topic: str
    topic_id: bytes
    partition: int
    current: list[int]
    target: list[int]
    leader: int
    size: int
    reason: str

    @property
    def key(self) -> Key:
        return self.topic_id, self.partition

    @property
    def copies(self) -> bool:
        """Whether a replica moves, and not only the leader."""
        return set(self.current) != set(self.target)


Group: TypeAlias = tuple[Move, ...]


class Plan(msgspec.Struct, frozen=True):
    """Moves in the order in which they are made. `groups`: those that begin together, one move or the two of a swap. `imbalance`,
    `imbalance_after`: for each of GOALS the largest difference of a broker from the average, as a part of it: 0.1 is a tenth.
    `unregistered`: brokers that are not registered, and have replicas nevertheless."""

    groups: list[Group]
    imbalance: tuple[float, float, float] = (0.0, 0.0, 0.0)
    imbalance_after: tuple[float, float, float] = (0.0, 0.0, 0.0)
    unregistered: frozenset[int] = frozenset()

    @property
    def moves(self) -> list[Move]:
        return [move for group in self.groups for move in group]

    @property
    def size(self) -> int:
        """Bytes to copy."""
        return sum(move.size for move in self.moves)

    def reassignment(self) -> str:
        """The JSON that kafka-reassign-partitions.sh --execute reads."""
        partitions = [
            {"topic": move.topic, "partition": move.partition, "replicas": move.target} for move in self.moves
        ]
        return json.dumps({"version": 1, "partitions": partitions})

    def table(self) -> str:
        """The moves and what they change, for the log."""
        rows = [("partition", "replicas", "become", "bytes to copy", "for")]
        rows += [
            (
                f"{each.topic}-{each.partition}",
                str(each.current),
                str(each.target),
                str(each.size),
                each.reason if len(group) == 1 else f"{each.reason} (swap)",
            )
            for group in self.groups
            for each in group
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        goals = zip(GOALS, self.imbalance, self.imbalance_after, strict=True)
        lines += [f"{name}: {before:.1%} from the average, then {after:.1%}" for name, before, after in goals]
        return "\n".join(lines)
