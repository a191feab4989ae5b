"""Fixtures: one nats-server, one broker and one cluster for most tests, cleaned after each test (shared.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.shared import Shared

_HERE = Path(__file__).parent
_made: dict[Path, Shared] = {}


@pytest.fixture(scope="session")
def _shared_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], Shared]:
    def shared(executable: Path) -> Shared:
        if executable not in _made:
            loop = request.config.getoption("--loop")
            _made[executable] = Shared(tmp_path_factory.mktemp("shared"), executable, loop)
        return _made[executable]

    return shared


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stops the shared processes before the tests of other folders."""
    if nextitem is None or _HERE not in nextitem.path.parents:
        while _made:
            _made.popitem()[1].close()


@pytest.fixture
def _shared(_shared_of: Callable[[Path], Shared], nats_executable: Path) -> Iterator[Shared]:
    shared = _shared_of(nats_executable)
    yield shared
    try:
        shared.clean()
    except BaseException:
        _made.pop(nats_executable).close()
        raise


@pytest.fixture
def server(_shared: Shared) -> NatsServer:
    """A nats-server with JetStream, which a test may stop, kill and restart."""
    return _shared.server


@pytest.fixture
def broker(_shared: Shared) -> Broker:
    """A broker connected to `server`; a test may stop, kill and restart it."""
    return _shared.broker


@pytest.fixture
def cluster(_shared: Shared) -> Cluster:
    """Three nodes connected to `server`; a test may stop, kill and restart them."""
    return _shared.cluster
