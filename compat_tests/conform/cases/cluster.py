"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, DescribeQuorum, UpdateFeatures,
UnregisterBroker, AddRaftVoter, RemoveRaftVoter: what one broker alone answers to them."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from barnabas.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from compat_tests.conform.case import case
from compat_tests.conform.session import Session

PREFERRED, UNCLEAN = 0, 1


@case("ElectLeaders")
def elections(session: Session) -> None:
    topic = session.create_topic("t", 2)
    kinds = (PREFERRED,) if session.version == 0 else (PREFERRED, UNCLEAN)
    for kind in kinds:

        def ask(note: str, partitions: list[TopicPartitions] | None, kind: int = kind) -> None:
            session.ask(
                ElectLeadersRequest(election_type=kind, topic_partitions=partitions, timeout_ms=5000),
                note=f"type {kind}: {note}",
            )

        ask("not needed", [TopicPartitions(topic=topic.name, partitions=[0, 1])])
        ask("unknown topic", [TopicPartitions(topic=session.name("none"), partitions=[0])])
        ask("unknown partition", [TopicPartitions(topic=topic.name, partitions=[7, -1])])
        ask("no partitions", [TopicPartitions(topic=topic.name)])
        ask("nothing", [])


@case("ElectLeaders", first=1)
def unknown_type(session: Session) -> None:
    topic = session.create_topic("t", 1)
    session.ask(
        ElectLeadersRequest(
            election_type=5, topic_partitions=[TopicPartitions(topic=topic.name, partitions=[0])]
        )
    )


def reassign(
    session: Session,
    note: str,
    name: str,
    *partitions: tuple[int, Sequence[int] | None],
    may_change: bool = True,
) -> None:
    session.ask(
        AlterPartitionReassignmentsRequest(
            timeout_ms=5000,
            allow_replication_factor_change=may_change,
            topics=[
                ReassignableTopic(
                    name=name,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index, replicas=None if replicas is None else list(replicas)
                        )
                        for index, replicas in partitions
                    ],
                )
            ],
        ),
        note=note,
    )


@case("AlterPartitionReassignments")
def reassignments(session: Session) -> None:
    topic = session.create_topic("t", 2)
    reassign(session, "to where it is", topic.name, (0, [1]))
    reassign(session, "nothing to cancel", topic.name, (0, None), (1, None))
    reassign(session, "unknown topic", session.name("none"), (0, [1]))
    reassign(session, "unknown partition", topic.name, (7, [1]), (-1, None))
    reassign(session, "unknown broker", topic.name, (0, [7]))
    reassign(session, "negative broker", topic.name, (0, [-1]))
    reassign(session, "twice", topic.name, (0, [1, 1]))
    reassign(session, "no replicas", topic.name, (0, []))
    reassign(session, "no partitions", topic.name)
    if session.version >= 1:
        reassign(session, "another factor", topic.name, (0, [1, 7]), (1, [1]), may_change=False)
    session.ask(AlterPartitionReassignmentsRequest(timeout_ms=5000), note="nothing")


@case("ListPartitionReassignments")
def no_reassignments(session: Session) -> None:
    topic = session.create_topic("t", 1)
    session.ask(ListPartitionReassignmentsRequest(topics=None), note="all")
    session.ask(ListPartitionReassignmentsRequest(topics=[]), note="nothing")
    session.ask(
        ListPartitionReassignmentsRequest(
            topics=[
                ListPartitionReassignmentsTopics(name=topic.name, partition_indexes=[0, 7]),
                ListPartitionReassignmentsTopics(name=session.name("none"), partition_indexes=[0]),
            ]
        ),
        note="some",
    )


@case("DescribeQuorum")
def other_partitions(session: Session) -> None:
    topic = session.create_topic("t", 1)
    for note, topics in {
        "another topic": [TopicData(topic_name=topic.name, partitions=[PartitionData(partition_index=0)])],
        "another partition": [
            TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=1)])
        ],
        "two topics": [
            TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)]),
            TopicData(topic_name=topic.name, partitions=[PartitionData(partition_index=0)]),
        ],
        "no partition": [TopicData(topic_name="__cluster_metadata")],
        "nothing": [],
    }.items():
        session.ask(DescribeQuorumRequest(topics=topics), note=note)


FEATURES = (
    *("metadata.version", "eligible.leader.replicas.version", "transaction.version", "group.version"),
    *("no.such.feature", ""),
)


@case("UpdateFeatures")
def refused_levels(session: Session) -> None:
    for name in FEATURES:
        for level in (-1, 0, 99) if name == "no.such.feature" else (-1, 99):
            session.ask(
                UpdateFeaturesRequest(
                    feature_updates=[FeatureUpdateKey(feature=name, max_version_level=level)], timeout_ms=5000
                ),
                note=f"{name!r} to {level}",
            )
    session.ask(UpdateFeaturesRequest(timeout_ms=5000), note="nothing")


@case("UpdateFeatures")
def metadata_version_back(session: Session) -> None:
    for upgrade_type in (1, 2, 3, 0, 9):
        session.ask(
            UpdateFeaturesRequest(
                feature_updates=[
                    FeatureUpdateKey(
                        feature="metadata.version",
                        max_version_level=22,
                        allow_downgrade=upgrade_type > 1,
                        upgrade_type=upgrade_type,
                    )
                ],
                timeout_ms=5000,
            ),
            note=f"type {upgrade_type}",
        )


@case("UpdateFeatures")
def transaction_version(session: Session) -> None:
    """Lowered and raised, to end as it was."""
    for level, upgrade_type in (
        (2, 1),
        (1, 1),
        (1, 2),
        (2, 2),
        (2, 0),
        (0, 3),
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
    ):
        for validate_only in (True, False) if session.version >= 1 else (False,):
            update = FeatureUpdateKey(
                feature="transaction.version", max_version_level=level, upgrade_type=upgrade_type
            )
            if not session.version:
                update.upgrade_type, update.allow_downgrade = 1, upgrade_type > 1
            session.ask(
                UpdateFeaturesRequest(feature_updates=[update], validate_only=validate_only, timeout_ms=5000),
                note=f"{level}, type {upgrade_type}{', only asked' if validate_only else ''}",
            )


@case("UpdateFeatures")
def as_it_is(session: Session) -> None:
    update = FeatureUpdateKey(feature="metadata.version", max_version_level=30)
    session.ask(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=5000), note="same level")
    nonsense = FeatureUpdateKey(feature="no.such.feature", max_version_level=1)
    session.ask(UpdateFeaturesRequest(feature_updates=[update, nonsense], timeout_ms=5000), note="one is bad")
    if session.version >= 1:
        down = FeatureUpdateKey(feature="metadata.version", max_version_level=30, upgrade_type=2)
        session.ask(
            UpdateFeaturesRequest(feature_updates=[down], validate_only=True, timeout_ms=5000),
            note="only asked",
        )


@case("UnregisterBroker")
def unknown_brokers(session: Session) -> None:
    for broker_id in (77, -1):
        session.ask(UnregisterBrokerRequest(broker_id=broker_id), note=str(broker_id))


@case("AddRaftVoter")
def voters_that_can_not_be_added(session: Session) -> None:
    """What is refused whether the voters can change or not."""
    directory = bytes(range(16))
    for note, node_id, directory_id, listeners in (
        ("no id", -1, directory, [Listener("CONTROLLER", "h", 1)]),
        ("no directory", 7, bytes(16), [Listener("CONTROLLER", "h", 1)]),
        ("no listeners", 7, directory, []),
        ("another listener", 7, directory, [Listener("OTHER", "h", 1)]),
    ):
        request = AddRaftVoterRequest(None, 5000, node_id, directory_id, listeners)
        session.ask(request, note=note)


@case("RemoveRaftVoter")
def voters_that_can_not_be_removed(session: Session) -> None:
    session.ask(RemoveRaftVoterRequest(None, -1, bytes(range(16))), note="no id")
    session.ask(RemoveRaftVoterRequest(None, 7, bytes(16)), note="no directory")
