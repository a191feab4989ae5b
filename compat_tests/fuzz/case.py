"""Cases: what hostile clients send, and how."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum


class Pace(Enum):
    """How the pieces of a case are sent."""

    ONE_WRITE = "in one write"
    ONE_BY_ONE = "each after the answer to the one before"
    SILENT = "in one write, and the connection stays"


@dataclass
class Case:
    """What one client sends on one connection. `name` and `port` are set by `cases.py`: the kind, with its number."""

    pieces: list[bytes]  # frames, with their sizes, or any bytes
    pace: Pace = Pace.ONE_WRITE
    name: str = ""  # as the command line takes it
    port: str = ""  # what it is sent to
    story: list[str] = field(default_factory=list)
    # produced before by an honest connection, and waited for: what the pieces then ask for
    prepared: list[bytes] = field(default_factory=list)
    connections: int = 1  # that send the pieces at the same time

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    def hex(self, limit: int = 2000) -> str:
        """The pieces, a line each, cut."""
        lines = [piece.hex() for piece in self.pieces]
        return "\n".join(
            line if len(line) <= limit else f"{line[:limit]}... ({len(line) // 2} bytes)" for line in lines
        )


def framed(payload: bytes) -> bytes:
    """A request behind its size."""
    return struct.pack(">i", len(payload)) + payload
