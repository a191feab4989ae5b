"""A frame log: what was synced is read again, a torn end is cut off, damage before it is noticed."""

from __future__ import annotations

import errno

import pytest

from barnabas.storage.frame_log import FrameFormat, FrameLog, FrameLogDamaged, encode_frame, read_frames
from barnabas.testing.memory_disk import MemoryDisk

HEADER = b"HEADER"
PATH = "/d/log"
FORMATS = (FrameFormat(len(HEADER)), FrameFormat(len(HEADER), length_counts_number=True))
PAYLOADS = [b"", b"one", b"two" * 40, b"three"]


def begun(disk: MemoryDisk, file_format: FrameFormat = FORMATS[0]) -> FrameLog:
    disk.make_directory("/d", parents=True)
    log = FrameLog(disk, PATH, file_format)
    log.replace(HEADER)
    return log


def found(disk: MemoryDisk, file_format: FrameFormat = FORMATS[0]) -> list[tuple[int, bytes]]:
    content = read_frames(disk.read_file(PATH), file_format, None)
    return [(frame.number, frame.payload) for frame in content.frames]


@pytest.mark.parametrize("file_format", FORMATS)
def test_frames_are_numbered_and_read_again(file_format: FrameFormat) -> None:
    disk = MemoryDisk()
    log = begun(disk, file_format)
    for payload in PAYLOADS:
        log.append(payload)
    assert found(disk.crash(lambda _: 0), file_format) == list(enumerate(PAYLOADS))
    assert log.size == disk.size(PATH)
    log.replace(HEADER, b"anew")
    log.append(b"behind it")
    assert found(disk.crash(lambda _: 0), file_format) == [(4, b"anew"), (5, b"behind it")]


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_torn_end_is_cut_off_when_the_log_is_opened(file_format: FrameFormat) -> None:
    disk = MemoryDisk()
    log = begun(disk, file_format)
    ends = [log.size]
    for payload in PAYLOADS:
        log.append(payload)
        ends.append(log.size)
    whole = disk.read_file(PATH)
    for length in range(len(HEADER), len(whole) + 1):
        disk.write_file(PATH, whole[:length])
        content = read_frames(whole[:length], file_format, 0)
        count = sum(end <= length for end in ends) - 1
        assert [frame.payload for frame in content.frames] == PAYLOADS[:count]
        again = FrameLog(disk, PATH, file_format)
        again.open(content.end, count)
        again.append(b"next")
        assert found(disk, file_format) == list(enumerate([*PAYLOADS[:count], b"next"]))


@pytest.mark.parametrize("file_format", FORMATS)
def test_damage_before_a_whole_frame_is_noticed(file_format: FrameFormat) -> None:
    disk = MemoryDisk()
    log = begun(disk, file_format)
    log.append(b"first")
    last_begins = log.size
    log.append(b"last")
    whole = disk.read_file(PATH)
    for position in range(len(HEADER), len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        if position < last_begins:
            with pytest.raises(FrameLogDamaged) as raised:
                read_frames(bytes(damaged), file_format, 0)
            assert (raised.value.position, raised.value.following) == (len(HEADER), last_begins)
        else:
            assert [frame.payload for frame in read_frames(bytes(damaged), file_format, 0).frames] == [
                b"first"
            ]


def test_the_first_frame_has_the_number_that_is_expected() -> None:
    content = HEADER + encode_frame(7, b"seven", FORMATS[0])
    assert [frame.number for frame in read_frames(content, FORMATS[0], None).frames] == [7]
    assert read_frames(content, FORMATS[0], 8).frames == []


def test_a_write_that_fails_is_taken_back() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    log.append(b"one")
    disk.capacity = disk.size(PATH) + 5
    with pytest.raises(OSError, match="No space left"):
        log.append(b"two")
    disk.capacity = None
    assert log.failure is None
    log.append(b"three")
    assert found(disk) == [(0, b"one"), (1, b"three")]


@pytest.mark.parametrize("operation", ["sync", "truncate"])
def test_after_a_failure_that_leaves_the_content_unknown_only_a_new_file_helps(operation: str) -> None:
    disk = MemoryDisk()
    log = begun(disk)
    log.append(b"one")
    disk.fault = lambda what, _: (
        errno.EIO if what in (operation, "write" * (operation == "truncate")) else None
    )
    with pytest.raises(OSError, match="Input/output error"):
        log.append(b"two")
    disk.fault = None
    with pytest.raises(OSError, match="Input/output error"):
        log.append(b"three")
    log.replace(HEADER, b"all")
    log.append(b"four")
    assert found(disk) == [(1, b"all"), (2, b"four")]


def test_a_replacement_that_fails_leaves_the_old_file_in_use() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    log.append(b"one")
    disk.fault = lambda what, _: errno.EIO if what == "rename" else None
    with pytest.raises(OSError, match="Input/output error"):
        log.replace(HEADER, b"anew")
    disk.fault = None
    log.append(b"two")
    assert found(disk) == [(0, b"one"), (1, b"two")]


def test_nothing_is_appended_to_a_file_that_has_lost_its_name() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    log.append(b"one")
    disk.fault = lambda what, path: errno.EMFILE if what == "open" and path == PATH else None
    with pytest.raises(OSError, match="Too many open files"):
        log.replace(HEADER, b"anew")
    disk.fault = None
    with pytest.raises(OSError, match="Too many open files"):
        log.append(b"lost")
