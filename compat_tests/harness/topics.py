"""Creating topics on a broker under test."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness.confluent_admin import NewTopic, OffsetSpec
from compat_tests.harness.eventually import eventually


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> str:
    """Create a topic with librdkafka's admin client and wait until its leaders serve; returns `name`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
    admin.create_topics([new])[name].result(30)
    wait_until_served(admin, name, partitions)
    return name


def wait_until_served(admin: AdminClient, name: str, partitions: int = 1) -> None:
    """Wait until the leaders of a topic serve: one in Metadata may not serve its partition yet."""
    ends = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}

    def leaders_serve() -> bool:
        try:
            return all(one.result(30).offset >= 0 for one in admin.list_offsets(ends).values())
        except KafkaException:
            return False

    eventually(leaders_serve)
