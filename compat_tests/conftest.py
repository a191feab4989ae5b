"""Fixtures of the compatibility suite: which broker is under test, and Kafka's tools.

`pytest compat_tests` tests this broker; `--broker apache` starts Apache Kafka in its place and
`--broker HOST:PORT` takes one that runs already. `--loop asyncio` runs this broker without uvloop.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker, ExternalBroker, made
from compat_tests.harness.cluster import THREE, Cluster
from compat_tests.harness.fixture_types import (
    BrokerFactory,
    ClusterFactory,
    TopicFactory,
)
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.metrics import LISTENER
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory

LOG_LINES_SHOWN = 40
MEASURES_STALLS = "BARNABAS_CHAOS_ROUNDS" in os.environ  # `make chaos`
# settings of the shared broker besides the defaults: tests can wait for the end of short sessions, transactions and throttles
SHARED_SETTINGS = {
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "quota.window.num": "3",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Command-line options."""
    parser.addoption(
        "--broker",
        default="barnabas",
        help="barnabas (default), apache (Apache Kafka from its jars) or HOST:PORT of a running broker",
    )
    parser.addoption(
        "--loop", default="", choices=["", "uvloop", "asyncio"], help="event loop of this broker"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For pytest's option -n."""
    from compat_tests.harness.workers import Scheduling

    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need Java; with another broker under test, skip tests of this broker alone."""
    if hasattr(config, "workerinput"):
        from compat_tests.harness.workers import place_in_queue

        items.sort(key=lambda item: place_in_queue(item.nodeid))
    kind = config.getoption("--broker")
    skip = pytest.mark.skip(reason="about this broker alone")
    for item in items:
        if "java_tools" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.jvm)
        if kind != "barnabas" and item.get_closest_marker("barnabas_only"):
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows the last lines of its brokers' logs, which are removed soon."""
    report = yield
    if report.when == "call" and report.failed:
        for broker in [each for each in made if each.process is not None]:
            lines = broker.log_text().splitlines()[-LOG_LINES_SHOWN:]
            report.sections.append((f"the end of the log in {broker.directory}", "\n".join(lines)))
    return report


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> str:
    """`barnabas`, `apache` or `HOST:PORT`."""
    return str(request.config.getoption("--broker"))


@pytest.fixture(scope="session")
def java_tools() -> Iterator[JavaTools]:
    """The JVM that runs Kafka's tools, one for the session."""
    tools = JavaTools()
    yield tools
    tools.close()


def _make(
    request: pytest.FixtureRequest, kind: str, directory: Path, settings: Mapping[str, str] | None
) -> Broker:
    if kind == "barnabas":
        return BarnabasBroker(directory, settings, loop=request.config.getoption("--loop"))
    if kind == "apache":
        return ApacheBroker(directory, settings, tools=request.getfixturevalue("java_tools"))
    return ExternalBroker(kind)


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """The broker that all tests share; no test may stop it or change its own settings."""
    shared = _make(request, broker_kind, tmp_path_factory.mktemp("broker"), SHARED_SETTINGS)
    shared.start()
    yield shared
    shared.stop()


@pytest.fixture
def fresh_broker(
    request: pytest.FixtureRequest, broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    """`fresh_broker(settings, start=True)` makes a broker of the test's own, to restart, kill and configure."""
    with _brokers(request, broker_kind, tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="module")
def module_broker(
    request: pytest.FixtureRequest, broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    """As `fresh_broker`, for a broker with other settings that the tests of a module share."""
    with _brokers(request, broker_kind, tmp_path_factory) as make:
        yield make


@contextmanager
def _brokers(
    request: pytest.FixtureRequest, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    if kind not in ("barnabas", "apache"):
        pytest.skip("restarts the broker or needs other settings, which an external broker does not allow")
    made: list[Broker] = []

    def make(settings: Mapping[str, str] | None = None, *, start: bool = True) -> Broker:
        one = _make(request, kind, tmp_path_factory.mktemp("broker"), settings)
        made.append(one)
        if start:
            one.start()
        return one

    yield make
    for one in made:
        if one.alive():
            one.kill()


@pytest.fixture
def fresh_cluster(
    request: pytest.FixtureRequest, broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterFactory]:
    """Makes a cluster, started unless `start` is false; kills it at the end."""
    if broker_kind not in ("barnabas", "apache"):
        pytest.skip("needs a cluster of its own, and the broker under test is external")
    tools = request.getfixturevalue("java_tools") if broker_kind == "apache" else None
    made: list[Cluster] = []
    measures = MEASURES_STALLS and broker_kind == "barnabas"

    def make(
        roles: Mapping[int, str] = THREE,
        *,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        proxied: bool = False,
        start: bool = True,
    ) -> Cluster:
        one = Cluster(
            tmp_path_factory.mktemp("cluster"),
            broker_kind,
            roles,
            {**({LISTENER: "127.0.0.1:0"} if measures else {}), **(settings or {})},
            node_settings,
            proxied=proxied,
            tools=tools,
            loop=request.config.getoption("--loop"),
        )
        made.append(one)
        if start:
            one.start()
        return one

    yield make
    for one in made:
        if measures:
            note_stalls(request, one)
        one.close()


def note_stalls(request: pytest.FixtureRequest, cluster: Cluster) -> None:
    """Note the event loop stalls of the running brokers for the summary."""
    try:
        stalls = cluster.stalls()
    except (OSError, LookupError) as error:  # a broker has failed, and the test has reported why
        request.node.user_properties.append(("stalls", f"unknown: {error!r}"))
        return
    summary = ", ".join(
        f"node {node}: {count}, longest {longest:.2f} s ({busy:.2f} s of processor)"
        for node, (count, longest, busy) in stalls.items()
    )
    request.node.user_properties.append(("stalls", summary or "no broker ran"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """For each test of `make chaos`: the number of event loop stalls (more than 0.1 s), the longest one, and the most
    processor time of one. Brokers that are suspended or get no processor stall as well."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "teardown":
                for name, stalls in report.user_properties:
                    if name == "stalls":
                        terminalreporter.write_line(f"stalls in {report.nodeid}: {stalls}")


@pytest.fixture
def nats_server(
    tmp_path_factory: pytest.TempPathFactory, nats_executable: Path
) -> Iterator[NatsServerFactory]:
    """Makes a nats-server for one test and kills it at the end."""
    made: list[NatsServer] = []

    def make(
        *,
        jetstream: bool = False,
        config: str = "",
        monitoring: bool = False,
        start: bool = True,
    ) -> NatsServer:
        one = NatsServer(
            tmp_path_factory.mktemp("nats"),
            jetstream=jetstream,
            config=config,
            monitoring=monitoring,
            executable=nats_executable,
        )
        made.append(one)
        return one.start() if start else one

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """`unique("topic")` is a name that no other test uses."""

    def name(prefix: str) -> str:
        return f"{prefix}-{uuid.uuid4().hex[:10]}"

    return name


@pytest.fixture
def topic(broker: Broker, unique: Callable[[str], str]) -> TopicFactory:
    """`topic(partitions=1, configs={})` creates a topic on the shared broker and returns its name."""
    from compat_tests.harness.topics import create_topic

    def make(partitions: int = 1, configs: Mapping[str, str] | None = None, prefix: str = "topic") -> str:
        # the records' timestamps are fixed and old: retention must not delete them during a test
        return create_topic(
            broker.bootstrap, unique(prefix), partitions, {"retention.ms": "-1", **(configs or {})}
        )

    return make
