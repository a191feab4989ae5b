"""Elections: requested by an operator (ElectLeaders, KIP-183, KIP-460), the balance of leaders, and partitions without a leader.

A preferred election makes the first replica the leader when it is in sync. An unclean one makes a replica the leader of a
partition without one, in sync or not; without a request it takes place only where unclean.leader.election.enable is set.
"""

from __future__ import annotations

from typing import Final

from barnabas.controller.metadata.decision import ApiError, Decision, Steps
from barnabas.controller.metadata.image import NO_LEADER, MetadataImage
from barnabas.controller.operations.cluster_view import Rules, leadership_test, partitions, without_leader
from barnabas.controller.operations.partition_change import Election, Wanted
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
ELECTIONS_MAX: Final = 1000  # in one call of balance_leaders


def elect_leaders(
    image: MetadataImage, settings: ControllerSettings, request: ElectLeadersRequest
) -> Steps[ElectLeadersResponse]:
    """For the partitions named; when none are named, for all that need an election."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return _unknown_type(request)
    rules = Rules(image, settings)
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
                yield _elect(image, rules, name, index, request.election_type)
                result = PartitionResult(partition_id=index)
            except ApiError as api_error:
                if request.topic_partitions is None and api_error.error == ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result = PartitionResult(
                    partition_id=index, error_code=api_error.error, error_message=api_error.message
                )
            results.partition_result.append(result)
        response.replica_election_results.append(results)
    return response


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
    election = Election.PREFERRED if is_preferred else Election.UNCLEAN
    record = rules.change((topic, index, state), Wanted(election=election))
    if record is None:
        raise _api_error(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if is_preferred
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    return record


def _api_error(error: ErrorCode) -> ApiError:
    return ApiError(error, error.message)


def balance_leaders(
    image: MetadataImage, settings: ControllerSettings, limit: int = ELECTIONS_MAX
) -> Decision[bool]:
    """Make first replicas the leaders again (auto.leader.rebalance.enable). The response is whether there may be more than
    `limit` elections to do."""
    rules = Rules(image, settings)
    records: list[PartitionChangeRecord] = []
    for place in partitions(image, lambda state: state.leader != state.replicas[0]):
        state = place[2]
        if not leadership_test(image, state)(state.replicas[0]):
            continue
        record = rules.change(place, Wanted(election=Election.PREFERRED))
        if record is not None:
            records.append(record)
            if len(records) == limit:
                return Decision(records, True)
    return Decision(records, False)


def elect_missing_leaders(image: MetadataImage, settings: ControllerSettings) -> Steps[int]:
    """Elect a leader for each partition without one, where possible. The response is their number."""
    rules = Rules(image, settings)
    count = 0
    for place in without_leader(image):
        record = rules.change(place, Wanted(election=rules.of(place[0]).election))
        if record is not None:
            count += 1
            yield record
    return count
