"""What has come for a partition that this broker is a replica of and that is about to be opened: it waits until it is
known who leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.nats.core.shadow import Asked


class Coming:
    """Of one partition, in the order in which it came."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, Asked | None]] = []
        self.size = 0

    def take(self, tail: bytes) -> None:
        """A message of which nothing is asked."""
        self.waiting.append((tail, None))
        self.size += len(tail)

    def take_asking(self, tail: bytes, asked: Asked) -> None:
        self.waiting.append((tail, asked))
        self.size += len(tail)
