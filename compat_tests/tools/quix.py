"""Quix Streams: topics made by its admin, a repartitioning, state with a changelog topic; at least once and exactly once."""

from __future__ import annotations

import json
from collections import defaultdict

from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import lag, send, values
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import Background
from compat_tests.tools.tool import Trial

_QUIX = PythonTool("quixstreams", ("quixstreams==3.28.1",))
_CUSTOMERS = ("ada", "grace", "edsger")
_ORDERS = 600


def check(trial: Trial) -> str:
    """Both guarantees, each with a restart in the middle whose state comes from the changelog."""
    with trial.broker() as broker:
        _count(trial, broker, "at-least-once", kill=False)
        _count(trial, broker, "exactly-once", kill=True)
    return (
        f"{_ORDERS} orders by customer through a repartition topic, their counts in RocksDB with a changelog; at least once over a "
        "stop, exactly once over a kill -9, the state restored from the changelog"
    )


def _count(trial: Trial, broker: Broker, guarantee: str, *, kill: bool) -> None:
    orders, totals, group = f"orders-{guarantee}", f"totals-{guarantee}", f"counts-{guarantee}"
    create_topic(broker.bootstrap, orders, 3)
    create_topic(broker.bootstrap, totals, 3)
    directory = trial.directory / guarantee

    def start(state: str) -> Background:
        return Background(
            _QUIX.program("quix_counts", broker.bootstrap, guarantee, directory / state), directory
        )

    _send(broker, orders, range(_ORDERS // 3))
    with start("first") as app:
        app.wait_until(lambda: len(values(broker, totals)) >= _ORDERS // 3)
        _send(broker, orders, range(_ORDERS // 3, _ORDERS))
        if kill:
            # in the middle: some are in a transaction that is open, or in a batch that was not sent
            app.wait_until(lambda: len(values(broker, totals, committed=False)) > _ORDERS // 3)
            app.kill()
    with start("second") as app:  # an empty folder
        app.wait_until(lambda: len(values(broker, totals)) >= _ORDERS)
        app.wait_until(lambda: lag(broker, group, orders) == 0)
    found = defaultdict(list)
    numbers = []
    for each in map(json.loads, values(broker, totals)):
        found[each["customer"]].append(each["total"])
        numbers.append(each["number"])
    assert sorted(numbers) == list(range(_ORDERS)), f"{len(numbers)} records, {len(set(numbers))} orders"
    for customer in _CUSTOMERS:
        assert found[customer] == list(range(1, _ORDERS // len(_CUSTOMERS) + 1)), (customer, found[customer])


def _send(broker: Broker, topic: str, numbers: range) -> None:
    orders = ({"number": number, "customer": _CUSTOMERS[number % len(_CUSTOMERS)]} for number in numbers)
    send(broker, topic, ((f"{order['number']}", json.dumps(order)) for order in orders))


QUIX = _QUIX.tool("quixstreams", check)
