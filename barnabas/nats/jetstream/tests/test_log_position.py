"""Positions of partitions in a stream, found in logs of every kind, compared with a model that reads every record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.coordinator_world import World
from barnabas.nats.jetstream.log_position import LogPosition, find_position
from barnabas.runtime.procedures import Procedure
from barnabas.storage.errors import StorageError
from barnabas.wire.compression import Codec
from barnabas.wire.records import Record, build_batch

Headers = list[tuple[str, bytes | None]]


def headers_of(stream: str, sequence: int) -> Headers:
    return [
        ("nats.subject", b"a.b"),
        ("nats.stream", stream.encode()),
        ("nats.seq", b"%d" % sequence),
        ("nats.timestamp", b"%d" % (sequence * 1000)),
    ]


def found(world: World, partition: Partition, floor: int = 0, stream: str = "S") -> LogPosition | None:
    results: list[LogPosition | None] = []
    errors: list[Exception | None] = []

    async def run() -> None:
        results.append(await find_position(world.runtime, partition, stream, floor))

    Procedure(run(), errors.append).start()
    world.runtime.run_until_idle()
    assert len(errors) == 1, "the procedure has not ended"
    if errors[0] is not None:
        raise errors[0]
    return results[0]


KINDS = st.one_of(
    st.tuples(st.just("own"), st.integers(1, 1 << 40)),
    st.tuples(st.just("another stream"), st.integers(1, 1 << 40)),
    st.just(("a producer", 0)),
    st.just(("looks alike", 7)),
)


def record(kind: str, sequence: int, offset: int) -> Record:
    own: Headers = []
    if kind == "own":
        own = headers_of("S", sequence)
    elif kind == "another stream":
        own = headers_of("S2", sequence)
    elif kind == "looks alike":  # a message's own headers, behind those of ingress
        own = [("nats.subject", b"a"), ("nats.reply", b"S"), *headers_of("S", sequence)[1:]]
    return Record(offset, 1, b"k", b"nats.stream S" * 3, [*own, ("x", None)])


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.lists(KINDS, min_size=1, max_size=30),
            st.integers(1, 30),
            st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP]),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.floats(0, 1),
    st.booleans(),
)
def test_the_last_message_of_the_stream_is_found(
    batches: list[tuple[list[tuple[str, int]], int, Codec, bool]], floor_share: float, is_cold: bool
) -> None:
    world = World([1])
    partition = world.partition()
    flagged: list[LogPosition] = []
    unflagged: list[LogPosition] = []  # they count where there are no others
    appended = 0
    for kinds, repeats, codec, is_copy in batches:
        for repeat in range(repeats):
            base = partition.log.log_end_offset
            records = [record(kind, number, index) for index, (kind, number) in enumerate(kinds)]
            own = [
                LogPosition(number, number * 1000, base + index)
                for index, (kind, number) in enumerate(kinds)
                if kind == "own"
            ]
            if is_copy:
                # With the flag that is a broker's alone, and now and then without a producer's id, as some clients write.
                if repeat % 2:
                    partition.append(build_batch(records, codec=codec, from_extension=True))
                    unflagged += own
                    continue
                partition.append(
                    build_batch(records, codec=codec, producer_id=7, producer_epoch=0, base_sequence=appended)
                )
                appended += len(records)
                continue
            partition.append(build_batch(records, codec=codec, from_extension=True), from_client=False)
            flagged += own
    floor = int(floor_share * partition.log.log_end_offset)
    world.disk.is_cold = is_cold
    expected = next((each for each in reversed(flagged or unflagged) if each.offset >= floor), None)
    assert found(world, partition, floor) == expected


def test_batches_without_the_flag_count_until_one_has_it() -> None:
    """As in a log that another program has rewritten, or one that is older than the flags."""
    world = World([1])
    partition = world.partition()

    def append(kind: str, sequence: int, *, bridged: bool = False, producer_id: int = -1) -> None:
        records = [record(kind, sequence, 0)]
        batch = build_batch(
            records, from_extension=bridged, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        partition.append(batch, from_client=not bridged)

    append("another stream", 8, bridged=True)
    append("own", 5)
    append("own", 9, producer_id=7)  # a copy
    append("a producer", 0)
    for floor in (0, 1):
        assert found(world, partition, floor) == LogPosition(5, 5000, 1)
    assert found(world, partition, 2) is None
    append("own", 3, bridged=True)
    append("own", 6)
    assert found(world, partition) == LogPosition(3, 3000, 4)
    assert found(world, partition, 5) is None  # the flagged batch is below the floor


def test_a_followers_log_is_not_searched() -> None:
    world = World([1, 2])
    world.partition().append(build_batch([record("own", 1, 0)], from_extension=True), from_client=False)
    world.change(0, leader=2)
    with pytest.raises(StorageError, match="not led here"):
        found(world, world.partition())


def test_an_empty_log_has_no_position() -> None:
    world = World([1])
    assert found(world, world.partition()) is None
