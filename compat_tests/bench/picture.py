"""The table's ratios as one SVG: a bar to the left of 1 is better than Apache Kafka, to the right worse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

_ROW, _LABELS, _HALF, _TOP = 20, 390, 260, 60
_BETTER, _WORSE, _INK, _RULE = "#2a7f62", "#c0563b", "#222", "#bbb"
_MARKS = (0.05, 0.1, 0.2, 0.4, 1, 2, 5)


def draw(ratios: Mapping[str, float], note: str) -> str:
    """SVG text. `ratios` are ours over Kafka's by measure; those of rates are inverted, so that less is better."""
    rows = {name: _cost(name, ratio) for name, ratio in ratios.items() if ratio > 0}
    height = _TOP + _ROW * len(rows) + 30
    width = _LABELS + 2 * _HALF + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        '<text x="12" y="20" font-size="15">Cost relative to Apache Kafka 4.3.1 (less is better; rates are turned over)</text>',
        f'<text x="12" y="38" fill="#666">{escape(note)}</text>',
    ]
    for mark in _MARKS:
        x = _x(mark)
        lines.append(f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{height - 24}" stroke="{_RULE}"/>')
        lines.append(f'<text x="{x}" y="{height - 8}" text-anchor="middle" fill="#666">{mark:g}</text>')
    for index, (name, cost) in enumerate(rows.items()):
        y = _TOP + index * _ROW
        left, right = sorted((_x(cost), _x(1)))
        colour = _BETTER if cost <= 1 else _WORSE
        lines.append(f'<text x="{_LABELS - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        lines.append(
            f'<rect x="{left}" y="{y + 3}" width="{max(right - left, 1):.1f}" height="{_ROW - 6}" fill="{colour}"/>'
        )
        anchor, x = ("end", left - 4) if cost <= 1 else ("start", right + 4)
        lines.append(f'<text x="{x}" y="{y + 13}" text-anchor="{anchor}" font-size="11">{cost:.2f}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _cost(name: str, ratio: float) -> float:
    return 1 / ratio if name.endswith(("MB/s", "requests/s")) else ratio


def _x(cost: float) -> float:
    """Logarithmic, 1 in the middle, cut at the edges."""
    low, high = math.log(_MARKS[0]), math.log(_MARKS[-1])
    position = (min(max(math.log(cost), low), high) - low) / (high - low)
    return round(_LABELS + 40 + position * (2 * _HALF - 20), 1)
