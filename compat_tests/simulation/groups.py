"""Simulated members of consumer groups: they join, get partitions, and commit increasing offsets for them.

They read no records: the tested property is that a later OffsetFetch of any client returns an acknowledged offset. So
a member fetches the committed offset of each partition that it is assigned and continues from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from compat_tests.simulation.history import Commit, History, Partition, Violation, name
from compat_tests.simulation.wire_client import Address, Client, NoResponse

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
VERSIONS = {8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 68: 1, 88: 0}
SESSION_TIMEOUT_MS = 6000
REBALANCE_TIMEOUT_MS = 6000
COORDINATOR_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
OUT_OF_GROUP = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
TOPIC_IS_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Refused(Exception):
    """An error of the coordinator that ends the current operation."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


class Member:
    """Runs until `should_continue` returns false. With `is_simple` it never joins, and commits as a standalone
    consumer does."""

    def __init__(
        self,
        client: Client,
        history: History,
        group: str,
        *,
        is_simple: bool,
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self.group = group
        self._is_simple = is_simple
        self._should_continue = should_continue
        self._coordinator: Address | None = None
        self._member_id = ""
        self._generation = -1
        self.joined = 0

    async def run(self) -> None:
        client = self._client
        while self._should_continue():
            try:
                if self._is_simple:
                    await self._commit_all(self._partitions())
                    await client.pause(0.5)
                else:
                    await self._take_part()
            except Refused as refused:
                self._history.count(f"group {refused.error.name}")
                if refused.error is ErrorCode.UNKNOWN_MEMBER_ID:
                    self._member_id = ""
                await client.pause()
            except NoResponse:
                self._coordinator = None
                await client.pause()
        if self._member_id and client.random.random() < 0.5:
            await self._leave()

    def _partitions(self) -> list[Partition]:
        return [
            (topic.topic_id, index)
            for topic in self._history.topics.values()
            if topic.topic_id and not topic.is_deleted and not topic.name.startswith("late-")
            for index in range(topic.partitions)
        ]

    # -- the coordinator

    async def _ask(self, key: int, message: Any, *, timeout_s: float = 3.0) -> Any:
        """The coordinator's answer; raises NoResponse."""
        if self._coordinator is None:
            self._coordinator = await self._find()
        return await self._client.ask(self._coordinator, key, VERSIONS[key], message, timeout_s=timeout_s)

    async def _find(self) -> Address:
        client = self._client
        for _ in range(100):
            try:
                answer = await client.ask(
                    client.any_address(),
                    FIND_COORDINATOR,
                    VERSIONS[FIND_COORDINATOR],
                    FindCoordinatorRequest("", 0, [self.group]),
                )
            except NoResponse:
                await client.refresh()
                await client.pause()
                continue
            found = answer.coordinators[0]
            if not found.error_code:
                return found.host, found.port
            if ErrorCode(found.error_code) not in COORDINATOR_MOVED | RETRIABLE:
                raise Violation(
                    f"{client.name}: FindCoordinator failed with {ErrorCode(found.error_code).name}"
                )
            await client.pause(0.1)
            if not self._should_continue():
                break
        raise NoResponse("no coordinator", was_sent=False)

    def _check(self, code: int, *allowed: ErrorCode) -> ErrorCode:
        error = ErrorCode(code)
        if error is ErrorCode.NONE or error in allowed:
            return error
        if error in COORDINATOR_MOVED:
            self._coordinator = None
        elif error not in RETRIABLE and error not in OUT_OF_GROUP:
            raise Violation(f"{self._client.name}: the coordinator answered {error.name}")
        raise Refused(error)

    # -- membership

    async def _take_part(self) -> None:
        answer = await self._ask(
            JOIN_GROUP,
            JoinGroupRequest(
                self.group,
                SESSION_TIMEOUT_MS,
                REBALANCE_TIMEOUT_MS,
                self._member_id,
                None,
                "consumer",
                [JoinGroupRequestProtocol("all", b"")],
            ),
            timeout_s=10.0,
        )
        if self._check(answer.error_code, ErrorCode.MEMBER_ID_REQUIRED) is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return
        self._member_id, self._generation = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == self._member_id:
            shares = self._share([member.member_id for member in answer.members])
            assignments = [
                SyncGroupRequestAssignment(member_id, share) for member_id, share in shares.items()
            ]
        answer = await self._ask(
            SYNC_GROUP,
            SyncGroupRequest(
                self.group, self._generation, self._member_id, None, "consumer", "all", assignments
            ),
            timeout_s=10.0,
        )
        self._check(answer.error_code)
        owned = [(bytes.fromhex(topic), index) for topic, index in json.loads(answer.assignment or b"[]")]
        self.joined += 1
        self._history.count("group generations joined")
        while self._should_continue():
            answer = await self._ask(
                HEARTBEAT, HeartbeatRequest(self.group, self._generation, self._member_id)
            )
            self._check(answer.error_code)
            await self._commit_all(owned)
            await self._client.pause(0.5)

    def _share(self, members: list[str]) -> dict[str, bytes]:
        members = sorted(members)
        shares: dict[str, list[tuple[str, int]]] = {member: [] for member in members}
        for number, partition in enumerate(self._partitions()):
            shares[members[number % len(members)]].append((partition[0].hex(), partition[1]))
        return {member: json.dumps(share).encode() for member, share in shares.items()}

    async def _leave(self) -> None:
        try:
            await self._ask(LEAVE_GROUP, LeaveGroupRequest(self.group, "", [MemberIdentity(self._member_id)]))
        except NoResponse:
            pass

    # -- offsets

    async def _commit_all(self, partitions: list[Partition]) -> None:
        """Fetches the committed offset of one partition, increases it a little, and commits that."""
        if not partitions:
            return
        partition = self._client.random.choice(partitions)
        offset = await self.committed(partition)
        await self.commit(partition, offset + self._client.random.randint(1, 3))

    def _fetch_epoch(self) -> int:
        """Of a member of a consumer group."""
        return -1

    async def committed(self, partition: Partition) -> int:
        """The committed offset, -1 for none. Violation when the coordinator forgot a commit."""
        started_at = self._client.now()
        answer = await self._ask(
            OFFSET_FETCH,
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        self.group,
                        None if self._is_simple else self._member_id,
                        self._fetch_epoch(),
                        [OffsetFetchRequestTopics("", partition[0], [partition[1]])],
                    )
                ],
                require_stable=True,
            ),
        )
        group = answer.groups[0]
        self._check(group.error_code)
        found = group.topics[0].partitions[0]
        if found.error_code in TOPIC_IS_GONE:
            raise Refused(ErrorCode(ErrorCode.UNKNOWN_TOPIC_ID))
        self._check(found.error_code)
        check_committed(self._history, self.group, partition, found.committed_offset, started_at)
        offset: int = found.committed_offset
        return offset

    async def commit(self, partition: Partition, offset: int) -> None:
        """One OffsetCommit; NoResponse or Refused when it failed or its outcome is unknown."""
        client = self._client
        commit = Commit(self.group, partition, offset, client.name, client.now())
        self._history.commits.append(commit)
        try:
            answer = await self._ask(
                OFFSET_COMMIT,
                OffsetCommitRequest(
                    self.group,
                    -1 if self._is_simple else self._generation,
                    "" if self._is_simple else self._member_id,
                    None,
                    -1,
                    [
                        OffsetCommitRequestTopic(
                            "", partition[0], [OffsetCommitRequestPartition(partition[1], offset, -1, "")]
                        )
                    ],
                ),
            )
        except NoResponse:
            commit.outcome = "failed"
            raise
        error = ErrorCode(answer.topics[0].partitions[0].error_code)
        if error is ErrorCode.NONE:
            commit.outcome, commit.ended_at = "acked", client.now()
            self._history.count("offsets committed")
            return
        # A coordinator that moves away answers NOT_COORDINATOR also for commits that it has appended.
        commit.outcome = "refused" if error in OUT_OF_GROUP else "failed"
        if error in TOPIC_IS_GONE:
            raise Refused(error)
        self._check(error)


def check_committed(history: History, group: str, partition: Partition, offset: int, known_at: float) -> None:
    """Rule of a register: a read returns a value that was written, and that no write replaced which began after it
    had ended and ended before `known_at`; -1 for none. A read that began at `known_at` sees all writes that had ended
    then."""
    mine = [
        commit
        for commit in history.commits
        if commit.group == group and commit.partition == partition and commit.outcome != "refused"
    ]
    acknowledged = [commit for commit in mine if commit.outcome == "acked" and commit.ended_at <= known_at]
    if offset < 0:
        if acknowledged:
            raise Violation(
                f"{group} has no offset for {name(partition)}; {acknowledged[-1].offset} was committed"
            )
        return
    sources = [commit for commit in mine if commit.offset == offset]
    if not sources:
        raise Violation(f"{group} has {offset} for {name(partition)}, which was never committed")
    for source in sources:
        if not any(later.started_at > source.ended_at for later in acknowledged):
            return
    raise Violation(
        f"{group} has {offset} for {name(partition)}; {acknowledged[-1].offset} was committed later, "
        f"at {acknowledged[-1].ended_at:.3f}"
    )
