"""AlterPartition (KIP-497, KIP-841, KIP-903): a leader asks for another ISR, as compare-and-set on the epochs.

The leader epoch and the partition epoch must be those of the metadata. Every member of the new ISR must be an active broker,
in the broker epoch in which the leader has seen it fetch: one that has restarted since then may have lost what it fetched. The
texts and the order of the checks are Kafka's.

Beyond Kafka: a member of the ISR that is not the leader and proposes the ISR as it is asks to lead. An extension does so
where it has received what the leader has missed; of several followers that ask, the epochs let one succeed.
"""

from __future__ import annotations

import logging

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage, PartitionState, TopicImage, changed_state
from barnabas.controller.operations.cluster_view import Rules, check_broker_epoch, leadership_test
from barnabas.controller.operations.partition_change import NO_CHANGE, RECOVERED, RECOVERING, Wanted
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)
from barnabas.wire.messages.metadata_records import PartitionChangeRecord

log = logging.getLogger("barnabas.controller")


def alter_partition(
    image: MetadataImage, settings: ControllerSettings, request: AlterPartitionRequest
) -> Decision[AlterPartitionResponse]:
    """Each partition succeeds or fails by itself; the changes that succeed commit together."""
    try:
        check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as api_error:
        return Decision([], AlterPartitionResponse(error_code=api_error.error))
    rules = Rules(image, settings)
    records: list[PartitionChangeRecord] = []
    response = AlterPartitionResponse()
    for wanted in request.topics:
        topic = image.topic_by_id(wanted.topic_id)
        results = ResponseTopicData(topic_id=wanted.topic_id)
        response.topics.append(results)
        for partition in wanted.partitions:
            result = ResponsePartitionData(partition_index=partition.partition_index)
            results.partitions.append(result)
            if topic is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            record = _alter(image, rules, topic, request.broker_id, partition, result)
            if record is not None:
                records.append(record)
    return Decision(records, response)


def _alter(
    image: MetadataImage,
    rules: Rules,
    topic: TopicImage,
    broker_id: int,
    wanted: PartitionData,
    result: ResponsePartitionData,
) -> PartitionChangeRecord | None:
    state = topic.partitions.get(wanted.partition_index)
    isr = _members(wanted)
    result.error_code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if state is None
        else _problem(image, state, broker_id, wanted, isr, rules.of(topic).observers)
    )
    if state is None or result.error_code:
        return None
    may_lead = leadership_test(image, state)
    asks_to_lead = broker_id != state.leader and may_lead(broker_id)
    record = rules.change(
        (topic, wanted.partition_index, state),
        Wanted(
            isr=[member.broker_id for member in isr],
            recovery_state=wanted.leader_recovery_state,
            election=rules.of(topic).election,
        ),
        (lambda replica: replica == broker_id) if asks_to_lead else may_lead,
    )
    if record is None:
        now = state
    else:
        now = changed_state(state, record)
        if record.leader not in (broker_id, NO_CHANGE):
            # The change completes a reassignment to other brokers: the leader learns the new one from the metadata.
            result.error_code = ErrorCode.NEW_LEADER_ELECTED
            return record
    result.leader_id = now.leader
    result.leader_epoch = now.leader_epoch
    result.isr = now.isr
    result.leader_recovery_state = now.leader_recovery_state
    result.partition_epoch = now.partition_epoch
    return record


def _members(wanted: PartitionData) -> list[BrokerState]:
    """The members of the new ISR; with broker epochs since version 3."""
    return wanted.new_isr_with_epochs or [BrokerState(broker_id=each) for each in wanted.new_isr]


def _problem(
    image: MetadataImage,
    state: PartitionState,
    broker_id: int,
    wanted: PartitionData,
    isr: list[BrokerState],
    observers: frozenset[int],
) -> ErrorCode:
    if wanted.leader_epoch > state.leader_epoch or wanted.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader has newer metadata than this controller
    if wanted.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    asks_to_lead = broker_id in state.isr and {each.broker_id for each in isr} == set(state.isr)
    if broker_id != state.leader and not asks_to_lead:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [member.broker_id for member in isr]
    if len(set(members)) != len(members) or not set(members) <= set(state.replicas):
        return ErrorCode.INVALID_REQUEST
    if broker_id not in members:
        return ErrorCode.INVALID_REQUEST
    recovery = wanted.leader_recovery_state
    if recovery not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if recovery == RECOVERING and (len(members) > 1 or state.leader_recovery_state == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    ineligible = [f"{each.broker_id}: {why}" for each in isr if (why := _ineligible(image, each, observers))]
    if ineligible:
        log.info("an ISR of broker %d is refused for %s", broker_id, ", ".join(ineligible))
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _ineligible(image: MetadataImage, member: BrokerState, observers: frozenset[int]) -> str:
    """The reason why the broker can't be in sync; empty when it can."""
    broker = image.brokers.get(member.broker_id)
    if broker is None:
        return "not registered"
    if member.broker_id in observers:
        return "an observer"
    if broker.in_controlled_shutdown:
        return "shutting down"
    if broker.fenced:
        return "fenced"
    if member.broker_epoch not in (-1, broker.broker_epoch):
        return f"broker epoch mismatch: requested={member.broker_epoch} VS expected={broker.broker_epoch}"
    return ""
