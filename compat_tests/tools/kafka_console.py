"""kafka-console, a command on @platformatic/kafka, which speaks the protocol in JavaScript; it needs Node 22, which npm brings."""

from __future__ import annotations

import json
from typing import Any

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.tools.found import ends, values
from compat_tests.tools.installed import NpmTool
from compat_tests.tools.process import run
from compat_tests.tools.tool import Trial

_CONSOLE = NpmTool("kafka-console", "3.1.55", ("node@22.23.3",))
_RECORDS = 100


def check(trial: Trial) -> str:
    """Each of its commands."""
    with trial.broker() as broker:
        _console(broker, "topic:create", "orders", "-p", "3")
        given = [{"key": f"{number}", "value": {"order": number}} for number in range(_RECORDS)]
        _console(
            broker,
            "produce",
            "orders",
            "-H",
            "colour:blue",
            given="".join(json.dumps(each) + "\n" for each in given),
        )
        assert sorted(json.loads(each)["order"] for each in values(broker, "orders")) == list(range(_RECORDS))
        _describes(broker)
        _consumes(broker)
        _console(broker, "topic:create", "copy")
        _console(broker, "topic:copy", "orders", "copy")
        assert sorted(values(broker, "copy")) == sorted(values(broker, "orders"))
        _console(broker, "topic:delete", "copy")
        eventually(lambda: _console(broker, "list") == ["orders"])
    return f"topics created, copied and deleted, {_RECORDS} records produced and consumed by a group, offsets, metadata, configs"


def _describes(broker: Broker) -> None:
    (metadata,) = _console(broker, "metadata")
    assert [f"{each['host']}:{each['port']}" for each in metadata["brokers"]] == [broker.bootstrap], metadata
    (orders,) = metadata["topicMetadata"]
    assert (orders["topic"], len(orders["partitionMetadata"])) == ("orders", 3)
    (found,) = _console(broker, "config", "-r", "topic", "-n", "orders")
    configs = {each["name"]: each["value"] for each in found["configs"]}
    assert (configs["cleanup.policy"], configs["retention.ms"]) == ("delete", "604800000"), configs


def _consumes(broker: Broker) -> None:
    found = _console(broker, "consume", "orders", "--snapshot", "-g", "readers")
    assert sorted(each["value"]["order"] for each in found) == list(range(_RECORDS))
    assert all(
        each["headers"] == {"colour": "blue"} and each["key"] == f"{each['value']['order']}" for each in found
    )
    (committed,) = _console(broker, "topic:offsets", "orders", "-g", "readers")
    assert {each["partition"]: int(each["offset"]) for each in committed["partitions"]} == ends(
        broker, "orders"
    )
    watermarks = _console(broker, "topic:offsets", "orders")
    assert {each["partition"]: int(each["high"]) for each in watermarks} == ends(broker, "orders")
    assert all(each["low"] == "0" for each in watermarks)


def _console(broker: Broker, *arguments: str, given: str = "") -> list[Any]:
    """The lines that it prints, as JSON."""
    output = run(_CONSOLE.command(*arguments, "-b", broker.bootstrap, "-t", "30000"), given=given)
    return [json.loads(line) for line in output.splitlines()]


KAFKA_CONSOLE = _CONSOLE.tool(check)
