"""The metrics of an OTLP payload (`opentelemetry.proto.metrics.v1.MetricsData`): gauges and sums, which are all that Kafka's
clients send. Other kinds of metrics and all fields that are not needed are skipped.

The decoder works in steps and keeps nothing but the points: at most `points_max`, with at most ATTRIBUTES_MAX attributes each,
whose texts are cut to TEXT_MAX characters. OtlpError is its only exit for bytes that are no such message.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import Final, TypeAlias

import msgspec

FIELDS_MAX: Final = 300_000  # read of a payload; one of 1 MB has some 100,000
ATTRIBUTES_MAX: Final = 24
TEXT_MAX: Final = 200

_VARINT: Final = 0  # wire types
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_VARINT_BYTES_MAX: Final = 10
_DELTA: Final = 1  # AggregationTemporality

_unpack_double = struct.Struct("<d").unpack_from
_unpack_sfixed64 = struct.Struct("<q").unpack_from

Attributes: TypeAlias = "dict[str, str]"
Range: TypeAlias = "tuple[int, int]"
# Of one field: its number, its wire type, and where its value lies; a varint is the first of the two.
Field: TypeAlias = "tuple[int, int, int, int]"
Steps: TypeAlias = "Generator[None, None, None]"


class OtlpError(ValueError):
    """The bytes are no MetricsData."""


class Point(msgspec.Struct, frozen=True):
    """One value. `is_delta`: it is to be added to those before it. `is_monotonic`: a sum that never falls."""

    name: str
    attributes: Attributes
    value: float
    is_delta: bool
    is_monotonic: bool


def decode_metrics(data: bytes, points_max: int) -> Generator[None, None, tuple[list[Point], int]]:
    """The points, and how many there were beyond `points_max`; yields after each field and part. OtlpError."""
    decoder = _Decoder(data, points_max)
    yield from decoder.metrics_data((0, len(data)))
    return decoder.points, decoder.left_out


class _Decoder:
    """A method per message; each takes the range of its bytes."""

    def __init__(self, data: bytes, points_max: int) -> None:
        self.points: list[Point] = []
        self.left_out = 0
        self._data = data
        self._points_max = points_max
        self._fields_left = FIELDS_MAX

    def metrics_data(self, message: Range) -> Steps:
        for number, wire_type, start, end in self._fields(message):
            yield
            if number == 1:
                yield from self._resource_metrics(_message(wire_type, start, end))

    def _resource_metrics(self, message: Range) -> Steps:
        scopes: list[Range] = []
        attributes: Attributes = {}
        for number, wire_type, start, end in self._fields(message):
            yield
            if number == 1:
                yield from self._attributes(_message(wire_type, start, end), 1, attributes)
            elif number == 2:
                scopes.append(_message(wire_type, start, end))
        for scope in scopes:
            yield
            for number, wire_type, start, end in self._fields(scope):
                yield
                if number == 2:
                    yield from self._metric(_message(wire_type, start, end), attributes)

    def _metric(self, message: Range, of_resource: Attributes) -> Steps:
        name = ""
        data: list[tuple[bool, Range]] = []  # whether it is a sum, and its message
        for number, wire_type, start, end in self._fields(message):
            yield
            if number == 1:
                name = self._text(_message(wire_type, start, end))
            elif number in (5, 7):
                data.append((number == 7, _message(wire_type, start, end)))
        for is_sum, part in data:
            yield
            yield from self._number_points(part, name, of_resource, is_sum)

    def _number_points(self, message: Range, name: str, of_resource: Attributes, is_sum: bool) -> Steps:
        points: list[Range] = []
        is_delta = is_monotonic = False
        for number, wire_type, start, end in self._fields(message):
            yield
            if number == 1:
                points.append(_message(wire_type, start, end))
            elif number == 2 and is_sum and wire_type == _VARINT:
                is_delta = start == _DELTA
            elif number == 3 and is_sum and wire_type == _VARINT:
                is_monotonic = bool(start)
        for point in points:
            yield
            if len(self.points) >= self._points_max:
                self.left_out += 1
                continue
            attributes = dict(of_resource)
            value: float | None = None
            for number, wire_type, start, _ in self._fields(point):
                yield
                if number == 4 and wire_type == _FIXED64:
                    (value,) = _unpack_double(self._data, start)
                elif number == 6 and wire_type == _FIXED64:
                    (value,) = _unpack_sfixed64(self._data, start)
            yield from self._attributes(point, 7, attributes)
            if value is not None:  # else it has the flag "no recorded value"
                self.points.append(Point(name, attributes, value, is_delta, is_monotonic))

    def _attributes(self, message: Range, field: int, into: Attributes) -> Steps:
        """Those of the repeated field `field` of KeyValues."""
        for number, wire_type, start, end in self._fields(message):
            yield
            if number == field:
                key, text = "", ""
                for part, part_type, part_start, part_end in self._fields(_message(wire_type, start, end)):
                    yield
                    if part == 1:
                        key = self._text(_message(part_type, part_start, part_end))
                    elif part == 2:
                        text = yield from self._any_value(_message(part_type, part_start, part_end))
                if len(into) < ATTRIBUTES_MAX:
                    into[key] = text

    def _any_value(self, message: Range) -> Generator[None, None, str]:
        """As text; empty for arrays, maps and bytes."""
        text = ""
        for number, wire_type, start, end in self._fields(message):
            yield
            if number == 1:
                text = self._text(_message(wire_type, start, end))
            elif number == 2 and wire_type == _VARINT:
                text = "true" if start else "false"
            elif number == 3 and wire_type == _VARINT:
                text = str(start - (1 << 64) if start >> 63 else start)
            elif number == 4 and wire_type == _FIXED64:
                (value,) = _unpack_double(self._data, start)
                text = repr(value)
        return text

    def _text(self, message: Range) -> str:
        start, end = message
        try:
            return self._data[start:end].decode()[:TEXT_MAX]
        except UnicodeDecodeError as error:
            raise OtlpError(f"a text that is not UTF-8: {error}") from None

    def _fields(self, message: Range) -> Iterator[Field]:
        """The fields of a message, in their order. All of a field lies within the message."""
        position, end = message
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise OtlpError(f"more than {FIELDS_MAX} fields")
            tag, position = self._varint(position, end)
            wire_type = tag & 7
            if wire_type == _VARINT:
                value, position = self._varint(position, end)
                yield tag >> 3, wire_type, value, position
                continue
            if wire_type == _LENGTH:
                size, position = self._varint(position, end)
            elif wire_type == _FIXED64:
                size = 8
            elif wire_type == _FIXED32:
                size = 4
            else:
                raise OtlpError(f"wire type {wire_type}")
            if size > end - position:
                raise OtlpError(f"a field of {size} bytes with {end - position} left")
            yield tag >> 3, wire_type, position, position + size
            position += size

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        value = shift = 0
        for at in range(position, min(end, position + _VARINT_BYTES_MAX)):
            byte = self._data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at + 1
            shift += 7
        raise OtlpError("a varint without an end")


def _message(wire_type: int, start: int, end: int) -> Range:
    """The range of a field that is a message or a text."""
    if wire_type != _LENGTH:
        raise OtlpError(f"a message of wire type {wire_type}")
    return start, end
