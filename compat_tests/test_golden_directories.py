"""Data directories of earlier versions of this broker, one for each format, made by harness/golden.py with a clean stop.
cluster/test_cluster_golden.py tests those of clusters.

`golden/directory-1`: its journal in `barnabas-metadata`, no producer snapshots.
`golden/directory-2`: its journal in Kafka's `__cluster_metadata-0`, producer snapshots, Kafka's checkpoint beside it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.committed import committed
from compat_tests.harness.confluent_admin import ConfigResource, ResourceType
from compat_tests.harness.fixture_types import BrokerFactory

GOLDEN = Path(__file__).parent / "golden"
RECORDS = [
    (f"key {number}".encode(), f"value {number}".encode()) for number in (*range(0, 10, 2), *range(1, 10, 2))
]

pytestmark = pytest.mark.barnabas_only


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("directory-*")))
@pytest.mark.parametrize("stop", ["clean", "unclean"])
def test_starts_with_all_its_data(name: str, stop: str, fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(GOLDEN / name, directory)
    if stop == "unclean":
        (directory / ".kafka_cleanshutdown").unlink()
    broker = fresh_broker({"log.dirs": str(directory), "offsets.topic.num.partitions": "1"})
    _check(broker)
    broker.restart(kill=stop == "unclean")
    _check(broker)

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("orders", b"new", key=b"new", partition=1)
    producer.flush()
    assert read_all(broker.bootstrap, "orders") == [*RECORDS, (b"new", b"new")]


def _check(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert set(admin.list_topics(timeout=30).topics) == {"orders", "__consumer_offsets"}
    topic_id = str(admin.describe_topics(TopicCollection(["orders"]))["orders"].result(30).topic_id)
    assert topic_id.translate(str.maketrans("+/", "-_")) == _topic_id(broker)
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    assert admin.describe_configs([resource])[resource].result(30)["max.message.bytes"].value == "54321"
    assert read_all(broker.bootstrap, "orders") == RECORDS
    (found,) = committed(admin, "readers")
    assert found.offset == 3


def _topic_id(broker: Broker) -> str:
    lines = (broker.log_dir / "orders-0" / "partition.metadata").read_text().splitlines()
    return lines[1].removeprefix("topic_id: ")
