"""The pytest plugin `barnabas`: Kafka for tests, from this process (docs/testing.md).

pytest loads this file in every run of every project that has Barnabas installed, so it imports pytest alone. Everything else
comes with the first fixture that is used.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from barnabas.testing.broker_security import BrokerSecurity
    from barnabas.testing.pytest_plugin.backends import Backend, Backends
    from barnabas.testing.pytest_plugin.kafka_fixture import Kafka
    from barnabas.testing.security import Security

_REPORTED = pytest.StashKey["list[Callable[[], list[tuple[str, str]]]]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Command-line options and the ini file's."""
    group = parser.getgroup("kafka", "Kafka for tests (Barnabas)")
    group.addoption(
        "--kafka",
        default="barnabas",
        metavar="barnabas|apache|HOST:PORT",
        help="what the Kafka fixtures are: brokers in this process (default), Apache Kafka processes (see --kafka-home), or "
        "a broker that runs already",
    )
    group.addoption(
        "--kafka-home",
        default=None,
        metavar="DIR",
        help="for --kafka apache: an unpacked Apache Kafka, or a folder of its jars; default: the variable KAFKA_HOME",
    )
    parser.addini(
        "kafka_properties",
        "properties of all brokers that the fixtures start, one name=value a line, as in server.properties",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line(
        "markers",
        "kafka(**properties): properties of kafka_broker and kafka_cluster in this test; a name with dots stands in a "
        "mapping: @pytest.mark.kafka({'num.partitions': 3}); security=Security(...) makes them secured ones",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say once, and before anything else, what --kafka lacks. Under pytest-xdist the one that hands out the tests does."""
    config = session.config
    is_worker = hasattr(config, "workerinput")
    is_plain = config.getoption("--kafka") == "barnabas" and not config.getoption("--kafka-home")
    if not is_worker and (not is_plain or config.getini("kafka_properties")):
        from barnabas.testing.pytest_plugin.backends import check_options

        check_options(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """See which tests heed the mark, before options leave some of them out."""
    if any(item.get_closest_marker("kafka") for item in items):
        from barnabas.testing.pytest_plugin.marks import note_heeding

        note_heeding(session, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a mark of a test that has nothing to give it to."""
    if item.get_closest_marker("kafka"):
        from barnabas.testing.pytest_plugin.marks import refuse_unheeded

        refuse_unheeded(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's log and the requests to the report of a test that has failed."""
    report = yield
    if report.failed and call.when != "teardown" and _REPORTED in item.stash:
        for sections in item.stash[_REPORTED]:
            report.sections.extend(_shown(sections))
    return report


def _shown(sections: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """What there is to show; whatever goes wrong with that must not hide how the test failed."""
    try:
        return [(title, text) for title, text in sections() if text]
    except Exception as error:  # noqa: BLE001 - see above
        return [("Kafka", f"nothing can be shown: {error!r}")]


def _report_with(request: pytest.FixtureRequest, backend: Backend) -> None:
    reported: Any = request.node.stash.setdefault(_REPORTED, [])
    reported.append(backend.report_sections)


@pytest.fixture(scope="session")
def _kafka_backends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backends]:
    """Makes brokers of the kind that --kafka names."""
    from barnabas.testing.pytest_plugin.backends import make_backends

    backends = make_backends(request.config, tmp_path_factory)
    yield backends
    backends.close()


@pytest.fixture(scope="session")
def _kafka_shared(_kafka_backends: Backends) -> Iterator[Backend]:
    """The broker that all tests share that use `kafka`."""
    backend = _kafka_backends.make_shared()
    yield backend
    backend.stop()


@pytest.fixture(scope="session")
def kafka_session(_kafka_shared: Backend) -> Iterator[Kafka]:
    """The session's broker for fixtures that outlive a test; what it makes stays until the end of the session."""
    from barnabas.testing.pytest_plugin.kafka_fixture import Kafka

    view = Kafka(_kafka_shared, "session", is_lasting=True)
    yield view
    view.finish()


@pytest.fixture
def kafka(request: pytest.FixtureRequest, _kafka_shared: Backend) -> Iterator[Kafka]:
    """The session's broker as this test sees it: without topics, and with names that no other test has."""
    from barnabas.testing.pytest_plugin.kafka_fixture import Kafka

    _report_with(request, _kafka_shared)
    _kafka_shared.begin_test()
    view = Kafka(_kafka_shared, request.node.name)
    yield view
    view.finish()


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest, _kafka_backends: Backends) -> Iterator[Any]:
    """A broker of this test alone: `barnabas.testing.Broker`, or with --kafka apache an `ApacheKafka`."""
    properties, security = _marked(request)
    backend = _kafka_backends.make_fresh(1, properties, security=security)
    _report_with(request, backend)
    yield backend.broker
    backend.stop()


@pytest.fixture
def kafka_security(kafka_broker: Any) -> BrokerSecurity:
    """`kafka_broker.security`, of a test that is marked with kafka(security=...): settings of clients, users, ACLs, certificates."""
    security: BrokerSecurity = kafka_broker.security
    return security


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest, _kafka_backends: Backends) -> Iterator[Callable[..., Any]]:
    """`kafka_cluster(3, properties)` starts a cluster of this test alone, as `kafka_broker` does a single node;
    `kafka_cluster(3, processes=True)` one whose nodes are processes, a `barnabas.testing.BrokerProcesses`; `security` as in a
    mark."""
    ending = ExitStack()

    def make(
        nodes: int = 3,
        properties: dict[str, object] | None = None,
        *,
        processes: bool = False,
        security: Security | None = None,
    ) -> Any:
        marked, marked_security = _marked(request)
        backend = _kafka_backends.make_fresh(
            nodes, {**marked, **(properties or {})}, processes=processes, security=security or marked_security
        )
        ending.callback(backend.stop)
        _report_with(request, backend)
        return backend.broker

    with ending:
        yield make


@pytest.fixture
def kafka_topic(kafka: Kafka) -> str:
    """The name of a new topic with one partition."""
    return kafka.topic()


@pytest.fixture
def kafka_producer(kafka: Kafka) -> Any:
    """A `kafka.KafkaProducer` (kafka-python) of the session's broker, closed at the end of the test."""
    return kafka.producer()


@pytest.fixture
def kafka_consumer(kafka: Kafka, kafka_topic: str) -> Any:
    """A `kafka.KafkaConsumer` (kafka-python) that reads `kafka_topic` from its beginning, in a group of its own."""
    return kafka.consumer(kafka_topic)


def _marked(request: pytest.FixtureRequest) -> tuple[dict[str, object], Security | None]:
    """The properties and the security that marks give to a test."""
    from barnabas.testing.pytest_plugin.marks import marked_properties, take_security

    properties = marked_properties(request.node)
    return properties, take_security(properties)
