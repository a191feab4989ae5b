"""Metrics as Prometheus reads them: families of samples, and their text format (version 0.0.4).

Nothing is counted for the sake of metrics: whoever is asked looks at what it keeps anyway.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

COUNTER: Final = "counter"  # only grows, from the start of the process; its name ends in _total
GAUGE: Final = "gauge"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Family:
    """Samples of one name. Times are in seconds and sizes in bytes, as their names say."""

    __slots__ = ("help", "kind", "name", "samples")

    def __init__(self, name: str, kind: str, help_text: str) -> None:
        assert _NAME.fullmatch(name), name
        assert (kind == COUNTER) == name.endswith("_total"), name
        self.name = name
        self.kind = kind
        self.help = help_text
        self.samples: list[tuple[str, float]] = []  # labels as they are written, value

    def add(self, value: float, labels: Mapping[str, str] | None = None) -> None:
        self.samples.append((written_labels(labels) if labels else "", value))

    def add_labelled(self, value: float, labels: str) -> None:
        """As `add`, where several samples have the same `written_labels`."""
        self.samples.append((labels, value))


Source = Callable[[], Iterable[Family]]  # asked at each scrape, on the loop's thread


def written_labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def exposition(families: Iterable[Family]) -> bytes:
    """The text; families without samples are left out."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [f"{family.name}{labels} {_number(value)}" for labels, value in family.samples]
    lines.append("")
    return "\n".join(lines).encode()


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
