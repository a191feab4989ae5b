"""A log that refuses appends for a while: core messages are buffered up to a size, then reading stops; streams keep
their messages."""

from __future__ import annotations

import json
import resource
from typing import Any

import pytest

from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServerFactory
from compat_tests.nats.bound_topics import await_subscribed, bind
from compat_tests.nats.streams import Streams, read_all

pytestmark = pytest.mark.barnabas_only

COUNT, SIZE = 600, 10_000  # one and a half times the size limit of a file
FILE_BYTES = 4 << 20
UNLIMITED = resource.RLIM_INFINITY


def _payload(number: int) -> bytes:
    return b"%d " % number + bytes(SIZE)


def test_other_topics_of_the_connection_continue(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory
) -> None:
    """They share the connection with a topic whose log refuses appends for long; that topic unsubscribes, and reports
    a gap."""
    server = nats_server()
    broker = fresh_broker({"nats.servers": server.url, "log.index.size.max.bytes": "4096"}, start=False)
    assert isinstance(broker, BarnabasBroker)
    broker.preexec = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, UNLIMITED))
    broker.start()
    bind(broker, "full", {"nats.subjects": "full.>", "nats.buffer.bytes": "262144"})
    bind(broker, "other", {"nats.subjects": "other.>"})
    await_subscribed(server.url, "other")
    with Streams(server) as streams:

        async def publish(subject: str, first: int, count: int) -> None:
            for number in range(first, first + count):
                await streams.client.publish(subject, _payload(number))
            await streams.client.flush(30)

        async def binding() -> dict[str, Any]:
            answer = await streams.client.request("$BARNABAS.BINDINGS", b"", timeout=30)
            ways = {each["topic"]: each["ways"][0] for each in json.loads(answer.data)["bindings"]}
            return dict(ways["full"])

        streams.run(publish("full.x", 0, COUNT))
        streams.run(publish("other.x", 0, 10))
        assert len(read_all(broker, "other", 10)) == 10
        found = streams.run(binding())
        assert found["state"].startswith("waiting: the log takes nothing")
        assert "its log takes nothing" in found["gaps"][0]["cause"]
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        eventually(lambda: streams.run(binding())["state"] == "running")
        stored = len(read_all(broker, "full", 1))
        streams.run(publish("full.x", COUNT, 5))
        values = [message.value() for message in read_all(broker, "full", stored + 5)]
        numbers = [int(value.split()[0]) for value in values]
        assert numbers == sorted(set(numbers))
        assert numbers[-5:] == list(range(COUNT, COUNT + 5))
        assert all(gap["end_ms"] for gap in streams.run(binding())["gaps"])


def test_messages_of_the_outage_are_stored_afterwards(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory
) -> None:
    server = nats_server(jetstream=True)
    settings = {"nats.servers": server.url, "log.index.size.max.bytes": "4096"}
    broker = fresh_broker(settings, start=False)
    assert isinstance(broker, BarnabasBroker)
    broker.preexec = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, UNLIMITED))
    broker.start()
    bind(broker, "core", {"nats.subjects": "core.>", "nats.buffer.bytes": "262144"})
    await_subscribed(server.url, "core")
    with Streams(server) as streams:
        streams.add("S", "stream.>")
        bind(broker, "stream", {"nats.subjects": "stream.>", "nats.mode": "jetstream"})
        streams.publish((f"stream.{number % 3}", _payload(number)) for number in range(COUNT))

        async def publish() -> None:
            for number in range(COUNT):
                await streams.client.publish(f"core.{number % 3}", _payload(number))
            await streams.client.flush(30)

        async def state() -> str:
            answer = await streams.client.request("$BARNABAS.BINDINGS", b"core.x", timeout=30)
            return str(json.loads(answer.data)["bindings"][0]["state"])

        streams.run(publish())
        eventually(lambda: streams.run(state()).startswith("paused: the log takes nothing"))
        assert "more than nats.buffer.bytes=262144 wait for the log" in broker.log_text()
        eventually(lambda: "stream-0: append failed" in broker.log_text())
        assert 0 < len(read_all(broker, "core", 1)) < COUNT
        assert 0 < len(read_all(broker, "stream", 1)) < COUNT
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        for topic in ("core", "stream"):
            values = [message.value() for message in read_all(broker, topic, COUNT)]
            assert [int(value.split()[0]) for value in values] == list(range(COUNT)), topic
        assert streams.run(state()) == "running"
    assert "may be missing" not in broker.log_text()
