"""Cases: the bytes that hostile clients send, and their pace."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum


class Pace(Enum):
    """Pace of the pieces of a case."""

    ONE_WRITE = "in one write"
    ONE_BY_ONE = "each after the answer to the one before"
    SILENT = "in one write, and the connection stays open"


@dataclass
class Case:
    """Pieces that one client sends on one connection. `cases.py` sets `name` (the kind and its number) and `port`."""

    pieces: list[bytes]  # frames with their sizes, or any bytes
    pace: Pace = Pace.ONE_WRITE
    name: str = ""  # argument of the command line
    port: str = ""  # name of the port that gets the pieces
    story: list[str] = field(default_factory=list)
    # an ordinary connection sends these first and awaits the answers: data for the pieces to request
    prepared: list[bytes] = field(default_factory=list)
    connections: int = 1  # number of connections that send the pieces at the same time

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    def hex(self, limit: int = 2000) -> str:
        """The pieces, one per line, shortened."""
        lines = [piece.hex() for piece in self.pieces]
        return "\n".join(
            line if len(line) <= limit else f"{line[:limit]}... ({len(line) // 2} bytes)" for line in lines
        )


def framed(payload: bytes) -> bytes:
    """A request with its size in front."""
    return struct.pack(">i", len(payload)) + payload
