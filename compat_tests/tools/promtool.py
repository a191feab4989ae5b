"""promtool, Prometheus's checker: on the path, or from Debian's package `prometheus`, fetched into .cache without installing it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from compat_tests.tools.installed import DebianTool
from compat_tests.tools.tool import ToolFailed

_PROMTOOL = DebianTool("promtool", ("prometheus",))
_LINT_FAULTS = 3  # the exit code of `check metrics`
_AS_EXPORTERS_DO = (
    'non-summary metrics should not have "quantile" label',
    'non-histogram and non-summary metrics should not have "_count" suffix',
    'non-histogram and non-summary metrics should not have "_sum" suffix',
)


def missing() -> str:
    """What is not here and could not be fetched; nothing when promtool is here."""
    return _PROMTOOL.missing()


def version() -> str:
    """As "2.42.0"."""
    found = re.search(r"version (\d[\d.]*)", run(("--version",)))
    return found.group(1) if found else "unknown"


def run(arguments: Sequence[str | Path], given: str = "") -> str:
    """Its output; ToolFailed when it finds fault."""
    code, output = _output(arguments, given)
    if code:
        raise ToolFailed(f"promtool {' '.join(map(str, arguments))}:\n{output}")
    return output


def check_page(page: str) -> None:
    """The text format, and names as Prometheus recommends them, except where jmx_exporter and kafka_exporter name metrics as
    parts of summaries."""
    code, output = _output(("check", "metrics"), page)
    faults = [line for line in output.splitlines() if line and not line.endswith(_AS_EXPORTERS_DO)]
    if faults or code not in (0, _LINT_FAULTS):
        raise ToolFailed("promtool check metrics:\n" + "\n".join(faults))


def _output(arguments: Sequence[str | Path], given: str) -> tuple[int, str]:
    result = subprocess.run(
        _PROMTOOL.command(*arguments), input=given, capture_output=True, text=True, timeout=120, check=False
    )
    return result.returncode, result.stdout + result.stderr
