"""Topics in one job of Spark: a batch that reads them all, and a stream over them."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from compat_tests.bench import driver, prepared
from compat_tests.bench.growth.curves import Figures
from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.harness.raw import RawConnection
from spark_examples.shared.streams import run_to_end
from spark_examples.shared.topics import create_topics

_RECORDS = 100  # of each topic


def measure(spark: SparkSession, folder: Path, broker: Broker, topics: int) -> Figures:
    """Topics of one partition. The broker runs."""
    names = [f"growth-{topics}-{number}" for number in range(topics)]
    for first in range(0, topics, 100):
        create_topics(broker.bootstrap, {name: {} for name in names[first : first + 100]}, 1)
    batch = prepared.batch(_RECORDS, 100)
    with RawConnection(broker.bootstrap) as connection:
        for name in names:
            driver.wait_until_served(broker.bootstrap, name)
            assert raw.produce(connection, name, batch)[0] == 0
    figures: dict[str, float] = {}
    cpu, started = cpu_seconds(broker.pid), time.perf_counter()
    pattern = f"growth-{topics}-.*"
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    found = reader.option("subscribePattern", pattern).load().agg(F.count("value")).first()
    assert found is not None
    assert found[0] == topics * _RECORDS, found
    figures["a batch over all of them, s"] = time.perf_counter() - started
    figures["CPU of the broker for the batch, ms a topic"] = (cpu_seconds(broker.pid) - cpu) / topics * 1e3
    started = time.perf_counter()
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    rows = stream.option("subscribePattern", pattern).option("startingOffsets", "earliest").load()
    writer = rows.writeStream.format("noop").option(
        "checkpointLocation", str(folder / f"{topics}-{broker.kind}")
    )
    assert run_to_end(writer.trigger(availableNow=True).start()) == topics * _RECORDS
    figures["a stream over all of them, s"] = time.perf_counter() - started
    return figures
