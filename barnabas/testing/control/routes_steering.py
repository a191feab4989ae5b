"""Leaders, groups, nodes, upkeep and the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.testing.control import messages as m
from barnabas.testing.control.table import route

if TYPE_CHECKING:
    from barnabas.testing.broker import Broker
    from barnabas.testing.control.control import Control


@route(
    "GET",
    "/topics/{topic}/partitions/{partition}",
    "Leader, epoch, replicas and ISR of a partition.",
    answer=m.PartitionStatus,
)
def partition(control: Control, topic: str, partition: str) -> m.PartitionStatus:
    return _partition(control.broker, topic, int(partition))


@route(
    "POST",
    "/topics/{topic}/partitions/{partition}/leader",
    "Move the leader to a node that is in sync.",
    body=m.NodeChoice,
    answer=m.PartitionStatus,
)
def move_leader(control: Control, topic: str, partition: str, body: m.NodeChoice) -> m.PartitionStatus:
    control.broker.move_leader(topic, int(partition), body.node)
    return _partition(control.broker, topic, int(partition))


@route(
    "DELETE",
    "/topics/{topic}/partitions/{partition}/leader",
    "The partition has no leader, until its leader is moved.",
    answer=m.PartitionStatus,
)
def drop_leader(control: Control, topic: str, partition: str) -> m.PartitionStatus:
    control.broker.drop_leader(topic, int(partition))
    return _partition(control.broker, topic, int(partition))


@route(
    "POST",
    "/topics/{topic}/partitions/{partition}/epoch",
    "Begin a new leader epoch with the same leader.",
    answer=m.PartitionStatus,
)
def bump_epoch(control: Control, topic: str, partition: str) -> m.PartitionStatus:
    control.broker.bump_epoch(topic, int(partition))
    return _partition(control.broker, topic, int(partition))


@route(
    "POST",
    "/topics/{topic}/partitions/{partition}/isr",
    "Shrink the ISR to these nodes, until it is restored.",
    body=m.Isr,
    answer=m.PartitionStatus,
)
def shrink_isr(control: Control, topic: str, partition: str, body: m.Isr) -> m.PartitionStatus:
    control.broker.shrink_isr(topic, int(partition), body.isr)
    return _partition(control.broker, topic, int(partition))


@route("POST", "/restore-isr", "Let replicas that have caught up get in sync again.")
def restore_isr(control: Control) -> None:
    control.broker.restore_isr()


def _partition(broker: Broker, topic: str, partition: int) -> m.PartitionStatus:
    found = broker.partition(topic, partition)
    return m.PartitionStatus(
        topic=topic,
        partition=partition,
        leader=found.leader,
        leader_epoch=found.leader_epoch,
        replicas=list(found.replicas),
        isr=list(found.isr),
    )


@route("GET", "/groups/{group}/coordinator", "The node that coordinates a group.", answer=m.NodeNumber)
def coordinator(control: Control, group: str) -> m.NodeNumber:
    return m.NodeNumber(control.broker.coordinator(group))


@route(
    "POST",
    "/groups/{group}/coordinator/move",
    "Move a group's coordinator to another node.",
    body=m.NodeChoice,
    answer=m.NodeNumber,
)
def move_coordinator(control: Control, group: str, body: m.NodeChoice) -> m.NodeNumber:
    control.broker.move_coordinator(group, body.node)
    return m.NodeNumber(control.broker.coordinator(group))


@route(
    "POST",
    "/groups/{group}/coordinator/load",
    "Have the coordinator answer COORDINATOR_LOAD_IN_PROGRESS.",
    body=m.CoordinatorLoad,
)
def load_coordinator(control: Control, group: str, body: m.CoordinatorLoad) -> None:
    control.broker.load_coordinator(group, body.seconds)


@route("POST", "/groups/{group}/coordinator/loaded", "Have it serve its groups again.")
def coordinator_loaded(control: Control, group: str) -> None:
    control.broker.coordinator_loaded(group)


@route("POST", "/groups/{group}/rebalance", "Tell the members of a group to join again.")
def force_rebalance(control: Control, group: str) -> None:
    control.broker.force_rebalance(group)


@route("POST", "/groups/{group}/locks/expire", "Let locks of a share group's members expire.", body=m.Locks)
def expire_locks(control: Control, group: str, body: m.Locks) -> None:
    control.broker.expire_locks(group, body.topic, body.partition)


@route("DELETE", "/groups/{group}/members/{member}", "Expire a member, as when its session has timed out.")
def expire_member(control: Control, group: str, member: str) -> None:
    control.broker.expire_member(group, member)


@route("POST", "/transactions/{transactional_id}/abort", "Abort the open transaction, as its timeout does.")
def abort_transaction(control: Control, transactional_id: str) -> None:
    control.broker.transactions.abort(transactional_id)


@route("POST", "/transactions/{transactional_id}/fence", "Fence the producer of a transactional id.")
def fence_producer(control: Control, transactional_id: str) -> None:
    control.broker.transactions.fence(transactional_id)


@route(
    "POST",
    "/transactions/{transactional_id}/timeout",
    "Advance the clock until the open transaction has timed out and is aborted.",
)
def time_out_transaction(control: Control, transactional_id: str) -> None:
    control.broker.transactions.time_out(transactional_id)


@route(
    "GET",
    "/transactions/{transactional_id}/coordinator",
    "The node that coordinates a transactional id.",
    answer=m.NodeNumber,
)
def transaction_coordinator(control: Control, transactional_id: str) -> m.NodeNumber:
    return m.NodeNumber(control.broker.transactions.coordinator(transactional_id))


@route(
    "POST",
    "/transactions/{transactional_id}/coordinator/move",
    "Move the coordinator of a transactional id to another node.",
    body=m.NodeChoice,
    answer=m.NodeNumber,
)
def move_transaction_coordinator(control: Control, transactional_id: str, body: m.NodeChoice) -> m.NodeNumber:
    control.broker.transactions.move_coordinator(transactional_id, body.node)
    return m.NodeNumber(control.broker.transactions.coordinator(transactional_id))


@route(
    "POST",
    "/transactions/{transactional_id}/coordinator/load",
    "Have the coordinator answer COORDINATOR_LOAD_IN_PROGRESS.",
    body=m.CoordinatorLoad,
)
def load_transaction_coordinator(control: Control, transactional_id: str, body: m.CoordinatorLoad) -> None:
    control.broker.transactions.load_coordinator(transactional_id, body.seconds)


@route(
    "POST",
    "/transactions/{transactional_id}/coordinator/loaded",
    "Have it serve its transactional ids again.",
)
def transaction_coordinator_loaded(control: Control, transactional_id: str) -> None:
    control.broker.transactions.coordinator_loaded(transactional_id)


@route("POST", "/nodes", "Add a broker to a cluster.", body=m.NewNode, answer=m.NodeNumber)
def add_node(control: Control, body: m.NewNode) -> m.NodeNumber:
    control.broker.add_node(body.properties)
    return m.NodeNumber(control.broker.nodes[-1].node_id)


@route("DELETE", "/nodes/{node}", "Remove a node that was added.")
def remove_node(control: Control, node: str) -> None:
    control.broker.remove_node(int(node))


@route("POST", "/nodes/{node}/kill", "As kill -9.")
def kill_node(control: Control, node: str) -> None:
    control.broker.kill_node(int(node))


@route("POST", "/nodes/{node}/stop", "Stop a node in order: others take over what it leads.")
def stop_node(control: Control, node: str) -> None:
    control.broker.stop_node(int(node))


@route("POST", "/nodes/{node}/start", "Start a node that was killed or stopped: the same id, port and data.")
def start_node(control: Control, node: str) -> None:
    control.broker.start_node(int(node))


@route("POST", "/nodes/{node}/restart", "Stop a node in order and start it again.")
def restart_node(control: Control, node: str) -> None:
    control.broker.restart_node(int(node))


@route("POST", "/nodes/{node}/pause", "As SIGSTOP: its connections stay, and nothing is answered.")
def pause_node(control: Control, node: str) -> None:
    control.broker.pause_node(int(node))


@route("POST", "/nodes/{node}/resume", "As SIGCONT.")
def resume_node(control: Control, node: str) -> None:
    control.broker.resume_node(int(node))


@route("POST", "/retention", "Remove what is too old or too much, now.", body=m.Upkeep)
def run_retention(control: Control, body: m.Upkeep) -> None:
    control.broker.run_retention(body.topic)


@route("POST", "/compaction", "Compact now, however little there is to gain.", body=m.Upkeep)
def run_compaction(control: Control, body: m.Upkeep) -> None:
    control.broker.run_compaction(body.topic)


@route("GET", "/clock", "The broker's time.", answer=m.Clock)
def clock(control: Control) -> m.Clock:
    return _clock(control.broker)


@route(
    "POST",
    "/clock",
    "Put the clock forward: what comes due until then has happened.",
    body=m.Advance,
    answer=m.Clock,
)
def advance_clock(control: Control, body: m.Advance) -> m.Clock:
    control.broker.clock.advance(body.seconds)
    return _clock(control.broker)


def _clock(broker: Broker) -> m.Clock:
    return m.Clock(time_ms=broker.clock.time_ms(), ahead_s=broker.clock.ahead_s)
