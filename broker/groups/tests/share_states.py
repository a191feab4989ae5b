"""The share coordinator and the leaders of partitions as a shard of groups meets them: an AskBroker that answers from memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.broker.cluster.latest_offsets import LIST_OFFSETS, LatestOffsets
from barnabas.broker.groups.member import GroupUsage
from barnabas.broker.groups.shard import Shard
from barnabas.broker.share_coordinator.persister import DELETE, INITIALIZE, READ_SUMMARY, Persister
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.runtime.slices import StepQueue
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    list_offsets,
    read_share_group_state_summary,
)

if TYPE_CHECKING:
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
    from barnabas.runtime.interface import Runtime

State = tuple[int, int]  # state epoch, start offset


class ShareStates:
    """`errors`: what a share partition's requests fail with. With `hold` they wait for `answer_one`."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, State] = {}
        self.errors: dict[SharePartitionKey, E] = {}
        self.ends: dict[tuple[str, int], int] = {}  # high watermarks
        self.hold = False
        self.held: list[tuple[int, Any, Any]] = []

    def ask(self, _node_id: int, api_key: int, _version: int, request: Any, answered: Any) -> None:
        if self.hold:
            self.held.append((api_key, request, answered))
        else:
            self._answer(api_key, request, answered)

    def answer_one(self, place: int = 0) -> None:
        self._answer(*self.held.pop(place))

    def _answer(self, api_key: int, request: Any, answered: Any) -> None:
        if api_key == LIST_OFFSETS:
            answered(self._list_offsets(request), E.NONE)
            return
        ((topic,), (wanted,)) = request.topics, request.topics[0].partitions
        key = SharePartitionKey(request.group_id, topic.topic_id, wanted.partition)
        error = self.errors.get(key, E.NONE)
        if api_key == INITIALIZE:
            stored = self.states.get(key)
            if not error and stored is not None and wanted.state_epoch < stored[0]:
                error = E.FENCED_STATE_EPOCH
            if not error:
                self.states[key] = wanted.state_epoch, wanted.start_offset
            result: Any = initialize_share_group_state.PartitionResult(wanted.partition, error)
            initialized = initialize_share_group_state.InitializeStateResult(topic.topic_id, [result])
            answered(initialize_share_group_state.InitializeShareGroupStateResponse([initialized]), E.NONE)
        elif api_key == DELETE:
            if not error:
                self.states.pop(key, None)
            result = delete_share_group_state.PartitionResult(wanted.partition, error)
            deleted = delete_share_group_state.DeleteStateResult(topic.topic_id, [result])
            answered(delete_share_group_state.DeleteShareGroupStateResponse([deleted]), E.NONE)
        else:
            assert api_key == READ_SUMMARY
            epoch, start = self.states.get(key, (0, -1))
            result = read_share_group_state_summary.PartitionResult(
                partition=wanted.partition,
                error_code=error,
                state_epoch=epoch,
                leader_epoch=3,
                start_offset=start,
                delivery_complete_count=-1 if start < 0 else 0,
            )
            read = read_share_group_state_summary.ReadStateSummaryResult(topic.topic_id, [result])
            answered(read_share_group_state_summary.ReadShareGroupStateSummaryResponse([read]), E.NONE)

    def _list_offsets(self, request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        return list_offsets.ListOffsetsResponse(
            topics=[
                list_offsets.ListOffsetsTopicResponse(
                    topic.name,
                    [
                        list_offsets.ListOffsetsPartitionResponse(
                            each.partition_index,
                            error_code=E.NONE if found is not None else E.NOT_LEADER_OR_FOLLOWER,
                            offset=-1 if found is None else found,
                        )
                        for each in topic.partitions
                        for found in [self.ends.get((topic.name, each.partition_index))]
                    ],
                )
                for topic in request.topics
            ]
        )


def shard_with(
    states: ShareStates,
    index: int,
    log: Any,
    runtime: Runtime,
    settings: GroupSettings,
    configs: GroupConfigs,
    work: StepQueue | None = None,
) -> Shard:
    persister = Persister(runtime, states.ask, lambda _key, reply: reply(E.NONE, 1))
    latest = LatestOffsets(configs.image, states.ask)
    work = work or StepQueue(runtime)
    return Shard(index, log, runtime, settings, configs, persister, latest, GroupUsage(), work)
