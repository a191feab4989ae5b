"""Tools of others find no fault with this broker; skipped where they are not."""

from __future__ import annotations

import pytest

from compat_tests.tools.__main__ import TOOLS
from compat_tests.tools.tool import Tool

pytestmark = pytest.mark.barnabas_only


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_tool_finds_no_fault(tool: Tool) -> None:
    missing = tool.missing()
    if missing:
        pytest.skip(f"{tool.name} needs {missing}")
    assert tool.check()
