"""The recipes of docs/nats.md run as they are on the page, and print what the page says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

from barnabas.nats.configs import BROKER_TABLE, TOPIC_TABLE
from compat_tests.docs.pages import Block, read_page
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.nats_server import NatsServerFactory
from compat_tests.nats.recipes import (
    METRICS,
    NATS,
    PAGE,
    RecipeRunner,
    commands,
    settings_of,
)
from compat_tests.nats.streams import read_all

pytestmark = pytest.mark.barnabas_only

START = "In two minutes"
RECIPES = [
    "Bind",
    "Key by token",
    "Acknowledge",
    "JetStream, exactly once",
    "A key-value bucket",
    "Records out",
    "Move from nats-kafka",
    "Move from Liftbridge",
    "Watch",
    "Debug: why does nothing arrive?",
]
SECTIONS = read_page(PAGE)


def _runner(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory, tools: JavaTools | None = None
) -> RecipeRunner:
    """A runner with a broker that was started as on the page, and with the common definitions of all recipes."""
    server = nats_server(jetstream=True)
    started = [
        settings_of(words)
        for block in SECTIONS[START]
        if block.kind == "sh"
        for words in commands(block.text)
        if words[:2] == ["barnabas", "start"]
    ]
    assert len(started) == 1
    settings = {
        name: value.replace(NATS, f"127.0.0.1:{server.port}").replace(METRICS, "127.0.0.1:0")
        for name, value in started[0].items()
    }
    runner = RecipeRunner(fresh_broker(settings), server, tools)
    common = next(block for block in SECTIONS[START] if block.kind == "python")
    assert runner.run(common) == ""
    return runner


def _values(broker: Broker, topic: str, count: int) -> list[bytes]:
    """All values of the topic, which has `count` records."""
    found = [message.value() for message in read_all(broker, topic, count)]
    assert len(found) == count
    return found


def test_kafka_s_own_tools_bind_in_two_steps(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory, java_tools: JavaTools
) -> None:
    runner = _runner(fresh_broker, nats_server, java_tools)
    runner.run_recipe([block for block in SECTIONS["Bind"] if block.text.startswith("kafka-")])
    runner.names["with_nats"](lambda client: client.publish("returns.eu", b"one"))
    assert _values(runner.broker, "returns", 1) == [b"one"]
    new = ("--bootstrap-server", runner.broker.bootstrap, "--create", "--topic", "x")
    refused = java_tools.run("kafka-topics", *new, "--config", "nats.subjects=x", status=1).output
    assert "nats.subjects" in refused


def _ticks_of_nats_kafka(runner: RecipeRunner) -> None:
    """State that nats-kafka leaves: three messages of a stream in the topic, acknowledged, and two that it has not
    processed."""

    async def work(client: NatsClient) -> None:
        jetstream = client.jetstream(timeout=30)
        await jetstream.add_stream(name="TICKS", subjects=["ticks.>"])
        for number in range(1, 6):
            await jetstream.publish(f"ticks.{number}", b"%d" % number)
        subscription = await jetstream.pull_subscribe("ticks.>", durable="nats-kafka", stream="TICKS")
        for message in await subscription.fetch(3, timeout=30):
            await message.ack_sync()
            producer.send("ticks", message.data).get(timeout=30)

    runner.run(
        Block(
            "sh",
            "barnabas topics --create --topic ticks --partitions 1\n",
            1,
        )
    )
    producer = runner.names["KafkaProducer"](bootstrap_servers=runner.broker.bootstrap)
    runner.names["with_nats"](work)
    producer.close()


def _killed_and_once(runner: RecipeRunner) -> None:
    """After kills each message of a stream is in the topic exactly once."""

    async def more(client: NatsClient) -> None:
        for number in range(200):
            await client.jetstream(timeout=30).publish("shop.more", b"%d" % number)

    runner.names["with_nats"](more)
    runner.broker.restart(kill=True)
    runner.server.restart(kill=True)
    runner.names["with_nats"](more)
    values = _values(runner.broker, "shop", 404)
    assert values[4:] == [b"%d" % number for number in range(200)] * 2


def _holds(topic: str, count: int) -> Callable[[RecipeRunner], None]:
    return lambda runner: _check_count(runner, topic, count)


def _check_count(runner: RecipeRunner, topic: str, count: int) -> None:
    assert len(_values(runner.broker, topic, count)) == count


def _unbound(runner: RecipeRunner) -> None:
    async def late(client: NatsClient) -> None:
        await client.publish("payments.late", b"not taken any more")

    runner.names["with_nats"](late)
    time.sleep(0.2)  # a broker that was still subscribed would store it in this time
    _check_count(runner, "payments", 2)


BEFORE: dict[str, Callable[[RecipeRunner], None]] = {"Move from nats-kafka": _ticks_of_nats_kafka}
# Checks beyond the printed output.
AFTERWARDS: dict[str, Callable[[RecipeRunner], None]] = {
    "Bind": _unbound,
    "Key by token": _holds("events", 9),
    "Acknowledge": _holds("audit", 2),
    "JetStream, exactly once": _killed_and_once,
    "A key-value bucket": _holds("stock", 3),
    "Records out": _holds("shipped", 2),
    "Move from nats-kafka": _holds("ticks", 5),
    "Move from Liftbridge": _holds("telemetry", 2),
    "Debug: why does nothing arrive?": _holds("resting", 0),
}


def test_the_recipes_one_after_the_other(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    runner = _runner(fresh_broker, nats_server)
    runner.run_recipe([block for block in SECTIONS[START] if not block.text.startswith("barnabas start")])
    for name in RECIPES:
        blocks = SECTIONS[name]
        assert {block.kind for block in blocks} >= {"python", "text"}
        if name in BEFORE:
            BEFORE[name](runner)
        runner.run_recipe(blocks)
        if name in AFTERWARDS:
            AFTERWARDS[name](runner)


def test_there_are_ten_recipes() -> None:
    numbered = [
        line for line in PAGE.read_text().splitlines() if line.startswith("### ") and line[4].isdigit()
    ]
    assert numbered == [f"### {number}. {name}" for number, name in enumerate(RECIPES, 1)]


@pytest.mark.parametrize("table", [TOPIC_TABLE, BROKER_TABLE], ids=["topic", "broker"])
def test_every_property_is_in_a_table_with_its_default(table: str) -> None:
    rows: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `nats.") and len(cells) == 3:
            rows[cells[0].strip("`")] = cells[1].strip("`")
    for line in table.strip().splitlines():
        name, _, default, *_ = line.split()
        shown: Any = {'""': "", "-": ""}.get(default, default)
        assert rows.get(name) == shown, name
