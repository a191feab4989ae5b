"""PyFlink with Flink's Kafka connector: a source by group, a transactional sink, a restart from a checkpoint."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import lag, send, values
from compat_tests.tools.installed import MavenFile, PythonTool
from compat_tests.tools.process import Background
from compat_tests.tools.tool import Tool, Trial

_VERSION = "2.2.1"
_FLINK = PythonTool("pyflink", (f"apache-flink=={_VERSION}",))
_CONNECTOR = MavenFile("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
_PINNED = f"{_VERSION}, connector {_CONNECTOR.version}"
_JVM = {"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}  # it starts in half of the time
_CUSTOMERS = ("ada", "grace", "edsger")
_ORDERS = 600
_JOB_S = 300  # a JVM, and Flink in it


def check(trial: Trial) -> str:
    """With both ways to name transactions."""
    with trial.broker() as broker:
        for naming in ("incrementing", "pooling"):
            _count(trial.directory / naming, broker, naming)
    return (
        f"{_ORDERS} orders counted by customer in SQL: committed exactly once by the transactional sink over a kill -9, a restart from "
        "a checkpoint and a kill -9 of the broker, with names of transactions that increment and that are pooled; the source's offsets committed"
    )


def _count(directory: Path, broker: Broker, naming: str) -> None:
    orders = create_topic(broker.bootstrap, f"orders-{naming}", 3)
    totals = create_topic(broker.bootstrap, f"totals-{naming}", 3)
    checkpoints = directory / "checkpoints"
    checkpoints.mkdir(parents=True)
    command = _FLINK.program("pyflink_totals", broker.bootstrap, naming, checkpoints, _CONNECTOR.path)
    _send(broker, orders, range(_ORDERS // 3))
    with Background(command, directory, _JVM) as job:
        job.wait_until(lambda: len(values(broker, totals)) >= _ORDERS // 3, _JOB_S)
        _send(broker, orders, range(_ORDERS // 3, 2 * _ORDERS // 3))
        job.wait_until(lambda: len(values(broker, totals, committed=False)) > _ORDERS // 3)
        job.kill()  # between checkpoints: these records' transaction is open
    with Background(command, directory, _JVM) as job:
        job.wait_until(lambda: len(values(broker, totals)) >= 2 * _ORDERS // 3, _JOB_S)
        broker.restart(kill=True)
        _send(broker, orders, range(2 * _ORDERS // 3, _ORDERS))
        job.wait_until(lambda: len(values(broker, totals)) >= _ORDERS, _JOB_S)
        job.wait_until(lambda: lag(broker, f"flink-{naming}", orders) == 0)
    found = defaultdict(list)
    for each in map(json.loads, values(broker, totals)):
        found[each["customer"]].append(each["total"])
    for customer in _CUSTOMERS:
        assert sorted(found[customer]) == list(range(1, _ORDERS // len(_CUSTOMERS) + 1)), (
            customer,
            found[customer],
        )


def _send(broker: Broker, topic: str, numbers: range) -> None:
    orders = ({"number": number, "customer": _CUSTOMERS[number % len(_CUSTOMERS)]} for number in numbers)
    send(broker, topic, ((f"{order['number']}", json.dumps(order)) for order in orders))


def _missing() -> str:
    return _CONNECTOR.missing() or _FLINK.missing()


PYFLINK = Tool("pyflink", _missing, lambda: _PINNED, check, pinned=_PINNED)
