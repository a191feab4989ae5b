"""How groups and offsets come back from the records of a partition: the quick way through them against all of them in
their order, and records that this version does not know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.offsets import CommittedOffset
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupTombstone,
    GroupWritten,
    OffsetWritten,
    encode_batch,
    encode_record,
)
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.wire.messages.consumer_offsets import GroupMetadataValue, MemberMetadata
from barnabas.wire.records import Record, build_batch

MEMBERS = [MemberMetadata("m", None, "c", "/h", 6000, 6000, b"", b"part")]
LATER_VALUE = (99).to_bytes(2, "big") + b"of a later version"

KEYS: list[Any] = [OffsetWritten((group, "t", partition), None) for group in "ab" for partition in (0, 1)]
KEYS += [GroupTombstone(group) for group in "ab"]
WHAT = st.sampled_from(["write", "write", "write", "remove", "later version", "other kind"])
STEP = st.tuples(
    st.sampled_from(["plain", "plain", "plain", "inside", "commit", "abort"]),
    st.lists(st.tuples(st.sampled_from(KEYS), WHAT), min_size=1, max_size=3),
)


def pair(key: Any, what: str, number: int) -> tuple[bytes, bytes | None]:
    name, _ = encode_record(key)
    if what == "other kind":
        return b"\0\x08" + name[2:], b"\0\0?"
    if what == "later version":
        return name, LATER_VALUE
    record: GroupRecord = key
    if what == "write" and isinstance(key, OffsetWritten):
        record = OffsetWritten(key.key, CommittedOffset(number, 3, "", number))
    elif what == "write":
        value = GroupMetadataValue("consumer", number, "range", "m", number, MEMBERS if number % 3 else [])
        record = GroupWritten(key.group_id, value)
    return encode_record(record)


def batches(steps: list[Any]) -> list[bytes]:
    made = []
    for number, (kind, written) in enumerate(steps):
        if kind in ("commit", "abort"):
            made.append(build_marker(1, 0, commit=kind == "commit", coordinator_epoch=0, timestamp=0))
            continue
        records = [
            Record(at, 0, *pair(key, what, 10 * number + at)) for at, (key, what) in enumerate(written)
        ]
        inside: dict[str, Any] = {}
        if kind == "inside":
            inside = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        made.append(build_batch(records, **inside))
    return made


def loaded(bench: Any, batches: list[bytes], *, every: bool) -> dict[str, Any]:
    """Everything that was brought back, by group id."""
    bench.log.batches = batches
    errors: list[Exception | None] = []
    bench.shard.load(errors.append, every=every)
    assert errors == [None]
    bench.check_counted()
    shard = bench.shard
    offsets = {group: shard.offsets.topics(group) for group in "ab" if shard.offsets.topics(group)}
    groups = {
        name: (
            group.state,
            group.generation_id,
            group.protocol_type,
            group.persisted,
            group.state_timestamp,
            {
                member.member_id: (member.assignment, member.session.armed)
                for member in group.members.values()
            },
        )
        for name, group in shard.groups.items()
    }
    return {"offsets": offsets, "groups": groups}


@given(steps=st.lists(STEP, max_size=14))
def test_compacted_records_give_the_state_of_all_records(make_bench: Any, steps: list[Any]) -> None:
    log = batches(steps)
    assert loaded(make_bench(), log, every=False) == loaded(make_bench(), log, every=True)


def test_a_group_whose_offset_was_removed_is_there_until_it_is_removed(bench: Any) -> None:
    position = OffsetWritten(("a", "t", 0), CommittedOffset(1, 3, "", 0))
    removed = OffsetWritten(("a", "t", 0), None)
    bench.log.batches = [encode_batch([each], 0) for each in (position, removed, position, removed)]
    assert set(bench.restarted().shard.groups) == {"a"}
    bench.log.batches.append(encode_batch([GroupTombstone("a")], 0))
    assert not bench.restarted().shard.groups


def test_a_value_of_a_later_version_hides_none_before_it(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.commit({("t", 0): 1})
    key, _ = encode_record(OffsetWritten(("group", "t", 0), None))
    bench.log.batches += [build_batch([Record(0, 0, key, LATER_VALUE)])] * 2
    assert bench.restarted().shard.offsets.get("group", "t", 0).offset == 1
    assert [record.message for record in caplog.records] == [
        "__consumer_offsets-0: records that can't be read are passed over (OffsetCommitValue version 99: 2)"
    ]


def test_members_that_are_loaded_twice_are_counted_once(bench: Any) -> None:
    (member,), generation = bench.stable(protocols=[("range", bytes(1000))])
    bench.join(member, protocols=[("range", bytes(1000))])
    bench.sync(member, generation + 1, {member: b""})
    counted = bench.restarted().shard.rebalancer.usage.member_bytes
    assert counted > 1000
    key, _ = encode_record(OffsetWritten(("group", "t", 0), None))
    bench.log.batches.append(
        build_batch([Record(0, 0, key, LATER_VALUE)])
    )  # all records are loaded, once more
    assert bench.restarted().shard.rebalancer.usage.member_bytes == counted


def test_unknown_kinds_are_logged_in_one_line(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    kinds = [30, 31, 31, 32, 33, 34, 34, 34]
    records = [
        Record(index, 0, kind.to_bytes(2, "big") + b"%d" % index, b"\0\0") for index, kind in enumerate(kinds)
    ]
    bench.log.batches.append(build_batch(records))
    bench.restarted()
    [line] = [record.message for record in caplog.records]
    assert line.startswith(
        "__consumer_offsets-0: records that can't be read are passed over (key version 34: 3"
    )
