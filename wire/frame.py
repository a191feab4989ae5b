"""Frames of Kafka's protocol: a size (int32), then a request or a response of so many bytes.

`FrameBuffer` holds what a connection has received and not consumed yet. Its memory grows only with bytes received: a size
that a peer claims allocates nothing.
"""

from __future__ import annotations

import struct
from typing import Final

SIZE_BYTES: Final = 4
_BYTES_MIN: Final = 4096  # of a buffer, and by how much a full one grows at least
_GROWTH_BYTES: Final = 64 * 1024  # up to which a buffer may grow beyond twice what it holds

unpack_size: Final = struct.Struct(">i").unpack_from


class FrameSizeError(Exception):
    """A frame whose size is negative or above the maximum."""

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(f"a frame of {size} bytes, at most {size_max} are allowed")
        self.size = size


class FrameBuffer:
    """Received bytes, the first of which begin a frame."""

    __slots__ = ("data", "filled")

    def __init__(self, received: memoryview, *, is_exact: bool = False) -> None:
        """A copy of `received`, with room for more unless `is_exact`."""
        self.filled = len(received)
        size = self.filled if is_exact else max(_BYTES_MIN, self._next_size(received))
        self.data = memoryview(bytearray(size))
        self.data[: self.filled] = received

    @property
    def is_full(self) -> bool:
        return self.filled == len(self.data)

    def room(self) -> memoryview:
        """Where the next bytes are received; `filled` grows by their number."""
        return self.data[self.filled :]

    def first_frame_bytes(self) -> int:
        """The length of the first frame with its size, as far as it is known; not below SIZE_BYTES."""
        return _frame_bytes(self.data) if self.filled >= SIZE_BYTES else SIZE_BYTES

    def first_api_key(self) -> int | None:
        """The API key of the first frame, a request, once it has been received."""
        return int.from_bytes(self.data[4:6], "big") if self.filled >= 6 else None

    def reserve(self, count: int = _BYTES_MIN) -> None:
        """Have room for `count` more bytes."""
        self._grow(self.filled + count)

    def make_room(self) -> None:
        """Grow, if full, towards the end of the first frame, to at most twice what has been received."""
        if self.is_full:
            self._grow(max(self._next_size(self.data), self.filled + _BYTES_MIN))

    def consume(self, count: int) -> None:
        """Forget the first `count` bytes."""
        left = self.filled - count
        if count and left:
            self.data[:left] = self.data[count : self.filled]
        self.filled = left

    @staticmethod
    def _next_size(held: memoryview) -> int:
        if len(held) < SIZE_BYTES:
            return _BYTES_MIN
        return max(len(held) + 1, min(_frame_bytes(held), max(2 * len(held), _GROWTH_BYTES)))

    def _grow(self, size: int) -> None:
        if size > len(self.data):
            grown = memoryview(bytearray(size))
            grown[: self.filled] = self.data[: self.filled]
            self.data = grown


def _frame_bytes(held: memoryview) -> int:
    size: int = unpack_size(held)[0]
    return SIZE_BYTES + max(0, size)
