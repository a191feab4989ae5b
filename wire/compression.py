"""The five codecs of record batches, each in the framing that Kafka's Java client writes and reads.

gzip is RFC 1952, zstd is RFC 8878, lz4 is the LZ4 frame format with independent blocks (Kafka's Java reader
refuses linked ones), snappy is the block framing of xerial's snappy-java, which librdkafka also speaks; a
bare snappy block is accepted on read, because some clients send it.

Decompression is bounded: `limit` is the largest result in bytes, and no result buffer grows beyond it. The
buffer starts at a guess and grows fourfold while the codec says that it is too small, so a small input that
claims a huge size costs no more than the limit, whatever it claims.

The codecs themselves (codecs.py) are loaded for the first batch that is compressed.
"""

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


def compress(codec: Codec, data: Bytes) -> bytes:
    """`data` as one stream of `codec`, at the codec's usual level."""
    if codec == Codec.NONE:
        return bytes(data)
    from barnabas.wire.codecs import encode

    return encode(codec, data)


def decompress(codec: int, data: Bytes, limit: int) -> bytes:
    """What `data` holds, at most `limit` bytes; CompressionError when it is damaged, longer or unknown."""
    if codec == Codec.NONE:
        if len(data) > limit:
            raise CompressionError(f"{len(data)} bytes are more than the limit of {limit}")
        return bytes(data)
    from barnabas.wire.codecs import decode

    return decode(codec, data, limit)
