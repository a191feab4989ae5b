"""FastStream, over confluent-kafka and over aiokafka."""

from __future__ import annotations

import json

from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import lag, values
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import run
from compat_tests.tools.tool import Trial

_FASTSTREAM = PythonTool("faststream", ("faststream[confluent,kafka]==0.7.8",))
_ORDERS = 400


def check(trial: Trial) -> str:
    """With both of its Kafka brokers."""
    with trial.broker() as broker:
        for client in ("confluent", "aiokafka"):
            orders, doubled = (
                create_topic(broker.bootstrap, f"{client}-{name}", 3) for name in ("orders", "doubled")
            )
            output = run(_FASTSTREAM.program("faststream_orders", client, broker.bootstrap, f"{_ORDERS}"))
            found = json.loads(output.splitlines()[-1])
            assert sorted(found["taken"]) == [2 * number for number in range(_ORDERS)], found
            assert max(found["batches"]) > 1, found["batches"]
            assert sorted(map(int, values(broker, orders))) == list(range(_ORDERS))
            assert len(values(broker, doubled)) == _ORDERS
            assert lag(broker, f"{client}-double", orders) == 0
            assert lag(broker, f"{client}-take", doubled) == 0
    return (
        f"over confluent-kafka and aiokafka: ping, {_ORDERS} messages published one by one and in batches, through a subscriber that "
        "publishes and one that takes batches, each once, offsets committed"
    )


FASTSTREAM = _FASTSTREAM.tool("faststream", check)
