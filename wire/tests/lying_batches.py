"""Record batches that lie: about counts, offsets, lengths, times, producers, codecs and what they unpack to.

Times are fixed, so that a seed makes the same batch every time: `FAR_AHEAD_MS` is in the year 2096.
"""

from __future__ import annotations

import functools
import random
import struct

import cramjam

from barnabas.wire.checksum import crc32c
from barnabas.wire.codecs import compress
from barnabas.wire.compression import Codec

NOW_MS = 1_700_000_000_000
FAR_AHEAD_MS = 4_000_000_000_000
_MB = 1 << 20


def zigzag(value: int) -> bytes:
    """A signed varint, of 64 bits and more as it may be."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(delta: int, value: bytes = b"value", key: bytes | None = None, timestamp_delta: int = 0) -> bytes:
    keyed = zigzag(-1) if key is None else zigzag(len(key)) + key
    body = b"\0" + zigzag(timestamp_delta) + zigzag(delta) + keyed + zigzag(len(value)) + value + b"\0"
    return zigzag(len(body)) + body


def batch(
    records: bytes,
    count: int,
    *,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int = NOW_MS,
    max_timestamp: int = NOW_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    magic: int = 2,
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    """A batch with these fields; its length and CRC are right unless given."""
    body = struct.pack(
        ">HiqqqhiI",
        attributes & 0xFFFF,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count & 0xFFFFFFFF,
    )
    body += records
    checksum = crc32c(body) if crc is None else crc
    return struct.pack(">qiibI", 0, len(body) + 9 if length is None else length, -1, magic, checksum) + body


@functools.cache
def many_records(count: int) -> bytes:
    """That many empty records with rising offsets, some 8 bytes each."""
    parts: list[bytes] = []
    for delta in range(count):
        offset = zigzag(delta)
        parts.append(bytes((2 * (5 + len(offset)), 0, 0)) + offset + b"\x01\x01\x00")
    return b"".join(parts)


@functools.cache
def wide_batch(count: int, codec: Codec = Codec.ZSTD, *, far_ahead: bool = False) -> bytes:
    """An honest batch of many small records; `far_ahead`: of the year 2096."""
    moment = FAR_AHEAD_MS if far_ahead else NOW_MS
    return batch(
        compress(codec, many_records(count)),
        count,
        attributes=int(codec),
        base_timestamp=moment,
        max_timestamp=moment,
    )


@functools.cache
def bomb(codec: Codec, megabytes: int) -> bytes:
    """A stream that unpacks to that many MB of zeros, as small as the codec makes it."""
    if codec == Codec.LZ4:
        block = bytes(cramjam.lz4.compress_block(bytes(4 * _MB), store_size=False))
        header = bytes.fromhex("0422 4d18 6070 73")  # version 1, independent blocks of at most 4 MB
        piece = struct.pack("<I", len(block)) + block
        return header + piece * max(1, megabytes // 4) + bytes(4)
    if codec == Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(bytes(32768)))
        piece = struct.pack(">i", len(block)) + block
        return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + piece * (megabytes * 32)
    # frames and members one behind the other are one stream of zstd and gzip
    return compress(codec, bytes(16 * _MB)) * max(1, megabytes // 16)


@functools.cache
def zstd_bomb(megabytes: int) -> bytes:
    """As `bomb`, in one frame: blocks of 128 KB that each repeat one byte (RFC 8878, 3.1.1.2)."""
    size = megabytes * _MB
    block = 128 * 1024
    count = size // block
    head = struct.pack("<I", 0xFD2FB528) + b"\x80" + bytes([(17 - 10) << 3]) + struct.pack("<I", size)
    repeated = struct.pack("<I", block << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", block << 3 | 1 << 1 | 1)[:3] + b"\0"
    return head + repeated * (count - 1) + last


def lying_batch(rng: random.Random, bomb_megabytes: int = 0) -> tuple[bytes, str]:
    """A batch and what is wrong with it. Bombs only where their size is given."""
    count = rng.choice((1, 1, 2, 5, 200))
    records = [
        record(delta, rng.randbytes(rng.randrange(30)), rng.choice((None, b"k"))) for delta in range(count)
    ]
    what = rng.choice(_LIES if bomb_megabytes else _LIES[:-1])
    body = b"".join(records)
    match what:
        case "honest":
            codec = rng.choice(list(Codec))
            return batch(compress(codec, body), count, attributes=int(codec)), f"{what} {codec.name}"
        case "counts":
            return (
                batch(
                    body,
                    rng.choice((count, 0, -1, count + 1, 2**31 - 1, -(2**31))),
                    last_offset_delta=rng.choice((count - 1, -1, 0, 2**31 - 1, -(2**31), count)),
                ),
                what,
            )
        case "times":
            moments = (-(2**63), -1, 0, NOW_MS, FAR_AHEAD_MS, 2**63 - 1)
            return (
                batch(
                    body,
                    count,
                    base_timestamp=rng.choice(moments),
                    max_timestamp=rng.choice(moments),
                    attributes=rng.choice((0, 0, 8)),
                ),
                what,
            )
        case "producer":
            return (
                batch(
                    body,
                    count,
                    producer_id=rng.choice((-1, -2, 0, 1000, 2**63 - 1, -(2**63))),
                    producer_epoch=rng.choice((-1, -2, 0, 1, 32767, -32768)),
                    base_sequence=rng.choice((-1, -2, 0, 1, 2**31 - 1, -(2**31))),
                    attributes=rng.choice((0, 0, 0x10)),
                ),
                what,
            )
        case "attributes":
            attributes = rng.choice(
                (5, 6, 7, 8, 0x10, 0x20, 0x30, 0x40, 0x4000, 0x8000, rng.randrange(1 << 16))
            )
            return batch(body, count, attributes=attributes), f"{what} {attributes:#x}"
        case "header":
            return (
                batch(
                    body,
                    count,
                    magic=rng.choice((0, 1, 2, 3, -1)),
                    length=rng.choice((None, -1, 0, 48, 49, 2**31 - 1, len(body) + 50)),
                    crc=rng.choice((None, 0, 12345)),
                ),
                what,
            )
        case "records":
            return batch(_lying_records(records, rng), count, attributes=rng.choice((0, 0, 8))), what
        case "several":
            return batch(body, count) + lying_batch(rng)[0], what
        case "wide":
            return wide_batch(
                rng.choice((1000, 20_000)), rng.choice(list(Codec)), far_ahead=rng.random() < 0.5
            ), what
        case "garbage compressed":
            codec = rng.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
            return batch(_garbage(codec, body, rng), count, attributes=int(codec)), f"{what} {codec.name}"
        case _:
            codec = rng.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
            data = zstd_bomb(bomb_megabytes) if codec == Codec.ZSTD else bomb(codec, bomb_megabytes)
            moment = rng.choice((NOW_MS, FAR_AHEAD_MS))
            return (
                batch(data, rng.choice((1, 1000)), attributes=int(codec), max_timestamp=moment),
                f"{what} {codec.name}",
            )


_LIES = (
    "honest",
    "counts",
    "times",
    "producer",
    "attributes",
    "header",
    "records",
    "several",
    "wide",
    "garbage compressed",
    "bomb",
)


def _lying_records(records: list[bytes], rng: random.Random) -> bytes:
    body = b"".join(records)
    match rng.randrange(7):
        case 0:
            return zigzag(rng.choice((-5, 0, 3, 10_000, 2**31 - 1))) + body
        case 1:
            return b"\xff" * rng.choice((4, 5, 9, 10, 11)) + b"\x01" + body  # varints beyond 32 and 64 bits
        case 2:
            fields = b"\0" + b"\xff" * 9 + b"\x01" + zigzag(0) + zigzag(-1) + zigzag(-1) + b"\0"
            return zigzag(len(fields)) + fields
        case 3:
            headers = zigzag(rng.choice((-1, 1, 1000, 2**31 - 1))) + rng.choice(
                (b"", b"\x02\xff\x01", b"\x01\x01")
            )
            fields = b"\0" + zigzag(0) + zigzag(0) + zigzag(-1) + zigzag(-1) + headers
            return zigzag(len(fields)) + fields
        case 4:
            return body[: rng.randrange(len(body))]
        case 5:
            flipped = bytearray(body)
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case _:
            return records[-1] + body


def _garbage(codec: Codec, body: bytes, rng: random.Random) -> bytes:
    packed = compress(codec, body)
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(100))
        case 1:
            return packed[: rng.randrange(len(packed))]
        case 2:
            return compress(codec, packed)  # twice
        case 3:
            flipped = bytearray(packed)
            for _ in range(3):
                flipped[rng.randrange(min(40, len(flipped)))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case _:
            return packed + rng.randbytes(rng.randint(1, 50))
