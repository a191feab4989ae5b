"""The share coordinator: InitializeShareGroupState, Read-, Write- and DeleteShareGroupState, ReadShareGroupStateSummary."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages import delete_share_group_state as deleting
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state as reading
from barnabas.wire.messages import read_share_group_state_summary as summarizing
from barnabas.wire.messages import write_share_group_state as writing
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.uuids import uuid_to_string
from compat_tests.conform.case import case
from compat_tests.conform.session import Session, Topic, made_up_id
from compat_tests.harness.eventually import eventually

SHARE = 2
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


def initialize_request(
    group: str, topic: Topic, start: int = 0, *, partition: int = 0, state_epoch: int = 0
) -> initializing.InitializeShareGroupStateRequest:
    wanted = initializing.PartitionData(partition, state_epoch, start)
    return initializing.InitializeShareGroupStateRequest(
        group, [initializing.InitializeStateData(topic.id, [wanted])]
    )


def read_request(
    group: str, topic: Topic, leader_epoch: int = -1, *, partition: int = 0
) -> reading.ReadShareGroupStateRequest:
    wanted = reading.PartitionData(partition, leader_epoch)
    return reading.ReadShareGroupStateRequest(group, [reading.ReadStateData(topic.id, [wanted])])


def write_request(
    group: str,
    topic: Topic,
    *batches: tuple[int, int, int, int],
    start: int = -1,
    state_epoch: int = -1,
    leader_epoch: int = -1,
    complete: int = -1,
    partition: int = 0,
) -> writing.WriteShareGroupStateRequest:
    wanted = writing.PartitionData(
        partition, state_epoch, leader_epoch, start, complete, [writing.StateBatch(*each) for each in batches]
    )
    return writing.WriteShareGroupStateRequest(group, [writing.WriteStateData(topic.id, [wanted])])


def delete_request(group: str, topic: Topic, partition: int = 0) -> deleting.DeleteShareGroupStateRequest:
    return deleting.DeleteShareGroupStateRequest(
        group, [deleting.DeleteStateData(topic.id, [deleting.PartitionData(partition)])]
    )


def summary_request(
    group: str, topic: Topic, partition: int = 0, leader_epoch: int = -1
) -> summarizing.ReadShareGroupStateSummaryRequest:
    wanted = summarizing.PartitionData(partition, leader_epoch)
    return summarizing.ReadShareGroupStateSummaryRequest(
        group, [summarizing.ReadStateSummaryData(topic.id, [wanted])]
    )


def coordinated(session: Session, group: str, topic: Topic, partitions: int = 1) -> None:
    """Wait until the coordinators of the share partitions serve them."""
    keys = [f"{group}:{uuid_to_string(topic.id)}:{index}" for index in range(partitions)]
    find = FindCoordinatorRequest(key_type=SHARE, coordinator_keys=keys)

    def are_found() -> bool:
        return not any(each.error_code for each in session.quiet(find).coordinators)

    eventually(are_found, 60)

    def are_served() -> bool:
        return all(
            session.quiet(summary_request(group, topic, index)).results[0].partitions[0].error_code == 0
            for index in range(partitions)
        )

    eventually(are_served, 60)


def initialized(
    session: Session, group: str, topic: Topic, start: int = 0, *, partition: int = 0, state_epoch: int = 0
) -> None:
    """Give the share partition a state."""
    coordinated(session, group, topic, partition + 1)
    request = initialize_request(group, topic, start, partition=partition, state_epoch=state_epoch)

    def is_done() -> bool:
        return bool(session.quiet(request).results[0].partitions[0].error_code == 0)

    eventually(is_done, 60)


def _ask_state(session: Session, group: str, topic: Topic, note: str) -> None:
    session.ask(read_request(group, topic), version=0, note=f"state, {note}")
    session.ask(summary_request(group, topic), version=1, note=f"summary, {note}")


@case("FindCoordinator", first=6)
def of_share_partitions(session: Session) -> None:
    topic, group = session.create_topic(), session.name("g")
    coordinated(session, group, topic)
    named = uuid_to_string(made_up_id(9))

    def ask(note: str, key: str) -> None:
        session.ask(FindCoordinatorRequest(key_type=SHARE, coordinator_keys=[key]), note=note)

    for note, key in (
        ("no partition", f"{group}:{named}"),
        ("no topic", f"{group}::0"),
        ("no group", f":{named}:0"),
        ("partition -1", f"{group}:{named}:-1"),
        ("partition that is no number", f"{group}:{named}:x"),
        ("empty", ""),
    ):
        ask(note, key)


@case("InitializeShareGroupState")
def initializes(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group, topic, 2)
    session.ask(initialize_request(group, topic, 5, state_epoch=3), note="first")
    _ask_state(session, group, topic, "after the first")
    session.ask(initialize_request(group, topic, 7, state_epoch=2), note="lower state epoch")
    session.ask(initialize_request(group, topic, 7, state_epoch=3), note="same state epoch")
    _ask_state(session, group, topic, "after the same")
    session.ask(initialize_request(group, topic, 4, state_epoch=5), note="higher state epoch")
    _ask_state(session, group, topic, "after the higher")
    session.quiet(write_request(group, topic, (4, 9, ACKNOWLEDGED, 1), start=4))
    session.ask(initialize_request(group, topic, -1, state_epoch=6), note="without a start")
    _ask_state(session, group, topic, "without a start")
    session.ask(initialize_request(group, topic, 1, state_epoch=-1), note="state epoch -1")
    _ask_state(session, group, topic, "after state epoch -1")
    session.ask(initialize_request(group, topic, partition=9), note="unknown partition")
    session.ask(initialize_request(group, topic, partition=-1), note="partition -1")
    unknown = Topic(session.name("unknown"), made_up_id(9))
    coordinated(session, group, topic, 2)
    session.ask(initialize_request(group, unknown), note="unknown topic")
    session.ask(initialize_request("", topic), note="no group")
    session.ask(initializing.InitializeShareGroupStateRequest(group, []), note="no topics")
    session.ask(
        initializing.InitializeShareGroupStateRequest(
            group, [initializing.InitializeStateData(topic.id, [])]
        ),
        note="no partitions",
    )


@case("ReadShareGroupState")
def reads(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group, topic, 2)
    session.ask(read_request(group, topic), note="not initialized")
    session.ask(read_request(group, topic, partition=-1), note="partition -1")
    session.ask(read_request(group, topic, partition=9), note="unknown partition")
    initialized(session, group, topic, 3, state_epoch=2)
    session.ask(read_request(group, topic), note="leader epoch -1")
    session.ask(read_request(group, topic, 4), note="higher leader epoch")
    session.ask(summary_request(group, topic), version=1, note="summary, after a higher leader epoch")
    session.ask(read_request(group, topic, 4), note="same leader epoch")
    session.ask(read_request(group, topic, 3), note="lower leader epoch")
    session.ask(write_request(group, topic, (3, 3, 2, 1), leader_epoch=3), version=1, note="fenced write")
    session.ask(read_request("", topic), note="no group")
    session.ask(reading.ReadShareGroupStateRequest(group, []), note="no topics")


@case("WriteShareGroupState")
def writes(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group, topic, 2)
    session.ask(write_request(group, topic), note="not initialized")
    initialized(session, group, topic, 0, state_epoch=2)

    def ask(note: str, *batches: tuple[int, int, int, int], **fields: Any) -> None:
        session.ask(write_request(group, topic, *batches, **fields), note=note)
        _ask_state(session, group, topic, note)

    ask("one batch", (0, 9, AVAILABLE, 1), state_epoch=2, leader_epoch=0, complete=0)
    ask("a part of it", (2, 4, ACKNOWLEDGED, 1), state_epoch=2, leader_epoch=0, complete=3)
    ask("lower delivery count", (5, 6, ARCHIVED, 0), complete=3)
    ask("overlapping batches", (8, 12, AVAILABLE, 2), (10, 14, ACKNOWLEDGED, 2), complete=4)
    ask("neighbours", (15, 16, AVAILABLE, 3), (17, 18, AVAILABLE, 3))
    ask("a start inside of a batch", start=3, complete=7)
    ask("a start behind all", (20, 20, AVAILABLE, 1), start=20)
    ask("lower state epoch", (21, 21, AVAILABLE, 1), state_epoch=1)
    ask("higher state epoch", (22, 22, AVAILABLE, 1), state_epoch=5)
    ask("state epoch as before", (23, 23, AVAILABLE, 1), state_epoch=2)
    ask("higher leader epoch", (24, 24, AVAILABLE, 1), leader_epoch=6)
    ask("leader epoch as before", (25, 25, AVAILABLE, 1), leader_epoch=0)
    session.ask(write_request(group, topic, partition=9), note="unknown partition")
    session.ask(write_request(group, topic, partition=-1), note="partition -1")
    session.ask(write_request("", topic), note="no group")
    session.ask(writing.WriteShareGroupStateRequest(group, []), note="no topics")


@case("WriteShareGroupState", first=1)
def snapshots(session: Session) -> None:
    topic, group = session.create_topic(), session.name("g")
    initialized(session, group, topic)
    for offset in range(502):
        session.quiet(write_request(group, topic, (2 * offset, 2 * offset, ARCHIVED, 1), complete=offset + 1))
    _ask_state(session, group, topic, "after more updates than belong to a snapshot")


@case("DeleteShareGroupState")
def deletes_states(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group, topic, 2)
    session.ask(delete_request(group, topic), note="unknown")
    initialized(session, group, topic, 3, state_epoch=2)
    session.ask(delete_request(group, topic), note="known")
    session.ask(delete_request(group, topic), note="again")
    _ask_state(session, group, topic, "after it was deleted")
    session.ask(delete_request(group, topic, 9), note="unknown partition")
    session.ask(delete_request(group, topic, -1), note="partition -1")
    session.ask(delete_request("", topic), note="no group")
    initialized(session, group, topic, 1, state_epoch=1)
    _ask_state(session, group, topic, "after it was made again with a lower epoch")


@case("ReadShareGroupStateSummary")
def summaries(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group, topic, 2)
    session.ask(summary_request(group, topic), note="not initialized")
    initialized(session, group, topic, 3, state_epoch=2)
    session.ask(summary_request(group, topic), note="initialized")
    session.ask(summary_request(group, topic, leader_epoch=4), note="with a leader epoch")
    session.quiet(write_request(group, topic, (3, 3, ACKNOWLEDGED, 1), (5, 6, ARCHIVED, 1), complete=3))
    session.ask(summary_request(group, topic), note="written")
    session.ask(summary_request(group, topic, 9), note="unknown partition")
    session.ask(summary_request(group, topic, -1), note="partition -1")
    session.ask(summary_request("", topic), note="no group")
    session.ask(summarizing.ReadShareGroupStateSummaryRequest(group, []), note="no topics")
