"""Reading what Kafka wrote: a metadata log of Apache Kafka 4.3.1 as golden files, damage of every kind, and
checkpoints of our own read back.

`kafka_metadata/` is what a single node left behind after topics, partitions, configs, ACLs, a SCRAM user and
a quota had come and gone; it has a checkpoint at offset 34 and the whole log from 0.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.kraft_files.exporter import kafka_records
from barnabas.controller.kraft_files.format import Voter, encode_checkpoint, read_batch
from barnabas.controller.kraft_files.importer import import_image, replay_from_kafka
from barnabas.controller.kraft_files.log import KraftLog, read_kraft_log
from barnabas.controller.metadata.acls import Acl
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage
from barnabas.controller.metadata.records import decode_record, encode_record
from barnabas.controller.operations.features import FEATURES
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages import metadata_records as wire
from barnabas.wire.messages.control_records import KRaftVersionRecord, SnapshotHeaderRecord, VotersRecord
from barnabas.wire.records import Record, build_batch

GOLDEN = Path(__file__).parent / "kafka_metadata"
KRAFT = "/logs/__cluster_metadata-0"
BOOTSTRAP = "/logs/bootstrap.checkpoint"
CHECKPOINT_0 = "00000000000000000000-0000000000.checkpoint"
CHECKPOINT_34 = "00000000000000000034-0000000001.checkpoint"
SEGMENT = "00000000000000000000.log"


def uuid(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


DIRECTORY_ID = uuid("h-jQt3TiRiq4Phze-0NEYA")


def golden_disk(*without: str) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(KRAFT, parents=True)
    for file in sorted((GOLDEN / "__cluster_metadata-0").iterdir()):
        if file.name not in without:
            disk.write_file(f"{KRAFT}/{file.name}", file.read_bytes())
    disk.write_file(BOOTSTRAP, (GOLDEN / "bootstrap.checkpoint").read_bytes())
    return disk


def read(disk: MemoryDisk) -> KraftLog:
    return read_kraft_log(disk, KRAFT, BOOTSTRAP)


def encoded(image: MetadataImage) -> list[bytes]:
    return sorted(encode_record(record) for record in image.records())


# --- what Kafka wrote


@pytest.mark.parametrize("without", [(), (CHECKPOINT_34,), (CHECKPOINT_34, CHECKPOINT_0), (CHECKPOINT_0,)])
def test_kafkas_log_is_read_from_a_checkpoint_and_from_its_start_alike(without: tuple[str, ...]) -> None:
    found = read(golden_disk(*without))
    assert (found.end_offset, found.epoch, found.voters) == (52, 1, {1})
    assert found.dynamic_quorum
    image = import_image(found, 1, [DIRECTORY_ID])
    assert image.features["metadata.version"] == 30
    assert image.features["transaction.version"] == 2
    assert {name: topic.topic_id for name, topic in image.topics.items()} == {
        "orders": uuid("j3Yd0UjwS2e2zx27nxTmTQ")
    }
    assert image.configs == {
        (2, "orders"): {"retention.ms": "3600000", "cleanup.policy": "compact,delete"},
        (4, ""): {"min.insync.replicas": "1"},
        (4, "1"): {"log.cleaner.threads": "2"},
    }
    assert image.next_producer_id == 1000
    ((user, mechanism),) = image.scram_credentials
    assert mechanism == 1
    assert user == "olga"
    assert list(image.client_quotas.values()) == [{"producer_byte_rate": 1024.0}]
    (acl,) = image.acls.by_id.values()
    assert acl == Acl(2, "orders", 3, "User:olga", "*", 3, 3)
    assert list(image.brokers) == [1]


def test_partitions_that_kafka_stopped_leading_get_a_leader_in_a_new_epoch() -> None:
    orders = import_image(read(golden_disk()), 1, [DIRECTORY_ID]).topics["orders"]
    assert list(orders.partitions) == [0, 1, 2]
    for state in orders.partitions.values():
        # Kafka's last epoch: 0, and 1 when it stepped down
        assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (1, [1], 2, 2)
        assert state.directories == [DIRECTORY_ID]


def test_a_formatted_directory_has_the_first_records_of_a_cluster() -> None:
    disk = golden_disk(SEGMENT, CHECKPOINT_34, "quorum-state")
    found = read(disk)
    assert (found.end_offset, found.epoch) == (0, 0)
    assert import_image(found, 1, []).features["group.version"] == 1


def test_kafkas_control_records_are_read() -> None:
    content = (GOLDEN / "__cluster_metadata-0" / CHECKPOINT_34).read_bytes()
    batch, _ = read_batch(memoryview(content), 0, "")
    header, version, voters = batch.controls
    assert isinstance(header, SnapshotHeaderRecord)
    assert header.last_contained_log_timestamp == 1795245743358
    assert isinstance(version, KRaftVersionRecord)
    assert version.k_raft_version == 1
    assert isinstance(voters, VotersRecord)
    (voter,) = voters.voters
    assert (voter.voter_id, voter.voter_directory_id) == (1, DIRECTORY_ID)
    assert [(each.name, each.host, each.port) for each in voter.endpoints] == [
        ("CONTROLLER", "127.0.0.1", 33985)
    ]


def test_a_checkpoint_of_the_same_records_is_byte_for_byte_kafkas() -> None:
    content = (GOLDEN / "__cluster_metadata-0" / CHECKPOINT_0).read_bytes()
    voter = Voter(1, DIRECTORY_ID, "CONTROLLER", "127.0.0.1", 33985)
    now_ms = 1795245739006
    ours = encode_checkpoint([], epoch=0, now_ms=now_ms, voter=voter)
    assert len(ours) == len(content)
    differing = {index for index, (a, b) in enumerate(zip(ours, content, strict=True)) if a != b}
    # checksums, Kafka's own clock at the footer, and the header's time of the last record
    first, second = 0, 166
    times = {*range(first + 71, first + 85), *range(second + 27, second + 43)}
    assert differing <= {*range(first + 17, first + 21), *range(second + 17, second + 21), *times}


# --- damage


@given(cut=st.integers(1, 3876))
def test_a_torn_tail_is_cut_off(cut: int) -> None:
    whole = read(golden_disk(CHECKPOINT_34))
    disk = golden_disk(CHECKPOINT_34)
    content = disk.read_file(f"{KRAFT}/{SEGMENT}")
    disk.write_file(f"{KRAFT}/{SEGMENT}", content[:-cut])
    found = read(disk)
    assert found.end_offset < whole.end_offset
    if found.end_offset:  # else the bootstrap records count, as for Kafka
        assert found.records == whole.records[: len(found.records)]


@given(position=st.integers(0, 3876 - 160))
def test_damage_before_the_last_batch_is_refused(position: int) -> None:
    """The last two batches are 87 bytes and 72 (a NoOp) or more."""
    disk = golden_disk(CHECKPOINT_34)
    content = bytearray(disk.read_file(f"{KRAFT}/{SEGMENT}"))
    content[position] ^= 0xFF
    disk.write_file(f"{KRAFT}/{SEGMENT}", bytes(content))
    try:
        found = read(disk)
    except MetadataError as error:
        refusal = str(error)
    else:
        # outside the checksum: the epoch may differ, the records not
        assert found.records == read(golden_disk(CHECKPOINT_34)).records
        return
    assert KRAFT in refusal


@given(position=st.integers(0, 1495), bit=st.integers(0, 7))
def test_a_checkpoint_is_read_as_it_was_written_or_refused(position: int, bit: int) -> None:
    disk = golden_disk()
    content = bytearray(disk.read_file(f"{KRAFT}/{CHECKPOINT_34}"))
    content[position] ^= 1 << bit
    disk.write_file(f"{KRAFT}/{CHECKPOINT_34}", bytes(content))
    try:
        records = read(disk).records
    except MetadataError:
        return
    assert records == read(golden_disk()).records


@pytest.mark.parametrize(("topic", "left"), [("", set()), ("orders", set()), ("other", {1})])
def test_eligible_leader_replicas_are_cleared_for_one_topic_or_all(topic: str, left: set[int]) -> None:
    source = topic_log(wire.PartitionRecord(replicas=[1], eligible_leader_replicas=[1], last_known_elr=[1]))
    name = source.records[0]
    assert isinstance(name, wire.TopicRecord)
    name.name = "orders"
    source.records.append(wire.ClearElrRecord(topic_name=topic))
    image = MetadataImage()
    for record in source.records:
        replay_from_kafka(image, record, MetadataDelta())
    assert set(image.topics["orders"].partitions[0].eligible_leader_replicas or []) == left


def test_zeros_after_the_log_are_no_damage() -> None:
    disk = golden_disk()
    path = f"{KRAFT}/{SEGMENT}"
    disk.write_file(path, disk.read_file(path) + bytes(4096))
    assert read(disk).end_offset == 52


@pytest.mark.parametrize("name", [CHECKPOINT_34, "quorum-state"])
def test_a_damaged_file_is_named(name: str) -> None:
    disk = golden_disk()
    disk.write_file(f"{KRAFT}/{name}", disk.read_file(f"{KRAFT}/{name}")[:-80])
    with pytest.raises(MetadataError, match=name):
        read(disk)


def test_a_gap_in_front_of_the_log_is_refused() -> None:
    disk = golden_disk(CHECKPOINT_34, CHECKPOINT_0)
    disk.rename(f"{KRAFT}/{SEGMENT}", f"{KRAFT}/old")
    disk.write_file(f"{KRAFT}/{7:020d}.log", no_ops(7, 2))
    with pytest.raises(MetadataError, match="offset 7 stands where 0 should"):
        read(disk)


def no_ops(base_offset: int, count: int) -> bytes:
    records = [Record(base_offset + each, 0, None, encode_record(wire.NoOpRecord())) for each in range(count)]
    return build_batch(records, base_offset=base_offset, leader_epoch=3)


# --- groups of records


@pytest.mark.parametrize(("end", "counts"), [("end", True), ("abort", False), ("", False)])
def test_a_group_of_records_counts_once_it_has_ended(end: str, counts: bool) -> None:
    content: list[msgspec.Struct] = [
        wire.BeginTransactionRecord(),
        wire.TopicRecord(name="t", topic_id=bytes(16)),
    ]
    if end:
        content.append(wire.EndTransactionRecord() if end == "end" else wire.AbortTransactionRecord())
    disk = MemoryDisk()
    disk.make_directory(KRAFT, parents=True)
    records = [Record(index, 0, None, encode_record(each)) for index, each in enumerate(content)]
    disk.write_file(f"{KRAFT}/{SEGMENT}", build_batch(records, leader_epoch=1))
    found = read(disk)
    assert found.end_offset == len(content)
    assert [type(record) for record in found.records] == [wire.TopicRecord] * counts


# --- what this broker can't serve


def topic_log(*partitions: wire.PartitionRecord, voters: set[int] | None = None) -> KraftLog:
    records: list[msgspec.Struct] = [wire.TopicRecord(name="t", topic_id=bytes(16))]
    for index, partition in enumerate(partitions):
        partition.partition_id, partition.topic_id = index, bytes(16)
        records.append(partition)
    return KraftLog(1, 1, voters or {1}, True, records)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (topic_log(wire.PartitionRecord(replicas=[1, 2])), r"t-0 on \[1, 2\].*reassign"),
        (topic_log(wire.PartitionRecord(replicas=[2])), r"t-0 on \[2\]"),
        (topic_log(voters={1, 2, 3}), r"quorum of nodes \[1, 2, 3\].*runs alone"),
        (topic_log(wire.PartitionRecord(replicas=[1], directories=[b"x" * 16])), "t-0.*log.dirs"),
        (
            KraftLog(1, 1, {1}, True, [wire.FeatureLevelRecord(name="metadata.version", feature_level=31)]),
            "metadata.version 31",
        ),
    ],
)
def test_metadata_that_can_not_be_served_is_refused_with_a_remedy(source: KraftLog, reason: str) -> None:
    with pytest.raises(MetadataError, match=reason):
        import_image(source, 1, [DIRECTORY_ID])


# --- our own checkpoints


def test_an_image_survives_export_and_import() -> None:
    image = import_image(read(golden_disk()), 1, [DIRECTORY_ID])
    exported = [encode_record(each) for each in kafka_records(image, [DIRECTORY_ID], lambda *_: DIRECTORY_ID)]
    disk = MemoryDisk()
    disk.make_directory(KRAFT, parents=True)
    content = encode_checkpoint(exported, epoch=4, now_ms=1, voter=None)
    disk.write_file(f"{KRAFT}/{70:020d}-{4:010d}.checkpoint", content)
    found = read(disk)
    assert (found.end_offset, found.epoch, found.voters) == (70, 4, set())
    for record in found.records:
        if isinstance(record, wire.PartitionRecord):
            # as Kafka leaves it when eligible leader replicas are in use
            assert (record.leader, record.isr, record.eligible_leader_replicas) == (-1, [], [1])
    again = import_image(found, 1, [DIRECTORY_ID])
    for topic in again.topics.values():
        assert {state.leader_epoch for state in topic.partitions.values()} == {4}
    assert again.scram_credentials == image.scram_credentials
    assert again.client_quotas == image.client_quotas
    assert again.configs == image.configs
    assert again.features == image.features
    assert again.next_producer_id == image.next_producer_id


def test_an_export_to_an_older_level_has_no_newer_fields() -> None:
    image = import_image(read(golden_disk()), 1, [DIRECTORY_ID])
    image.features = {"metadata.version": 16}
    for record in kafka_records(image, [DIRECTORY_ID], lambda *_: DIRECTORY_ID):
        if isinstance(record, wire.PartitionRecord):
            assert (record.directories, record.isr, record.eligible_leader_replicas) == ([], [1], None)
        elif isinstance(record, wire.RegisterBrokerRecord):
            assert record.log_dirs == []


@pytest.mark.parametrize("level", [0, 2])
def test_features_that_were_never_kafkas_are_exported_with_those_of_a_new_cluster(level: int) -> None:
    image = MetadataImage()
    for name, value in {"metadata.version": 30, "transaction.version": level}.items():
        image.replay(wire.FeatureLevelRecord(name=name, feature_level=value), MetadataDelta())
    exported = [
        (each.name, each.feature_level)
        for each in kafka_records(image, [DIRECTORY_ID], lambda *_: None)
        if isinstance(each, wire.FeatureLevelRecord)
    ]
    assert exported[0] == ("metadata.version", 30)
    assert sorted(exported[1:]) == [
        *sorted((each.name, each.highest) for each in FEATURES if not each.served),
        *([("transaction.version", level)] if level else []),
    ]


def test_many_records_are_written_in_several_batches() -> None:
    records = [
        encode_record(wire.TopicRecord(name=f"t{index}" * 20, topic_id=index.to_bytes(16, "big")))
        for index in range(20_000)
    ]
    content = memoryview(encode_checkpoint(records, epoch=1, now_ms=1, voter=None))
    position, found, next_offset, batches = 0, [], 0, 0
    while position < len(content):
        batch, position = read_batch(content, position, "")
        assert batch.base_offset == next_offset
        next_offset = batch.next_offset
        found += batch.records
        batches += 1
    assert found == records
    assert batches > 3


def test_scram_users_and_acls_survive_a_snapshot() -> None:
    image = import_image(read(golden_disk()), 1, [DIRECTORY_ID])
    again = MetadataImage()
    for content in encoded(image):
        record = decode_record(content)
        if not isinstance(record, (wire.PartitionRecord, wire.TopicRecord)):
            again.replay(record, MetadataDelta())
    assert again.scram_credentials == image.scram_credentials
    assert again.acls.by_id == image.acls.by_id
    (acl_id,) = image.acls.by_id
    delta = MetadataDelta()
    again.replay(wire.RemoveAccessControlEntryRecord(id=acl_id), delta)
    assert not again.acls.by_id
    assert delta.acls
