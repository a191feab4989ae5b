"""Fixtures and options of all tests: how many examples Hypothesis tries, `--no-sockets`, and the installed nats-servers.

With `--no-sockets` (`make unit`) the tests marked `sockets`, `jvm` or `slow` are left out, and a test without one of these
marks fails when it opens a socket or starts a process.

Tests marked `own_process` run in a process of their own: clients of other tests open and close descriptors and threads
at any time.

Tests marked `every_nats_server` run once with each nats-server that is installed, the others with the default one
(compat_tests/harness/nats_server.py).
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from compat_tests.harness.nats_server import default_executable, installed_executables

settings.register_profile("barnabas", deadline=None, max_examples=30)
settings.register_profile("long", deadline=None, max_examples=1000)  # `make test-durability`
settings.load_profile("barnabas")

_MARK = "every_nats_server"
_OWN_PROCESS = "own_process"
_IN_OWN_PROCESS = "BARNABAS_TEST_IN_OWN_PROCESS"
_NOT_UNIT = ("sockets", "jvm", "slow")


@pytest.fixture
def nats_executable(request: pytest.FixtureRequest) -> Path:
    """The nats-server of a test."""
    version: str | None = getattr(request, "param", None)
    return default_executable() if version is None else installed_executables()[version]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of `make unit`."""
    parser.addoption("--no-sockets", action="store_true", help="leave out what needs sockets or processes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the marks say."""
    if config.getoption("--no-sockets"):
        left_out = {item for item in items if any(map(item.get_closest_marker, _NOT_UNIT))}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True, scope="session")
def _no_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.config.getoption("--no-sockets"):
        yield
        return

    def refuse(*_: Any, **__: Any) -> Any:
        pytest.fail("a test that opens sockets or starts processes is marked `sockets`")

    with pytest.MonkeyPatch.context() as patch:
        for method in ("bind", "connect", "connect_ex"):
            patch.setattr(socket.socket, method, refuse)
        patch.setattr(subprocess.Popen, "__init__", refuse)
        for loop in (asyncio.SelectorEventLoop, uvloop.Loop):
            for method in ("create_server", "create_connection"):
                patch.setattr(loop, method, refuse)
        yield


_threads_of_clients: dict[threading.Thread, str] = {}  # the test after which each was seen first


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Note the threads of kafka-python's clients."""
    for thread in threading.enumerate():
        if thread.name.startswith("kafka-"):
            _threads_of_clients.setdefault(thread, item.nodeid)


@pytest.fixture(autouse=True, scope="session")
def _clients_are_closed() -> Iterator[None]:
    """What a client that is left open logs and allocates disturbs every later test of its process."""
    yield
    left = {
        _threads_of_clients.get(thread, "the last one")  # whose teardown this is part of
        for thread in threading.enumerate()
        if thread.name.startswith("kafka-")
    }
    assert not left, f"these tests leave clients of kafka-python open: {sorted(left)}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked so in another process."""
    if pyfuncitem.get_closest_marker(_OWN_PROCESS) is None or _IN_OWN_PROCESS in os.environ:
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**environment, _IN_OWN_PROCESS: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stdout, pytrace=False)
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the marked tests with each installed nats-server."""
    if metafunc.definition.get_closest_marker(_MARK) and len(installed_executables()) > 1:
        metafunc.parametrize("nats_executable", list(installed_executables()), indirect=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line when only the default nats-server is installed."""
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
