"""Spark logs in, by the options `kafka.*` that its guide names: in the driver and in the executors, batch and stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from barnabas.testing import Acl, Broker, Security

pytestmark = [pytest.mark.jvm, pytest.mark.barnabas_only, pytest.mark.timeout(600)]

TOPIC = "orders"
MODULES = {"PLAIN": "plain.Plain", "SCRAM-SHA-512": "scram.Scram"}


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    security = Security(
        mechanisms=list(MODULES),
        users={"alice": "alice-secret", "bob": "bob-secret"},
        acls=[Acl("User:alice", "ALL", topic=TOPIC), Acl("User:alice", "READ", group="*")],
        client_auth="requested",
    )
    with Broker(security=security) as broker:
        yield broker


def options(broker: Broker, user: str, mechanism: str) -> dict[str, str]:
    """Of Spark, with a certificate besides."""
    certificate = broker.security.certificate(user)
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": broker.security.ca_file,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": certificate.key,
        "kafka.ssl.keystore.certificate.chain": certificate.pem,
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{MODULES[mechanism]}LoginModule required "
        f'username="{user}" password="{user}-secret";',
    }


@pytest.mark.parametrize("mechanism", MODULES)
def test_batches_and_a_stream(spark: SparkSession, secured: Broker, mechanism: str, tmp_path: Path) -> None:
    secured.reset()
    secured.create_topic(TOPIC, 2)
    settings = options(secured, "alice", mechanism)
    numbers = spark.range(100).select(F.col("id").cast("string").alias("value"))
    numbers.write.format("kafka").options(**settings).option("topic", TOPIC).save()
    read = spark.read.format("kafka").options(**settings).option("subscribe", TOPIC).load()
    assert {int(row.value) for row in read.select("value").collect()} == set(range(100))
    stream = spark.readStream.format("kafka").options(**settings).option("subscribe", TOPIC)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .format("parquet")
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 100


def test_a_user_without_rights_is_refused(spark: SparkSession, secured: Broker) -> None:
    secured.create_topic("others")
    settings = options(secured, "bob", "PLAIN")
    frame = spark.createDataFrame([("1",)], "value string")
    with pytest.raises(Exception, match="Not authorized to access topics"):
        frame.write.format("kafka").options(**settings).option("topic", "others").save()
