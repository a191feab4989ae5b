"""docs/tools.md names the tools that `make test-tools` runs, in its order, with the versions that it installs."""

from __future__ import annotations

import re
from pathlib import Path

from compat_tests.tools.__main__ import TOOLS

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def test_the_table_and_the_tools_are_equal() -> None:
    rows = re.findall(r"(?m)^\| ([^|]+) \| ([^|]+) \| [^|]+ \| [^|]*\|$", _PAGE.read_text())[1:]
    assert [name for name, _ in rows] == [tool.name for tool in TOOLS]
    versions = {tool.name: tool.pinned for tool in TOOLS if tool.pinned}
    assert {name: version for name, version in rows if name in versions} == versions
