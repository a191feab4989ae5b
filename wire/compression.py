"""The five codecs of record batches, each in the framing that Kafka's Java client writes and reads.

gzip is RFC 1952, zstd is RFC 8878, lz4 is the LZ4 frame format with independent blocks (Kafka's Java reader
refuses linked ones), snappy is the block framing of xerial's snappy-java, which librdkafka also speaks; a
bare snappy block is accepted on read, because some clients send it.

Decompression is bounded: `limit` is the largest result in bytes, and no result buffer is larger. A result that does not
fit into a small buffer goes to an anonymous mapping of `limit` bytes, of which the system provides the pages that the codec
writes: a result costs its own size once, whatever the input claims, and no thread holds the interpreter while it clears or
copies it. (cramjam's decoders have no input or output in pieces, and release the interpreter while they decode.)

The codecs themselves (codecs.py) are loaded for the first batch that is compressed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

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


def compress(codec: Codec, data: Bytes | mmap) -> bytes:
    """`data` as one stream of `codec`, at the codec's usual level."""
    if codec == Codec.NONE:
        return bytes(data)
    from barnabas.wire.codecs import encode

    return encode(codec, data)


def decompress(codec: int, data: Bytes, limit: int) -> bytes | mmap:
    """What `data` holds, at most `limit` bytes; CompressionError when it is damaged, longer or unknown.

    A large result is a mapping, which is read as bytes are: indexes give integers, slices are bytes.
    """
    if codec == Codec.NONE:
        if len(data) > limit:
            raise ResultTooLarge(f"{len(data)} bytes are more than the limit of {limit}")
        return bytes(data)
    from barnabas.wire.codecs import decode

    return decode(codec, data, limit)
