"""Buffers of unfinished frames: what they hold, and how much memory they take."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.frame import SIZE_BYTES, FrameBuffer


def buffer(received: bytes, *, is_exact: bool = False) -> FrameBuffer:
    return FrameBuffer(memoryview(received), is_exact=is_exact)


def held(each: FrameBuffer) -> bytes:
    return bytes(each.data[: each.filled])


def receive(each: FrameBuffer, data: bytes) -> int:
    """As many of the bytes as there is room for."""
    room = each.room()
    count = min(len(room), len(data))
    room[:count] = data[:count]
    each.filled += count
    return count


@pytest.mark.parametrize(
    ("received", "frame_bytes", "api_key"),
    [
        (b"", SIZE_BYTES, None),
        (b"\0\0\0", SIZE_BYTES, None),
        (struct.pack(">i", 10), 14, None),
        (struct.pack(">i", 10) + b"\0", 14, None),
        (struct.pack(">ih", 10, 18), 14, 18),
        (struct.pack(">ih", -1, 18), SIZE_BYTES, 18),
    ],
)
def test_the_first_frame(received: bytes, frame_bytes: int, api_key: int | None) -> None:
    each = buffer(received)
    assert each.first_frame_bytes() == frame_bytes
    assert each.first_api_key() == api_key


def test_an_exact_buffer_has_no_room_until_it_is_made() -> None:
    each = buffer(struct.pack(">i", 100), is_exact=True)
    assert each.is_full
    assert len(each.room()) == 0
    each.make_room()
    assert len(each.room()) >= 100
    assert held(each) == struct.pack(">i", 100)


def test_room_for_more_than_one_frame_is_reserved() -> None:
    each = buffer(struct.pack(">i", 4) + b"abcd")
    each.reserve(10_000)
    assert len(each.room()) == 10_000
    assert held(each) == struct.pack(">i", 4) + b"abcd"
    size = len(each.data)
    each.reserve(100)
    assert len(each.data) == size


def test_a_claimed_size_allocates_nothing() -> None:
    each = buffer(struct.pack(">i", 2**31 - 1))
    assert len(each.data) <= 64 * 1024
    while len(each.data) < 2**20:
        before = each.filled
        receive(each, bytes(len(each.room())))
        assert each.filled > before
        each.make_room()
        assert len(each.data) <= 2 * each.filled + 4096


@given(st.binary(max_size=300), st.lists(st.integers(0, 50)))
def test_consumed_bytes_are_forgotten_and_the_rest_is_kept(received: bytes, counts: list[int]) -> None:
    each = buffer(received)
    for count in counts:
        count = min(count, each.filled)
        each.consume(count)
        received = received[count:]
        assert held(each) == received


@given(st.integers(0, 300_000), st.lists(st.integers(1, 100_000), min_size=1))
def test_a_frame_arrives_whole_whatever_the_pieces(size: int, pieces: list[int]) -> None:
    frame = struct.pack(">i", size) + bytes(size)
    each = buffer(frame[:3])
    rest = frame[3:]
    turn = 0
    while rest:
        each.make_room()
        count = receive(each, rest[: pieces[turn % len(pieces)]])
        assert count
        rest = rest[count:]
        turn += 1
    assert held(each) == frame
    assert each.first_frame_bytes() == len(frame)
