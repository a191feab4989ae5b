"""Flights as NATS messages, delays as NATS messages, and the topics that are bound to their subjects.

Each airport publishes its flights as JSON on `flights.AIRPORT.CARRIER`. Who publishes and who subscribes knows of NATS
alone; the two topics' configs do the rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import nats
import pandas
from confluent_kafka import Consumer, TopicPartition
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from spark_examples.shared.flights import Totals
from spark_examples.shared.topics import PARTITIONS, create_topics

FLIGHTS_TOPIC = "nats-flights"
DELAYS_TOPIC = "nats-flight-delays"

# Subjects to a topic, with the carrier as the key; a topic to subjects, with the key as a token.
BINDINGS = {
    FLIGHTS_TOPIC: {"nats.subjects": "flights.*.*", "nats.key": "token:3"},
    DELAYS_TOPIC: {"nats.publish.subject": "delays.{key}"},
}


def bind_topics(bootstrap: str) -> None:
    """Create the two topics, bound; those that an earlier run left behind are deleted first."""
    create_topics(bootstrap, BINDINGS)


async def publish_flights(url: str, flights: pandas.DataFrame, progress: Callable[[int], None]) -> int:
    """Have every airport publish its flights, each with a client of its own, all at once; the number of messages.

    `progress` gets the number of messages so far, every 50,000.
    """
    published = 0

    async def publish(airport: str, rows: pandas.DataFrame) -> None:
        nonlocal published
        client = await nats.connect(url, name=f"airport {airport}")
        lines = (rows.to_json(orient="records", lines=True) or "").splitlines()
        for line, carrier in zip(lines, rows["carrier"], strict=True):
            await client.publish(f"flights.{airport}.{carrier}", line.encode())
            published += 1
            if published % 50_000 == 0:
                progress(published)
            if published % 500 == 0:
                await asyncio.sleep(0)  # the other airports' turn
        await client.flush(30)
        await client.close()

    await asyncio.gather(*(publish(str(airport), rows) for airport, rows in flights.groupby("origin")))
    return published


async def await_records(bootstrap: str, topic: str, count: int, timeout_s: float = 60) -> int:
    """Wait until the topic holds so many records; how many it holds then."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "log_level": 2})
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        while True:
            held = sum(
                consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
                for partition in range(PARTITIONS)
            )
            if held >= count or asyncio.get_running_loop().time() > deadline:
                return held
            await asyncio.sleep(0.1)
    finally:
        consumer.close()


class DelaysBoard:
    """Subscribes to the delays and keeps the newest totals of each carrier and hour."""

    def __init__(self, client: NatsClient) -> None:
        self.totals: Totals = {}
        self.messages = 0
        self._client = client

    async def open(self) -> None:
        """From here on nothing is missed."""
        await self._client.subscribe("delays.*", cb=self._take)
        await self._client.flush()

    async def await_flights(self, count: int, timeout_s: float = 60) -> None:
        """Wait until the totals are those of so many flights; give up after a while."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.flights < count and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)

    @property
    def flights(self) -> int:
        return sum(row["flights"] for row in self.totals.values())

    async def _take(self, message: Msg) -> None:
        row = json.loads(message.data)
        self.messages += 1
        key = row.pop("carrier"), row.pop("hour")
        if message.subject != f"delays.{key[0]}-{key[1]}":
            raise ValueError(f"{message.subject} brings the delays of {key}")
        self.totals[key] = row
