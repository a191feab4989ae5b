"""A file of numbered frames, each synced before it counts: the journal of a node's metadata.

File:   header | frames
Frame:  length u32 | crc u32 of number and payload | number u64 | payload

Integers are big-endian, checksums CRC-32C. Each frame's number is one above its predecessor's. What the header holds, and
whether `length` counts the number's 8 bytes, is up to the format.

What follows the last whole frame was never synced, so nothing depends on it, and it is cut off. A whole frame with a higher
number behind a damaged one means that synced frames are damaged: reading fails with FrameLogDamaged.
"""

from __future__ import annotations

import os.path
import struct
from typing import Final, NamedTuple

from barnabas.storage.disk.disk import Disk, File, write_rest
from barnabas.wire.checksum import crc32c

_FRAME: Final = struct.Struct(">IIQ")
_LENGTH: Final = struct.Struct(">II")
_NUMBER_AT: Final = _LENGTH.size
_NUMBER_BYTES: Final = _FRAME.size - _NUMBER_AT


class FrameFormat(NamedTuple):
    """`header_bytes`: where the first frame begins. `length_counts_number`: see the module."""

    header_bytes: int
    length_counts_number: bool = False


class Frame(NamedTuple):
    """One frame and its position in the file."""

    number: int
    position: int
    payload: bytes


class FrameLogContent(NamedTuple):
    """The whole frames of a file. `end` is the position behind the last one."""

    frames: list[Frame]
    end: int


class FrameLogDamaged(Exception):
    """Synced frames can't be read. `position`: of the first of them; `following`: of a whole frame behind it."""

    def __init__(self, position: int, following: int) -> None:
        super().__init__(f"damaged at byte {position}, and a whole one follows at byte {following}")
        self.position = position
        self.following = following


def encode_frame(number: int, payload: bytes, file_format: FrameFormat) -> bytes:
    checked = number.to_bytes(_NUMBER_BYTES, "big") + payload
    length = len(checked) if file_format.length_counts_number else len(payload)
    return _LENGTH.pack(length, crc32c(checked)) + checked


def read_frames(content: bytes, file_format: FrameFormat, first_number: int | None) -> FrameLogContent:
    """Every whole frame; `first_number` None: the first may have any. FrameLogDamaged."""
    frames: list[Frame] = []
    position = file_format.header_bytes
    expected = first_number
    while position < len(content):
        end = _frame_end(content, position, expected, file_format)
        if end is None:
            following = _whole_frame_behind(content, position, expected or 0, file_format)
            if following is not None:
                raise FrameLogDamaged(position, following)
            break
        payload_at = position + _FRAME.size
        number = int.from_bytes(content[position + _NUMBER_AT : payload_at], "big")
        frames.append(Frame(number, position, content[payload_at:end]))
        position, expected = end, number + 1
    return FrameLogContent(frames, position)


def _frame_end(content: bytes, position: int, number: int | None, file_format: FrameFormat) -> int | None:
    """Where the frame at `position` ends; None when there is no whole one with this number (None: any)."""
    if position + _FRAME.size > len(content):
        return None
    length, crc, found = _FRAME.unpack_from(content, position)
    payload_bytes = length - _NUMBER_BYTES if file_format.length_counts_number else length
    end = position + _FRAME.size + payload_bytes
    if payload_bytes < 0 or end > len(content) or (number is not None and found != number):
        return None
    if crc32c(memoryview(content)[position + _NUMBER_AT : end]) != crc:
        return None
    return int(end)


def _whole_frame_behind(content: bytes, position: int, number: int, file_format: FrameFormat) -> int | None:
    """The first whole frame behind a damaged one, wherever the damage has left it."""
    number_max = number + (len(content) - position) // _FRAME.size
    for start in range(position + 1, len(content) - _FRAME.size + 1):
        candidate = int.from_bytes(content[start + _NUMBER_AT : start + _FRAME.size], "big")
        if (
            number < candidate <= number_max
            and _frame_end(content, start, candidate, file_format) is not None
        ):
            return start
    return None


class FrameLog:
    """Appends to one file, from one thread at a time. `open` or `replace` comes first.

    `failure` says that the file may differ from what was appended: after a sync that failed the disk's content is unknown.
    Only `replace` makes the log usable again.
    """

    def __init__(self, disk: Disk, path: str, file_format: FrameFormat) -> None:
        self.path = path
        self.size = 0  # bytes that are synced
        self.next_number = 0
        self.failure: OSError | None = None
        self._disk = disk
        self._format = file_format
        self._file: File | None = None

    def open(self, end: int, next_number: int) -> None:
        """Append behind the last whole frame, which ends at `end`; what follows it is cut off. OSError."""
        # The process that made the file may have been killed before it synced the name.
        self._disk.sync_directory(os.path.dirname(self.path))
        file = self._disk.open(self.path, writable=True)
        if file.size() > end:
            file.truncate(end)
            file.sync()
        self._file, self.size, self.next_number = file, end, next_number

    def append(self, payload: bytes) -> None:
        """Blocking: the frame is on disk when this returns. After an OSError it is not in the file, unless `failure` is
        set."""
        if self.failure is not None:
            raise self.failure
        assert self._file is not None
        frame = encode_frame(self.next_number, payload, self._format)
        try:
            write_rest(self._file, frame, 0, self.size)
        except OSError:
            self._cut_off()
            raise
        try:
            self._file.sync()
        except OSError as error:
            self.failure = error
            raise
        self.size += len(frame)
        self.next_number += 1

    def _cut_off(self) -> None:
        """Remove what a failed write has left."""
        assert self._file is not None
        try:
            self._file.truncate(self.size)
        except OSError as error:
            self.failure = error

    def replace(self, header: bytes, payload: bytes | None = None) -> None:
        """Blocking: replace the file, in one step, by a header and at most one frame. After an OSError the log is as it was,
        unless `failure` is set."""
        content = header
        if payload is not None:
            content += encode_frame(self.next_number, payload, self._format)
        try:
            self._disk.write_file(self.path, content, secret=True)
            file = self._disk.open(self.path, writable=True)
        except OSError as error:
            if self._is_replaced_by(content):
                # What is appended to the open file, which has no name any more, would be lost at the next start.
                self.failure = error
            raise
        self._file, self.size, self.failure = file, len(content), None
        if payload is not None:
            self.next_number += 1

    def _is_replaced_by(self, content: bytes) -> bool:
        try:
            return self._disk.read_file(self.path).startswith(content)
        except OSError:
            return True

    def close(self) -> None:
        self._file = None  # which closes it
