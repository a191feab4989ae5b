"""Figures over a size, for each broker: a table, and a picture with one small chart for each figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from compat_tests.bench.report import markdown

Figures = Mapping[str, float]
_COLOURS = {"Apache Kafka": "#c0563b", "Barnabas": "#2a7f62"}
_WIDTH, _HEIGHT, _MARGIN, _COLUMNS, _HEAD = 360, 220, 48, 3, 50
_INK, _RULE = "#222", "#ddd"


def in_words(figures: Figures) -> str:
    """For a line of progress."""
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


@dataclass
class Curves:
    """Values by figure, broker and size. `of`: what grows, in words; `note`: where and how it was measured."""

    of: str
    note: str
    _values: dict[str, dict[str, dict[float, float]]] = field(default_factory=dict)

    def add(self, broker: str, size: float, figures: Figures) -> None:
        """Note what was measured at this size."""
        for figure, value in figures.items():
            self._values.setdefault(figure, {}).setdefault(broker, {})[size] = value

    def table(self) -> str:
        """A Markdown table with a row for each figure and broker, and a column for each size."""
        sizes = sorted({size for each in self._series() for size in each})
        rows: list[list[str]] = [["", "", *(f"{size:,g}" for size in sizes)]]
        for figure, brokers in self._values.items():
            for broker, values in brokers.items():
                found = (_text(values[size]) if size in values else "-" for size in sizes)
                rows.append([figure, broker, *found])
        return markdown(rows)

    def picture(self) -> str:
        """SVG text; both axes of each chart are logarithmic."""
        count = len(self._values)
        width = _COLUMNS * _WIDTH
        height = _HEAD + math.ceil(count / _COLUMNS) * _HEIGHT
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="11" fill="{_INK}">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="12" y="20" font-size="15">{escape(self.of)}</text>',
            f'<text x="12" y="38" fill="#666">{escape(self.note)}</text>',
        ]
        for number, (broker, colour) in enumerate(_COLOURS.items()):
            lines.append(
                f'<text x="{width - 240 + 120 * number}" y="20" fill="{colour}" font-size="13">{broker}</text>'
            )
        for number, (figure, brokers) in enumerate(self._values.items()):
            row, column = divmod(number, _COLUMNS)
            lines += _chart(column * _WIDTH, _HEAD + row * _HEIGHT, figure, brokers)
        return "\n".join([*lines, "</svg>", ""])

    def _series(self) -> Iterable[Mapping[float, float]]:
        return (values for brokers in self._values.values() for values in brokers.values())


def _chart(left: int, top: int, figure: str, brokers: Mapping[str, Mapping[float, float]]) -> list[str]:
    """One figure: a line for each broker."""
    points = [(size, value) for values in brokers.values() for size, value in values.items() if value > 0]
    if not points:
        return []
    across = _Axis([size for size, _ in points], left + _MARGIN, left + _WIDTH - 20)
    up = _Axis([value for _, value in points], top + _HEIGHT - 34, top + 26)
    lines = [f'<text x="{left + 12}" y="{top + 14}" font-weight="bold">{escape(figure)}</text>']
    for mark in across.marks():
        x = across.at(mark)
        lines.append(f'<line x1="{x}" y1="{top + 22}" x2="{x}" y2="{top + _HEIGHT - 30}" stroke="{_RULE}"/>')
        lines.append(f'<text x="{x}" y="{top + _HEIGHT - 16}" text-anchor="middle">{mark:,g}</text>')
    for mark in up.marks():
        y = up.at(mark)
        lines.append(
            f'<line x1="{left + _MARGIN - 4}" y1="{y}" x2="{left + _WIDTH - 16}" y2="{y}" stroke="{_RULE}"/>'
        )
        lines.append(f'<text x="{left + _MARGIN - 8}" y="{y + 4}" text-anchor="end">{mark:,g}</text>')
    for broker, values in brokers.items():
        colour = _COLOURS[broker]
        found = [(across.at(size), up.at(value)) for size, value in sorted(values.items()) if value > 0]
        path = " ".join(f"{x},{y}" for x, y in found)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in found]
    return lines


class _Axis:
    """A logarithmic axis from one pixel to another, over whole powers of ten where the values span more than one."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        found = list(values)
        self._low, self._high = math.log10(min(found)), math.log10(max(found))
        if self._high - self._low < 0.3:
            self._low, self._high = self._low - 0.2, self._high + 0.2
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return round(self._start + share * (self._end - self._start), 1)

    def marks(self) -> list[float]:
        """Round numbers on it: powers of ten, and their halves and fifths where these are few."""
        for digits in ((1,), (1, 3), (1, 2, 5)):
            found = [
                digit * 10.0**power
                for power in range(math.floor(self._low), math.ceil(self._high) + 1)
                for digit in digits
                if self._low - 0.01 <= math.log10(digit) + power <= self._high + 0.01
            ]
            if len(found) >= 3:
                break
        return found


def _text(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
