"""Create topics, and wait until a topic is as a test needs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness.confluent_admin import NewTopic, OffsetSpec

Value = TypeVar("Value")


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> str:
    """Create a topic with librdkafka's admin client and wait until its leaders serve; returns `name`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
    admin.create_topics([new])[name].result(30)

    ends = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}

    def leaders_serve() -> bool:
        # Metadata alone may be ahead of the partitions' own state
        try:
            return all(one.result(30).offset == 0 for one in admin.list_offsets(ends).values())
        except KafkaException:
            return False

    eventually(leaders_serve)
    return name


def eventually(check: Callable[..., Value], timeout: float = 60, pause: float = 0.05) -> Value:
    """Call `check` until it is truthy; its value. AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {timeout} s (last value {value!r})")
        time.sleep(pause)
