"""Observers of a topic: which replicas it has, and that no decision lets an observer into the ISR or makes it the leader."""

from __future__ import annotations

import pytest

from barnabas.controller.metadata.image import TOPIC_RESOURCE, MetadataDelta, MetadataImage, PartitionState
from barnabas.controller.operations.alter_partition import alter_partition
from barnabas.controller.operations.cluster_view import Rules
from barnabas.controller.operations.configs import DELETE, SET, ConfigChange, ResourceChange, alter_configs
from barnabas.controller.operations.elections import balance_leaders, elect_missing_leaders
from barnabas.controller.operations.leadership import broker_fenced
from barnabas.controller.operations.partitions import MorePartitions, create_partitions
from barnabas.controller.operations.reassignments import alter_reassignments
from barnabas.controller.operations.tests.steps import apply_steps
from barnabas.controller.operations.tests.test_cluster_operations import (
    SETTINGS,
    apply,
    cluster,
    directory,
    elect,
    move,
    wish,
)
from barnabas.controller.operations.topics import NewTopic, TopicSettings, create_topics
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.metadata_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord

OBSERVERS = "barnabas.observers"


def set_configs(image: MetadataImage, *changes: tuple[str, str | None]) -> tuple[E, str | None]:
    """Change configs of t; None deletes."""
    wanted = [ConfigChange(name, DELETE if text is None else SET, text) for name, text in changes]
    decision = alter_configs(image, [ResourceChange(TOPIC_RESOURCE, "t", wanted)], SETTINGS, False)
    apply(image, decision)
    (result,) = decision.response
    return result.error, result.message


def observed(**fields: list[int] | int) -> MetadataImage:
    """As `cluster`, with an observer of t on broker 4."""
    image = cluster(**fields)  # type: ignore[arg-type]
    assert set_configs(image, (OBSERVERS, "4")) == (E.NONE, None)
    return image


def state_of(image: MetadataImage, index: int = 0) -> PartitionState:
    return image.topics["t"].partitions[index]


def fence(image: MetadataImage, broker_id: int) -> None:
    for record in broker_fenced(image, SETTINGS, broker_id):
        image.replay(record, MetadataDelta())
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=10 + broker_id, fenced=1)
    image.replay(change, MetadataDelta())


def test_the_config_adds_and_removes_replicas() -> None:
    image = observed()
    state = state_of(image)
    assert (state.replicas, state.isr, state.adding_replicas) == ([1, 2, 3, 4], [1, 2], [])
    assert state.directories[3] == directory(4)
    assert set_configs(image, ("retention.ms", "5")) == (E.NONE, None)
    assert state_of(image).replicas == [1, 2, 3, 4]
    before = state_of(image)
    assert set_configs(image, (OBSERVERS, None)) == (E.NONE, None)
    state = state_of(image)
    assert (state.replicas, state.isr, state.leader) == ([1, 2, 3], [1, 2], 1)
    assert state.leader_epoch == before.leader_epoch + 1, "a replica was removed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2", "has a replica of t-0"),
        ("9", "no such broker is registered"),
        ("4,,5", "must be the id of a broker"),
        ("-4", "must be the id of a broker"),
        ("99999999999", "must be the id of a broker"),
        ("2147483648", "must be the id of a broker"),
        ("\u0664", "must be the id of a broker"),
        ("rack:a", "must be the id of a broker"),
    ],
)
def test_what_the_config_refuses(text: str, message: str) -> None:
    image = cluster()
    error, found = set_configs(image, (OBSERVERS, text))
    assert error == E.INVALID_CONFIG
    assert message in (found or "")
    assert state_of(image).replicas == [1, 2, 3]


def test_an_observer_never_joins_the_isr() -> None:
    image = observed()
    state = state_of(image)
    wanted = wish([(1, 11), (2, 12), (4, 14)], partition_epoch=state.partition_epoch)
    decision = alter_partition(image, SETTINGS, wanted)
    (result,) = decision.response.topics[0].partitions
    assert (result.error_code, decision.records) == (E.INELIGIBLE_REPLICA, [])


@pytest.mark.parametrize("unclean", ["false", "true"])
def test_an_observer_is_never_elected(unclean: str) -> None:
    image = observed(replicas=[1, 2])
    set_configs(image, ("unclean.leader.election.enable", unclean), ("min.insync.replicas", "1"))
    fence(image, 1)
    assert state_of(image).leader == 2
    fence(image, 2)
    apply_steps(image, elect_missing_leaders(image, SETTINGS))
    apply(image, balance_leaders(image, SETTINGS))
    assert elect(image, 0) == "PREFERRED_LEADER_NOT_AVAILABLE"
    assert elect(image, 1) == "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    state = state_of(image)
    assert state.leader == -1
    assert 4 not in {*state.isr, *state.eligible_leader_replicas, *state.last_known_elr}


def test_observers_do_not_count_for_min_insync_replicas() -> None:
    image = cluster(replicas=[1], isr=[1])
    set_configs(image, ("min.insync.replicas", "2"), (OBSERVERS, "4"))
    assert Rules(image, SETTINGS).of(image.topics["t"]).min_isr == 1


def test_a_reassignment_keeps_observers_and_does_not_wait_for_them() -> None:
    image = observed(replicas=[1, 2])
    for broker_id in (5, 6):
        registration = RegisterBrokerRecord(broker_id=broker_id, broker_epoch=10 + broker_id, fenced=False)
        image.replay(registration, MetadataDelta())
    move(image, [4, 5, 2])
    state = state_of(image)
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ([5, 2, 1, 4], [5], [1])
    wanted = wish([(1, 11), (2, 12), (5, 15)], state.leader_epoch, state.partition_epoch)
    apply(image, alter_partition(image, SETTINGS, wanted))
    state = state_of(image)
    assert (state.replicas, sorted(state.isr), state.removing_replicas) == ([5, 2, 4], [2, 5], [])
    move(image, [6, 2])
    assert state_of(image).replicas == [6, 2, 5, 4]
    move(image, None)
    assert state_of(image).replicas == [2, 5, 4]


def test_a_reassignment_needs_a_replica_that_is_no_observer() -> None:
    image = observed()
    partition = ReassignablePartition(partition_index=0, replicas=[4])
    topic = ReassignableTopic(name="t", partitions=[partition])
    request = AlterPartitionReassignmentsRequest(topics=[topic])
    decision = alter_reassignments(image, SETTINGS, request)
    (result,) = decision.response.responses[0].partitions
    assert (result.error_code, decision.records) == (E.INVALID_REPLICA_ASSIGNMENT, [])


class Defaults:
    """A node's configuration for new topics."""

    num_partitions, default_replication_factor = 1, 1
    tables = SETTINGS.tables

    def value(self, name: str) -> str | None:
        return SETTINGS.value(name)

    def topic_defaults(self) -> dict[str, str]:
        return {}


def created(image: MetadataImage, *topics: NewTopic) -> list[E]:
    defaults: TopicSettings = Defaults()
    decision = create_topics(image, topics, defaults, lambda name: name.encode().ljust(16))
    apply(image, decision)
    return [result.error for result in decision.response]


def test_new_partitions_have_observers() -> None:
    image = cluster()
    placed = NewTopic("placed", 6, 2, configs=[(OBSERVERS, "4")])
    assigned = NewTopic("assigned", assignments=[(0, [4, 2]), (1, [1])], configs=[(OBSERVERS, "4")])
    assert created(image, placed, assigned) == [E.NONE, E.NONE]
    for state in image.topics["placed"].partitions.values():
        assert (len(state.replicas), state.replicas[-1], 4 in state.isr) == (3, 4, False)
    states = image.topics["assigned"].partitions
    assert [(each.replicas, each.isr, each.leader) for each in states.values()] == [
        ([2, 4], [2], 2),
        ([1, 4], [1], 1),
    ]
    more = [MorePartitions("placed", 8), MorePartitions("assigned", 3, [[2]])]
    decision = create_partitions(image, more)
    apply(image, decision)
    assert [result.error for result in decision.response] == [E.NONE, E.NONE]
    assert all(state.replicas[-1] == 4 for state in image.topics["placed"].partitions.values())
    assert states[2].replicas == [2, 4]


def test_new_topics_that_observers_can_not_be_of() -> None:
    image = cluster()
    unknown = NewTopic("a", 1, 1, configs=[(OBSERVERS, "9")])
    only = NewTopic("b", assignments=[(0, [4])], configs=[(OBSERVERS, "4")])
    many = NewTopic("c", 1, 4, configs=[(OBSERVERS, "4")])
    assert created(image, unknown, only, many) == [
        E.INVALID_CONFIG,
        E.INVALID_REPLICA_ASSIGNMENT,
        E.INVALID_REPLICATION_FACTOR,
    ]
