"""A log that takes nothing for a while: core messages wait up to a size, then reading stops; streams wait by themselves."""

from __future__ import annotations

import json
import resource

import pytest

from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServerFactory
from compat_tests.harness.topics import eventually
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import Streams, read_all

pytestmark = pytest.mark.barnabas_only

COUNT, SIZE = 600, 10_000  # half as much again as a file may hold
FILE_BYTES = 4 << 20
UNLIMITED = resource.RLIM_INFINITY


def _payload(number: int) -> bytes:
    return b"%d " % number + bytes(SIZE)


def test_what_comes_meanwhile_is_there_afterwards(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory
) -> None:
    server = nats_server(jetstream=True)
    settings = {"nats.servers": server.url, "log.index.size.max.bytes": "4096"}
    broker = fresh_broker(settings, start=False)
    assert isinstance(broker, BarnabasBroker)
    broker.preexec = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, UNLIMITED))
    broker.start()
    bind(broker, "core", {"nats.subjects": "core.>", "nats.buffer.bytes": "262144"})
    with Streams(server) as streams:
        streams.add("S", "stream.>")
        bind(broker, "stream", {"nats.subjects": "stream.>", "nats.mode": "jetstream"})
        streams.publish((f"stream.{number % 3}", _payload(number)) for number in range(COUNT))

        async def publish() -> None:
            for number in range(COUNT):
                await streams.client.publish(f"core.{number % 3}", _payload(number))
            await streams.client.flush(30)

        async def state() -> str:
            told = await streams.client.request("$BARNABAS.BINDINGS", b"core.x", timeout=5)
            return str(json.loads(told.data)["bindings"][0]["state"])

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
