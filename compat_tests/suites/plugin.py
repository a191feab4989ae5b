"""A pytest plugin that holds the run of another project's suite to an allow-list.

`--allow-list FILE` names the TOML file; its tables map a test (`file.py::name[parameters]`) to the reason why it

- `[fails]`: fails; here the reason is a table of `reason` and `shows`, a text that the test's report has in it. Should it
  fail otherwise, or pass, the run fails: the entry is stale. `--nothing-fails` empties this table.
- `[skips]`: skips itself. Any other test that skips fails the run.
- `[not_run]`: is not run.

`[quick] tests` is the choice that `--quick` runs. An entry that names no test ends the run before it begins.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

from compat_tests.suites import service_stub


def pytest_addoption(parser: pytest.Parser) -> None:
    """Command-line options."""
    parser.addoption("--allow-list", type=Path, required=True)
    parser.addoption("--nothing-fails", action="store_true")
    parser.addoption("--quick", action="store_true")
    # those that would wait a minute for an answer end sooner
    parser.addoption("--expected-failure-seconds", type=int, default=10)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """The suite's conftest.py imports it."""
    sys.modules["test.service"] = service_stub


def pytest_configure(config: pytest.Config) -> None:
    """Read the list."""
    config.pluginmanager.register(AllowList(config))


class AllowList:
    """The list, applied to the collected tests and to their reports."""

    def __init__(self, config: pytest.Config) -> None:
        tables = tomllib.loads(config.getoption("--allow-list").read_text())
        self.fails: dict[str, dict[str, str]] = {} if config.getoption("--nothing-fails") else tables["fails"]
        self.skips: dict[str, str] = tables["skips"]
        self.not_run: dict[str, str] = tables["not_run"]
        self.quick: list[str] = tables["quick"]["tests"]
        self.only_quick: bool = config.getoption("--quick")
        self.expected_failure_seconds: int = config.getoption("--expected-failure-seconds")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Mark the tests of the list; before pytest's own -k takes tests away."""
        by_name = {name_of(item.nodeid): item for item in items}
        self._refuse_unknown(by_name)
        for name, failure in self.fails.items():
            by_name[name].add_marker(pytest.mark.xfail(strict=True, reason=failure["reason"]))
            by_name[name].add_marker(pytest.mark.timeout(self.expected_failure_seconds))
        for name, reason in self.not_run.items():
            by_name[name].add_marker(pytest.mark.skip(reason=reason))
        if self.only_quick:
            config.hook.pytest_deselected(
                items=[one for one in items if name_of(one.nodeid) not in self.quick]
            )
            items[:] = [by_name[name] for name in by_name if name in self.quick]

    def _refuse_unknown(self, known: Iterable[str]) -> None:
        named = [*self.fails, *self.skips, *self.not_run, *self.quick]
        unknown = sorted(set(named) - set(known))
        if unknown:
            raise pytest.UsageError("the allow-list names tests that do not exist: " + ", ".join(unknown))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A skip that is not listed is a failure, and so is a listed failure that is another one."""
        report = yield
        name = name_of(item.nodeid)
        expected = name in self.skips or name in self.not_run or hasattr(report, "wasxfail")
        if report.skipped and not expected:
            report.outcome = "failed"
            report.longrepr = f"skipped, and the allow-list does not say so: {report.longrepr}"
        if (
            report.skipped
            and name in self.fails
            and (shows := self.fails[name]["shows"]) not in report.longreprtext
        ):
            report.outcome = "failed"
            del report.wasxfail
            report.longrepr = f"fails, and does not show {shows!r}:\n{report.longreprtext}"
        return report


def name_of(nodeid: str) -> str:
    """`test/integration/test_x.py::test_y[z]` without the folders."""
    path, separator, test = nodeid.partition("::")
    return path.rsplit("/", 1)[-1] + separator + test
