"""The results: every round's measures of each broker, and the table of their medians."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from compat_tests.bench.workloads import Measures


class Results:
    """Samples by measure and broker, in the order in which the measures first came."""

    def __init__(self, brokers: list[str]) -> None:
        self.brokers = brokers
        self._samples: dict[str, dict[str, list[float]]] = {}

    def add(self, broker: str, measures: Measures) -> None:
        """Note one round's measures."""
        for measure, value in measures.items():
            samples = self._samples.setdefault(measure, {name: [] for name in self.brokers})
            samples[broker].append(value)

    def ratios(self) -> dict[str, float]:
        """The second broker's median over the first's, by measure."""
        first, second = self.brokers
        medians = {
            measure: (statistics.median(samples[first]), statistics.median(samples[second]))
            for measure, samples in self._samples.items()
            if all(samples.values())
        }
        return {measure: other / base for measure, (base, other) in medians.items() if base}

    def table(self) -> str:
        """A Markdown table: medians, lowest and highest in brackets, and the second broker over the first."""
        first, second = self.brokers
        rows = [("", first, second, "ratio")]
        ratios = self.ratios()
        for measure, samples in self._samples.items():
            ratio = f"{ratios[measure]:.2f}" if measure in ratios else "-"
            rows.append((measure, cell(samples[first]), cell(samples[second]), ratio))
        return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def cell(samples: list[float]) -> str:
    """The median, and lowest and highest in brackets."""
    if not samples:
        return "-"
    low, middle, high = min(samples), statistics.median(samples), max(samples)
    if len(samples) == 1:
        return _number(middle)
    return f"{_number(middle)} ({_number(low)} - {_number(high)})"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}" if value < 1 else f"{value:.2f}"
