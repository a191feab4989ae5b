"""The names and configs of topics, in the store."""

from __future__ import annotations

import pytest

from barnabas.storage.tests.workshop import InlineRuntime
from barnabas.storage.tier.descriptions import (
    CorruptDescription,
    Descriptions,
    TopicDescription,
    read_description,
)
from barnabas.storage.tier.keys import ClusterKeys
from barnabas.storage.tier.memory_store import Fault, MemoryStore

KEYS = ClusterKeys("cluster")
ID = "a" * 22


def of(partitions: int) -> TopicDescription:
    """Of a topic with so many partitions."""
    return TopicDescription(topic_id=ID, name="t", partitions=partitions, configs={"retention.ms": "5"})


def test_the_last_one_is_in_the_store_in_the_end() -> None:
    runtime = InlineRuntime()
    store = MemoryStore(runtime.time_ms)
    writer = Descriptions(runtime, store, lambda: "cluster")
    writer.write(of(1))
    assert read_description(store, KEYS, ID) == of(1)
    store.faults = lambda _verb, _key: Fault.BEFORE
    writer.write(of(2))
    writer.write(of(3))
    runtime.advance(120)
    store.faults = lambda _verb, _key: None
    assert read_description(store, KEYS, ID) == of(1)
    runtime.advance(120)
    assert read_description(store, KEYS, ID) == of(3)
    store.delete([KEYS.description(ID)])
    writer.write(of(3))
    assert read_description(store, KEYS, ID) is None, "written once"
    writer.forget(ID)
    writer.write(of(3))
    assert read_description(store, KEYS, ID) == of(3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"topic_id":"' + b"b" * 22 + b'","name":"t","partitions":1,"configs":{}}',
    ],
)
def test_what_is_none_is_an_error(content: bytes) -> None:
    store = MemoryStore(lambda: 0)
    store.put(KEYS.description(ID), [content])
    with pytest.raises(CorruptDescription):
        read_description(store, KEYS, ID)
