"""Makes compat_tests/golden: the directories of nodes that were stopped cleanly, with a topic, a group and a config.
Run once for each format, as `python -m compat_tests.harness.golden directory-N` for a single node and `cluster-N` for three.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import NewTopic

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"}


def fill(bootstrap: str, replication_factor: int) -> None:
    """Ten records in two partitions of `orders`, and the group `readers` at offset 3 of the first."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic("orders", 2, replication_factor, config={"max.message.bytes": "54321"})
    admin.create_topics([topic])["orders"].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(10):
        producer.produce("orders", b"value %d" % number, key=b"key %d" % number, partition=number % 2)
    producer.flush()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    reader.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
    reader.close()


def keep(data: Path, target: Path) -> None:
    """Copy the data directory without its lock file."""
    (data / ".lock").unlink(missing_ok=True)
    shutil.copytree(data, target)


def make(name: str) -> None:
    target = GOLDEN / name
    with tempfile.TemporaryDirectory() as folder:
        if name.startswith("cluster"):
            cluster = Cluster(Path(folder), "barnabas", settings=SETTINGS)
            cluster.start()
            fill(cluster.bootstrap, 3)
            cluster.stop()
            for node in cluster.nodes:
                keep(Path(folder) / f"node-{node}" / "data", target / f"node-{node}")
        else:
            broker = BarnabasBroker(Path(folder), {"offsets.topic.num.partitions": "1"})
            broker.start()
            fill(broker.bootstrap, 1)
            broker.stop()
            keep(Path(folder) / "data", target)


if __name__ == "__main__":
    make(sys.argv[1])
