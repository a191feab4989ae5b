"""Topics with remote storage (KIP-405): their settings, and how their offsets and records are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from compat_tests.conform.batches import TIME, batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.configs import DELETE, SET, TOPIC, alter, change, describe, settled
from compat_tests.conform.cases.list_offsets import list_offsets
from compat_tests.conform.cases.shared import fetch_request
from compat_tests.conform.session import Session, Topic
from compat_tests.harness.eventually import eventually

ENABLE: Final = {"remote.storage.enable": "true"}
SEGMENT_MS: Final = 1000
SEGMENTS: Final = 6  # of one batch each
RECORDS: Final = 3  # of a batch
ACTIVE: Final = (SEGMENTS - 1) * RECORDS  # the first offset of the active segment
END: Final = SEGMENTS * RECORDS
SMALL: Final = {**ENABLE, "segment.ms": str(SEGMENT_MS), "retention.ms": "-1", "file.delete.delay.ms": "0"}
LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5

REFUSED: Final[tuple[Mapping[str, str], ...]] = (
    {**ENABLE, "cleanup.policy": "compact"},
    {**ENABLE, "cleanup.policy": "compact,delete"},
    {**ENABLE, "local.retention.ms": "2", "retention.ms": "1"},
    {**ENABLE, "local.retention.bytes": "2", "retention.bytes": "1"},
    {**ENABLE, "local.retention.ms": "-1", "retention.ms": "1"},
    {**ENABLE, "local.retention.ms": "-1"},
    {**ENABLE, "local.retention.bytes": "-1", "retention.bytes": "1"},
    {**ENABLE, "local.retention.ms": "-3"},
    {**ENABLE, "local.retention.ms": "2", "retention.ms": "1", "local.retention.bytes": "2", "retention.bytes": "1"},
    {**ENABLE, "remote.log.copy.disable": "true", "local.retention.ms": "1", "retention.ms": "2"},
    {**ENABLE, "remote.log.copy.disable": "true", "local.retention.bytes": "1", "retention.bytes": "2"},
    {**ENABLE, "remote.log.copy.disable": "true", "local.retention.bytes": "3", "retention.bytes": "2"},
    {**ENABLE, "remote.log.copy.disable": "true", "local.retention.bytes": "1"},
    {
        **ENABLE, "remote.log.copy.disable": "true",
        "local.retention.ms": "1", "retention.ms": "2", "local.retention.bytes": "1", "retention.bytes": "2",
    },
    {**ENABLE, "cleanup.policy": "compact", "local.retention.bytes": "2", "retention.bytes": "1"},
    {**ENABLE, "remote.log.copy.disable": "true", "local.retention.ms": "-1", "local.retention.bytes": "-1"},
    {"remote.storage.enable": "perhaps"},
    {"remote.log.copy.disable": "perhaps"},
)  # fmt: skip
ACCEPTED: Final[tuple[Mapping[str, str], ...]] = (
    {**ENABLE},
    {**ENABLE, "cleanup.policy": ""},
    {**ENABLE, "local.retention.ms": "-1", "retention.ms": "-1"},
    {**ENABLE, "local.retention.ms": "1", "retention.ms": "1"},
    {**ENABLE, "local.retention.bytes": "0"},
    {**ENABLE, "remote.log.copy.disable": "true"},
    {**ENABLE, "remote.log.copy.disable": "true", "local.retention.bytes": "2", "retention.bytes": "2"},
    {**ENABLE, "remote.log.delete.on.disable": "true"},
    {"remote.storage.enable": "false", "cleanup.policy": "compact"},
    {"remote.log.copy.disable": "true"},
    {"remote.log.delete.on.disable": "true"},
    {"local.retention.ms": "2", "retention.ms": "1"},
    {"local.retention.bytes": "-1", "retention.bytes": "1"},
)


def creation(name: str, configs: Mapping[str, str]) -> CreateTopicsRequest:
    """Only validated."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    return CreateTopicsRequest(topics=[wanted], timeout_ms=10000, validate_only=True)


def _ask_for_each(session: Session) -> None:
    for number, configs in enumerate((*REFUSED, *ACCEPTED)):
        session.ask(creation(session.name(f"t{number}"), configs), note=f"{dict(configs)}")


@case("CreateTopics", first=6)
def remote_storage_without_a_store(session: Session) -> None:
    _ask_for_each(session)


@case("CreateTopics", first=6, tiered=True)
def remote_storage(session: Session) -> None:
    _ask_for_each(session)


@case("IncrementalAlterConfigs")
def remote_storage_later_without_a_store(session: Session) -> None:
    made = session.create_topic()
    for configs in (*REFUSED, *ACCEPTED):
        _ask_to_change(session, made, configs)


@case("IncrementalAlterConfigs", tiered=True)
def remote_storage_later(session: Session) -> None:
    made = session.create_topic()
    for configs in (*REFUSED, *ACCEPTED):
        _ask_to_change(session, made, configs)
    session.ask(change(TOPIC, made.name, ("remote.storage.enable", SET, "true")), note="enable")
    settled(session, made.name, ("remote.storage.enable", "true"))
    for configs in (*REFUSED, *ACCEPTED):
        _ask_to_change(session, made, {name: text for name, text in configs.items() if name not in ENABLE})


def _ask_to_change(session: Session, topic: Topic, configs: Mapping[str, str]) -> None:
    operations = [(name, SET, value) for name, value in configs.items()]
    session.ask(change(TOPIC, topic.name, *operations, validate_only=True), note=f"{dict(configs)}")


@case("IncrementalAlterConfigs", tiered=True)
def the_end_of_remote_storage(session: Session) -> None:
    made = session.create_topic(configs=ENABLE)
    disable = ("remote.storage.enable", SET, "false")
    delete = ("remote.log.delete.on.disable", SET, "true")
    session.ask(change(TOPIC, made.name, disable), note="disabled")
    session.ask(change(TOPIC, made.name, ("remote.storage.enable", DELETE, None)), note="back to the default")
    session.ask(
        change(TOPIC, made.name, disable, ("remote.log.copy.disable", SET, "true")), note="copy.disable"
    )
    session.ask(change(TOPIC, made.name, delete), note="delete.on.disable")
    settled(session, made.name, ("remote.log.delete.on.disable", "true"))
    session.ask(
        change(TOPIC, made.name, disable, ("remote.log.delete.on.disable", DELETE, None)), note="not any more"
    )
    session.ask(change(TOPIC, made.name, disable), note="disabled with it")
    settled(session, made.name, ("remote.storage.enable", "false"))
    session.ask(change(TOPIC, made.name, ("cleanup.policy", SET, "compact")), note="compacted")


@case("AlterConfigs", tiered=True)
def the_end_of_remote_storage_by_replacing(session: Session) -> None:
    made = session.create_topic(configs=ENABLE)
    session.ask(alter(TOPIC, made.name, {"retention.ms": "1000"}), note="not named")
    session.ask(alter(TOPIC, made.name, {"remote.storage.enable": "false"}), note="disabled")
    session.ask(
        alter(TOPIC, made.name, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}),
        note="disabled with delete.on.disable",
    )
    settled(session, made.name, ("remote.storage.enable", "false"))


@case("DescribeConfigs", tiered=True)
def tiered_topic(session: Session) -> None:
    made = session.create_topic(configs={**ENABLE, "local.retention.bytes": "1000"})
    session.ask(describe(TOPIC, made.name), note="all")
    session.ask(describe(TOPIC, made.name, synonyms=True), note="synonyms")


def append(session: Session, topic: Topic, count: int = SEGMENTS, first: int = 0) -> None:
    """Each batch is the only one of its segment."""
    for number in range(first, first + count):
        session.produce(topic, batch([b"a", b"b", b"c"], timestamp=TIME + 2 * SEGMENT_MS * number))


def offset_of(session: Session, topic: Topic, timestamp: int) -> int:
    answer = session.quiet(list_offsets(topic.name, timestamp)).topics[0].partitions[0]
    return int(answer.offset) if answer.error_code == 0 else -1


def tiered(session: Session, configs: Mapping[str, str] | None = None) -> Topic:
    """A topic whose closed segments are in the store, and nowhere else."""
    topic = session.create_topic(configs={**SMALL, "local.retention.bytes": "1", **(configs or {})})
    append(session, topic)
    await_offset(session, topic, LATEST_TIERED, ACTIVE - 1)
    await_offset(session, topic, EARLIEST_LOCAL, ACTIVE)
    return topic


def await_offset(session: Session, topic: Topic, timestamp: int, wanted: int) -> None:
    eventually(
        lambda: offset_of(session, topic, timestamp) == wanted,
        10,
        message=lambda: f"{timestamp} is {offset_of(session, topic, timestamp)} and not {wanted}",
    )


def await_metadata(session: Session, topic: Topic) -> None:
    """Kafka answers a lookup by time with an error until it has read its topic of remote segments."""
    wanted = list_offsets(topic.name, TIME)
    eventually(lambda: session.quiet(wanted).topics[0].partitions[0].error_code == 0, 20)


def ask_for_offsets(session: Session, topic: Topic, note: str = "") -> None:
    for timestamp in range(-1, -8, -1):
        session.ask(list_offsets(topic.name, timestamp), note=f"{note}timestamp {timestamp}")
    for delta in (
        -1,
        0,
        1,
        2,
        3,
        2 * SEGMENT_MS,
        9 * SEGMENT_MS,
        10 * SEGMENT_MS,
        10 * SEGMENT_MS + 2,
        11 * SEGMENT_MS,
    ):
        session.ask(list_offsets(topic.name, TIME + delta), note=f"{note}timestamp +{delta}")


@case("ListOffsets", tiered=True)
def of_a_tiered_topic(session: Session) -> None:
    ask_for_offsets(session, tiered(session))


@case("ListOffsets", first=7, tiered=True)
def of_a_tiered_topic_with_nothing_tiered(session: Session) -> None:
    topic = session.create_topic(configs=SMALL)
    ask_for_offsets(session, topic, "empty: ")
    append(session, topic, 1)
    await_metadata(session, topic)
    ask_for_offsets(session, topic, "active segment: ")


@case("ListOffsets", first=7, tiered=True)
def of_a_tiered_topic_with_all_here(session: Session) -> None:
    topic = session.create_topic(configs=SMALL)
    append(session, topic)
    await_offset(session, topic, LATEST_TIERED, ACTIVE - 1)
    ask_for_offsets(session, topic)


@case("ListOffsets", first=7, tiered=True)
def of_a_tiered_topic_with_nothing_here(session: Session) -> None:
    topic = tiered(session)
    session.quiet(change(TOPIC, topic.name, ("local.retention.bytes", SET, "0")))
    await_offset(session, topic, LATEST_TIERED, END - 1)
    await_offset(session, topic, EARLIEST_LOCAL, END)
    ask_for_offsets(session, topic)


@case("ListOffsets", first=7, tiered=True)
def of_a_tiered_topic_with_all_expired(session: Session) -> None:
    topic = tiered(session)
    session.quiet(
        change(TOPIC, topic.name, ("retention.bytes", SET, "0"), ("local.retention.bytes", SET, "0"))
    )
    await_offset(session, topic, EARLIEST, END)
    await_offset(session, topic, EARLIEST_LOCAL, END)
    ask_for_offsets(session, topic)


@case("ListOffsets", first=7, tiered=True)
def of_an_untiered_topic(session: Session) -> None:
    topic = session.create_topic(configs={**SMALL, "remote.storage.enable": "false"})
    append(session, topic)
    ask_for_offsets(session, topic)


@case("ListOffsets", first=9, tiered=True)
def of_a_topic_that_is_tiered_later(session: Session) -> None:
    topic = session.create_topic(configs={**SMALL, "remote.storage.enable": "false"})
    append(session, topic)
    session.quiet(change(TOPIC, topic.name, ("remote.storage.enable", SET, "true")))
    await_offset(session, topic, LATEST_TIERED, ACTIVE - 1)
    session.quiet(change(TOPIC, topic.name, ("local.retention.bytes", SET, "1")))
    await_offset(session, topic, EARLIEST_LOCAL, ACTIVE)
    ask_for_offsets(session, topic)
    session.ask(fetch_request(topic, 0), version=13, note="fetch")


@case("ListOffsets", first=9, tiered=True)
def of_a_topic_that_is_not_tiered_any_more(session: Session) -> None:
    topic = tiered(session)
    session.quiet(
        change(
            TOPIC,
            topic.name,
            ("remote.storage.enable", SET, "false"),
            ("remote.log.delete.on.disable", SET, "true"),
        )
    )
    await_offset(session, topic, EARLIEST, ACTIVE)
    await_offset(session, topic, LATEST_TIERED, -1)
    ask_for_offsets(session, topic)
    for offset in (0, ACTIVE - 1, ACTIVE):
        session.ask(fetch_request(topic, offset), version=13, note=f"fetch {offset}")


@case("ListOffsets", first=9, tiered=True)
def after_retention_of_the_tier(session: Session) -> None:
    topic = tiered(session)
    session.quiet(change(TOPIC, topic.name, ("retention.bytes", SET, "100")))  # little more than a batch
    await_offset(session, topic, EARLIEST, ACTIVE - RECORDS)
    ask_for_offsets(session, topic)
    session.ask(fetch_request(topic, 0), version=13, note="fetch")


@case("DeleteRecords", tiered=True)
def into_the_tier(session: Session) -> None:
    topic = tiered(session)
    for offset in (2, 3, 7, 6, ACTIVE - 1, ACTIVE + 1, END + 1, -1):
        wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
        session.ask(
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=topic.name, partitions=[wanted])], timeout_ms=5000
            ),
            note=f"delete {offset}",
        )
        start = offset_of(session, topic, EARLIEST)
        for timestamp in (EARLIEST, EARLIEST_LOCAL):
            session.ask(
                list_offsets(topic.name, timestamp), version=11, note=f"{offset}: timestamp {timestamp}"
            )
        for at in (start - 1, start):
            session.ask(fetch_request(topic, at), version=13, note=f"{offset}: fetch {at}")


@case("Fetch", tiered=True)
def below_the_local_start(session: Session) -> None:
    topic = tiered(session)
    for offset in (0, 1, 4, ACTIVE - 1, ACTIVE, END, END + 1, -1):
        for level in (0, 1):
            wanted = fetch_request(
                topic, offset, max_wait_ms=5000, min_bytes=int(offset < END), isolation_level=level
            )
            session.ask(wanted, note=f"offset {offset}, isolation level {level}")


@case("Fetch", tiered=True)
def limits_below_the_local_start(session: Session) -> None:
    topic = tiered(session)
    for size in (0, 1, 80, 100, 400):
        session.ask(
            fetch_request(topic, partition_max_bytes=size, max_wait_ms=5000), note=f"partition limit {size}"
        )
        session.ask(fetch_request(topic, max_bytes=size, max_wait_ms=5000), note=f"request limit {size}")


@case("OffsetForLeaderEpoch", tiered=True)
def epochs_of_a_tiered_topic(session: Session) -> None:
    topic = tiered(session)
    for epoch in (0, 1, 5):
        wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
        session.ask(
            OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic.name, partitions=[wanted])]
            ),
            note=f"epoch {epoch}",
        )
