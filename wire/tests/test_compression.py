"""Codecs: round trips, streams of other writers, and bombs."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import cramjam
import pytest
import zstandard as zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.wire import codecs
from barnabas.wire.codecs import compress, decompress
from barnabas.wire.compression import CODEC_NAMES, Codec, CompressionError, ResultTooLarge

PACKED = [codec for codec in Codec if codec != Codec.NONE]


def test_names_are_kafkas() -> None:
    assert CODEC_NAMES == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=5000), repeat=st.integers(1, 60))
@settings(max_examples=40)
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


@pytest.mark.parametrize("size", [200, 300, 70_000, 20_000_000])
def test_a_zstd_frame_that_says_that_it_is_too_large_is_not_unpacked(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frame headers hold the size in one, two, four or eight bytes, or not at all."""
    frame = compress(Codec.ZSTD, bytes(size))
    streamed = zstd.ZstdCompressor().compressobj()
    without_size = streamed.compress(bytes(size)) + streamed.flush()
    for whole in (frame, zstd.ZstdCompressor().compress(bytes(size)), without_size):
        assert decompress(Codec.ZSTD, whole, size)[:] == bytes(size)
        with pytest.raises(ResultTooLarge):
            decompress(Codec.ZSTD, whole, size - 1)
    monkeypatch.setattr(codecs, "_decompress", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(ResultTooLarge):
        decompress(Codec.ZSTD, zstd.ZstdCompressor().compress(bytes(size)), size - 1)
    large = struct.pack("<IBBQ", 0xFD2FB528, 0b11_0_0_0_0_00, 0, 1 << 40)
    with pytest.raises(ResultTooLarge):
        decompress(Codec.ZSTD, large, 1 << 30)


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
