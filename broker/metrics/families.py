"""Families of Prometheus metrics, and their text formats: Prometheus's own (version 0.0.4) and OpenMetrics 1.0.

Sources read the broker's own state at each scrape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

COUNTER: Final = "counter"  # only grows, from the start of the process; its name ends in _total
GAUGE: Final = "gauge"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OPENMETRICS_END: Final = b"# EOF\n"
_TOTAL: Final = "_total"

STEP: Final = 500  # samples at a time: less than a millisecond

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Family:
    """Samples of one metric. Times are in seconds and sizes in bytes, as in their names."""

    __slots__ = ("help", "kind", "name", "samples")

    def __init__(self, name: str, kind: str, help_text: str) -> None:
        assert _NAME.fullmatch(name), name
        assert (kind == COUNTER) == name.endswith("_total"), name
        self.name = name
        self.kind = kind
        self.help = help_text
        self.samples: list[tuple[str, float]] = []  # labels in the text format, value

    def add(self, value: float, labels: Mapping[str, str] | None = None) -> None:
        self.samples.append((written_labels(labels) if labels else "", value))

    def add_labelled(self, value: float, labels: str) -> None:
        """As `add`, where several samples have the same `written_labels`."""
        self.samples.append((labels, value))


# Called at each scrape, on the loop's thread. After a None among the families other callbacks of the loop may run.
Source = Callable[[], Iterable[Family | None]]


def written_labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def one(name: str, value: float, help_text: str, kind: str = GAUGE) -> Family:
    """A family of one sample."""
    family = Family(name, kind, help_text)
    family.add(value)
    return family


def exposition(families: Iterable[Family | None], *, openmetrics: bool = False) -> Iterator[bytes]:
    """The text in pieces, each of at most STEP samples; families without samples are left out. OPENMETRICS_END follows the
    last family in that format."""
    for family in families:
        if family is None:
            yield b""
        elif family.samples:
            help_text, name = family.help.translate(_HELP_ESCAPES), family.name
            if openmetrics:  # a counter's family has the name without _total
                help_text = help_text.replace('"', r"\"")
                name = name.removesuffix(_TOTAL) if family.kind == COUNTER else name
            yield f"# HELP {name} {help_text}\n# TYPE {name} {family.kind}\n".encode()
            for start in range(0, len(family.samples), STEP):
                part = family.samples[start : start + STEP]
                yield "".join(f"{family.name}{labels} {_number(value)}\n" for labels, value in part).encode()


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
