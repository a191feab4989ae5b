"""Simulated members of consumer groups (KIP-848): the broker assigns, and they commit increasing offsets for what they have.

The checker: a partition is never owned by two members that are in the group. A member owns what it was assigned until it gives it up, is
fenced, or has had no answer for a session timeout since it sent the heartbeat that was answered last; epochs never go back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from compat_tests.simulation.groups import Member, Refused
from compat_tests.simulation.history import History, Partition, Violation, name
from compat_tests.simulation.wire_client import Client, NoResponse

CONSUMER_GROUP_HEARTBEAT = 68
SESSION_S = 6.0
REBALANCE_TIMEOUT_MS = 6000
SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}
LOST = frozenset((ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND))


class Owners:
    """Who has which partition of a group, as its members know."""

    def __init__(self) -> None:
        self._owners: dict[Partition, ConsumerGroupMember] = {}

    def take(self, member: ConsumerGroupMember, partitions: set[Partition], now: float) -> None:
        for partition in partitions:
            owner = self._owners.get(partition)
            if owner is not None and owner is not member and now < owner.is_member_until:
                raise Violation(
                    f"{member.client_name} and {owner.client_name} of {member.group} both have {name(partition)}"
                )
            self._owners[partition] = member

    def give_up(self, member: ConsumerGroupMember, partitions: set[Partition]) -> None:
        for partition in partitions:
            if self._owners.get(partition) is member:
                del self._owners[partition]


class ConsumerGroupMember(Member):
    """Runs until `should_continue` returns false. Of a streams group: see streams_groups.py."""

    _HEARTBEAT = CONSUMER_GROUP_HEARTBEAT

    def __init__(
        self,
        client: Client,
        history: History,
        group: str,
        owners: Owners,
        *,
        should_continue: Callable[[], bool],
    ) -> None:
        super().__init__(client, history, group, is_simple=False, should_continue=should_continue)
        self.client_name = client.name
        self.is_member_until = 0.0
        self._owners = owners
        self._epoch = 0
        self._owned: set[Partition] = set()
        self._copies: set[Partition] = set()  # of tasks
        self._to_give_up: set[Partition] = set()  # before the next heartbeat
        self._topics: list[str] = []
        self._says_all = True

    async def _take_part(self) -> None:
        if not self._member_id:
            self._member_id = f"{self.client_name}-{self._client.random.randint(0, 1 << 30)}"
        try:
            await self._heartbeat()
        except (NoResponse, Refused):
            self._says_all = True
            raise
        self._generation = self._epoch
        await self._commit_all(sorted(self._owned))
        await self._client.pause(0.5)

    def _fetch_epoch(self) -> int:
        return self._epoch

    async def _heartbeat(self) -> None:
        self._owners.give_up(self, self._to_give_up)
        self._owned -= self._to_give_up
        self._to_give_up = set()
        sent_at = self._client.now()
        answer = await self._ask(self._HEARTBEAT, self._request())
        error = ErrorCode(answer.error_code)
        if error in LOST:
            self._lose()
            raise Refused(error)
        self._check(answer.error_code)
        self._follow(answer, sent_at)

    def _request(self) -> Any:
        request = ConsumerGroupHeartbeatRequest(self.group, self._member_id, self._epoch)
        topics = sorted(
            topic.name
            for topic in self._history.topics.values()
            if topic.topic_id and not topic.is_deleted and not topic.name.startswith("late-")
        )
        owned: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(self._owned):
            owned.setdefault(topic_id, []).append(index)
        if self._says_all or topics != self._topics:
            self._topics = topics
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names = topics
        request.topic_partitions = [TopicPartitions(*each) for each in owned.items()]
        self._says_all = False
        return request

    def _follow(self, answer: Any, sent_at: float) -> None:
        if answer.member_epoch < self._epoch:
            raise Violation(f"{self.client_name}: its epoch {self._epoch} became {answer.member_epoch}")
        if self._epoch == 0:
            self.joined += 1
            self._history.count(f"{self.group} joined")
        self._epoch = answer.member_epoch
        self.is_member_until = sent_at + SESSION_S
        after = self._assigned(answer)
        if after is None:
            return
        self._owners.take(self, after - self._owned, self._client.now())
        self._to_give_up = self._owned - after
        self._owned |= after

    def _assigned(self, answer: Any) -> set[Partition] | None:
        """What the answer says that the member is to have; None: as before."""
        if answer.assignment is None:
            return None
        return {
            (bytes(topic.topic_id), index)
            for topic in answer.assignment.topic_partitions
            for index in topic.partitions
        }

    def _leaving(self) -> Any:
        return ConsumerGroupHeartbeatRequest(self.group, self._member_id, -1)

    def _lose(self) -> None:
        self._owners.give_up(self, self._owned)
        self._to_give_up, self._copies = set(), set()
        self._epoch, self._owned, self.is_member_until, self._says_all = 0, set(), 0.0, True

    async def _leave(self) -> None:
        self._lose()
        try:
            await self._ask(self._HEARTBEAT, self._leaving())
        except NoResponse:
            pass
