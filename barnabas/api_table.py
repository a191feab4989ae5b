"""The README's table of APIs and versions, from the handlers' registrations.

`python -m barnabas.api_table` writes it into README.md of the working directory.
"""

from __future__ import annotations

from pathlib import Path

import barnabas.broker.api  # noqa: F401 - registers the handlers
from barnabas.broker.registry import REGISTRATIONS

BEGIN, END = "<!-- api-table: begin -->", "<!-- api-table: end -->"


def table() -> str:
    """Markdown, one row per served API, by key."""
    rows = ["| key | API | versions |", "|---|---|---|"]
    for key, served in sorted(REGISTRATIONS.items()):
        if served.internal:
            continue
        note = (
            ""
            if served.advertised_min == served.min_version
            else f" (advertised from {served.advertised_min})"
        )
        low, high = served.min_version, served.max_version
        rows.append(f"| {key} | {served.name} | {low if low == high else f'{low}-{high}'}{note} |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """`text` with what stands between the two markers replaced by the table."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    readme = Path("README.md")
    readme.write_text(with_table(readme.read_text()))
