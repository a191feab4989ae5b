"""What must hold of a simulated cluster when all is over: DESIGN.md's invariants, seen from disks and clients.

Nothing here asks the code under test what is right: it reads the batches that each replica holds, and compares them
with each other and with what clients were told.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from barnabas.controller.image import PartitionState
from barnabas.wire.record_batch import BatchHeader, iterate_headers, iterate_records, verify_crc

from compat_tests.simulation.consumers import Consumer
from compat_tests.simulation.groups import Member, Refused
from compat_tests.simulation.history import Batch, History, Partition, Violation, name
from compat_tests.simulation.producers import Producer
from compat_tests.simulation.watch import digest
from compat_tests.simulation.wire_client import Gone

if TYPE_CHECKING:
    from compat_tests.simulation.simulation import Simulation

Held = list[tuple[BatchHeader, bytes]]  # the batches of a replica, in their order
READ_BYTES = 1 << 24


def state(simulation: Simulation) -> str:
    """Where everything is, for a message."""
    lines = []
    for node in simulation.nodes:
        if node.node is None or not hasattr(node.node, "services"):
            lines.append(f"{node.host} {'starts' if node.is_up else 'is down'}")
            continue
        controller = node.node.services.controller
        image = controller.image
        partitions = " ".join(
            f"{topic.name}-{index}:{found.leader}/{found.leader_epoch}{found.isr}of{found.replicas}"
            for topic in image.topics.values()
            for index, found in topic.partitions.items()
            if found.leader < 0 or sorted(found.isr) != sorted(found.replicas)
        )
        fenced = [broker.broker_id for broker in image.brokers.values() if broker.fenced]
        lines.append(
            f"{node.host} at {image.offset} epoch {controller.epoch}{' active' if controller.is_active else ''} "
            f"fenced {fenced} {partitions}"
        )
    if hasattr(simulation, "tasks"):
        waiting = [number for number, task in enumerate(simulation.tasks) if not task.is_done]
        lines.append(f"tasks that go on: {waiting}")
    return "; ".join(lines)


# -- what clients find afterwards


def probes(simulation: Simulation) -> Iterator[Coroutine[Any, Any, object]]:
    """Clients that must be served now: a record for every partition, everything read, every committed offset."""
    yield _produce_and_consume(simulation)
    for member in simulation.members:
        yield _find_offsets(simulation, member.group)


def _partitions(history: History) -> list[Partition]:
    return [
        (topic.topic_id, index)
        for topic in history.topics.values()
        if topic.topic_id and not topic.is_deleted
        for index in range(topic.partitions)
    ]


async def _produce_and_consume(simulation: Simulation) -> None:
    history = simulation.history
    producer = Producer(
        simulation.client("last"), history, acks=-1, is_idempotent=True, pace_s=0, goes_on=lambda: True
    )
    await producer._become_idempotent()
    ends = {}
    for partition in _partitions(history):
        batch = await producer.produce(partition)
        ends[partition] = batch.offset
    consumer = Consumer(simulation.client("reader"), history, rack="", goes_on=lambda: True, max_wait_ms=10)
    while any(consumer.positions.get(partition, 0) <= end for partition, end in ends.items()):
        await consumer.poll()
    for _ in range(2 * len(ends)):
        await consumer.ask_for_ends()


async def _find_offsets(simulation: Simulation, group: str) -> None:
    member = Member(
        simulation.client(f"look-{group}"), simulation.history, group, is_simple=True, goes_on=lambda: True
    )
    for partition in _partitions(simulation.history):
        while True:
            try:
                await member.committed(partition)
                break
            except (Gone, Refused):
                await member._client.pause()
                await member._client.refresh()


# -- what the replicas hold


def check(simulation: Simulation) -> None:
    """All of it. Violation."""
    _metadata_is_one(simulation)
    image = simulation.brokers[0].node.services.controller.image  # type: ignore[union-attr]
    for topic in image.topics.values():
        for index, found in topic.partitions.items():
            partition = topic.topic_id, index
            replicas = {
                node.node_id: _held(node.node, topic.topic_id, index)
                for node in simulation.brokers
                if node.node_id in found.replicas
            }
            _replicas_are_equal(simulation, partition, found, replicas)
            if simulation.history.is_safe(partition):
                _seen_is_there(simulation.history, partition, replicas[found.leader])
            if not topic.is_internal:
                _produced_is_there(simulation.history, partition, replicas[found.leader])


def _metadata_is_one(simulation: Simulation) -> None:
    digests = {}
    for node in simulation.nodes:
        assert node.node is not None
        image = node.node.services.controller.image
        digests[node.host] = image.offset, digest(image)
    if len(set(digests.values())) != 1:
        raise Violation(f"the nodes have different metadata: {digests}")
    for topic in simulation.history.topics.values():
        known = image.topics.get(topic.name)
        if topic.topic_id and not topic.is_deleted and (known is None or known.topic_id != topic.topic_id):
            raise Violation(f"topic {topic.name} was created and is not there")


def _held(node: Any, topic_id: bytes, index: int) -> Held:
    partition = node.services.partitions.by_id(topic_id, index)
    log = partition.log
    found: Held = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = b"".join(region.read() for region in log.read(offset, READ_BYTES, min_one_batch=True).regions)
        for position, header in iterate_headers(data):
            verify_crc(data, position, header)
            found.append((header, data[position : position + header.size]))
        if found[-1][0].next_offset <= offset:
            raise Violation(f"{log.name} does not go on at {offset}")
        offset = found[-1][0].next_offset
    return found


def _replicas_are_equal(
    simulation: Simulation, partition: Partition, found: PartitionState, replicas: dict[int, Held]
) -> None:
    """Byte-wise identical, at every offset: nothing is under way any more, so all of it is committed."""
    leader = replicas[found.leader]
    for node_id, held in replicas.items():
        if [data for _, data in held] != [data for _, data in leader]:
            difference = next(
                (number for number, (a, b) in enumerate(zip(held, leader, strict=False)) if a[1] != b[1]),
                min(len(held), len(leader)),
            )
            at = [
                f"{side[difference][0]}" if difference < len(side) else "nothing" for side in (held, leader)
            ]
            raise Violation(
                f"{name(partition)}: node {node_id} has {at[0]} where its leader {found.leader} has {at[1]}"
            )
    offset = leader[0][0].base_offset if leader else 0
    epoch = -1
    for header, _ in leader:
        if header.base_offset != offset:
            raise Violation(f"{name(partition)}: batch {header.base_offset} where {offset} is due")
        if header.partition_leader_epoch < epoch:
            raise Violation(f"{name(partition)}: epoch {header.partition_leader_epoch} behind {epoch}")
        offset, epoch = header.next_offset, header.partition_leader_epoch


def _seen_is_there(history: History, partition: Partition, held: Held) -> None:
    """Nobody has seen what is not there any more."""
    there = {header.base_offset: (header.last_offset, header.crc) for header, _ in held}
    for base_offset, (last_offset, crc, consumer, now) in history.seen.get(partition, {}).items():
        if there.get(base_offset) != (last_offset, crc):
            raise Violation(
                f"{consumer} saw {base_offset}-{last_offset} of {name(partition)} at {now:.3f}, which is not there: "
                f"{there.get(base_offset)}"
            )


def _produced_is_there(history: History, partition: Partition, held: Held) -> None:
    """Acknowledged batches are where they were said to be, in their order; idempotent ones are there once."""
    offsets: dict[bytes, list[int]] = {}
    for _, data in held:
        for record in iterate_records(data):
            offsets.setdefault(bytes(record.value or b""), []).append(record.offset)
    mine = [batch for batch in history.batches if batch.partition == partition]
    wanted = {value for batch in mine for value in batch.values}
    for value in offsets:
        if value not in wanted:
            raise Violation(f"{name(partition)} has {value!r}, which nobody produced")
    is_safe = history.is_safe(partition)
    last: dict[str, tuple[int, int]] = {}  # producer -> (offset, number) of its last batch
    for batch in mine:
        found = [offsets.get(value, []) for value in batch.values]
        if batch.acks == -1 and is_safe:
            _is_acknowledged_right(batch, found)
        if batch.is_idempotent and any(len(places) > 1 for places in found):
            raise Violation(f"{name(partition)}: {batch} is there more than once: {found}")
        # Without sequence numbers a batch that was given up may still come, late; what is acknowledged is in order.
        if batch.is_idempotent:
            place = found[0][0] if found[0] else -1
        else:
            place = batch.offset if batch.acks == -1 and is_safe and batch.outcome == "acked" else -1
        if place >= 0:
            offset, number = last.get(batch.producer, (-1, -1))
            if place <= offset:
                raise Violation(
                    f"{name(partition)}: {batch.producer}'s batch {batch.number} stands before {number}"
                )
            last[batch.producer] = place, batch.number


def _is_acknowledged_right(batch: Batch, found: list[list[int]]) -> None:
    if batch.outcome == "open":
        raise Violation(f"{batch} has never come to an end")
    if batch.outcome != "acked":
        return
    for index, places in enumerate(found):
        if not places:
            raise Violation(f"{batch} was acknowledged and is not there")
        if batch.offset >= 0 and batch.offset + index not in places:
            raise Violation(f"{batch} was acknowledged at {batch.offset} and is at {places}")
