"""kafkatop, groups and their lag."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import lag, send
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import run
from compat_tests.tools.tool import Trial

_KAFKATOP = PythonTool("kafkatop", ("kafkatop==1.16",))
_READ, _BEHIND = 100, 20


def check(trial: Trial) -> str:
    """A group with a member and one without, both behind."""
    with trial.broker() as broker:
        topic = create_topic(broker.bootstrap, "orders", 2)
        send(broker, topic, ((f"{number}", f"{number}") for number in range(_READ)), 2)
        _member(broker, topic, "gone").close()
        member = _member(broker, topic, "here")
        send(broker, topic, ((f"{number}", f"{number}") for number in range(_BEHIND)), 2)
        try:
            summary, status, topics = (
                _json(broker, option) for option in ("--summary-json", "--status", "--topicinfo")
            )
            assert lag(broker, "here", topic) == lag(broker, "gone", topic) == _BEHIND
        finally:
            member.close()
    each = {"orders": {"partitions": 2, "lag_max": _BEHIND // 2, "lag_min": _BEHIND // 2}}
    assert {group: found["topics"] for group, found in summary.items()} == {"gone": each, "here": each}, (
        summary
    )
    assert [summary[group]["state"].rpartition(".")[2] for group in ("gone", "here")] == [
        "EMPTY",
        "STABLE",
    ], summary
    assert set(status) == {"gone-orders", "here-orders"}, status
    assert topics["topics"]["orders"] == {"name": "orders", "partitions": 2}, topics
    return "groups with and without members, their states and lag, their health; topics with partitions; all as JSON"


def _json(broker: Broker, option: str) -> Any:
    return json.loads(run(_KAFKATOP.command("kafkatop", "--kafka-broker", broker.bootstrap, "--all", option)))


def _member(broker: Broker, topic: str, group: str) -> Consumer:
    """It has read and committed what there is."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    for _ in range(_READ):
        message = eventually(lambda: consumer.poll(0.1))
        assert message is not None
        assert message.error() is None
    consumer.commit(asynchronous=False)
    return consumer


KAFKATOP = _KAFKATOP.tool("kafkatop", check)
