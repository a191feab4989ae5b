"""Generates the table of APIs in docs/compatibility.md and the index that a start reads from the handlers' registrations.

`python -m barnabas.api_table` writes both, into docs/compatibility.md and broker/requests/api_index.py of the working directory.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import barnabas.broker.api
from barnabas.broker.requests.registry import REGISTRATIONS, Registration

BEGIN, END = "<!-- api-table: begin -->", "<!-- api-table: end -->"
INDEX_BEGIN, INDEX_END = "    # begin", "    # end"


def registrations() -> list[Registration]:
    """All registrations, by key, of every module in broker/api; they do not depend on the index."""
    for module in pkgutil.iter_modules(barnabas.broker.api.__path__):
        if module.name != "tests":
            import_module(f"{barnabas.broker.api.__name__}.{module.name}")
    return REGISTRATIONS.loaded()


def table() -> str:
    """Markdown, one row per served API, by key."""
    rows = ["| key | API | versions |", "|---|---|---|"]
    for served in registrations():
        if served.internal:
            continue
        note = (
            ""
            if served.advertised_min == served.min_version
            else f" (advertised from {served.advertised_min})"
        )
        low, high = served.min_version, served.max_version
        rows.append(f"| {served.key} | {served.name} | {low if low == high else f'{low}-{high}'}{note} |")
    return "\n".join(rows)


def index() -> str:
    """The rows of broker/requests/api_index.py."""
    return "\n".join(
        f'    {served.key}: Served("{served.handler.__module__.rpartition(".")[2]}", {served.advertised_min}, '
        f"{served.max_version}, {served.internal}),"
        for served in registrations()
    )


def with_table(text: str) -> str:
    """`text` of docs/compatibility.md with the table between its two markers replaced."""
    return _replaced(text, BEGIN, END, table())


def with_index(text: str) -> str:
    """`text` of broker/requests/api_index.py likewise."""
    return _replaced(text, INDEX_BEGIN, INDEX_END, index())


def _replaced(text: str, begin: str, end: str, by: str) -> str:
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    return f"{before}{begin}\n{by}\n{end}{after}"


if __name__ == "__main__":
    for path, change in (
        (Path("docs/compatibility.md"), with_table),
        (Path("broker/requests/api_index.py"), with_index),
    ):
        path.write_text(change(path.read_text()))
