"""Partitions: the same as Kafka's and nats-server's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from barnabas.controller.config.validators import ConfigError
from barnabas.nats.records.keys import compile_key
from barnabas.nats.records.partitioners import (
    BadPartition,
    compile_partitioner,
    fnv1a,
    murmur2,
    positive_murmur2,
    requested_partition,
)
from compat_tests.harness.nats_server import NatsServer


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # what org.apache.kafka.common.utils.Utils.murmur2 returns
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert positive_murmur2(key) == signed & 0x7FFFFFFF


@given(st.binary(max_size=70))
def test_murmur2_is_that_of_another_client(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)],
)
def test_fnv1a(text: bytes, value: int) -> None:
    assert fnv1a(text) == value


WORDS = ["a", "b", "berlin", "Berlin", "größe", "0", "-1", "x" * 60, "ab", "c"]
PARTITIONS = {
    "first": "partition(7,1)",
    "second": "partition(7,2)",
    "both": "partition(7,1,2)",
    "whole": "partition(7)",
    "swapped": "partition(7,2,1)",
}
KEYS = {
    "first": "token:2",
    "second": "token:3",
    "both": "tokens:2,3",
    "whole": "subject",
    "swapped": "tokens:3,2",
}


@pytest.mark.sockets
@pytest.mark.every_nats_server
def test_fnv1a_maps_as_the_server_does(nats_server: Callable[..., NatsServer]) -> None:
    server = nats_server(start=False)
    # partition() of the whole subject is new in nats-server 2.12
    kinds = [kind for kind in KEYS if kind != "whole" or server.version >= (2, 12)]
    server.config = (
        "mappings = {\n"
        + "".join(
            f'  "{kind}.*.*": "mapped.{kind}.{{{{{PARTITIONS[kind]}}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"\n'
            for kind in kinds
        )
        + "}\n"
    )
    sent = [f"{kind}.{left}.{right}" for kind in kinds for left in WORDS for right in WORDS]
    mapped = asyncio.run(_mapped(server.start(), sent))
    assert len(mapped) == len(sent)
    partitioners = {kind: compile_partitioner("fnv1a", 7, key) for kind, key in KEYS.items()}
    for subject in mapped:
        _, kind, partition, left, right = subject.split(".")
        original = f"{kind}.{left}.{right}".encode()
        key = compile_key(KEYS[kind])(original, b"", b"", b"")
        assert partitioners[kind](original, key) == int(partition), original


async def _mapped(server: NatsServer, subjects: list[str]) -> list[str]:
    client = await nats.connect(server.url)
    subscription = await client.subscribe("mapped.>")
    for subject in subjects:
        await client.publish(subject, b"")
    await client.flush()
    received = [(await subscription.next_msg(5)).subject for _ in subjects]
    await client.close()
    return received


def test_a_null_key_follows_the_subject() -> None:
    for spec, hashed in (("murmur2", positive_murmur2), ("fnv1a", fnv1a)):
        for key_spec in ("none", "token:9", "tokens:8,9", "header:a", "json:$.a", "reply"):
            partition_of = compile_partitioner(spec, 5, key_spec)
            assert partition_of(b"a.b", None) == hashed(b"a.b") % 5
            assert partition_of(b"a.b", None) == hashed(b"a.b") % 5
            assert partition_of(b"a.b", b"key") == hashed(b"key") % 5


def test_partitions_by_a_number_in_the_subject() -> None:
    partition_of = compile_partitioner("token:2", 5)
    assert partition_of(b"a.7", b"key") == 2
    assert partition_of(b"a.007.b", None) == 2
    assert partition_of(b"a.%d" % 10**40, None) == 0
    for subject in (b"a.x", b"a", b"a.-1", b"a.\xb2", b"a.1_0", b"a." + b"1" * 65):
        assert partition_of(subject, b"key") == positive_murmur2(b"key") % 5
        assert partition_of(subject, None) == positive_murmur2(subject) % 5
    # Different subjects may share a key without sharing a partition.
    keyed = compile_partitioner("token:2", 5, "header:Id")
    assert [keyed(b"a.%d" % number, b"key") for number in range(5)] == [0, 1, 2, 3, 4]


def test_requested_partition() -> None:
    assert requested_partition(b"0", 3) == 0
    assert requested_partition(b" 02 ", 3) == 2
    for value in (b"3", b"-1", b"", b"1.0", b"\xd9\xa1", b"1_0", b"0x1", b"9" * 5000):
        with pytest.raises(BadPartition):
            requested_partition(value, 3)


def test_a_malformed_partitioner_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        compile_partitioner("murmur3", 3)
