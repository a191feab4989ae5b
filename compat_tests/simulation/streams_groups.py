"""Simulated members of a streams group (KIP-1071): each is a process of its own, and commits increasing offsets for its active tasks.

The checker is that of consumer groups: a task is never active at two members. Nor is it both active and a copy at one.
"""

from __future__ import annotations

from typing import Final

from barnabas.wire.messages.streams_group_heartbeat import (
    ResponseTaskIds,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from compat_tests.simulation.consumer_groups import REBALANCE_TIMEOUT_MS, SESSION_S, ConsumerGroupMember
from compat_tests.simulation.history import Partition, Violation, name

STREAMS_GROUP_HEARTBEAT: Final = 88
SETTINGS: Final = {
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "200",
    "group.streams.num.standby.replicas": "1",
}
# What each subtopology reads, and its state's topic, which the coordinator creates.
SOURCES: Final = {"0": "safe", "1": "single"}
LEAVES: Final = 0.1  # of heartbeats
CHANGELOG: Final = "streamed-store-changelog"


class StreamsGroupMember(ConsumerGroupMember):
    """Runs until `should_continue` returns false."""

    _HEARTBEAT = STREAMS_GROUP_HEARTBEAT

    async def _take_part(self) -> None:
        if self._epoch and self._client.random.random() < LEAVES:
            await self._leave()  # its tasks move
        else:
            await super()._take_part()

    def _request(self) -> StreamsGroupHeartbeatRequest:
        request = StreamsGroupHeartbeatRequest(self.group, self._member_id, self._epoch)
        request.active_tasks = self._tasks(self._owned)
        request.standby_tasks = self._tasks(self._copies)
        request.warmup_tasks = []
        if self._says_all:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.process_id = self.client_name
            request.topology = topology() if self._epoch == 0 else None
        self._says_all = False
        return request

    def _leaving(self) -> StreamsGroupHeartbeatRequest:
        return StreamsGroupHeartbeatRequest(self.group, self._member_id, -1)

    def _assigned(self, answer: StreamsGroupHeartbeatResponse) -> set[Partition] | None:
        if answer.active_tasks is None:
            return None
        active, self._copies = (
            self._partitions_of(answer.active_tasks),
            self._partitions_of(answer.standby_tasks),
        )
        for partition in active & self._copies:
            raise Violation(f"{self.client_name} has {name(partition)} twice")
        if self._copies:
            self._history.count("copies of tasks assigned")
        return active

    def _tasks(self, partitions: set[Partition]) -> list[TaskIds]:
        tasks = [
            TaskIds(
                subtopology,
                sorted(index for topic_id, index in partitions if topic_id == self._topic_id(source)),
            )
            for subtopology, source in SOURCES.items()
        ]
        return [each for each in tasks if each.partitions]

    def _partitions_of(self, tasks: list[ResponseTaskIds] | None) -> set[Partition]:
        return {
            (self._topic_id(SOURCES[each.subtopology_id]), index)
            for each in tasks or ()
            for index in each.partitions
        }

    def _topic_id(self, source: str) -> bytes:
        return self._history.topics[source].topic_id


def topology() -> Topology:
    subtopologies = [Subtopology(subtopology, [source]) for subtopology, source in SOURCES.items()]
    subtopologies[0].state_changelog_topics = [TopicInfo(CHANGELOG)]
    return Topology(0, subtopologies)
