"""A bound topic as one member of a queue group among others: each message goes to one of them."""

from __future__ import annotations

import asyncio

import nats
import pytest
from nats.aio.msg import Msg

from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServerFactory
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.received import by_subject

pytestmark = pytest.mark.barnabas_only

COUNT = 1000


def test_members_share(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    server = nats_server()
    broker = fresh_broker({"nats.servers": server.url})
    bind(broker, "jobs", {"nats.subjects": "jobs.>", "nats.queue.group": "workers"}, partitions=3)
    theirs: list[bytes] = []

    async def run() -> None:
        async def take(message: Msg) -> None:
            theirs.append(message.data)

        member = await nats.connect(server.url)
        await member.subscribe("jobs.>", queue="workers", cb=take)
        await member.flush()
        publisher = await nats.connect(server.url)
        for number in range(COUNT):
            await publisher.publish(f"jobs.{number % 7}", b"%d" % number)
        await publisher.close()
        await member.drain()

    asyncio.run(run())
    found = by_subject(broker.bootstrap, "jobs", 3, COUNT - len(theirs), timeout=20)
    ours = [value for values in found.values() for value in values]
    assert len(ours) > COUNT // 10
    assert len(theirs) > COUNT // 10
    assert sorted(map(int, [*ours, *theirs])) == list(range(COUNT))
