"""The compression types of record batches, and the errors of their codecs (codecs.py)."""

from __future__ import annotations

from enum import IntEnum

Bytes = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Compression types as they stand in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES = {codec.name.lower(): codec for codec in Codec}


class CompressionError(ValueError):
    """The bytes are no whole stream of that codec, or they hold more than the limit."""


class ResultTooLarge(CompressionError):
    """They hold more than the limit."""
