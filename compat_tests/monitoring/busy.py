"""A broker of which every metric of a single node has a sample: records, a group with a member, errors, a transaction."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.metrics import LISTENER, page
from compat_tests.harness.topics import create_topic

SETTINGS = {LISTENER: "127.0.0.1:0", "offsets.topic.num.partitions": "1"}
TOPIC = "orders"
GROUP = "billing"


def busy_page(broker: Broker) -> str:
    """What the listener of a broker with SETTINGS serves while a consumer is subscribed."""
    create_topic(broker.bootstrap, TOPIC, 2)
    try:
        create_topic(broker.bootstrap, TOPIC, 2)
    except KafkaException:
        pass  # an answer with an error is wanted
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "orders"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(10):
        producer.produce(TOPIC, b"x" * 100, partition=number % 2)
    producer.commit_transaction(30)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    try:
        eventually(lambda: consumer.poll(0.1) is not None, 30)
        consumer.commit(asynchronous=False)
        return page(broker)
    finally:
        consumer.close()
