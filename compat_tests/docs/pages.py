"""The fenced blocks of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"

_HEADING = re.compile(r"#{1,3} (?:\d+\. )?(.+)")
_FENCE = re.compile(r"```(\w*)")
# A line that ends so names the file that the block below it is
_FILE = re.compile(r"`([\w.-]+)`:")


class Block(NamedTuple):
    kind: str  # python, sh, text, ...
    text: str
    line: int  # of its first line in the page
    file: str = ""  # the file that it is, where the line above names one
    is_output: bool = False  # of the block above, which nothing stands between


def read_page(page: Path) -> dict[str, list[Block]]:
    """The blocks below each heading, without the numbers of recipes."""
    sections: dict[str, list[Block]] = {"": []}
    heading, kind, file, start = "", "", "", 0
    inside = is_output = False
    lines: list[str] = []
    last = ""  # line that is not empty
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if inside and line == "```":
            text = "".join(f"{each}\n" for each in lines)
            sections[heading].append(Block(kind, text, start, file, is_output))
            inside, last = False, line
        elif inside:
            lines.append(line)
        elif found := _FENCE.fullmatch(line):
            named = _FILE.search(last)
            inside, kind, start, lines = True, found[1], number + 1, []
            is_output = kind == "text" and last == "```"
            file = named[1] if named and last.endswith(named[0]) else ""
        elif found := _HEADING.fullmatch(line):
            heading, last = found[1], ""
            sections.setdefault(heading, [])
        elif line:
            last = line
    assert not inside, "a code block is not closed"
    return sections
