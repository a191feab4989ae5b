"""Faust (faust-streaming): a repartition topic, and a table whose changelog a restart reads."""

from __future__ import annotations

import json
from collections import defaultdict

from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import send, values
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import Background
from compat_tests.tools.tool import Trial

_FAUST = PythonTool("faust", ("faust-streaming==0.15.3",))
_CUSTOMERS = ("ada", "grace", "edsger")
_ORDERS = 300


def check(trial: Trial) -> str:
    """A worker, then a second one with the table of the first."""
    with trial.broker() as broker:
        create_topic(broker.bootstrap, "faust-orders", 3)
        create_topic(broker.bootstrap, "faust-totals", 3)
        for part, name in enumerate(("first", "second"), 1):
            sent = part * _ORDERS // 2
            _send(broker, range(sent - _ORDERS // 2, sent))
            environment = {"BOOTSTRAP": broker.bootstrap, "DATA": str(trial.directory / name)}
            command = _FAUST.program("faust_counts", "worker", "-l", "info")
            with Background(command, trial.directory, environment) as worker:
                worker.wait_until(lambda wanted=sent: len(values(broker, "faust-totals")) >= wanted)  # type: ignore[misc]
        found = defaultdict(list)
        for each in map(json.loads, values(broker, "faust-totals")):
            found[each["customer"]].append(each["total"])
        changelog = dict(read_all(broker.bootstrap, "faust-counts-counts-changelog"))
    for customer in _CUSTOMERS:
        wanted = _ORDERS // len(_CUSTOMERS)
        assert found[customer] == list(range(1, wanted + 1)), (customer, found[customer])
        assert changelog[f'"{customer}"'.encode()] == f"{wanted}".encode(), changelog
    return (
        f"{_ORDERS} orders by customer through a repartition topic, each once, and their counts in a table that a second worker "
        "restores from its changelog topic"
    )


def _send(broker: Broker, numbers: range) -> None:
    orders = ({"number": number, "customer": _CUSTOMERS[number % len(_CUSTOMERS)]} for number in numbers)
    send(broker, "faust-orders", ((f"{order['number']}", json.dumps(order)) for order in orders))


FAUST = _FAUST.tool("faust-streaming", check)
