"""The five codecs of record batches, each in the framing that Kafka's Java client writes and reads.

gzip is RFC 1952, zstd is RFC 8878, lz4 is the LZ4 frame format with independent blocks (Kafka's Java reader refuses linked
ones), snappy is the block framing of xerial's snappy-java, which librdkafka also speaks; a bare snappy block is accepted on
read, because some clients send it.

Decompression is bounded: `limit` is the largest result in bytes, and no result buffer is larger. A result that does not
fit into a small buffer goes to an anonymous mapping of `limit` bytes, of which the system provides the pages that the codec
writes: a result costs its own size once, whatever the input claims, and no thread holds the interpreter while it clears or
copies it. (cramjam's decoders have no input or output in pieces, and release the interpreter while they decode.)

A broker loads this module, and cramjam, for the first compressed batch (records.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import cramjam

from barnabas.wire.compression import Bytes, Codec, CompressionError, ResultTooLarge


def compress(codec: Codec, data: Bytes | mmap) -> bytes:
    """`data` as one stream of `codec`, at the codec's usual level."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == Codec.SNAPPY:
        return _snappy_compress(memoryview(data))
    if codec == Codec.LZ4:
        return _lz4_compress(memoryview(data))
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise CompressionError(f"unknown compression codec {codec}")


def decompress(codec: int, data: Bytes, limit: int) -> bytes | mmap:
    """What `data` holds, at most `limit` bytes; CompressionError when it is damaged, longer or unknown.

    A large result is a mapping, which is read as bytes are: indexes give integers, slices are bytes.
    """
    if codec == Codec.NONE:
        if len(data) > limit:
            raise ResultTooLarge(f"{len(data)} bytes are more than the limit of {limit}")
        return bytes(data)
    if codec == Codec.GZIP:
        return _decompress(cramjam.gzip.decompress_into, data, limit)
    if codec == Codec.SNAPPY:
        return _snappy_decompress(memoryview(data), limit)
    if codec == Codec.LZ4:
        return _decompress(cramjam.lz4.decompress_into, data, limit)
    if codec == Codec.ZSTD:
        _check_zstd_header(data, limit)
        return _decompress(cramjam.zstd.decompress_into, data, limit)
    raise CompressionError(f"unknown compression codec {codec}")


_SMALL_RESULT = 1 << 17  # larger ones are mapped
_TOO_SMALL = "failed to write whole buffer"


def _decompress(
    decompress_into: Callable[[Bytes, bytearray | mmap], int], data: Bytes, limit: int
) -> bytes | mmap:
    size = min(limit, _SMALL_RESULT)
    if 4 * len(data) <= size or size == limit:
        small = bytearray(size)
        try:
            return bytes(memoryview(small)[: decompress_into(data, small)])
        except cramjam.DecompressionError as error:
            _refuse_unless_too_small(error, size, limit)
    mapped = _map(limit)
    try:
        written = decompress_into(data, mapped)
    except cramjam.DecompressionError as error:
        mapped.close()
        _refuse_unless_too_small(error, limit, limit)
        raise
    return _cut(mapped, written)


def _refuse_unless_too_small(error: Exception, size: int, limit: int) -> None:
    """CompressionError, unless a larger buffer may help."""
    if _TOO_SMALL not in str(error):
        raise CompressionError(str(error)) from None
    if size >= limit:
        raise ResultTooLarge(f"more than the limit of {limit} bytes") from None


def _map(size: int) -> mmap:
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)


def _cut(mapped: mmap, size: int) -> bytes | mmap:
    """The first `size` bytes; as bytes, where they are few or the system has no mremap."""
    if size > _SMALL_RESULT:
        try:
            mapped.resize(size)
        except SystemError:
            pass
        else:
            return mapped
    result = mapped[:size]
    mapped.close()
    return result


_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_WINDOW_ALWAYS_ALLOWED = 8 << 20  # every decoder must support 8 MiB (RFC 8878, 3.1.1.1.2)


def _check_zstd_header(data: Bytes, limit: int) -> None:
    """Refuse a frame that says of itself that it holds more than the limit, or whose window is larger: the decoder allocates
    what the header claims."""
    if len(data) < 6:
        raise CompressionError("truncated zstd frame")
    magic, descriptor, window = struct.unpack_from("<IBB", data)
    if magic != _ZSTD_MAGIC:
        return
    is_single_segment = bool(descriptor & 0x20)  # its window is its content
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if is_single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    content_size = int.from_bytes(data[start : start + size_bytes], "little") + (
        256 if size_bytes == 2 else 0
    )
    if content_size > limit:
        raise ResultTooLarge(f"a zstd frame of {content_size} bytes is more than the limit of {limit} bytes")
    if is_single_segment:
        return
    window_log = 10 + (window >> 3)
    window_size = (1 << window_log) + ((1 << window_log) >> 3) * (window & 7)
    if window_size > max(limit, _ZSTD_WINDOW_ALWAYS_ALLOWED):
        raise CompressionError(f"zstd window of {window_size} bytes is more than the limit of {limit}")


# LZ4 frame: version 1, independent blocks, no checksums; blocks of at most 64 KiB. The third byte is the
# second byte of xxHash32 over the first two, a constant for a constant descriptor.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 1 << 16
_LZ4_UNCOMPRESSED = 0x80000000
_LZ4_LENGTH = struct.Struct("<I")


def _lz4_compress(data: memoryview) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        block = data[start : start + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += [_LZ4_LENGTH.pack(len(packed)), packed]
        else:
            parts += [_LZ4_LENGTH.pack(len(block) | _LZ4_UNCOMPRESSED), bytes(block)]
    parts.append(bytes(4))
    return b"".join(parts)


# xerial framing: magic, version 1, compatible version 1, then blocks behind a big-endian length.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 1 << 15
_XERIAL_LENGTH = struct.Struct(">i")


def _snappy_compress(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        packed = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += [_XERIAL_LENGTH.pack(len(packed)), packed]
    return b"".join(parts)


def _snappy_decompress(data: memoryview, limit: int) -> bytes | mmap:
    blocks = [data] if data[:8] != _XERIAL_MAGIC else _xerial_blocks(data)
    sizes = [_snappy_size(block) for block in blocks]
    total = sum(sizes)
    if total > limit:
        raise ResultTooLarge(f"snappy blocks of {total} bytes are more than the limit of {limit}")
    result = bytearray(total) if total <= _SMALL_RESULT else _map(total)
    written = 0
    try:
        with memoryview(result) as view:
            for block, size in zip(blocks, sizes, strict=True):
                if len(block):
                    with view[written : written + size] as target:
                        written += cramjam.snappy.decompress_raw_into(block, target)
    except cramjam.DecompressionError as error:
        raise CompressionError(str(error)) from None
    if isinstance(result, bytearray):
        return bytes(memoryview(result)[:written])
    return _cut(result, written)


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks: list[memoryview] = []
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise CompressionError("truncated snappy header")
    while position < len(data):
        if len(data) - position < 4:
            raise CompressionError("truncated snappy block length")
        (length,) = _XERIAL_LENGTH.unpack_from(data, position)
        position += 4
        if not 0 <= length <= len(data) - position:
            raise CompressionError(f"snappy block of {length} bytes in {len(data) - position}")
        blocks.append(data[position : position + length])
        position += length
    return blocks


def _snappy_size(block: memoryview) -> int:
    """What the block claims to hold. A snappy copy makes at most 64 bytes out of 3, so the input bounds an honest claim."""
    try:
        claimed: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CompressionError(str(error)) from None
    if claimed > 32 * len(block) + 64:
        raise CompressionError(f"a snappy block of {len(block)} bytes claims {claimed}")
    return claimed
