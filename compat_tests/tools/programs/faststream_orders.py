"""`CLIENT BOOTSTRAP COUNT`, with CLIENT confluent or aiokafka: publishes orders, one by one and as a batch, doubles each into a second
topic, and takes those in batches; then prints what it took."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

from faststream import FastStream  # type: ignore[import-not-found]

client, bootstrap, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
library: Any = importlib.import_module(
    "faststream.confluent" if client == "confluent" else "faststream.kafka"
)
broker = library.KafkaBroker(bootstrap)
orders, doubled = f"{client}-orders", f"{client}-doubled"
taken: list[int] = []
batches: list[int] = []
done = asyncio.Event()


async def double(number: int) -> int:
    """An order of the first topic, for the second."""
    return 2 * number


async def take(numbers: list[int]) -> None:
    """A batch of the second topic."""
    taken.extend(numbers)
    batches.append(len(numbers))
    if len(taken) >= count:
        done.set()


broker.publisher(doubled)(
    broker.subscriber(orders, group_id=f"{client}-double", auto_offset_reset="earliest")(double)
)
broker.subscriber(doubled, group_id=f"{client}-take", auto_offset_reset="earliest", batch=True)(take)
app = FastStream(broker)


async def publish() -> None:
    """Called when the subscribers run."""
    assert await broker.ping(30)
    for number in range(count // 2):
        await broker.publish(number, topic=orders, key=f"{number}".encode(), headers={"colour": "blue"})
    for start in range(count // 2, count, 50):  # as many as fit into a batch of aiokafka
        await broker.publish_batch(*range(start, start + 50), topic=orders)


async def main() -> None:
    """All of it."""
    app.after_startup(publish)
    running = asyncio.create_task(app.run())
    await asyncio.wait(
        (asyncio.create_task(done.wait()), running), timeout=60, return_when=asyncio.FIRST_COMPLETED
    )
    app.exit()
    await running
    print(json.dumps({"taken": taken, "batches": batches}))


asyncio.run(main())
