"""For all tests: a property is never refused because the machine was busy, and which nats-servers there are.

Tests marked `every_nats_server` run once with each nats-server that is installed, the others with the default one
(compat_tests/harness/nats_server.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

_ROOT = Path(__file__).resolve().parent
if str(_ROOT) not in sys.path:
    sys.path.append(str(_ROOT))  # appended: nothing installed may be shadowed by a folder of the repository

from compat_tests.harness.nats_server import default_executable, installed_executables  # noqa: E402 - found by the path above

settings.register_profile("barnabas", deadline=None)
settings.load_profile("barnabas")

_MARK = "every_nats_server"


@pytest.fixture
def nats_executable(request: pytest.FixtureRequest) -> Path:
    """The nats-server of a test."""
    version: str | None = getattr(request, "param", None)
    return default_executable() if version is None else installed_executables()[version]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tests run with every server."""
    if metafunc.definition.get_closest_marker(_MARK) and len(installed_executables()) > 1:
        metafunc.parametrize("nats_executable", list(installed_executables()), indirect=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so where there was no other server than the default one."""
    reports = [report for several in terminalreporter.stats.values() for report in several]
    marked = sum(
        isinstance(report, pytest.TestReport) and report.when == "call" and _MARK in report.keywords
        for report in reports
    )
    versions = list(installed_executables()) if marked else []
    if len(versions) == 1:
        terminalreporter.write_line(
            f"nats-server {versions[0]} is the only one here: with another one on the PATH, such as Debian's 2.9.10,"
            f" {marked} tests run with that one, too"
        )
