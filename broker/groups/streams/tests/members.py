"""Members of streams groups as tests drive them: each follows its tasks as Kafka Streams does."""

from __future__ import annotations

from typing import Any

from barnabas.broker.groups.consumer.tests.members import Groups
from barnabas.broker.groups.member import Client
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.broker.groups.streams.heartbeats import HeartbeatResult
from barnabas.broker.groups.tests.conftest import GROUP
from barnabas.controller.metadata.image import GROUP_RESOURCE
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)

SESSION_MS = 45_000
_LOST = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)
Task = tuple[str, int]
ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")


def topology(*sources: str, changelog: str | None = None) -> Topology:
    changelogs = [] if changelog is None else [TopicInfo(changelog, 0, 0, [])]
    return Topology(0, [Subtopology("0", list(sources), [], changelogs, [], [], [])])


class StreamsGroups(Groups):
    """A shard with an image of topics. First and later assignments are immediate unless other times are given."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        seed: int = 0,
        *,
        interval_ms: int = 0,
        delay_ms: int = 0,
        standby: int = 0,
        is_slow: bool = False,
    ) -> None:
        super().__init__(settings, seed, is_slow=is_slow)
        self.image.configs[GROUP_RESOURCE, GROUP] = {
            "streams.assignment.interval.ms": str(interval_ms),
            "streams.initial.rebalance.delay.ms": str(delay_ms),
            "streams.num.standby.replicas": str(standby),
        }

    @property
    def streams_group(self) -> StreamsGroup:
        group = self.shard.groups[GROUP]
        assert isinstance(group, StreamsGroup)
        return group

    def result_of(self, request: StreamsGroupHeartbeatRequest) -> HeartbeatResult:
        results: list[HeartbeatResult] = []
        self.shard.streams.heartbeat(request, Client("client", "/127.0.0.1", 0), results.append)
        self.clock.run_until_idle()
        (result,) = results
        return result


class StreamsMember:
    """A member that runs the tasks which it was assigned, and says so with each heartbeat."""

    def __init__(self, groups: StreamsGroups, member_id: str, process_id: str, reads: Topology) -> None:
        self.groups = groups
        self.member_id = member_id
        self.process_id = process_id
        self.topology = reads
        self.epoch = 0
        self.heard_at = 0.0
        self.owned: dict[str, set[Task]] = {role: set() for role in ROLES}
        self.last: StreamsGroupHeartbeatResponse | None = None

    @property
    def active(self) -> set[Task]:
        return self.owned["active_tasks"]

    def request(self, **options: Any) -> StreamsGroupHeartbeatRequest:
        request = StreamsGroupHeartbeatRequest(GROUP, self.member_id, self.epoch, 0)
        for role, tasks in self.owned.items():
            setattr(request, role, [TaskIds(name, [index]) for name, index in sorted(tasks)])
        if self.epoch == 0:
            request.rebalance_timeout_ms = 60_000
            request.process_id = self.process_id
            request.topology = self.topology
        for name, value in options.items():
            setattr(request, name, value)
        return request

    def heartbeat(self, *, lose_answer: bool = False, **options: Any) -> StreamsGroupHeartbeatResponse:
        """Send one, and do what the answer says."""
        response = self.groups.result_of(self.request(**options)).response
        self.heard_at = self.groups.clock.monotonic()
        if not lose_answer:
            self.follow(response)
        return response

    def follow(self, response: StreamsGroupHeartbeatResponse) -> None:
        self.last = response
        if response.error_code in _LOST:
            self.restart()
            return
        assert response.error_code == E.NONE, response
        assert response.member_epoch >= self.epoch, "epochs never go back"
        self.epoch = response.member_epoch
        for role in ROLES:
            tasks = getattr(response, role)
            if tasks is not None:
                self.owned[role] = {
                    (each.subtopology_id, index) for each in tasks for index in each.partitions
                }

    def restart(self) -> None:
        """As a client that was fenced, or lost answers: it runs nothing, and joins again."""
        self.epoch = 0
        self.owned = {role: set() for role in ROLES}

    def leave(self, **options: Any) -> StreamsGroupHeartbeatResponse:
        self.restart()
        request = StreamsGroupHeartbeatRequest(GROUP, self.member_id, -1, 0, **options)
        return self.groups.result_of(request).response


def settle(groups: StreamsGroups, *members: StreamsMember, rounds: int = 12) -> None:
    """Heartbeats until the group is Stable."""
    for _ in range(rounds):
        for member in members:
            member.heartbeat()
            if groups.work is not None:
                groups.work.go_on()
        if groups.streams_group.state_name == "Stable":
            return
    raise AssertionError(groups.streams_group.state_name)
