"""Transactions are not served yet: each client must get the error at its first attempt, whatever its own timeout is.

The timeouts here end a test whose client repeats the request; all clients' own timeouts are longer.
"""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kafka.errors import KafkaTimeoutError

from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools

pytestmark = pytest.mark.barnabas_only

MESSAGE = "Transactions are not served yet"
HANG_GUARD_S = 120


def test_librdkafka(broker: Broker, unique: UniqueName) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique("transaction")})
    with pytest.raises(KafkaException) as failure:
        producer.init_transactions(HANG_GUARD_S)
    error: KafkaError = failure.value.args[0]
    assert error.fatal()
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert MESSAGE in error.str()


def test_aiokafka(broker: Broker, unique: UniqueName) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=unique("transaction")
        )
        try:
            await asyncio.wait_for(producer.start(), HANG_GUARD_S)
        finally:
            await producer.client.close()

    with pytest.raises(TransactionalIdAuthorizationFailed):
        asyncio.run(start())


def test_kafka_python(broker: Broker, unique: UniqueName) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        transactional_id=unique("transaction"),
        max_block_ms=HANG_GUARD_S * 1000,
    )
    try:
        with pytest.raises(KafkaPythonError, match="Could not find a coordinator") as failure:
            producer.init_transactions()
        assert not isinstance(failure.value, KafkaTimeoutError)
    finally:
        producer.close(timeout=0)


@pytest.mark.jvm
def test_java(broker: Broker, topic: TopicFactory, unique: UniqueName, java_tools: JavaTools) -> None:
    result = java_tools.run(
        "kafka-producer-perf-test",
        *("--topic", topic(), "--num-records", "1", "--record-size", "10", "--throughput", "-1"),
        *("--bootstrap-server", broker.bootstrap, "--transactional-id", unique("transaction")),
        status=None,
        timeout=HANG_GUARD_S,
    )
    assert "Could not find a coordinator with type TRANSACTION" in result.output
    assert MESSAGE in result.output
    assert "TimeoutException" not in result.output
