"""Members of groups as asynchronous connections: they join, heartbeat and leave as the Java consumer does, without its threads.

Requests are made by hand, one in flight on a connection. Every answer is checked, so that a refusal is not measured as an answer.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from barnabas.wire.messages.consumer_protocol import (
    CONSUMER_PROTOCOL_ASSIGNMENT,
    CONSUMER_PROTOCOL_SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from compat_tests.conform.client import api_key_of, decode_response, encode_request

_CORRELATION_ID = 1
# The coordinator is not there yet, or loads: ask again.
_NOT_YET = (14, 15, 16)
_UNKNOWN_MEMBER_ID, _REBALANCE_IN_PROGRESS, _ILLEGAL_GENERATION, _MEMBER_ID_REQUIRED = 25, 27, 22, 79
_RETRY_S = 0.05
_CLASSIC_HEARTBEAT_S = 3.0  # heartbeat.interval.ms of the Java consumer
_SESSION_TIMEOUT_MS, _REBALANCE_TIMEOUT_MS = 45_000, 300_000
_JOINING, _LEAVING = 0, -1
_PROTOCOL = "range"
_METADATA_VERSION = 3


class MemberConnection(asyncio.Protocol):
    """One connection: requests one at a time, or the same frame again and again."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._on_frame: Callable[[bytes], None] = self._resolve
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                break
            frame = bytes(self._received[4:end])
            del self._received[:end]
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the broker closed the connection"))

    async def ask(self, request: object, version: int) -> Any:
        """The decoded answer."""
        frame = await self.ask_frame(framed(request, version))
        return decode_response(api_key_of(request), version, _CORRELATION_ID, frame)

    async def ask_frame(self, frame: bytes) -> bytes:
        """The answer's bytes without its size."""
        self._answer = asyncio.get_running_loop().create_future()
        self._on_frame = self._resolve
        self.transport.write(frame)
        return await self._answer

    async def repeat(self, frame: bytes, answer: bytes, until: float) -> int:
        """Send the frame, and again with every answer, up to a time of the loop. Each answer has to be `answer`; how many."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._answer = done
        count = 0

        def again(found: bytes) -> None:
            nonlocal count
            count += 1
            if found != answer:
                done.set_exception(AssertionError(f"a heartbeat was answered {found!r}"))
            elif loop.time() < until:
                self.transport.write(frame)
            else:
                done.set_result(b"")

        self._on_frame = again
        self.transport.write(frame)
        await done
        return count

    def _resolve(self, frame: bytes) -> None:
        assert self._answer is not None
        self._answer.set_result(frame)


def framed(request: object, version: int) -> bytes:
    """The request with its size in front."""
    payload = encode_request(request, version, _CORRELATION_ID)
    return struct.pack(">i", len(payload)) + payload


class Progress:
    """Who has partitions, until each of the members has as many as it shall have."""

    def __init__(self, members: int, partitions: int) -> None:
        self.each = partitions // members
        self.missing = members
        self.all_assigned = asyncio.Event()

    def note(self, before: int, after: int) -> None:
        """A member had this many partitions, and has that many."""
        self.missing += (before == self.each) - (after == self.each)
        if self.missing == 0:
            self.all_assigned.set()

    async def wait(self, seconds: float) -> bool:
        """Wait that long; whether all have their partitions before that."""
        try:
            await asyncio.wait_for(self.all_assigned.wait(), seconds)
        except TimeoutError:
            return False
        return True


class ClassicMember:
    """A member of a classic group; the leader assigns ranges."""

    protocol = "classic"

    def __init__(
        self, connection: MemberConnection, group: str, topic: str, topic_id: bytes, partitions: int
    ) -> None:
        self.connection, self.group, self.topic, self.partitions = connection, group, topic, partitions
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()

    async def join(self, progress: Progress) -> None:
        """Join, and heartbeat until all have partitions."""
        while not progress.all_assigned.is_set():
            before, self.owned = len(self.owned), frozenset()
            progress.note(before, 0)
            self.owned = await self._joined()
            progress.note(0, len(self.owned))
            while not await progress.wait(_CLASSIC_HEARTBEAT_S):
                answer = await self.connection.ask(self._beat(), 4)
                if answer.error_code:
                    assert answer.error_code in (_REBALANCE_IN_PROGRESS, _ILLEGAL_GENERATION), answer
                    break

    async def settle(self) -> None:
        """Nothing is left to do."""

    def heartbeat(self) -> bytes:
        """That of a member with nothing to say."""
        return framed(self._beat(), 4)

    def position(self) -> tuple[int, frozenset[int]]:
        """Generation and partitions."""
        return self.generation, self.owned

    async def _joined(self) -> frozenset[int]:
        subscription = _versioned(
            CONSUMER_PROTOCOL_SUBSCRIPTION.encode(
                _METADATA_VERSION, ConsumerProtocolSubscription([self.topic])
            )
        )
        while True:
            join = JoinGroupRequest(
                self.group,
                _SESSION_TIMEOUT_MS,
                _REBALANCE_TIMEOUT_MS,
                self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(_PROTOCOL, subscription)],
            )
            answer = await self.connection.ask(join, 9)
            if answer.error_code in _NOT_YET:
                await asyncio.sleep(_RETRY_S)
                continue
            if answer.error_code == _MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                continue
            assert answer.error_code == 0, answer
            self.member_id, self.generation = answer.member_id, answer.generation_id
            assigned = self._assign(answer.members) if answer.leader == self.member_id else []
            sync = SyncGroupRequest(
                self.group, self.generation, self.member_id, None, "consumer", _PROTOCOL, assigned
            )
            synced = await self.connection.ask(sync, 5)
            if synced.error_code == 0:
                decoded = CONSUMER_PROTOCOL_ASSIGNMENT.decode(_METADATA_VERSION, synced.assignment, 2)[0]
                return frozenset(number for each in decoded.assigned_partitions for number in each.partitions)
            assert synced.error_code in (_REBALANCE_IN_PROGRESS, _ILLEGAL_GENERATION), synced

    def _assign(self, members: Sequence[Any]) -> list[SyncGroupRequestAssignment]:
        ids = sorted(each.member_id for each in members)
        assigned = []
        for number, member_id in enumerate(ids):
            own = list(range(number, self.partitions, len(ids)))
            assignment = ConsumerProtocolAssignment(
                [ConsumerProtocolAssignmentTopicPartition(self.topic, own)], None
            )
            encoded = _versioned(CONSUMER_PROTOCOL_ASSIGNMENT.encode(_METADATA_VERSION, assignment))
            assigned.append(SyncGroupRequestAssignment(member_id, encoded))
        return assigned

    def _beat(self) -> HeartbeatRequest:
        return HeartbeatRequest(self.group, self.generation, self.member_id)


class ConsumerMember:
    """A member of a consumer group (KIP-848): it confirms an assignment at once, and else waits for its interval."""

    protocol = "consumer"

    def __init__(
        self, connection: MemberConnection, group: str, topic: str, topic_id: bytes, partitions: int
    ) -> None:
        self.connection, self.group, self.topic, self.topic_id = connection, group, topic, topic_id
        self.member_id = str(uuid4())
        self.epoch = _JOINING
        self.interval_s = 5.0
        self.owned: frozenset[int] = frozenset()

    async def join(self, progress: Progress) -> None:
        """Join, and heartbeat until all have partitions."""
        is_new = await self._exchange(self._full(), progress)
        while not progress.all_assigned.is_set():
            if not is_new and await progress.wait(self.interval_s):
                return
            request = self._changed() if is_new else self._beat()
            is_new = await self._exchange(request, progress)

    async def settle(self) -> None:
        """Confirm what the last answers said."""
        await self._exchange(self._changed(), None)

    def heartbeat(self) -> bytes:
        """That of a member with nothing to say."""
        return framed(self._beat(), 1)

    def position(self) -> tuple[int, frozenset[int]]:
        """Epoch and partitions."""
        return self.epoch, self.owned

    async def leave(self) -> None:
        """Leave the group."""
        self.epoch = _LEAVING
        answer = await self.connection.ask(self._beat(), 1)
        assert answer.error_code == 0, answer

    async def _exchange(self, request: ConsumerGroupHeartbeatRequest, progress: Progress | None) -> bool:
        """Whether the answer has another assignment."""
        answer = await self.connection.ask(request, 1)
        while answer.error_code in _NOT_YET:
            await asyncio.sleep(_RETRY_S)
            answer = await self.connection.ask(request, 1)
        assert answer.error_code == 0, answer
        self.epoch, self.interval_s = answer.member_epoch, answer.heartbeat_interval_ms / 1000
        if answer.assignment is None:
            return False
        before = self.owned
        self.owned = frozenset(
            number for each in answer.assignment.topic_partitions for number in each.partitions
        )
        if progress is not None:
            progress.note(len(before), len(self.owned))
        return self.owned != before

    def _full(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            self.group,
            self.member_id,
            self.epoch,
            rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self.topic],
            topic_partitions=self._partitions(),
        )

    def _changed(self) -> ConsumerGroupHeartbeatRequest:
        request = self._beat()
        request.topic_partitions = self._partitions()
        return request

    def _beat(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(self.group, self.member_id, self.epoch)

    def _partitions(self) -> list[TopicPartitions]:
        return [TopicPartitions(self.topic_id, sorted(self.owned))] if self.owned else []


Member = ClassicMember | ConsumerMember


def _versioned(parts: Sequence[Any]) -> bytes:
    """Metadata of the consumer protocol begins with its version."""
    return struct.pack(">h", _METADATA_VERSION) + b"".join(parts)


async def leave_all(members: Sequence[Member]) -> None:
    """All leave: of a classic group with one request, of a consumer group with one each."""
    first = members[0]
    if isinstance(first, ClassicMember):
        identities = [MemberIdentity(member.member_id) for member in members]
        answer = await first.connection.ask(LeaveGroupRequest(first.group, members=identities), 5)
        assert answer.error_code == 0, answer
    else:
        await asyncio.gather(*(member.leave() for member in members if isinstance(member, ConsumerMember)))
