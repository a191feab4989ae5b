"""Tools of others find no fault with this broker; skipped where they cannot be installed.

`make test-tools` runs all; promtool alone is part of `make test`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compat_tests.tools.__main__ import TOOLS, passes
from compat_tests.tools.prometheus import PROMTOOL
from compat_tests.tools.tool import Tool, ToolFailed, Trial

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


def test_a_tool_that_finds_fault_fails_and_one_that_is_missing_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find_fault(_: Trial) -> str:
        raise ToolFailed("3 of 4 records")

    def tool(
        *, missing: str = "", check: Callable[[Trial], str] = find_fault, barnabas_only: bool = False
    ) -> Tool:
        return Tool("reader", lambda: missing, lambda: "1.0", check, barnabas_only=barnabas_only)

    assert not passes(tool(), "barnabas", is_named=False)
    assert "3 of 4 records" in capsys.readouterr().out
    assert passes(tool(check=lambda _: "4 records"), "barnabas", is_named=False)
    assert capsys.readouterr().out == "reader 1.0: 4 records (0 s)\n"
    assert passes(tool(missing="Node with npm"), "barnabas", is_named=False)
    assert capsys.readouterr().out == "reader: left out, as it needs Node with npm\n"
    assert not passes(tool(missing="Node with npm"), "barnabas", is_named=True), "it was asked for"
    capsys.readouterr()
    assert passes(tool(barnabas_only=True), "apache", is_named=False)
    assert "left out" in capsys.readouterr().out
