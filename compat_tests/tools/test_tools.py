"""Tools of others find no fault with this broker; skipped where they cannot be installed.

`make test-tools` runs all; promtool alone is part of `make test`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.tools.__main__ import TOOLS
from compat_tests.tools.prometheus import PROMTOOL
from compat_tests.tools.tool import Tool, Trial

pytestmark = [pytest.mark.barnabas_only, pytest.mark.timeout(1800)]  # the first run installs them


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(each, id=each.name, marks=[] if each is PROMTOOL else [pytest.mark.long])
        for each in TOOLS
    ],
)
def test_the_tool_finds_no_fault(tool: Tool, tmp_path: Path) -> None:
    missing = tool.missing()
    if missing:
        pytest.skip(f"{tool.name} needs {missing}")
    assert tool.check(Trial(tmp_path))
