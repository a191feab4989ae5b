"""A bench for groups: one shard on a virtual clock over a log in memory, driven by requests as structs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, cast

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinator.loading import Replay
from barnabas.broker.coordinator.log import Marker
from barnabas.broker.groups.member import Client
from barnabas.broker.groups.modern.group import ModernGroup
from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
from barnabas.broker.groups.shard import Shard
from barnabas.broker.groups.tests.replicated_log import marker_batch
from barnabas.broker.groups.tests.share_states import ShareStates, shard_with
from barnabas.controller.metadata.image import MetadataImage
from barnabas.runtime.slices import StepQueue, Steps
from barnabas.storage.log.verification import Verification
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from barnabas.wire.record_batch import read_header
from compat_tests.virtual.runtime import VirtualRuntime, VirtualTimer

GROUP = "group"


def group_configs(image: MetadataImage | None = None) -> GroupConfigs:
    """Defaults, for groups of which `image` has no configs."""
    found = image or MetadataImage()
    return GroupConfigs(BrokerConfig.from_properties().value, lambda: found)


class Clock(VirtualRuntime):
    """The virtual runtime in milliseconds; counts the timers it is asked for."""

    scheduled = 0

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> VirtualTimer:
        self.scheduled += 1
        return super().call_later(delay_s, callback)

    def pass_ms(self, milliseconds: float) -> None:
        self.advance(milliseconds / 1000)


def replay_all(replay: Replay, batches: Iterable[bytes]) -> None:
    """Have it take the batches, at the offsets that a log gives them."""
    taken = bytearray()
    offset = 0
    for batch in batches:
        taken += offset.to_bytes(8, "big") + batch[8:]
        offset = read_header(batch).last_offset_delta + offset + 1
    for _ in chain(replay.take(bytes(taken)), replay.finish()):
        pass


class MemoryLog:
    """A coordinator log. With `hold` appends stay pending until `settle`; with `error` they fail."""

    topic = "__consumer_offsets"

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.error = ErrorCode.NONE
        self.hold = False
        self.held: list[tuple[bytes, Callable[[ErrorCode], object]]] = []

    def append(self, partition_index: int, batch: bytes, done: Callable[[ErrorCode], object]) -> None:
        if self.hold:
            self.held.append((batch, done))
            return
        if not self.error:
            self.batches.append(batch)
        done(self.error)

    def append_in_transaction(
        self,
        partition_index: int,
        batch: bytes,
        verification: Verification | None,
        done: Callable[[ErrorCode], object],
    ) -> None:
        self.append(partition_index, batch, done)

    def append_marker(
        self, partition_index: int, marker: Marker, done: Callable[[ErrorCode], object]
    ) -> None:
        self.append(partition_index, marker_batch(marker), done)

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        batch, done = self.held.pop(0)
        if not error:
            self.batches.append(batch)
        done(error)

    def load(
        self,
        partition_index: int,
        replay: Replay,
        done: Callable[[Exception | None], object],
    ) -> MemoryLog:
        try:
            replay_all(replay, self.batches)
        except Exception as error:  # noqa: BLE001 - as Loading has it
            done(error)
        else:
            done(None)
        return self

    def is_replicated(self, partition_index: int) -> bool:
        return False

    def when_committed(self, partition_index: int, done: Callable[[ErrorCode], object]) -> None:
        done(ErrorCode.NONE)

    def cancel(self) -> None:
        """It is all there."""


class Answer:
    """What a waiting request was answered; a second answer is an error."""

    def __init__(self) -> None:
        self.response: Any = None

    def __call__(self, response: Any) -> None:
        assert self.response is None, f"answered twice: {self.response} and {response}"
        assert response is not None
        self.response = response

    @property
    def waiting(self) -> bool:
        return self.response is None

    @property
    def error(self) -> ErrorCode:
        assert self.response is not None, "still waiting"
        return ErrorCode(self.response.error_code)

    def __getattr__(self, name: str) -> Any:
        assert self.response is not None, f"still waiting, asked for {name}"
        return getattr(self.response, name)


class SlowWork(StepQueue):
    """Does so many steps of the work as a test says."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        super().__init__(runtime)
        self._pieces: list[tuple[Steps[Any], Callable[[Any, BaseException | None], object]]] = []

    def add(self, steps: Steps[Any], done: Callable[[Any, BaseException | None], object]) -> None:
        self._pieces.append((steps, done))

    def go_on(self, count: int = 1_000_000) -> None:
        """Do that many steps, of all pieces, in their order."""
        while count and self._pieces:
            steps, done = self._pieces[0]
            try:
                next(steps)
                count -= 1
            except StopIteration as stop:
                self._pieces.pop(0)
                done(stop.value, None)


class Bench:
    """`is_slow`: `work` does what takes long; else it is done at once."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        seed: int = 0,
        configs: GroupConfigs | None = None,
        *,
        is_slow: bool = False,
    ) -> None:
        self.settings = settings or GroupSettings()
        self.clock = Clock(seed)
        self.log = cast("Any", MemoryLog())
        self.configs = configs or group_configs()
        self.share_states = ShareStates()
        self.work = SlowWork(self.clock) if is_slow else None
        self.shard = self.make_shard()

    def make_shard(self) -> Shard:
        return shard_with(
            self.share_states, 0, self.log, self.clock, self.settings, self.configs, work=self.work
        )

    @property
    def group(self) -> Any:
        return self.shard.groups[GROUP]

    def restarted(self) -> Bench:
        """Another bench that has loaded what this one wrote."""
        other = Bench(self.settings)
        other.log.batches = list(self.log.batches)
        other.clock.advance((self.clock.time_ms() - other.clock.time_ms()) / 1000)
        other.load()
        return other

    def load(self) -> None:
        """Load what the log holds into the shard."""
        errors: list[Exception | None] = []
        self.shard.load(errors.append)
        assert errors == [None]

    def check_counted(self) -> None:
        """What the groups count of their memory, all changes taken together, is what their values take."""
        for group in self.shard.groups.values():
            if isinstance(group, ModernGroup):
                again = type(group)(group.group_id)
                for (key, name), value in group.values.items():
                    again.apply(key, name, value)
                assert group.member_bytes == again.member_bytes
                assert group.described_bytes == again.described_bytes
        counted = sum(group.member_bytes for group in self.shard.groups.values())
        assert self.shard.store.usage.member_bytes == counted

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        version: int = 9,
        client_id: str = "client",
    ) -> Answer:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        )
        answer = Answer()
        self.shard.classic.join(request, Client(client_id, "/127.0.0.1", version), answer)
        return answer

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> Answer:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        answer = Answer()
        self.shard.classic.sync(request, answer)
        return answer

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.shard.classic.heartbeat(
            HeartbeatRequest(
                group_id=GROUP, generation_id=generation, member_id=member_id, group_instance_id=instance
            )
        )

    def leave(self, *members: str | tuple[str, str | None], group: str = GROUP) -> list[ErrorCode]:
        pairs = [member if isinstance(member, tuple) else (member, None) for member in members]
        request = LeaveGroupRequest(
            group_id=group,
            members=[MemberIdentity(member_id=name, group_instance_id=instance) for name, instance in pairs],
        )
        return [ErrorCode(member.error_code) for member in self.shard.classic.leave(request).members]

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = GROUP,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
        retention_ms: int = -1,
        version: int = 9,
        topic_id: bytes = bytes(16),
    ) -> list[Any]:
        """[] while it waits; then [(error, results by topic)]."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (topic, partition), offset in offsets.items():
            entry = topics.setdefault(topic, OffsetCommitRequestTopic(name=topic, topic_id=topic_id))
            entry.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
        )
        answers: list[Any] = []
        self.shard.offset_requests.commit(
            request, list(topics.values()), version, lambda error, results: answers.append((error, results))
        )
        return answers

    def stable(self, count: int = 1, **options: Any) -> tuple[list[str], int]:
        """A Stable group of this many dynamic members: (member ids, the leader first; generation)."""
        ids = [self.join(**options).member_id for _ in range(count)]
        answers = [self.join(member_id, **options) for member_id in ids]
        self.clock.pass_ms(self.settings.group_initial_rebalance_delay_ms)
        generation = answers[0].generation_id
        leader = answers[0].leader
        ids.sort(key=lambda member_id: member_id != leader)
        assignments = {member_id: member_id.encode() for member_id in ids}
        synced = [
            self.sync(member_id, generation, assignments if member_id == leader else {}) for member_id in ids
        ]
        assert [answer.error for answer in synced] == [ErrorCode.NONE] * count
        return ids, generation


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="session")
def make_bench() -> type[Bench]:
    return Bench
