"""Leaders, epochs and ISRs, changed by the controller's own records: the nodes see what a controller has decided.

Functions run on the broker's loop and call `done` when every node that runs knows, and the leader leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import NO_LEADER
from barnabas.testing.contents import UnknownTopic, awake_services_of, image_of, services_of
from barnabas.testing.operations import RequestFailed, when, when_there_is_a_controller
from barnabas.wire.messages.metadata_records import PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.broker.services import Services
    from barnabas.controller.metadata.image import PartitionState
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.operations import Done
    from barnabas.wire.errors import ErrorCode


class PartitionInfo(msgspec.Struct, frozen=True):
    """A partition as the metadata has it."""

    topic: str
    partition: int
    leader: int  # -1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    def successor(self, wanted: int | None, running: Sequence[int]) -> int:
        """The node that is wanted as its leader; None: the next one in sync. ValueError where it can't lead."""
        able = [each for each in self.replicas if each in self.isr and each in running]
        others = [each for each in able if each != self.leader]
        if wanted is None and not others:
            raise ValueError(
                f"{self.topic}-{self.partition} has no replica in sync but its leader, node {self.leader}"
            )
        if wanted is not None and wanted not in able:
            raise ValueError(
                f"node {wanted} can't lead {self.topic}-{self.partition}: in sync and running are {able}"
            )
        return others[0] if wanted is None else wanted


def partition_info(nodes: Sequence[BrokerNode], topic: str, index: int) -> PartitionInfo:
    """UnknownTopic."""
    state = _state(nodes, topic, index)
    return PartitionInfo(
        topic, index, state.leader, state.leader_epoch, tuple(state.replicas), tuple(state.isr)
    )


def move_leader(nodes: Sequence[BrokerNode], topic: str, index: int, node_id: int | None, done: Done) -> None:
    """To a replica in sync; None: the next one that is awake. ValueError where it can't lead, UnknownTopic."""
    now = partition_info(nodes, topic, index)
    running = services_of(nodes) if node_id is not None else awake_services_of(nodes)
    leader = now.successor(node_id, [services.node_id for services in running])
    if leader == now.leader:
        done(None)
    else:
        _change(nodes, topic, index, done, leader=leader)


def drop_leader(nodes: Sequence[BrokerNode], topic: str, index: int, done: Done) -> None:
    """It has no leader, until `move_leader` gives it one. UnknownTopic."""
    _state(nodes, topic, index)
    _change(nodes, topic, index, done, leader=NO_LEADER)


def bump_epoch(nodes: Sequence[BrokerNode], topic: str, index: int, done: Done) -> None:
    """The same leader, in the next epoch; requests with the old one are fenced."""
    _change(nodes, topic, index, done, leader=_state(nodes, topic, index).leader)


def shrink_isr(nodes: Sequence[BrokerNode], topic: str, index: int, isr: Sequence[int], done: Done) -> None:
    """The others stay out, of all that this leader leads, until `restore_isr`. ValueError, UnknownTopic."""
    state = _state(nodes, topic, index)
    wanted = [each for each in state.isr if each in isr]
    if sorted(wanted) != sorted(set(isr)) or state.leader not in wanted:
        raise ValueError(
            f"an ISR of {topic}-{index} holds its leader, node {state.leader}, and some of {state.isr}, not {list(isr)}"
        )
    gone = [each for each in state.isr if each not in wanted]
    for node in nodes:
        if node.node_id == state.leader and node.is_running:
            node.isr_hold.kept_out |= frozenset(gone)
    _change(nodes, topic, index, done, isr=wanted)


def restore_isr(nodes: Sequence[BrokerNode]) -> None:
    """Followers that have caught up may join their ISRs again."""
    for node in nodes:
        if node.is_running:
            node.isr_hold.kept_out = frozenset()


def _state(nodes: Sequence[BrokerNode], topic: str, index: int) -> PartitionState:
    known = image_of(nodes).topics.get(topic)
    state = None if known is None else known.partitions.get(index)
    if state is None:
        raise UnknownTopic(f"there is no partition {index} of {topic!r}")
    return state


def _change(
    nodes: Sequence[BrokerNode],
    topic: str,
    index: int,
    done: Done,
    *,
    leader: int | None = None,
    isr: list[int] | None = None,
) -> None:
    image = image_of(nodes)
    epoch = image.topics[topic].partitions[index].partition_epoch
    record = PartitionChangeRecord(topic_id=image.topics[topic].topic_id, partition_id=index)
    if leader is not None:
        record.leader = leader
    record.isr = isr

    def decided(_: None) -> None:
        when(nodes, lambda: _is_known(nodes, topic, index, epoch), lambda: done(None), done)

    def failed(error: ErrorCode, message: str) -> None:
        done(RequestFailed(error, message))

    def decide() -> None:
        services_of(nodes)[0].controller.run(lambda _: Decision([record], None), decided, failed)

    when_there_is_a_controller(nodes, decide, done)


def _is_known(nodes: Sequence[BrokerNode], topic: str, index: int, epoch: int) -> bool:
    return all(_knows(services, topic, index, epoch) for services in awake_services_of(nodes))


def _knows(services: Services, topic: str, index: int, epoch: int) -> bool:
    """Whether a node knows of a change of the partition since that epoch and, if it leads, does so."""
    known = services.controller.image.topics.get(topic)
    state = None if known is None else known.partitions.get(index)
    if state is None:
        return True  # it has been deleted meanwhile
    if state.partition_epoch <= epoch:
        return False
    if state.leader != services.node_id:
        return True
    partition = services.partitions.get(topic, index)
    return partition is not None and partition.leader_epoch == state.leader_epoch
