"""Proposals of in-sync replica sets to the controller (AlterPartition, KIP-497).

A leader proposes; the controller decides, as a compare-and-set on the leader epoch and the partition epoch. All proposals
of one turn of the loop are sent in one request, up to a thousand, and the next request leaves when the last one has been answered. So a
broker whose thousand partitions change at once sends a few requests. Proposals without an answer are sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    ResponsePartitionData,
    TopicData,
)

if TYPE_CHECKING:
    from barnabas.broker.partitions.replica import LocalReplica
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.replication")

ALTER_PARTITION: Final = 56
RETRY_S: Final = 0.05  # Kafka's backoff
# Partitions of one request: what is decided together is applied in one turn, by every node.
REQUEST_MAX: Final = 1000
RECOVERED: Final = 0  # LeaderRecoveryState

Send = Callable[[int, msgspec.Struct, Callable[[AlterPartitionResponse | None, ErrorCode], object]], object]


class IsrChange(msgspec.Struct, eq=False):
    """One proposal: the new ISR, each member with the broker epoch of its fetches (-1: none yet). `answered(change, error,
    decided)` is called with the controller's answer, unless the proposal is obsolete by then."""

    answered: Callable[[IsrChange, ErrorCode, ResponsePartitionData | None], object]
    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    members: list[tuple[int, int]]  # (broker id, broker epoch)
    obsolete: bool = False  # the answer is not needed any more

    @property
    def isr(self) -> list[int]:
        return [broker_id for broker_id, _ in self.members]


def _ignore(_change: IsrChange, _error: ErrorCode, _decided: ResponsePartitionData | None) -> None:
    """The metadata has the outcome: another follower may have been faster."""


class AlterPartitionManager:
    """Sends proposals and passes the answers on. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, node_id: int, send: Send, broker_epoch: Callable[[], int]) -> None:
        """`send` asks the active controller (cluster/controller_channel.py). `broker_epoch()` is that of this broker's
        registration."""
        self._runtime = runtime
        self.node_id = node_id
        self._send_to_controller = send
        self.broker_epoch = broker_epoch
        self._unsent: list[IsrChange] = []
        self._scheduled = False
        self._in_flight = False
        self._failing = ErrorCode.NONE  # what the last request failed with

    def propose(self, change: IsrChange) -> None:
        """Send the proposal to the controller at the end of this turn."""
        self._unsent.append(change)
        self._send_soon(0.0)

    def propose_later(self, change: IsrChange) -> None:
        """Send the proposal again, after a backoff."""
        self.later(lambda: self.propose(change))

    def later(self, call: Callable[[], object]) -> None:
        """Call after the backoff."""
        self._runtime.call_later(RETRY_S, call)

    def propose_leadership(self, replica: LocalReplica, isr: Sequence[int]) -> None:
        """As a follower in sync, request the leadership (controller/operations/alter_partition.py). The metadata has the
        outcome."""
        members = [(broker_id, -1) for broker_id in isr]
        change = IsrChange(
            _ignore,
            replica.topic_id,
            replica.partition,
            replica.leader_epoch,
            replica.partition_epoch,
            members,
        )
        self.propose(change)

    def _send_soon(self, delay_s: float) -> None:
        if self._scheduled or self._in_flight or not self._unsent:
            return
        self._scheduled = True
        if delay_s:
            self._runtime.call_later(delay_s, self._send)
        else:
            self._runtime.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        unsent = [change for change in self._unsent if not change.obsolete]
        changes, self._unsent = unsent[:REQUEST_MAX], unsent[REQUEST_MAX:]
        if not changes:
            return
        self._in_flight = True
        self._send_to_controller(
            ALTER_PARTITION,
            self._request(changes),
            lambda response, error: self._answered(changes, response, error),
        )

    def _request(self, changes: list[IsrChange]) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        for change in changes:
            topic = topics.get(change.topic_id)
            if topic is None:
                topic = topics[change.topic_id] = TopicData(topic_id=change.topic_id, partitions=[])
            topic.partitions.append(
                PartitionData(
                    partition_index=change.partition,
                    leader_epoch=change.leader_epoch,
                    new_isr_with_epochs=[BrokerState(*member) for member in change.members],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=change.partition_epoch,
                )
            )
        return AlterPartitionRequest(self.node_id, self.broker_epoch(), list(topics.values()))

    def _answered(
        self, changes: list[IsrChange], response: AlterPartitionResponse | None, error: ErrorCode
    ) -> None:
        self._in_flight = False
        if response is not None and response.error_code:
            error = ErrorCode.of(response.error_code)
        if response is None or error:
            if error != self._failing:  # logged once, not for every attempt
                log.warning("the controller does not accept changes of in-sync replicas: %s", error.name)
            self._failing = error
            self._again(changes)
            return
        self._failing = ErrorCode.NONE
        decided = {
            (topic.topic_id, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        missing = []
        for change in changes:
            answer = decided.get((change.topic_id, change.partition))
            if answer is None:
                missing.append(change)
            elif not change.obsolete:
                code = ErrorCode.of(answer.error_code)
                change.answered(change, code, None if code else answer)
        if missing:
            self._again(missing)
        else:
            self._send_soon(0.0)

    def _again(self, changes: list[IsrChange]) -> None:
        self._unsent = changes + self._unsent
        self._send_soon(RETRY_S)
