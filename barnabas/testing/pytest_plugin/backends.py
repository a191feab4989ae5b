"""Backends of the plugin's fixtures: brokers in this process, Apache Kafka processes, or a broker that runs elsewhere."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from barnabas.testing.broker import Broker
    from barnabas.testing.external.apache_kafka import ApacheKafka
    from barnabas.testing.external.broker_processes import BrokerProcesses
    from barnabas.testing.external.remote_kafka import RemoteKafka
    from barnabas.testing.security import Security

LOG_LINES_MAX = 2000  # of the log, and requests, in the report of a failing test
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Sections = list[tuple[str, str]]


class Backend:
    """A broker that runs, and what the report of a failing test shows of it. `is_shared_with_others`: other programs may have
    topics there."""

    def __init__(self, broker: Broker | RemoteKafka, *, is_shared_with_others: bool = False) -> None:
        self.broker = broker
        self.is_shared_with_others = is_shared_with_others
        self.lasting_prefixes: list[str] = []  # of topics that stay when a test ends

    def begin_test(self) -> None:
        """Report nothing of what was before."""

    def end_test(self) -> None:
        """Undo what the test has done to the broker."""

    def report_sections(self) -> Sections:
        return []

    def stop(self) -> None:
        self.broker.stop()


class Backends:
    """Makes brokers of one kind."""

    def make_shared(self) -> Backend:
        """The broker of the session."""
        return self.make_fresh(1, {})

    def make_fresh(
        self,
        nodes: int,
        properties: Mapping[str, object],
        *,
        processes: bool = False,
        security: Security | None = None,
    ) -> Backend:
        """A broker of one test; `processes`: each node is one."""
        raise NotImplementedError

    def close(self) -> None:
        """At the end of the session, when each broker has been stopped."""


def make_backends(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Backends:
    """Of the kind that --kafka names. `check_options` has checked the options."""
    kind = str(config.getoption("--kafka"))
    properties = _ini_properties(config.getini("kafka_properties"))
    if kind == "barnabas":
        return InProcess(properties, config.pluginmanager)
    if kind == "apache":
        return Apache(Path(_apache_home(config)), properties, tmp_path_factory)
    return Elsewhere(kind)


def check_options(config: pytest.Config) -> None:
    """pytest.UsageError, of one line, where the options or the ini file ask for a broker that can't be had."""
    kind = str(config.getoption("--kafka"))
    _ini_properties(config.getini("kafka_properties"))
    if kind != "apache" and config.getoption("--kafka-home"):
        raise pytest.UsageError(f"--kafka-home is for --kafka=apache, and the fixtures are --kafka={kind}")
    if kind == "apache":
        _check_apache(_apache_home(config))
    elif re.fullmatch(r"[^,]+:\d+(,[^,]+:\d+)*", kind):
        _check_address(kind)
    elif kind != "barnabas":
        raise pytest.UsageError(f"--kafka {kind}: it is barnabas, apache, or HOST:PORT of a broker that runs")


def _apache_home(config: pytest.Config) -> str:
    home = config.getoption("--kafka-home") or os.environ.get("KAFKA_HOME")
    if not home:
        raise pytest.UsageError(
            "--kafka apache needs Apache Kafka: name an unpacked distribution (or a folder of its jars) with "
            "--kafka-home or in the variable KAFKA_HOME"
        )
    return str(home)


def _check_apache(home: str) -> None:
    from barnabas.testing.external.apache_kafka import find_jars, find_java
    from barnabas.testing.loop_calls import BrokerFailed

    try:
        find_jars(Path(home))
        find_java()
    except BrokerFailed as error:
        raise pytest.UsageError(f"--kafka apache: {error}") from None


def _check_address(address: str) -> None:
    from barnabas.testing.external.remote_kafka import RemoteKafka

    kafka = RemoteKafka(address)
    try:
        kafka.topics()
    except (OSError, OverflowError) as error:
        raise pytest.UsageError(f"--kafka {address}: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever an answer that is none of Kafka's is taken for
        raise pytest.UsageError(f"--kafka {address}: no Kafka answers there ({error!r})") from None
    finally:
        kafka.stop()


def _ini_properties(lines: list[str]) -> dict[str, object]:
    properties: dict[str, object] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_properties: {line!r} is no name=value")
        properties[name.strip()] = value.strip()
    return properties


# -- in this process


class BrokerLog(logging.Handler):
    """The last log lines of brokers in this process. No other handler gets them, so `caplog` shows a test the lines of its own
    code. It is a plugin because newer releases of pytest add their handlers at each phase of each test, also to loggers that
    do not propagate."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter(_LOG_FORMAT))
        self.count = 0  # of all lines so far
        self._records: deque[logging.LogRecord] = deque(maxlen=LOG_LINES_MAX)
        self._logger = logging.getLogger("barnabas")
        self._before = self._logger.level, self._logger.propagate
        self._handlers_before = list(self._logger.handlers)
        self._logger.addHandler(self)
        self._logger.propagate = False
        if self._logger.level in (logging.NOTSET, logging.WARNING):
            self._logger.setLevel(logging.INFO)

    @pytest.hookimpl(wrapper=True, trylast=True)  # the innermost
    def pytest_runtest_setup(self) -> Generator[None]:
        self._remove_pytests_handlers()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None]:
        self._remove_pytests_handlers()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        self._remove_pytests_handlers()
        return (yield)

    def _remove_pytests_handlers(self) -> None:
        """pytest puts its handlers on the root logger as well; a test or a program puts its own on one logger only."""
        for handler in logging.getLogger().handlers:
            if handler not in self._handlers_before:
                self._logger.removeHandler(handler)

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        self._records.append(record)

    def text(self, begin: int) -> str:
        """The lines since `count` was `begin`."""
        records = tuple(self._records)
        since = max(0, len(records) - (self.count - begin))
        return "\n".join(map(self.format, records[since:]))

    def detach(self) -> None:
        self._logger.removeHandler(self)
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)


class InProcessBackend(Backend):
    """A broker of this process."""

    def __init__(self, broker: Broker, log: BrokerLog) -> None:
        super().__init__(broker)
        self.broker: Broker = broker
        self._log = log
        self.begin_test()

    def begin_test(self) -> None:
        self._begin = self._log.count
        self._schemas = self.broker.schema_registry.state() if self.broker.has_schema_registry else None
        self.broker.requests.clear()

    def end_test(self) -> None:
        if not self.broker.is_in_thread:  # the test has stopped it
            self.broker.start()
        self.broker.recover()
        if self.broker.has_schema_registry:
            self.broker.schema_registry.restore_subjects(self._schemas, tuple(self.lasting_prefixes))

    def report_sections(self) -> Sections:
        requests = self.broker.requests.transcript()[-LOG_LINES_MAX:]
        return [
            ("Kafka broker's log", self._log.text(self._begin)),
            ("Kafka requests", "\n".join(_folded(requests))),
        ]


def _folded(transcript: Iterable[str]) -> list[str]:
    """The lines, with runs of the same request as one: a client that waits for a topic asks ten times a second."""
    lines: list[str] = []
    for _, same in groupby(transcript, lambda line: re.sub(r"^\S+ | \d+ ms\b", "", line)):
        first, *others = same
        lines.append(first)
        if others:
            lines.append(f"{others[-1].split()[0]} ... and {len(others)} more of the same until then")
    return lines


class InProcess(Backends):
    """Brokers in this process."""

    def __init__(self, properties: Mapping[str, object], plugins: pytest.PytestPluginManager) -> None:
        self._properties = dict(properties)
        self._log = BrokerLog()
        self._plugins = plugins
        plugins.register(self._log, "barnabas-log")

    def make_fresh(
        self,
        nodes: int,
        properties: Mapping[str, object],
        *,
        processes: bool = False,
        security: Security | None = None,
    ) -> Backend:
        if processes:
            if security is not None:
                pytest.fail("security=... is for nodes in this process, not for processes", pytrace=False)
            from barnabas.testing.external.broker_processes import BrokerProcesses

            return ProcessesBackend(BrokerProcesses({**self._properties, **properties}, nodes=nodes).start())
        from barnabas.testing.broker import Broker

        broker = Broker({**self._properties, **properties}, nodes=nodes, security=security).start()
        return InProcessBackend(broker, self._log)

    def close(self) -> None:
        self._plugins.unregister(self._log)
        self._log.detach()


# -- processes


class ProcessesBackend(Backend):
    """Processes of Barnabas, or of Apache Kafka."""

    def __init__(self, broker: ApacheKafka | BrokerProcesses) -> None:
        super().__init__(broker)
        self._log_text = broker.log_text
        self._begin = 0

    def begin_test(self) -> None:
        self._begin = len(self._log_text())

    def report_sections(self) -> Sections:
        text = self._log_text()[self._begin :]
        return [("Kafka broker's log", "\n".join(text.splitlines()[-LOG_LINES_MAX:]))]


class Apache(Backends):
    """Starts Apache Kafka, with its files in pytest's folder for such."""

    def __init__(
        self, home: Path, properties: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        self._home = home
        self._properties = dict(properties)
        self._folders = tmp_path_factory

    def make_fresh(
        self,
        nodes: int,
        properties: Mapping[str, object],
        *,
        processes: bool = False,  # noqa: ARG002 - they are processes anyway
        security: Security | None = None,
    ) -> Backend:
        if security is not None:
            pytest.skip("needs a broker of this process: security=... is not for --kafka apache")
        from barnabas.testing.external.apache_kafka import ApacheKafka

        folder = self._folders.mktemp("kafka")
        kafka = ApacheKafka(self._home, folder, {**self._properties, **properties}, nodes=nodes)
        return ProcessesBackend(kafka.start())


# -- elsewhere


class Elsewhere(Backends):
    """A broker that runs at an address already, and goes on when the tests end."""

    def __init__(self, address: str) -> None:
        self._address = address

    def make_shared(self) -> Backend:
        from barnabas.testing.external.remote_kafka import RemoteKafka

        return Backend(RemoteKafka(self._address), is_shared_with_others=True)

    def make_fresh(
        self,
        nodes: int,  # noqa: ARG002
        properties: Mapping[str, object],  # noqa: ARG002
        *,
        processes: bool = False,  # noqa: ARG002
        security: Security | None = None,  # noqa: ARG002
    ) -> Backend:
        pytest.skip(f"needs a broker of its own; --kafka {self._address} is one that runs already")
