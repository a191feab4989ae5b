"""Frames: length u32 of the rest | kind u8 | payload | seal. In both directions a connection begins with eight bytes that no
other protocol begins with.

Memory grows only with bytes received. A length above the bound ends the connection at once; the bound is small until the peer is
authenticated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from barnabas.controller.link.auth import SEAL_BYTES, Seal
from barnabas.controller.link.messages import KINDS, MalformedMessage

PREFACE: Final = b"BARNLINK"
HANDSHAKE_BYTES_MAX: Final = 64 * 1024  # of a frame, until the link is open
FRAME_BYTES_MAX: Final = 32 * 1024 * 1024  # of a frame on an open link
PAYLOAD_BYTES_MAX: Final = FRAME_BYTES_MAX - 1 - SEAL_BYTES

_HEADER: Final = struct.Struct(">IB")
_LENGTH_BYTES: Final = 4


class ForgedFrame(MalformedMessage):
    """A frame whose seal does not verify: another secret, or a changed or injected frame."""


def encode_frame(kind: int, payload: bytes, seal: Seal | None) -> bytes:
    if seal is None:
        return _HEADER.pack(1 + len(payload), kind) + payload
    head = _HEADER.pack(1 + len(payload) + SEAL_BYTES, kind)
    return head + payload + seal.next(head, payload)


class FrameReader:
    """Splits received bytes into frames.

    `seal` and `bytes_max` may be set between two frames. After `stop` there are no more frames.
    """

    def __init__(self) -> None:
        self.seal: Seal | None = None
        self.bytes_max = HANDSHAKE_BYTES_MAX
        self.first_bytes = b""  # of the connection; they show which protocol a wrong caller speaks
        self._begun = False  # the preface has been read
        self._stopped = False
        self._buffer = bytearray()
        self._needed = 0  # bytes without which there is no next frame

    def stop(self) -> None:
        self._stopped = True
        self._buffer = bytearray()

    @property
    def received(self) -> bytes:
        """Bytes that belong to no frame yet."""
        return bytes(self._buffer)

    def read(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[int, bytes]]:
        """(kind, payload) of every frame that `data` completes. MalformedMessage when the bytes are no frames, a frame is too
        large, or its seal is wrong."""
        if self._stopped:
            return
        buffer = self._buffer
        buffer += data
        if len(buffer) < self._needed or not (self._begun or self._begin()):
            return
        position, end = 0, len(buffer)
        while True:
            self._needed = _LENGTH_BYTES
            if end - position < self._needed:
                break
            length = int.from_bytes(buffer[position : position + _LENGTH_BYTES], "big")
            length_min = 1 if self.seal is None else 1 + SEAL_BYTES
            if not length_min <= length <= self.bytes_max:
                raise MalformedMessage(
                    f"a frame of {length} bytes, where {length_min} to {self.bytes_max} are allowed"
                )
            self._needed = _LENGTH_BYTES + length
            if end - position < self._needed:
                break
            frame = bytes(buffer[position : position + self._needed])
            position += self._needed
            yield self._opened(frame)
            if self._stopped:
                return
        del buffer[:position]

    def _begin(self) -> bool:
        """Whether the preface is complete."""
        buffer = self._buffer
        self.first_bytes = bytes(buffer[:64])
        if not PREFACE.startswith(buffer[: len(PREFACE)]):
            raise MalformedMessage("it does not begin as a link does")
        if len(buffer) < len(PREFACE):
            return False
        del buffer[: len(PREFACE)]
        self._begun = True
        return True

    def _opened(self, frame: bytes) -> tuple[int, bytes]:
        kind = frame[_LENGTH_BYTES]
        if self.seal is None:
            payload = frame[_HEADER.size :]
        else:
            payload = frame[_HEADER.size : -SEAL_BYTES]
            if not self.seal.verify(frame[: _HEADER.size], payload, frame[-SEAL_BYTES:]):
                raise ForgedFrame("a frame's seal is wrong")
        if kind not in KINDS:
            raise MalformedMessage(f"a frame of unknown kind {kind}")
        return kind, payload
