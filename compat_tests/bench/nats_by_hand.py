"""A script that copies NATS messages to a Kafka topic: nats-py receives, confluent-kafka produces.

`python -m compat_tests.bench.nats_by_hand NATS_URL BOOTSTRAP SUBJECT TOPIC` prints "ready" when it is subscribed and runs
until SIGTERM. Its settings are for throughput, with acks=all, the default of confluent-kafka.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import nats
from confluent_kafka import Producer
from nats.aio.msg import Msg


async def run(server: str, bootstrap: str, subject: str, topic: str) -> None:
    """Until SIGTERM."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )

    async def take(message: Msg) -> None:
        headers = [(name, value) for name, value in (message.headers or {}).items()]
        producer.produce(
            topic,
            message.data,
            key=message.subject,
            headers=[("nats.subject", message.subject), *headers],
        )
        producer.poll(0)

    client = await nats.connect(server)
    await client.subscribe(subject, cb=take)
    await client.flush()
    print("ready", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    while not ended.is_set():
        producer.poll(0)
        await asyncio.sleep(0.01)
    await client.close()
    producer.flush(10)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
