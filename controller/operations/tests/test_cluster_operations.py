"""Results of the operations of a cluster, with the error codes and texts of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.decision import ApiError, Decision, Steps
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.controller.operations.alter_partition import alter_partition
from barnabas.controller.operations.brokers import fence, register, unregister
from barnabas.controller.operations.configs import DELETE, SET, ConfigChange, ResourceChange, alter_configs
from barnabas.controller.operations.directories import assign_replicas
from barnabas.controller.operations.elections import balance_leaders, elect_leaders
from barnabas.controller.operations.features import (
    ELR_VERSION,
    FEATURES,
    SAFE_DOWNGRADE,
    SUPPORTED_FEATURES,
    UPGRADE,
    ControllerFeatures,
    FeatureUpdate,
    begin_cluster,
    update_features,
)
from barnabas.controller.operations.reassignments import alter_reassignments, list_reassignments
from barnabas.controller.operations.tests.steps import apply_steps, decided
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import alter_partition as ap
from barnabas.wire.messages import assign_replicas_to_dirs as dirs
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest, Feature
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from barnabas.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

TOPIC = b"t" * 16
LEADER_EPOCH, PARTITION_EPOCH = 5, 7


class Settings:
    """The controller's configuration."""

    tables = ConfigTables()
    node_id = 1

    def value(self, name: str) -> str | None:
        return {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}.get(name)

    def topic_defaults(self) -> dict[str, str]:
        return {}


SETTINGS = Settings()


def directory(broker_id: int) -> bytes:
    return bytes([broker_id + 100]) * 16


def cluster(
    isr: Sequence[int] = (1, 2), leader: int = 1, elr: Sequence[int] = (), replicas: Sequence[int] = (1, 2, 3)
) -> MetadataImage:
    """Brokers 1 to 4, of which 3 is fenced, and partition t-0. Broker n has epoch 10 + n."""
    made, delta = MetadataImage(), MetadataDelta()
    made.replay(FeatureLevelRecord(name="metadata.version", feature_level=30), delta)
    made.replay(FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1), delta)
    for broker_id in (1, 2, 3, 4):
        made.replay(
            RegisterBrokerRecord(
                broker_id=broker_id,
                broker_epoch=10 + broker_id,
                incarnation_id=bytes([broker_id]) * 16,
                fenced=broker_id == 3,
                log_dirs=[directory(broker_id)],
            ),
            delta,
        )
    made.replay(TopicRecord(name="t", topic_id=TOPIC), delta)
    state = PartitionState(
        replicas=list(replicas),
        isr=list(isr),
        leader=leader,
        leader_epoch=LEADER_EPOCH,
        partition_epoch=PARTITION_EPOCH,
        directories=[directory(replica) for replica in replicas],
        eligible_leader_replicas=list(elr),
    )
    made.replay(partition_record(TOPIC, 0, state), delta)
    made.offset = 50
    return made


def apply(image: MetadataImage, decision: Decision[Any]) -> PartitionState:
    for record in decision.records:
        image.replay(record, MetadataDelta())
    image.offset += len(decision.records)
    return image.topics["t"].partitions[0]


def applied(image: MetadataImage, steps: Steps[Any]) -> PartitionState:
    apply_steps(image, steps)
    return image.topics["t"].partitions[0]


# -- AlterPartition


def wish(
    isr: Sequence[tuple[int, int]],
    leader_epoch: int = LEADER_EPOCH,
    partition_epoch: int = PARTITION_EPOCH,
    broker_id: int = 1,
    broker_epoch: int = 11,
    index: int = 0,
    topic_id: bytes = TOPIC,
    recovery: int = 0,
) -> ap.AlterPartitionRequest:
    members = [ap.BrokerState(broker_id=each, broker_epoch=epoch) for each, epoch in isr]
    partition = ap.PartitionData(
        partition_index=index,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        new_isr_with_epochs=members,
        leader_recovery_state=recovery,
    )
    topic = ap.TopicData(topic_id=topic_id, partitions=[partition])
    return ap.AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=[topic])


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (wish([(1, 11)]), "NONE"),
        (wish([(1, -1), (2, -1)]), "NONE"),
        (wish([(1, 11)], topic_id=b"x" * 16), "UNKNOWN_TOPIC_ID"),
        (wish([(1, 11)], index=1), "UNKNOWN_TOPIC_OR_PARTITION"),
        (wish([(1, 11)], leader_epoch=LEADER_EPOCH + 1), "NOT_CONTROLLER"),
        (wish([(1, 11)], partition_epoch=PARTITION_EPOCH + 1), "NOT_CONTROLLER"),
        (wish([(1, 11)], leader_epoch=LEADER_EPOCH - 1), "FENCED_LEADER_EPOCH"),
        (wish([(2, 12)], broker_id=2, broker_epoch=12), "INVALID_REQUEST"),
        (wish([(1, 11)], partition_epoch=PARTITION_EPOCH - 1), "INVALID_UPDATE_VERSION"),
        (wish([(1, 11), (1, 11)]), "INVALID_REQUEST"),
        (wish([(1, 11), (4, 14)]), "INVALID_REQUEST"),
        (wish([(2, 12)]), "INVALID_REQUEST"),
        (wish([]), "INVALID_REQUEST"),
        (wish([(1, 11)], recovery=1), "INVALID_REQUEST"),
        (wish([(1, 11)], recovery=9), "INVALID_REQUEST"),
        (wish([(1, 11), (3, 13)]), "INELIGIBLE_REPLICA"),
        (wish([(1, 11), (2, 99)]), "INELIGIBLE_REPLICA"),
    ],
)
def test_isr_changes(request_: ap.AlterPartitionRequest, error: str) -> None:
    image = cluster()
    decision = alter_partition(image, SETTINGS, request_)
    (result,) = decision.response.topics[0].partitions
    assert ErrorCode(result.error_code).name == error
    state = apply(image, decision)
    if error == "NONE":
        assert (result.isr, result.partition_epoch) == (state.isr, state.partition_epoch)
        assert (result.leader_id, result.leader_epoch) == (1, LEADER_EPOCH)
    else:
        assert decision.records == []


def test_a_follower_in_sync_may_request_leadership() -> None:
    image = cluster()
    both = [(1, -1), (2, 12)]
    decision = alter_partition(image, SETTINGS, wish(both, broker_id=2, broker_epoch=12))
    (result,) = decision.response.topics[0].partitions
    assert (result.error_code, result.leader_id, result.isr) == (0, 2, [1, 2])
    state = apply(image, decision)
    assert (state.leader, state.isr, state.leader_epoch) == (2, [1, 2], LEADER_EPOCH + 1)
    late = alter_partition(image, SETTINGS, wish(both, broker_id=1))
    assert late.response.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_follower_that_can_not_lead_does_not_get_leadership() -> None:
    image = cluster()
    image.topics["t"].partitions[0].directories[1] = b"gone".ljust(16)
    image.brokers[2] = msgspec.structs.replace(image.brokers[2], log_dirs=[b"another".ljust(16)])
    decision = alter_partition(image, SETTINGS, wish([(1, -1), (2, 12)], broker_id=2, broker_epoch=12))
    assert decision.records == []
    assert decision.response.topics[0].partitions[0].leader_id == 1


@pytest.mark.parametrize("broker", [(1, 10), (9, 1)])
def test_isr_changes_of_an_earlier_broker_epoch(broker: tuple[int, int]) -> None:
    request = wish([(1, 11)], broker_id=broker[0], broker_epoch=broker[1])
    assert alter_partition(cluster(), SETTINGS, request).response.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_in_controlled_shutdown_is_not_in_sync() -> None:
    image = cluster(isr=[1])
    leaves = BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=12, in_controlled_shutdown=1)
    image.replay(leaves, MetadataDelta())
    decision = alter_partition(image, SETTINGS, wish([(1, 11), (2, 12)]))
    assert decision.response.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA


# -- reassignment


def move(
    image: MetadataImage, replicas: list[int] | None, name: str = "t", *, may_change: bool = True
) -> tuple[str, str | None]:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=[partition])],
        allow_replication_factor_change=may_change,
    )
    decision = alter_reassignments(image, SETTINGS, request)
    apply(image, decision)
    (result,) = decision.response.responses[0].partitions
    return ErrorCode(result.error_code).name, result.error_message


def in_progress(image: MetadataImage) -> list[tuple[list[int], list[int], list[int]]]:
    response = list_reassignments(image, ListPartitionReassignmentsRequest(topics=None))
    return [
        (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    ]


def test_a_reassignment_is_begun_changed_and_cancelled() -> None:
    image = cluster(replicas=[1, 2])
    assert move(image, [1, 4]) == ("NONE", None)
    assert in_progress(image) == [([1, 4, 2], [4], [2])]
    assert move(image, [3, 4], may_change=False) == ("NONE", None)
    assert in_progress(image) == [([3, 4, 1, 2], [4, 3], [1, 2])]
    assert move(image, None) == ("NONE", None)
    assert in_progress(image) == []
    assert image.topics["t"].partitions[0].replicas == [1, 2]
    assert move(image, None) == ("NO_REASSIGNMENT_IN_PROGRESS", None)


def test_invalid_reassignments_are_refused() -> None:
    image = cluster()
    assert move(image, [1, 9])[0] == "INVALID_REPLICA_ASSIGNMENT"
    assert move(image, [1, 4], may_change=False) == (
        "INVALID_REPLICATION_FACTOR",
        "The replication factor is changed from 3 to 2",
    )
    assert move(image, [1], name="none") == (
        "UNKNOWN_TOPIC_OR_PARTITION",
        "Unable to find a topic named none.",
    )


def test_a_reassignment_whose_former_replicas_are_out_of_sync_is_not_cancelled() -> None:
    image = cluster(replicas=[2, 3], isr=[2], leader=2)
    move(image, [1, 4])
    epoch = image.topics["t"].partitions[0]
    request = wish(
        [(2, 12), (1, 11)],
        broker_id=2,
        broker_epoch=12,
        leader_epoch=epoch.leader_epoch,
        partition_epoch=epoch.partition_epoch,
    )
    apply(image, alter_partition(image, SETTINGS, request))
    mark_fenced(image, 2)
    state = applied(image, unregister(image, SETTINGS, 2, dead_epoch=12))
    assert (state.leader, state.isr) == (1, [1])
    assert move(image, None) == (
        "INVALID_REPLICA_ASSIGNMENT",
        "Unable to revert partition assignment for t:0 because it would require an unclean leader election.",
    )


# -- elections


def elect(image: MetadataImage, kind: int) -> str:
    request = ElectLeadersRequest(
        election_type=kind, topic_partitions=[TopicPartitions(topic="t", partitions=[0])]
    )
    decision = apply_steps(image, elect_leaders(image, SETTINGS, request))
    return ErrorCode(decision.response.replica_election_results[0].partition_result[0].error_code).name


def test_elections() -> None:
    assert elect(cluster(), 0) == "ELECTION_NOT_NEEDED"
    assert elect(cluster(), 1) == "ELECTION_NOT_NEEDED"
    assert elect(cluster(isr=[2], leader=2), 0) == "PREFERRED_LEADER_NOT_AVAILABLE"
    assert elect(cluster(isr=[], leader=-1, replicas=[3]), 1) == "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    image = cluster(leader=2)
    assert elect(image, 0) == "NONE"
    assert image.topics["t"].partitions[0].leader == 1
    image = cluster(isr=[], leader=-1, elr=[3])
    assert elect(image, 1) == "NONE"
    state = image.topics["t"].partitions[0]
    assert (state.leader, state.isr, state.leader_recovery_state) == (1, [1], 1)


def test_an_election_for_all_partitions_lists_those_that_need_one() -> None:
    request = ElectLeadersRequest(topic_partitions=None)
    decision = decided(elect_leaders(cluster(), SETTINGS, request))
    assert [each.partition_result for each in decision.response.replica_election_results] == [[]]


def test_leaders_are_balanced_a_bounded_number_at_a_time() -> None:
    image = cluster(leader=2)
    for index in range(1, 5):
        image.replay(partition_record(TOPIC, index, image.topics["t"].partitions[0]), MetadataDelta())
    more = []
    for _ in range(3):
        decision = balance_leaders(image, SETTINGS, 2)
        apply(image, decision)
        more.append((decision.response, len(decision.records)))
    assert more == [(True, 2), (True, 2), (False, 1)]
    assert {state.leader for state in image.topics["t"].partitions.values()} == {1}
    assert balance_leaders(cluster(isr=[2], leader=2), SETTINGS).records == []


# -- registration


def registration(**other: Any) -> BrokerRegistrationRequest:
    request = BrokerRegistrationRequest(
        broker_id=5,
        cluster_id="c",
        incarnation_id=b"5" * 16,
        log_dirs=[directory(5)],
        features=[
            Feature(name="metadata.version", min_supported_version=7, max_supported_version=30),
            Feature(name="eligible.leader.replicas.version", max_supported_version=1),
        ],
    )
    for name, value in other.items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (
            {"cluster_id": "d"},
            "INCONSISTENT_CLUSTER_ID",
            "Expected cluster ID c, but got cluster ID d",
        ),
        ({"log_dirs": []}, "INVALID_REGISTRATION", "No directories specified in request"),
        ({"log_dirs": [bytes(16)]}, "INVALID_REGISTRATION", "Reserved directory ID in request"),
        ({"log_dirs": [directory(5)] * 2}, "INVALID_REGISTRATION", "Duplicate directory ID in request"),
        (
            {"log_dirs": [directory(1)]},
            "INVALID_REGISTRATION",
            "Broker 1 is already registered with directory ZWVlZWVlZWVlZWVlZWVlZQ",
        ),
        (
            {"features": []},
            "UNSUPPORTED_VERSION",
            "Unable to register because the broker does not support finalized version 1 of "
            "eligible.leader.replicas.version. The broker wants a version between 0 and 0, inclusive.",
        ),
    ],
)
def test_registrations_that_are_refused(other: dict[str, Any], error: str, message: str) -> None:
    decision = decided(register(cluster(), SETTINGS, registration(**other), "c", is_alive=False))
    assert isinstance(decision.response, ApiError)
    assert (decision.response.error.name, decision.response.message) == (error, message)
    assert decision.records == []


def test_a_new_incarnation_leaves_the_isrs_of_the_former_one() -> None:
    for previous_epoch, elr in ((12, [2]), (11, []), (-1, [])):
        image = cluster(isr=[1, 2])
        request = registration(broker_id=2, log_dirs=[directory(2)], previous_broker_epoch=previous_epoch)
        state = applied(image, register(image, SETTINGS, request, "c", is_alive=False))
        assert (state.isr, state.eligible_leader_replicas) == ([1], elr)
        assert image.brokers[2].fenced
        assert image.brokers[2].broker_epoch == image.offset


def mark_fenced(image: MetadataImage, broker_id: int) -> None:
    """Whatever it leads stays as it is."""
    image.brokers[broker_id] = msgspec.structs.replace(image.brokers[broker_id], fenced=True)


def test_a_fenced_broker_is_unregistered() -> None:
    image = cluster(isr=[1], elr=[2])
    mark_fenced(image, 1)
    state = applied(image, unregister(image, SETTINGS, 1, dead_epoch=11))
    assert (state.leader, state.isr, 1 in image.brokers) == (2, [2], False)
    decision = decided(unregister(image, SETTINGS, 1, dead_epoch=11))
    assert decision.response is not None
    assert decision.response.message == "Broker ID 1 is not currently registered"


def test_a_running_broker_is_not_unregistered() -> None:
    """Broker 3 is fenced, and may be about to catch up; its epoch is 13."""
    image = cluster()
    for broker_id, dead_epoch, refused in (
        (1, 11, True),
        (1, -1, True),
        (3, -1, True),
        (3, 12, True),
        (3, 13, False),
    ):
        decision = decided(unregister(image, SETTINGS, broker_id, dead_epoch=dead_epoch))
        assert bool(decision.records) is not refused
        error = None if decision.response is None else decision.response.error.name
        assert error == ("INVALID_REQUEST" if refused else None)


# -- directories


def assign(image: MetadataImage, broker_id: int, to: bytes, epoch: int) -> PartitionState:
    partitions = [dirs.PartitionData(partition_index=0)]
    request = dirs.AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=epoch,
        directories=[
            dirs.DirectoryData(id=to, topics=[dirs.TopicData(topic_id=TOPIC, partitions=partitions)])
        ],
    )
    decision = assign_replicas(image, SETTINGS, request)
    assert decision.response.error_code == 0
    return apply(image, decision)


def test_a_replica_created_again_in_another_directory_is_not_eligible() -> None:
    image = cluster(isr=[1], elr=[2])
    request = registration(broker_id=2, log_dirs=[directory(9)], previous_broker_epoch=12)
    applied(image, register(image, SETTINGS, request, "c", is_alive=False))
    assert image.topics["t"].partitions[0].eligible_leader_replicas == [2]  # it has stopped cleanly
    state = assign(image, 2, directory(9), image.brokers[2].broker_epoch)
    assert state.eligible_leader_replicas == []
    assert state.directories[1] == directory(9)


def test_the_only_replica_leads_from_the_directory_where_it_was_found() -> None:
    image = cluster(replicas=[2], isr=[2], leader=-1)
    request = registration(broker_id=2, incarnation_id=b"\2" * 16, log_dirs=[directory(9)])
    applied(image, register(image, SETTINGS, request, "c", is_alive=True))
    state = assign(image, 2, directory(9), 12)
    assert (state.leader, state.isr, state.directories) == (2, [2], [directory(9)])


def test_a_replica_that_has_moved_between_directories_stays_in_sync() -> None:
    image = cluster()
    request = registration(broker_id=2, incarnation_id=b"\2" * 16, log_dirs=[directory(2), directory(9)])
    applied(image, register(image, SETTINGS, request, "c", is_alive=True))
    state = assign(image, 2, directory(9), 12)
    assert (state.isr, state.leader, state.directories[1]) == ([1, 2], 1, directory(9))


# -- features and min.insync.replicas


def test_a_cluster_begins_with_eligible_leader_replicas_and_one_min_isr() -> None:
    image = MetadataImage()
    for record in begin_cluster(image, SETTINGS).records:
        image.replay(record, MetadataDelta())
    assert image.features == {each.name: each.served for each in FEATURES if each.served}
    assert image.features["eligible.leader.replicas.version"] == 1
    assert image.configs == {(4, ""): {"min.insync.replicas": "2"}}
    assert begin_cluster(image, SETTINGS).records == []


def test_a_single_node_becomes_a_cluster_with_its_second_broker() -> None:
    image = MetadataImage()
    image.replay(FeatureLevelRecord(name="metadata.version", feature_level=30), MetadataDelta())
    image.replay(RegisterBrokerRecord(broker_id=1, broker_epoch=1, fenced=False), MetadataDelta())
    image.offset = 1
    decision = apply_steps(image, register(image, SETTINGS, registration(), "c", is_alive=False))
    assert image.features["eligible.leader.replicas.version"] == 1
    assert image.configs == {(4, ""): {"min.insync.replicas": "2"}}
    assert image.brokers[5].broker_epoch == decision.response == 1 + len(decision.records)


def test_feature_updates_succeed_or_fail_together() -> None:
    image = cluster()
    for broker_id, broker in list(image.brokers.items()):
        features = {"eligible.leader.replicas.version": (0, 1), "metadata.version": (7, 30)}
        image.brokers[broker_id] = type(broker)(
            **{name: getattr(broker, name) for name in broker.__struct_fields__} | {"features": features}
        )
    down = FeatureUpdate("eligible.leader.replicas.version", 0, 2)
    refused = update_features(image, SETTINGS, [down, FeatureUpdate("no.such.feature", 1, 1)])
    assert refused.response is not None
    assert refused.response.message == (
        "Invalid update version 1 for feature no.such.feature. Local controller 1 does not support this feature."
    )
    assert refused.records == []
    apply(image, update_features(image, SETTINGS, [down]))
    assert image.features == {"metadata.version": 30}
    apply(image, update_features(image, SETTINGS, [FeatureUpdate(down.name, 1, 1)]))
    assert image.features["eligible.leader.replicas.version"] == 1
    assert image.configs[4, ""] == {"min.insync.replicas": "2"}


def test_features_are_supported_up_to_what_works() -> None:
    for feature in FEATURES:
        assert 0 <= feature.lowest <= feature.highest
        assert feature.served in (0, *range(feature.lowest, feature.highest + 1))
        assert (feature.name in SUPPORTED_FEATURES) == bool(feature.served)


NEEDS_DOWNGRADE = "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."


@pytest.mark.parametrize(
    ("current", "level", "upgrade_type", "reason"),
    [
        (0, 1, 1, ""),
        (0, 2, 1, ""),
        (2, 2, 1, ""),
        (2, 2, 2, ""),
        (2, 1, 2, ""),
        (2, 0, 3, ""),
        (0, 0, 1, ""),
        (2, 1, 1, NEEDS_DOWNGRADE),
        (1, 2, 2, "Can't downgrade to a newer version."),
        (2, 3, 1, "Local controller 1 only supports versions 0-2"),
        (2, -1, 1, "A feature version cannot be less than 0."),
        (2, 1, 0, "The controller does not support the given upgrade type."),
    ],
)
def test_transaction_version_is_raised_and_lowered(
    current: int, level: int, upgrade_type: int, reason: str
) -> None:
    image = MetadataImage()
    image.replay(FeatureLevelRecord(name="transaction.version", feature_level=current), MetadataDelta())
    update = FeatureUpdate("transaction.version", level, upgrade_type)
    text = f"Invalid update version {level} for feature transaction.version. {reason}" if reason else "None"
    for validate_only in (True, False):
        decision = update_features(image, SETTINGS, [update], validate_only=validate_only)
        assert str(decision.response) == text
        assert bool(decision.records) is not (validate_only or bool(reason))
    for record in decision.records:
        image.replay(record, MetadataDelta())
    level = current if reason else level
    assert image.features.get("transaction.version", 0) == level
    again = MetadataImage()
    for record in image.records():  # as a snapshot has it
        again.replay(record, MetadataDelta())
    assert again.features == image.features


def test_older_metadata_keeps_its_features() -> None:
    for level in (0, 1):
        image = MetadataImage()
        for name, value in {"metadata.version": 30, "transaction.version": level}.items():
            image.replay(FeatureLevelRecord(name=name, feature_level=value), MetadataDelta())
        for decision in (
            begin_cluster(image, SETTINGS),
            decided(register(image, SETTINGS, registration(), "c", is_alive=False)),
        ):
            for record in decision.records:
                image.replay(record, MetadataDelta())
        assert image.features.get("transaction.version", 0) == level


def test_an_unknown_feature_is_not_lowered_either() -> None:
    refused = update_features(MetadataImage(), SETTINGS, [FeatureUpdate("no.such.feature", 0, 2)]).response
    assert refused is not None
    assert refused.message == (
        "Invalid update version 0 for feature no.such.feature. Feature no.such.feature not found."
    )


def test_a_broker_that_does_not_know_transaction_version_keeps_it_down() -> None:
    image = cluster()
    refused = update_features(image, SETTINGS, [FeatureUpdate("transaction.version", 2, 1)]).response
    assert refused is not None
    assert refused.message == (
        "Invalid update version 2 for feature transaction.version. Broker 1 does not support this feature."
    )


@pytest.mark.parametrize(
    ("controllers", "reason"),
    [
        ({2: {"kraft.version": (0, 1)}, 3: {"kraft.version": (0, 2)}}, ""),
        ({2: {"kraft.version": (0, 1)}, 3: {}}, "Controller 3 does not support this feature."),
        ({2: {"kraft.version": (0, 0)}, 3: None}, "Controller 2 does not support this feature."),
        ({2: {"kraft.version": (2, 3)}}, "Controller 2 only supports versions 2-3"),
        ({2: None}, "controller 2 has not registered, and may not support this feature"),
    ],
)
def test_controllers_have_to_support_a_feature(controllers: ControllerFeatures, reason: str) -> None:
    image = MetadataImage()
    update = FeatureUpdate("kraft.version", 1, 1)
    decision = update_features(image, SETTINGS, [update], controllers=controllers)
    text = f"Invalid update version 1 for feature kraft.version. {reason}" if reason else "None"
    assert str(decision.response) == text
    assert bool(decision.records) is not bool(reason)


def test_a_controller_that_is_down_counts_as_the_broker_that_it_is() -> None:
    image = cluster()
    for broker_id, broker in list(image.brokers.items()):
        image.brokers[broker_id] = msgspec.structs.replace(broker, features={"kraft.version": (0, 1)})
    update = FeatureUpdate("kraft.version", 1, 1)
    down: ControllerFeatures = dict.fromkeys(image.brokers)
    assert update_features(image, SETTINGS, [update], controllers=down).response is None


@pytest.mark.parametrize(("kind", "name"), [(2, "t"), (4, "")])
def test_a_change_of_min_isr_clears_elr(kind: int, name: str) -> None:
    for operation, left in ((SET, []), (DELETE, [2])):
        image = cluster(isr=[1], elr=[2])
        key = "min.insync.replicas" if operation == SET else "retention.ms"
        change = ConfigChange(key, operation, "1" if operation == SET else None)
        decision = alter_configs(image, [ResourceChange(kind, name, [change])], SETTINGS, False)
        assert decision.response[0].error == ErrorCode.NONE
        assert apply(image, decision).eligible_leader_replicas == left


def test_eligible_replicas_do_not_outlive_their_feature() -> None:
    image = cluster(isr=(1,), leader=1, elr=(2,))  # with min.insync.replicas 2: 1 commits nothing alone
    image.replay(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=13, fenced=-1), MetadataDelta())
    for broker_id, broker in image.brokers.items():
        image.brokers[broker_id] = msgspec.structs.replace(broker, features=dict(SUPPORTED_FEATURES))
    down = update_features(image, SETTINGS, [FeatureUpdate(ELR_VERSION, 0, SAFE_DOWNGRADE)])
    assert down.response is None
    apply(image, down)
    change = ResourceChange(2, "t", [ConfigChange("min.insync.replicas", SET, "1")])
    apply(
        image, alter_configs(image, [change], SETTINGS, False)
    )  # from now on 1 commits alone, and 2 lacks it
    up = update_features(image, SETTINGS, [FeatureUpdate(ELR_VERSION, 1, UPGRADE)])
    assert up.response is None
    apply(image, up)
    state = applied(image, fence(image, SETTINGS, 1, 11))
    assert state.leader == -1, "2 lacks what 1 has committed"
