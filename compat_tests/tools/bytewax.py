"""Bytewax: assigns partitions itself, reads them to their ends, and produces."""

from __future__ import annotations

from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import send, values
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import run
from compat_tests.tools.tool import Trial

_BYTEWAX = PythonTool("bytewax", ("bytewax[kafka]==0.21.1",))
_CUSTOMERS = ("ada", "grace", "edsger")
_ORDERS = 3000


def check(trial: Trial) -> str:
    """One flow of two workers."""
    with trial.broker() as broker:
        source, sink = (create_topic(broker.bootstrap, name, 4) for name in ("orders", "counted"))
        send(
            broker, source, ((_CUSTOMERS[number % len(_CUSTOMERS)], f"{number}") for number in range(_ORDERS))
        )
        run(_BYTEWAX.program("bytewax_flow", broker.bootstrap, source, sink))
        found = [tuple(map(int, value.split(":"))) for value in values(broker, sink)]
    assert sorted(found) == [(number, number // len(_CUSTOMERS) + 1) for number in range(_ORDERS)]
    return f"{_ORDERS} records of 4 partitions read to their ends by two workers, counted by key, written once each"


BYTEWAX = _BYTEWAX.tool("bytewax", check)
