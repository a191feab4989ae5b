"""The data of a broker as a client reads it, to be compared with that of another broker on the same files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from compat_tests.harness.committed import committed
from compat_tests.harness.confluent_admin import ConfigResource, ConfigSource, ResourceType

ReadRecord = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass
class Contents:
    """Topic ids; configs set on topics and brokers; records as (offset, timestamp, key, value, headers) by
    topic and partition; committed offsets by group, topic and partition."""

    topic_ids: dict[str, str]
    configs: dict[tuple[str, str], dict[str, str]]
    records: dict[tuple[str, int], list[ReadRecord]]
    offsets: dict[tuple[str, str, int], int]


def look(bootstrap: str, topics: Collection[str], groups: Collection[str]) -> Contents:
    """Contents of these topics and groups; records as a read_committed consumer reads them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = {
        name: future.result(30)
        for name, future in admin.describe_topics(TopicCollection(list(topics))).items()
    }
    partitions = [(name, each.id) for name, topic in described.items() for each in topic.partitions]
    return Contents(
        topic_ids={name: str(topic.topic_id) for name, topic in described.items()},
        configs=_configs(admin, topics),
        records=_records(bootstrap, partitions),
        offsets=_offsets(admin, groups),
    )


def _configs(admin: AdminClient, topics: Collection[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Configs that were set at run time; values that a broker does not return are None."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    resources.append(ConfigResource(ResourceType.BROKER, "1"))
    dynamic = {
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
        ConfigSource.DYNAMIC_BROKER_CONFIG.value,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value,
    }
    found: dict[tuple[str, str], dict[str, str]] = {}
    for resource, future in admin.describe_configs(resources).items():
        entries: dict[str, Any] = future.result(30)
        found[resource.restype.name, resource.name] = {
            name: entry.value for name, entry in sorted(entries.items()) if entry.source in dynamic
        }
    return found


def _records(
    bootstrap: str, partitions: Collection[tuple[str, int]]
) -> dict[tuple[str, int], list[ReadRecord]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "onlooker",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # from 0: librdkafka takes half a second to ask for the beginning
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in partitions])
    found: dict[tuple[str, int], list[ReadRecord]] = {each: [] for each in partitions}
    unfinished = set(found)
    while unfinished:
        message = consumer.poll(30)
        assert message is not None, f"no end of {unfinished}"
        place = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is None:
            headers: Any = tuple(message.headers() or ())
            found[place].append(
                (message.offset() or 0, message.timestamp()[1], message.key(), message.value(), headers)
            )
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            unfinished.discard(place)
    consumer.close()
    return found


def _offsets(admin: AdminClient, groups: Collection[str]) -> dict[tuple[str, str, int], int]:
    found: dict[tuple[str, str, int], int] = {}
    for group in groups:
        for each in committed(admin, group):
            found[group, each.topic, each.partition] = each.offset
    return found
