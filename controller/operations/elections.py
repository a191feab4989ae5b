"""Requested elections: by an operator (ElectLeaders, KIP-183, KIP-460), the balance of leaders, and
partitions that have none.

A preferred election makes the first replica the leader where it is in sync. An unclean one gives a leader to a partition
that has none, in sync or not; it happens without a request only where unclean.leader.election.enable is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage, PartitionState, TopicImage
from barnabas.controller.operations.cluster_view import Rules, leadership_test, partitions, without_leader
from barnabas.controller.operations.partition_change import NO_LEADER, Election, Wanted, change_partition
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from barnabas.wire.messages.metadata_records import PartitionChangeRecord

PREFERRED: Final = 0  # ElectionType
UNCLEAN: Final = 1
ELECTIONS_MAX: Final = 1000  # that one balancing of leaders decides


def elect_leaders(
    image: MetadataImage, settings: ControllerSettings, request: ElectLeadersRequest
) -> Decision[ElectLeadersResponse]:
    """For the partitions named, or for all that can do with an election when none are named."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return Decision([], _unknown_type(request))
    rules = Rules(image, settings)
    records: list[PartitionChangeRecord] = []
    response = ElectLeadersResponse()
    wanted = (
        [(topic.name, list(topic.partitions)) for topic in image.topics.values()]
        if request.topic_partitions is None
        else [(each.topic, each.partitions) for each in request.topic_partitions]
    )
    for name, indexes in wanted:
        results = ReplicaElectionResult(topic=name)
        for index in indexes:
            try:
                records.append(_elect(image, rules, name, index, request.election_type))
                result = PartitionResult(partition_id=index)
            except ApiError as api_error:
                if request.topic_partitions is None and api_error.error == ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result = PartitionResult(
                    partition_id=index, error_code=api_error.error, error_message=api_error.message
                )
            results.partition_result.append(result)
        response.replica_election_results.append(results)
    return Decision(records, response)


def _unknown_type(request: ElectLeadersRequest) -> ElectLeadersResponse:
    error, text = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
    return ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            ReplicaElectionResult(
                topic=wanted.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=error, error_message=text)
                    for index in wanted.partitions
                ],
            )
            for wanted in request.topic_partitions or []
        ],
    )


def _elect(
    image: MetadataImage, rules: Rules, name: str, index: int, election_type: int
) -> PartitionChangeRecord:
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    state = topic.partitions.get(index)
    if state is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    is_preferred = election_type == PREFERRED
    if state.leader == state.replicas[0] if is_preferred else state.leader != NO_LEADER:
        raise _api_error(ErrorCode.ELECTION_NOT_NEEDED)
    record = _change(
        image, rules, topic, index, state, Election.PREFERRED if is_preferred else Election.UNCLEAN
    )
    if record is None:
        raise _api_error(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if is_preferred
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    return record


def _api_error(error: ErrorCode) -> ApiError:
    return ApiError(error, error.message)


def _change(
    image: MetadataImage,
    rules: Rules,
    topic: TopicImage,
    index: int,
    state: PartitionState,
    election: Election,
) -> PartitionChangeRecord | None:
    return change_partition(
        topic.topic_id,
        index,
        state,
        rules.of(topic),
        leadership_test(image, state),
        Wanted(election=election),
    )


def balance_leaders(
    image: MetadataImage, settings: ControllerSettings, limit: int = ELECTIONS_MAX
) -> Decision[bool]:
    """Make first replicas the leaders again (auto.leader.rebalance.enable); the response is whether there may be
    more than `limit` to do."""
    rules = Rules(image, settings)
    records: list[PartitionChangeRecord] = []
    for topic, index, state in partitions(image, lambda state: state.leader != state.replicas[0]):
        if not leadership_test(image, state)(state.replicas[0]):
            continue
        record = _change(image, rules, topic, index, state, Election.PREFERRED)
        if record is not None:
            records.append(record)
            if len(records) == limit:
                return Decision(records, True)
    return Decision(records, False)


def elect_where_none_leads(image: MetadataImage, settings: ControllerSettings) -> Decision[int]:
    """A leader for each partition without one that can have one by now; the response is how many get one."""
    records = list(_elections(image, Rules(image, settings)))
    return Decision(records, len(records))


def _elections(image: MetadataImage, rules: Rules) -> Iterator[PartitionChangeRecord]:
    for topic, index, state in without_leader(image):
        election = Election.UNCLEAN if rules.of(topic).unclean else Election.ONLINE
        record = _change(image, rules, topic, index, state, election)
        if record is not None:
            yield record
