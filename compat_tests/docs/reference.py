"""`python -m compat_tests.docs.reference`: writes the reference pages' tables, which are derived from the code.

Each stands between two markers of its page, in docs/ of the working directory; a test of `make unit` compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from compat_tests.docs import commands, control_api, properties

PAGES: Final[dict[str, Callable[[], dict[str, str]]]] = {
    module.PAGE: module.tables for module in (commands, control_api, properties)
}


def with_tables(text: str, tables: dict[str, str]) -> str:
    """`text` of a page with what stands between its markers replaced."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    for page, tables in PAGES.items():
        Path(page).write_text(with_tables(Path(page).read_text(), tables()))
