"""Replicas are spread over racks, then over brokers, and fenced brokers come last."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.controller.operations.placement import place
from barnabas.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
)


def image(racks: dict[int, str | None], fenced: Collection[int] = ()) -> MetadataImage:
    made = MetadataImage()
    for broker_id, rack in racks.items():
        record = RegisterBrokerRecord(
            broker_id=broker_id,
            broker_epoch=1,
            rack=rack,
            fenced=broker_id in fenced,
            log_dirs=[bytes([broker_id + 100]) * 16],
        )
        made.replay(record, MetadataDelta())
    return made


@given(
    st.dictionaries(st.integers(0, 20), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    st.sets(st.integers(0, 20)),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(0, 99),
)
def test_placement_is_valid_in_any_cluster(
    racks: dict[int, str | None], fenced: set[int], factor: int, count: int, seed: int
) -> None:
    made = image(racks, fenced)
    alive = [broker for broker in racks if broker not in fenced]
    if not alive or factor > len(racks):
        with pytest.raises(ApiError):
            place(made, count, factor, random.Random(seed).randrange)
        return
    placed = place(made, count, factor, random.Random(seed).randrange)
    assert placed == place(made, count, factor, random.Random(seed).randrange)
    assert len(placed) == count
    rack_count = len(set(racks.values()))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] in alive
        if factor <= rack_count and not fenced:
            assert len({racks[replica] for replica in replicas}) == factor
    if not fenced and len(set(racks.values())) == 1:
        leaders = Counter(replicas[0] for replicas in placed)
        assert max(leaders.values()) - min(leaders[broker] for broker in racks) <= 1


def test_stripes_are_kafkas() -> None:
    made = image({1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"})
    assert place(made, 3, 3, lambda _: 0) == [[1, 2, 3], [5, 6, 4], [3, 1, 2]]
    assert place(image({1: None, 2: None, 3: None}), 4, 2, lambda _: 0) == [[1, 2], [2, 3], [3, 1], [1, 2]]
    assert place(image({1: None, 2: None, 3: None}, {2}), 2, 3, lambda _: 0) == [[1, 3, 2], [3, 1, 2]]


def test_the_first_broker_is_random() -> None:
    made = image({1: None, 2: None, 3: None})
    assert {tuple(place(made, 1, 3, random.Random(seed).randrange)[0]) for seed in range(50)} == {
        (1, 2, 3),
        (2, 3, 1),
        (3, 1, 2),
    }


def test_brokers_that_shut_down_or_are_cordoned_are_skipped() -> None:
    made = image({1: None, 2: None, 3: None})
    for change in (
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=1),
        BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=1, cordoned_log_dirs=[bytes([102]) * 16]),
    ):
        made.replay(change, MetadataDelta())
    assert place(made, 2, 1, lambda _: 0) == [[3], [3]]
    with pytest.raises(ApiError, match="only 1 broker"):
        place(made, 1, 2, lambda _: 0)


def with_partitions(made: MetadataImage, count: int) -> MetadataImage:
    """So many partitions share the load."""
    made.replay(TopicRecord(name="t", topic_id=bytes(16)), MetadataDelta())
    for index in range(count):
        made.replay(partition_record(bytes(16), index, PartitionState([1], [1], 1, 0, 0)), MetadataDelta())
    return made


def test_the_less_loaded_of_two_leads() -> None:
    made = with_partitions(image({1: None, 2: None, 3: None}), 20)
    stripes = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    assert place(made, 3, 3, lambda _: 0, loads={1: 5.0, 2: 5.0, 3: 5.0}) == stripes
    led = [each[0] for each in place(made, 3, 3, lambda _: 0, loads={1: 9.0, 2: 1.0, 3: 1.0})]
    assert 1 not in led
    led = [each[0] for each in place(made, 3, 3, lambda _: 0, loads={1: math.inf, 2: 1.0, 3: 1.0})]
    assert 1 not in led
    assert place(made, 3, 3, lambda _: 0, loads={1: 9.0}) == stripes, "of the others nothing is known"


def test_new_partitions_do_not_all_choose_the_same_broker() -> None:
    made = with_partitions(image({1: None, 2: None, 3: None}), 20)
    placed = place(made, 99, 3, lambda _: 0, loads={1: 3.0, 2: 2.0, 3: 1.0})
    assert [sorted(each) for each in placed] == [[1, 2, 3]] * 99
    counts = Counter(each[0] for each in placed)
    assert max(counts.values()) <= 40, counts
