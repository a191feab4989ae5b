"""What commands write to standard output and standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence


def say(text: str = "") -> None:
    """One line on standard output."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"{text}\n")


def row(cells: Iterable[object], widths: Sequence[int]) -> str:
    """Cells in columns of at least these widths with a blank between; the last cell, without a width, is not padded."""
    texts = [*map(str, cells)]
    return " ".join(
        [
            *(text.ljust(width) for text, width in zip(texts, widths, strict=False)),
            *texts[len(widths) :],
        ]
    )


def or_null(value: str | None) -> str:
    """As Java prints a value that may be missing."""
    return "null" if value is None else value


def print_table(lines: Iterable[Iterable[object]], widths: Sequence[int]) -> None:
    """Titles and rows, after an empty line."""
    say()
    for line in lines:
        say(row(line, widths))


def say_error(text: str) -> None:
    """As Kafka's tools of groups: a line on standard output, after an empty one."""
    say(f"\nError: {text}")
