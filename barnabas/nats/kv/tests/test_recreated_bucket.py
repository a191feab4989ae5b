"""Tombstones for the keys of a deleted bucket, with a real nats-server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.nats.jetstream.api import JetStreamApi, JetStreamError
from barnabas.nats.kv import recreated_bucket
from barnabas.nats.kv.recreated_bucket import write_tombstones
from barnabas.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.nats.records.parts import header_parts, sized
from barnabas.nats.tests.stream_world import StreamWorld
from barnabas.runtime.procedures import Procedure
from barnabas.wire.compression import Codec
from barnabas.wire.primitives import varint
from barnabas.wire.record_batch import read_header, seal_batch
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.nats_server import NatsServer

pytestmark = pytest.mark.sockets

KEYS = 3000
CREATED_NS = 1_700_000_000_000_000_000


@pytest.fixture
def world(nats_server: Callable[..., NatsServer]) -> Iterator[StreamWorld]:
    world = StreamWorld(nats_server(jetstream=True), partitions=1)
    world.until(lambda: world.client.is_connected)
    world.add("KV_b", "$KV.b.>")
    yield world
    world.close()


def append(world: StreamWorld, keys: list[bytes], *, stream: bytes = b"", sequence: int = 1) -> int:
    """Records as the bucket's stream brings them, or as a client writes them; the offset behind them."""
    builder = BatchBuilder(is_bridged=bool(stream))
    for key in keys:
        headers = []
        if stream:
            numbers = ((b"nats.seq", b"%d" % sequence), (b"nats.timestamp", b"%d" % (CREATED_NS - 1)))
            headers = [(b"nats.subject", b"$KV.b." + key), (b"nats.stream", stream), *numbers]
            sequence += 1
        parts = [part for pair in headers for part in header_parts(*pair)]
        builder.add(b"".join((sized(key), sized(b"value"), varint(len(headers)), *parts)))
    partition = world.world.partition(0)
    for batch in builder.finish(CREATED_NS // 1_000_000, 1 << 20):
        assert isinstance(batch, Batch)
        partition.append(batch.records, batch.header, ACKS_ALL, from_client=False)
    return partition.log.log_end_offset


def values(world: StreamWorld) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for record in world.records(0):
        assert record.key is not None
        if record.value is None:
            del found[record.key]  # no key gets two
        else:
            found[record.key] = record.value
    return found


def write(world: StreamWorld, published_to: int, fails_with: type[Exception] | None = None) -> int:
    counts: list[int] = []
    ended: list[Any] = []

    async def run() -> None:
        partition = world.world.partition(0)
        api = JetStreamApi(world.client)
        counts.append(
            await write_tombstones(world.runtime, api, partition, b"$KV.b.", "KV_b", CREATED_NS, published_to)
        )

    Procedure(run(), ended.append).start()
    world.until(lambda: ended)
    if fails_with is not None:
        assert isinstance(ended[0], fails_with)
        return 0
    assert ended == [None]
    return counts[0]


@pytest.mark.parametrize("keys_bytes_max", [recreated_bucket.KEYS_BYTES_MAX, 40_000])
def test_each_stale_key_gets_one_tombstone_and_unpublished_keys_none(
    world: StreamWorld, monkeypatch: pytest.MonkeyPatch, keys_bytes_max: int
) -> None:
    monkeypatch.setattr(recreated_bucket, "KEYS_BYTES_MAX", keys_bytes_max)
    world.publish(5, 1, "$KV.b.k")  # the new bucket holds k5
    append(world, [b"k%d" % number for number in range(KEYS)], stream=b"KV_b")
    append(world, [b"o1", b"o2"], stream=b"KV_other")
    published_to = append(world, [b"written", b"no bucket has it"])
    append(world, [b"k7", b"unpublished"])
    append(world, [b"unpublished", b"k8"], stream=b"KV_b", sequence=KEYS + 1)
    written = write(world, published_to)
    kept = {b"k5", b"k7", b"no bucket has it"}
    assert values(world).keys() == kept
    assert written == KEYS + len([b"o1", b"o2", b"written", b"unpublished"]) - 2
    assert write(world, published_to) == 0
    last = world.records(0)[-1]
    assert last.headers[1:] == [
        ("nats.stream", b"KV_b"),
        ("nats.seq", b"0"),
        ("nats.timestamp", b"%d" % CREATED_NS),
    ]


def test_large_and_unreadable_batches_are_read_off_the_loop_and_skipped(world: StreamWorld) -> None:
    append(world, [b"a", b"b"], stream=b"KV_b")
    partition = world.world.partition(0)
    unreadable = bytearray(build_batch([Record(0, 0, b"a", b"x" * 100)], codec=Codec.GZIP))
    unreadable[65:] = bytes(len(unreadable) - 65)
    seal_batch(unreadable, read_header(unreadable))
    partition.append(memoryview(unreadable), None, ACKS_ALL, from_client=False)
    large = build_batch([Record(0, 0, b"b", bytes(1 << 20))], codec=Codec.GZIP)
    partition.append(memoryview(bytearray(large)), None, ACKS_ALL, from_client=False)
    old = recreated_bucket.StaleKeys(world.runtime, partition, b"$KV.b.", "KV_b", 0, 0, 1)
    assert not old.read_rest()
    assert write(world, 0) == 1  # b is a client's by now


def test_keys_of_clients_stay_when_nothing_is_published(world: StreamWorld) -> None:
    append(world, [b"a", b"b"], stream=b"KV_b")
    append(world, [b"b", b"c"])
    assert write(world, 0) == 1
    assert values(world).keys() == {b"b", b"c"}


def test_a_bucket_whose_list_of_keys_is_larger_than_a_message(world: StreamWorld) -> None:
    """JetStream names 100,000 subjects in one answer, however large that is."""
    keys = ["k" * 800 + str(number) for number in range(4000)]

    async def fill() -> None:
        for key in keys[:-1]:
            await world.peer.publish(f"$KV.b.{key}", b"")
        await world.jetstream.publish(f"$KV.b.{keys[-1]}", b"")

    world.run(fill())
    append(world, [keys[0].encode(), b"gone", keys[-1].encode()], stream=b"KV_b")
    assert write(world, 0) == 1
    assert values(world).keys() == {keys[0].encode(), keys[-1].encode()}


@pytest.mark.parametrize("answer", [b'{"total": 2}', b'{"state": {"num_subjects": 2}}'])
def test_an_answer_that_names_no_keys_of_a_bucket_that_has_some_writes_no_tombstone(
    world: StreamWorld, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    def ask(_self: object, _subject: str, _body: bytes, read: Any, done: Any) -> None:
        done(read(answer), None)

    monkeypatch.setattr(JetStreamApi, "_ask", ask)
    append(world, [b"a", b"b"], stream=b"KV_b")
    assert write(world, 0, fails_with=JetStreamError) == 0
    assert values(world).keys() == {b"a", b"b"}
