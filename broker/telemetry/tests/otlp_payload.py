"""OTLP payloads as the tests need them, encoded by hand."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(number: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(data)) + data


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def fixed(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<q", value)


def attribute(number: int, key: str, value: bytes) -> bytes:
    """`value`: an encoded AnyValue."""
    return message(number, message(1, key) + message(2, value))


def text(value: str) -> bytes:
    """An AnyValue."""
    return message(1, value)


def gauge(name: str, *points: bytes) -> bytes:
    """A Metric."""
    return message(1, name) + message(5, b"".join(message(1, point) for point in points))


def counter(name: str, *points: bytes, is_delta: bool = True, is_monotonic: bool = True) -> bytes:
    """A Metric."""
    data = b"".join(message(1, point) for point in points)
    return message(1, name) + message(
        7, data + integer(2, 1 if is_delta else 2) + integer(3, int(is_monotonic))
    )


def payload(*metrics: bytes, resource: bytes = b"") -> bytes:
    """MetricsData of one resource. `resource`: its encoded attributes."""
    scope = b"".join(message(2, each) for each in metrics)
    return message(1, message(1, resource) + message(2, scope))
