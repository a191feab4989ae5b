"""Reassignments of partitions to other replicas (KIP-455).

During a reassignment the replicas are the wanted ones followed by those to remove. The ISR change that adds the last new replica
completes it (partition_change.py); it may also be cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage, PartitionState, TopicImage
from barnabas.controller.operations.cluster_view import Rules, default_directory, leadership_test
from barnabas.controller.operations.observers import with_observers
from barnabas.controller.operations.partition_change import Wanted, change_partition
from barnabas.controller.operations.placement import check_assignment
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from barnabas.wire.messages.metadata_records import PartitionChangeRecord


def alter_reassignments(
    image: MetadataImage, settings: ControllerSettings, request: AlterPartitionReassignmentsRequest
) -> Decision[AlterPartitionReassignmentsResponse]:
    """Begin, change or (without replicas) cancel reassignments; each partition succeeds or fails by itself."""
    rules = Rules(image, settings)
    may_change_factor = request.allow_replication_factor_change
    records: list[PartitionChangeRecord] = []
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor, error_message=None if request.topics else ""
    )
    for wanted in request.topics:
        results = ReassignableTopicResponse(name=wanted.name)
        response.responses.append(results)
        for partition in wanted.partitions:
            result = ReassignablePartitionResponse(
                partition_index=partition.partition_index, error_message=None
            )
            results.partitions.append(result)
            try:
                record = _alter(image, rules, wanted.name, partition, may_change_factor=may_change_factor)
                records += [record] if record is not None else []
            except ApiError as api_error:
                result.error_code, result.error_message = api_error.error, api_error.message or None
    return Decision(records, response)


def _alter(
    image: MetadataImage,
    rules: Rules,
    name: str,
    partition: ReassignablePartition,
    *,
    may_change_factor: bool,
) -> PartitionChangeRecord | None:
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    index = partition.partition_index
    state = topic.partitions.get(index)
    if state is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    observers = rules.of(topic).observers
    if partition.replicas is None:
        wanted = _cancelled(rules, topic, index, state)
    else:
        check_assignment(image, partition.replicas, None, observers)
        target = with_observers(image, partition.replicas, observers, state.replicas)
        if not may_change_factor:
            _check_factor(state, target, observers)
        wanted = _moved(state, target, observers)
    return change_partition(
        topic.topic_id,
        index,
        state,
        rules.of(topic),
        leadership_test(image, state),
        wanted,
        lambda broker_id: default_directory(image.brokers.get(broker_id)),
    )


def _check_factor(state: PartitionState, target: Sequence[int], observers: frozenset[int]) -> None:
    current = {*state.replicas, *state.adding_replicas}.difference(state.removing_replicas, observers)
    wanted = set(target) - observers
    if len(current) != len(wanted):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(current)} to {len(wanted)}",
        )


def _moved(state: PartitionState, target: Sequence[int], observers: frozenset[int]) -> Wanted:
    """A reassignment to `target`; one in progress continues from its current replicas. It waits for no observer, and its
    cancellation removes none."""
    removing = sorted(set(state.replicas).difference(target))
    adding = sorted(set(target).difference(state.replicas, observers))
    still_adding = [replica for replica in state.adding_replicas if replica in target]
    return Wanted(replicas=[*target, *removing], removing=removing, adding=[*still_adding, *adding])


def _cancelled(rules: Rules, topic: TopicImage, index: int, state: PartitionState) -> Wanted:
    """The cancellation of a reassignment: back to the replicas from before."""
    if not state.adding_replicas and not state.removing_replicas:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")  # Kafka's message is empty as well
    replicas = [replica for replica in state.replicas if replica not in state.adding_replicas]
    isr = [replica for replica in state.isr if replica not in state.adding_replicas]
    if not replicas:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Invalid replica assignment: addingReplicas contains all replicas.",
        )
    if not isr:
        if not rules.of(topic).unclean:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} because it would require an "
                f"unclean leader election.",
            )
        isr = [replicas[0]]
    return Wanted(
        isr=isr,
        replicas=replicas,
        removing=[],
        adding=[],
        election=rules.of(topic).election,
    )


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Reassignments in progress, of the requested partitions or of all."""
    response = ListPartitionReassignmentsResponse(error_message=None)
    asked: list[tuple[str, Sequence[int] | None]] = (
        [(name, None) for name in image.topics]
        if request.topics is None
        else [(each.name, each.partition_indexes) for each in request.topics]
    )
    for name, indexes in asked:
        topic = image.topics.get(name)
        if topic is None:
            continue
        found = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=state.replicas,
                adding_replicas=state.adding_replicas,
                removing_replicas=state.removing_replicas,
            )
            for index in (topic.partitions if indexes is None else indexes)
            if (state := topic.partitions.get(index)) is not None
            and (state.adding_replicas or state.removing_replicas)
        ]
        if found:
            response.topics.append(OngoingTopicReassignment(name=name, partitions=found))
    return response
