"""The results: every round's measures of each broker, and the table of their medians."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from compat_tests.bench.workloads import Measures


class Results:
    """Samples by measure and broker, in the order in which the measures first came.

    The second broker is compared with the first, and with the floor where there is one.
    """

    def __init__(self, brokers: list[str], floor: str | None = None) -> None:
        self.brokers = brokers
        self._floor = floor
        self._columns = [*brokers, floor] if floor is not None else brokers
        self._samples: dict[str, dict[str, list[float]]] = {}

    def add(self, broker: str, measures: Measures) -> None:
        """Note one round's measures."""
        for measure, value in measures.items():
            samples = self._samples.setdefault(measure, {name: [] for name in self._columns})
            samples[broker].append(value)

    def ratios(self) -> dict[str, float]:
        """The second broker's median over the first's, by measure."""
        first, second = self.brokers
        return self._ratios(first, second)

    def _ratios(self, first: str, second: str) -> dict[str, float]:
        medians = {
            measure: (statistics.median(samples[first]), statistics.median(samples[second]))
            for measure, samples in self._samples.items()
            if samples[first] and samples[second]
        }
        return {measure: other / base for measure, (base, other) in medians.items() if base}

    def table(self) -> str:
        """A Markdown table: medians, lowest and highest in brackets, and the second broker over the others."""
        first, second = self.brokers
        compared = [(first, second)] if self._floor is None else [(first, second), (self._floor, second)]
        rows = [["", *self._columns, *("ratio" if one == first else f"over {one}" for one, _ in compared)]]
        ratios = [self._ratios(*each) for each in compared]
        for measure, samples in self._samples.items():
            found = (f"{each[measure]:.2f}" if measure in each else "-" for each in ratios)
            rows.append([measure, *(cell(samples[each]) for each in self._columns), *found])
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
