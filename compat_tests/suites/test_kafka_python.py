"""kafka-python's own tests of the main path pass; and the allow-list lets nothing else through.

The whole suite is `make test-kafka-python`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.suites import kafka_python

_REPOSITORY = Path(__file__).resolve().parents[2]

NEWEST = "3.0.12"

LIST = """
[fails]
"test_them.py::test_fails" = { reason = "a reason", shows = "the number is wrong" }
"test_them.py::test_hangs" = { reason = "a reason", shows = "time.sleep(60)" }
[skips]
"test_them.py::test_skips" = "a reason"
[not_run]
"test_them.py::test_starts_brokers" = "a reason"
[quick]
tests = ["test_them.py::test_passes[1]"]
"""

TESTS = """
import time, pytest

@pytest.mark.parametrize("number", [1])
def test_passes(number): pass

def test_fails(): raise ValueError("the number is wrong")

def test_hangs(): time.sleep(60)

def test_skips(): pytest.skip("for another broker")

def test_starts_brokers(): assert False
"""


@pytest.mark.timeout(600)  # a busy machine; each test in it has a minute
def test_main_path(fresh_broker: BrokerFactory, broker_kind: str) -> None:
    """Producer, consumer, consumer groups and admin client, as kafka-python's authors test them."""
    quick = tomllib.loads(kafka_python.allow_list(NEWEST).read_text())["quick"]["tests"]
    broker = fresh_broker(kafka_python.settings())
    code, output = kafka_python.run(broker, NEWEST, ["--quick"], capture=True, seconds_max=280)
    if code != 0:  # its tests count seconds, which a busy machine does not have: once more
        print(output)
        broker = fresh_broker(kafka_python.settings())
        code, output = kafka_python.run(broker, NEWEST, ["--quick"], capture=True, seconds_max=280)
    assert code == 0, output
    assert f"{len(quick)} passed" in output


def test_expected_results_pass(tmp_path: Path) -> None:
    """What is on the list may fail, hang and skip."""
    code, output = _run(tmp_path, TESTS, LIST)
    assert code == 0, output
    assert "1 passed, 2 skipped, 2 xfailed" in output
    code, output = _run(tmp_path, TESTS, LIST, "--quick")
    assert code == 0, output
    assert "1 passed, 4 deselected" in output


def test_other_results_fail(tmp_path: Path) -> None:
    """A failure or a skip that is not listed, and a listed failure that passes or is another one."""
    tests = TESTS.replace('raise ValueError("the number is wrong")', "pass").replace(
        "def test_passes(number): pass", "def test_passes(number): assert False"
    )
    tests = tests.replace("time.sleep(60)", "assert False")
    tests += "\ndef test_skips_too(): pytest.skip('why?')\n"
    code, output = _run(tmp_path, tests, LIST)
    assert code == 1, output
    failed = {line.split()[1] for line in output.splitlines() if line.startswith("FAILED")}
    assert failed == {f"test_them.py::test_{name}" for name in ("passes[1]", "fails", "hangs", "skips_too")}
    assert "fails, and does not show 'time.sleep(60)'" in output
    assert "the allow-list does not say so" in output


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    """An entry whose test is gone ends the run, whichever table it is in."""
    tables = ("fails", "skips", "not_run")
    allow_list = LIST
    for table in tables:
        entry = '{ reason = "", shows = "" }' if table == "fails" else '"a reason"'
        allow_list = allow_list.replace(f"[{table}]", f'[{table}]\n"test_them.py::gone_{table}" = {entry}')
    code, output = _run(tmp_path, TESTS, allow_list)
    assert code == pytest.ExitCode.USAGE_ERROR, output
    assert all(f"test_them.py::gone_{table}" in output for table in tables)


def _run(folder: Path, tests: str, allow_list: str, *options: str) -> tuple[int, str]:
    (folder / "test_them.py").write_text(tests)
    (folder / "list.toml").write_text(allow_list)
    command = [sys.executable, "-m", "pytest", "-p", "pytest_timeout", "-p", "compat_tests.suites.plugin"]
    command += ["--allow-list", "list.toml", "--expected-failure-seconds", "1", "-rA", *options]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr
