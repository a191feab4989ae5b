"""Codecs: round trips, streams of other writers, and bombs."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import cramjam
import pytest
from barnabas.wire.compression import CODEC_NAMES, Codec, CompressionError, compress, decompress
from hypothesis import given, settings
from hypothesis import strategies as st

PACKED = [codec for codec in Codec if codec != Codec.NONE]


def test_names_are_kafkas() -> None:
    assert CODEC_NAMES == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=5000), repeat=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_round_trip(codec: Codec, data: bytes, repeat: int) -> None:
    data *= repeat
    packed = compress(codec, memoryview(data))
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(packed), len(data) + 7) == data
    if data:
        with pytest.raises(CompressionError):
            decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=300), flip=st.integers(0), cut=st.integers(0))
@settings(max_examples=150, deadline=None)
def test_damage_gives_only_the_modules_error(codec: Codec, data: bytes, flip: int, cut: int) -> None:
    packed = bytearray(compress(codec, data))
    packed[flip // 8 % len(packed)] ^= 1 << flip % 8
    for damaged in (bytes(packed), bytes(packed)[: cut % len(packed)], data):
        try:
            assert len(decompress(codec, damaged, 1000)) <= 1000
        except CompressionError:
            pass


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_costs_no_more_than_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(CompressionError):
        decompress(codec, bomb, 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (1 << 20) + len(bomb) + 100_000


def test_a_zstd_frame_that_claims_a_huge_window_is_refused() -> None:
    frame = struct.pack("<IBB", 0xFD2FB528, 0, (31 - 10) << 3) + bytes(20)
    with pytest.raises(CompressionError, match="window"):
        decompress(Codec.ZSTD, frame, 1 << 20)


def test_a_snappy_block_that_claims_more_than_it_can_hold_is_refused() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + b"abc"
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, claim, 1 << 40)


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 5])
def test_xerial_block_lengths_are_checked(length: int) -> None:
    packed = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, length) + b"abc"
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, packed, 1000)


def test_streams_of_other_writers() -> None:
    data = b"a castle has many rooms " * 400
    assert decompress(Codec.GZIP, gzip.compress(data[:100]) + gzip.compress(data[100:]), 10_000) == data
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), 10_000) == data
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(data)), 10_000) == data  # linked blocks


def test_lz4_blocks_are_independent() -> None:
    """Kafka's Java reader refuses frames with linked blocks, checksums of unknown kind and versions."""
    magic, flags = struct.unpack_from("<IB", compress(Codec.LZ4, bytes(200_000)))
    assert magic == 0x184D2204
    assert flags == 0b01_1_0_0_0_0_0


def test_unknown_codecs() -> None:
    for codec in (5, 6, 7, -1):
        with pytest.raises(CompressionError):
            decompress(codec, b"abc", 100)
