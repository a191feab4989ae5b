"""What stands behind the plugin's fixtures: brokers in this process, Apache Kafka processes, or one that runs elsewhere."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from barnabas.testing.broker import Broker

LOG_LINES_MAX = 2000  # of the log, and requests, in the report of a failing test
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Sections = list[tuple[str, str]]


class Kafkas(Protocol):
    """A broker or a cluster of any kind, as far as all kinds can do it."""

    @property
    def bootstrap_servers(self) -> str: ...

    def topics(self) -> dict[str, int]: ...

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> object: ...

    def delete_topics(self, *names: str) -> object: ...

    def stop(self) -> None: ...


class Backend:
    """A broker that runs, and what the report of a failing test shows of it."""

    is_shared_with_others = False  # other programs' topics may be there

    def __init__(self, broker: Kafkas) -> None:
        self.broker = broker
        self.lasting_prefixes: list[str] = []  # of names that no test's end takes away

    def begin_test(self) -> None:
        """What was before is not to be reported."""

    def end_test(self) -> None:
        """What a test has done to the broker is not to meet the next one."""

    def report_sections(self) -> Sections:
        return []

    def stop(self) -> None:
        self.broker.stop()


class Backends(Protocol):
    """Makes them."""

    def make_shared(self) -> Backend: ...

    def make_fresh(
        self, nodes: int, properties: Mapping[str, object], *, processes: bool = False
    ) -> Backend: ...

    def close(self) -> None: ...


def make_backends(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Backends:
    """Of the kind that --kafka names; `check_options` has found nothing wrong with it."""
    kind = str(config.getoption("--kafka"))
    properties = _ini_properties(config.getini("kafka_properties"))
    if kind == "barnabas":
        return InProcess(properties, config.pluginmanager)
    if kind == "apache":
        return Apache(Path(_apache_home(config)), properties, tmp_path_factory)
    return Elsewhere(kind)


def check_options(config: pytest.Config) -> None:
    """pytest.UsageError, of one line, where there can't be a broker as --kafka and the ini file want it."""
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
    """The last lines that brokers of this process have logged. They go nowhere else, so that `caplog` shows a test what its own
    code says. It is a plugin because newer releases of pytest put their handlers, at each phase of each test, on loggers that
    do not propagate, too."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter(_LOG_FORMAT))
        self.count = 0  # of all that there were
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
        self._take_off_the_root_s()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None]:
        self._take_off_the_root_s()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        self._take_off_the_root_s()
        return (yield)

    def _take_off_the_root_s(self) -> None:
        """pytest's handlers are on the root logger as well; those of a test or a program are on one of the two."""
        for handler in logging.getLogger().handlers:
            if handler not in self._handlers_before:
                self._logger.removeHandler(handler)

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        self._records.append(record)

    def text(self, begin: int) -> str:
        """What has come since there were so many."""
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
        self.broker.requests.clear()

    def end_test(self) -> None:
        if not self.broker.is_in_thread:  # the test has stopped it
            self.broker.start()
        self.broker.recover()

    def report_sections(self) -> Sections:
        requests = self.broker.requests.transcript()[-LOG_LINES_MAX:]
        return [
            ("Kafka broker's log", self._log.text(self._begin)),
            ("Kafka requests", "\n".join(requests)),
        ]


class InProcess:
    """Brokers of this process."""

    def __init__(self, properties: Mapping[str, object], plugins: pytest.PytestPluginManager) -> None:
        self._properties = dict(properties)
        self._log = BrokerLog()
        self._plugins = plugins
        plugins.register(self._log, "barnabas-log")

    def make_shared(self) -> Backend:
        return self.make_fresh(1, {})

    def make_fresh(self, nodes: int, properties: Mapping[str, object], *, processes: bool = False) -> Backend:
        if processes:
            from barnabas.testing.external.broker_processes import BrokerProcesses

            return ProcessesBackend(BrokerProcesses({**self._properties, **properties}, nodes=nodes).start())
        from barnabas.testing.broker import Broker

        broker = Broker({**self._properties, **properties}, nodes=nodes).start()
        return InProcessBackend(broker, self._log)

    def close(self) -> None:
        self._plugins.unregister(self._log)
        self._log.detach()


# -- processes


class ProcessesBackend(Backend):
    """Processes of Barnabas, or of Apache Kafka."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self._kafka = broker
        self._begin = 0

    def begin_test(self) -> None:
        self._begin = len(self._kafka.log_text())

    def report_sections(self) -> Sections:
        text = self._kafka.log_text()[self._begin :]
        return [("Kafka broker's log", "\n".join(text.splitlines()[-LOG_LINES_MAX:]))]


class Apache:
    """Starts Apache Kafka, with its files in pytest's folder for such."""

    def __init__(
        self, home: Path, properties: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        self._home = home
        self._properties = dict(properties)
        self._folders = tmp_path_factory

    def make_shared(self) -> Backend:
        return self.make_fresh(1, {})

    def make_fresh(
        self,
        nodes: int,
        properties: Mapping[str, object],
        *,
        processes: bool = False,  # noqa: ARG002 - they are
    ) -> Backend:
        from barnabas.testing.external.apache_kafka import ApacheKafka

        folder = self._folders.mktemp("kafka")
        kafka = ApacheKafka(self._home, folder, {**self._properties, **properties}, nodes=nodes)
        return ProcessesBackend(kafka.start())

    def close(self) -> None:
        """Each has been stopped."""


# -- elsewhere


class ElsewhereBackend(Backend):
    """A broker that runs, and goes on doing so."""

    is_shared_with_others = True

    def stop(self) -> None:
        self.broker.stop()  # our connection to it


class Elsewhere:
    """A broker at an address, not started here."""

    def __init__(self, address: str) -> None:
        self._address = address

    def make_shared(self) -> Backend:
        from barnabas.testing.external.remote_kafka import RemoteKafka

        return ElsewhereBackend(RemoteKafka(self._address))

    def make_fresh(
        self,
        nodes: int,  # noqa: ARG002
        properties: Mapping[str, object],  # noqa: ARG002
        *,
        processes: bool = False,  # noqa: ARG002
    ) -> Backend:
        pytest.skip(f"needs a broker of its own; --kafka {self._address} is one that runs already")

    def close(self) -> None:
        """Nothing was started."""
