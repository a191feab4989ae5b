"""The result as a PNG: mean delay by airline and hour, and below it the days of the year.

Drawn pixel by pixel into an array, with letters of 3 x 5 pixels, so that the example needs no plotting package.
PNG: ISO/IEC 15948; one palette-less 8-bit RGB image, its rows unfiltered.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import numpy
from numpy.typing import NDArray

from spark_examples.shared.flights import Totals

Pixels = NDArray[numpy.uint8]
Colour = tuple[int, int, int]
Days = Mapping[tuple[int, int], Mapping[str, int]]

_WHITE, _INK, _FAINT = (255, 255, 255), (40, 44, 52), (225, 227, 231)
# mean delay in minutes -> colour; between them it is mixed
_SCALE: tuple[tuple[float, Colour], ...] = (
    (-5, (49, 104, 172)),
    (5, (214, 228, 240)),
    (15, (253, 219, 160)),
    (30, (226, 98, 72)),
    (60, (110, 12, 48)),
)
# three pixels a row, five rows a letter
_LETTERS = """
A 010101111101101  B 110101110101110  C 011100100100011  D 110101101101110  E 111100110100111
F 111100110100100  G 011100101101011  H 101101111101101  I 111010010010111  J 001001001101010
K 101101110101101  L 100100100100111  M 101111101101101  N 110101101101101  O 010101101101010
P 110101110100100  Q 010101101110011  R 110101110101101  S 011100010001110  T 111010010010010
U 101101101101111  V 101101101010010  W 101101101111101  X 101101010101101  Y 101101010010010
Z 111001010100111  0 111101101101111  1 010110010010111  2 110001010100111  3 110001010001110
4 101101111001001  5 111100110001110  6 011100111101111  7 111001010010010  8 111101111101111
9 111101111001110  - 000000111000000  : 000010000010000  , 000000000010100
"""
_GLYPHS = dict(zip(_LETTERS.split()[::2], _LETTERS.split()[1::2], strict=True))
_LETTER = 8  # pixels from one letter to the next, at the size of 2
_CELL = 30
_LEFT, _TOP, _BARS = 60, 70, 130


def draw(by_hour: Totals, days: Days) -> bytes:
    """The picture as the bytes of a PNG file."""
    carriers = sorted({carrier for carrier, _ in by_hour}, key=lambda carrier: -_flights(by_hour, carrier))
    left = {hour for (_, hour), row in by_hour.items() if _mean(row) is not None}
    hours = range(min(left), max(left) + 1)
    width = _LEFT + max(len(hours) * _CELL, 2 * 366) + 30
    table_end = _TOP + len(carriers) * _CELL
    pixels: Pixels = numpy.full((table_end + 90 + _BARS, width, 3), 255, numpy.uint8)
    _write(pixels, _LEFT, 16, "MEAN DELAY AT DEPARTURE, IN MINUTES, BY AIRLINE AND HOUR: NEW YORK, 2013")
    for column, hour in enumerate(hours):
        _write(pixels, _LEFT + column * _CELL + 7, _TOP - 18, f"{hour:2}")
    for row, carrier in enumerate(carriers):
        _write(pixels, _LEFT - 30, _TOP + row * _CELL + 10, carrier)
        for column, hour in enumerate(hours):
            _cell(pixels, _LEFT + column * _CELL, _TOP + row * _CELL, by_hour.get((carrier, hour)))
    _write(pixels, _LEFT, table_end + 30, "DAY BY DAY, FROM THE STREAM")
    _bars(pixels, table_end + 55, days)
    return png(pixels)


def _cell(pixels: Pixels, x: int, y: int, row: Mapping[str, int] | None) -> None:
    mean = None if row is None else _mean(row)
    if mean is None:
        _fill(pixels, x, y, _CELL - 2, _CELL - 2, _FAINT)
        return
    _fill(pixels, x, y, _CELL - 2, _CELL - 2, _colour(mean))
    text = str(round(mean))
    ink = _WHITE if mean > 22 or mean < -1 else _INK
    _write(pixels, x + (_CELL - 2 - _LETTER * len(text)) // 2 + 1, y + 9, text, ink)


def _bars(pixels: Pixels, y: int, days: Days) -> None:
    """A bar of two pixels for each day, up from the zero line or down."""
    means = {day: mean for day, row in days.items() if (mean := _mean(row)) is not None}
    high, low = max(means.values()), min(0.0, *means.values())
    scale = _BARS / (high - low)
    zero = y + round(high * scale)
    for number, day in enumerate(sorted(days)):
        x = _LEFT + number * 2
        if day[1] == 1:
            _fill(pixels, x, y, 1, _BARS, _FAINT)
            _write(pixels, x + 4, y + _BARS + 10, f"{day[0]:02}")
        if day in means:
            length = round(abs(means[day]) * scale)
            _fill(pixels, x, zero - length if means[day] > 0 else zero, 2, length, _colour(means[day]))
    for label in (0, *range(20, int(high) + 1, 20)):
        _write(pixels, _LEFT - 30, zero - round(label * scale) - 5, f"{label:2}")


def png(pixels: Pixels) -> bytes:
    """The file: a header, the rows (each after a zero for `no filter`), the end."""
    height, width, _ = pixels.shape
    rows = numpy.zeros((height, 1 + width * 3), numpy.uint8)
    rows[:, 1:] = pixels.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _fill(pixels: Pixels, x: int, y: int, width: int, height: int, colour: Colour) -> None:
    pixels[y : y + height, x : x + width] = colour


def _write(pixels: Pixels, x: int, y: int, text: str, colour: Colour = _INK) -> None:
    """Capital letters, twice as large as they are defined."""
    for position, letter in enumerate(text):
        for number, bit in enumerate(_GLYPHS.get(letter, "")):
            if bit == "1":
                _fill(pixels, x + position * _LETTER + number % 3 * 2, y + number // 3 * 2, 2, 2, colour)


def _colour(mean: float) -> Colour:
    positions = [position for position, _ in _SCALE]
    red, green, blue = (
        round(float(numpy.interp(mean, positions, [colour[part] for _, colour in _SCALE])))
        for part in range(3)
    )
    return red, green, blue


def _mean(row: Mapping[str, int]) -> float | None:
    """Over the flights that left; None where none did."""
    left = row["flights"] - row["cancelled"]
    return row["departure_delay_minutes"] / left if left else None


def _flights(by_hour: Totals, carrier: str) -> int:
    return sum(row["flights"] for (of_carrier, _), row in by_hour.items() if of_carrier == carrier)
