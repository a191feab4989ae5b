"""Invariants of DESIGN.md, checked on disks and clients after a simulated cluster has healed.

The checkers do not ask the code under test what is right: they read the batches of each replica, and compare them
with each other and with the answers that clients got.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from barnabas.controller.metadata.image import MetadataImage, PartitionState
from barnabas.storage.errors import WouldWait
from barnabas.wire.record_batch import BatchHeader, iterate_headers, verify_crc
from barnabas.wire.records import iterate_records
from compat_tests.simulation.consumers import Consumer
from compat_tests.simulation.groups import Member, Refused
from compat_tests.simulation.history import Batch, History, Partition, Violation, name
from compat_tests.simulation.producers import Producer
from compat_tests.simulation.watch import digest
from compat_tests.simulation.wire_client import NoResponse

if TYPE_CHECKING:
    from compat_tests.simulation.simulation import Simulation

Held = list[tuple[BatchHeader, bytes]]  # batches of a replica, in log order
READ_BYTES = 1 << 24


def state(simulation: Simulation) -> str:
    """State of all nodes, for an error message."""
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
        lines.append(f"unfinished tasks: {waiting}")
    return "; ".join(lines)


# -- clients after the cluster has healed


def probes(simulation: Simulation) -> Iterator[Coroutine[Any, Any, object]]:
    """Clients whose requests must succeed now: produce to every partition, read everything, fetch every committed
    offset."""
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
        simulation.client("last"),
        history,
        acks=-1,
        is_idempotent=True,
        pace_s=0,
        should_continue=lambda: True,
    )
    await producer._become_idempotent()
    ends = {}
    for partition in _partitions(history):
        batch = await producer.produce(partition)
        ends[partition] = batch.offset
    consumer = Consumer(
        simulation.client("reader"), history, rack="", should_continue=lambda: True, max_wait_ms=10
    )
    while any(consumer.positions.get(partition, 0) <= end for partition, end in ends.items()):
        await consumer.poll()
    for _ in range(2 * len(ends)):
        await consumer.ask_for_ends()


async def _find_offsets(simulation: Simulation, group: str) -> None:
    member = Member(
        simulation.client(f"look-{group}"),
        simulation.history,
        group,
        is_simple=True,
        should_continue=lambda: True,
    )
    for partition in _partitions(simulation.history):
        while True:
            try:
                await member.committed(partition)
                break
            except (NoResponse, Refused):
                await member._client.pause()
                await member._client.refresh()


# -- contents of the replicas


def check(simulation: Simulation) -> None:
    """Checks all invariants; raises Violation."""
    _metadata_is_equal(simulation)
    history = simulation.history
    image = simulation.brokers[0].node.services.controller.image  # type: ignore[union-attr]
    for topic in image.topics.values():
        for index, found in topic.partitions.items():
            partition = topic.topic_id, index
            nodes = [node for node in simulation.brokers if node.node_id in found.replicas]
            replicas = {node.node_id: _held(node.node, *partition) for node in nodes}
            starts = {node.node_id: _log(node.node, *partition).log_start_offset for node in nodes}
            _log_starts_were_requested(history, partition, starts)
            logs = {node.node_id: _log(node.node, *partition) for node in nodes}
            for node_id, held in replicas.items():
                _epochs_are_known(partition, node_id, logs[node_id], held)
            if history.is_compacted(partition):
                _compacted_topic_is_correct(history, partition, replicas)
                continue
            if topic.is_internal and simulation.faults.clock_was_far_ahead:
                _internal_topic_is_correct(partition, replicas)
                continue
            start = max(starts.values())
            _replicas_are_equal(partition, found, replicas, start)
            if not simulation.faults.clock_was_far_ahead:  # producers expire by the clock
                _producers_are_equal(partition, found.leader, logs, start)
            if history.is_safe(partition):
                _read_records_exist(history, partition, replicas[found.leader], start)
            if not topic.is_internal:
                _acknowledged_batches_exist(history, partition, replicas[found.leader], start)
    _configs_are_as_acknowledged(simulation, image)


def _metadata_is_equal(simulation: Simulation) -> None:
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
            raise Violation(f"topic {topic.name} was created and does not exist")


def _log(node: Any, topic_id: bytes, index: int) -> Any:
    return node.services.partitions.by_id(topic_id, index).log


def _held(node: Any, topic_id: bytes, index: int) -> Held:
    log = _log(node, topic_id, index)
    found: Held = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            read = log.read(offset, READ_BYTES, min_one_batch=True)
        except WouldWait as cold:
            cold.prepare()
            continue
        data = b"".join(region.read() for region in read.regions)
        for position, header in iterate_headers(data):
            verify_crc(data, position, header)
            found.append((header, data[position : position + header.size]))
        if found[-1][0].next_offset <= offset:
            raise Violation(f"{log.name} does not continue at {offset}")
        offset = found[-1][0].next_offset
    return found


def _configs_are_as_acknowledged(simulation: Simulation, image: MetadataImage) -> None:
    """A config has the value that was acknowledged last, or the value of a change whose outcome is unknown."""
    history = simulation.history
    allowed_values: dict[tuple[str, str], set[str | None]] = {}
    for change in history.config_changes:
        topic = history.topics[change.topic]
        allowed = allowed_values.setdefault((change.topic, change.name), {topic.configs.get(change.name)})
        if change.ended_at != float("inf"):
            allowed.clear()
            allowed.update(
                other.value
                for other in history.config_changes
                if (other.topic, other.name) == (change.topic, change.name)
                and other.ended_at == float("inf")
                and other.started_at < change.started_at
            )
        allowed.add(change.value)
    for (topic_name, config), allowed in allowed_values.items():
        found = image.topic_configs(topic_name).get(config)
        if not history.topics[topic_name].is_deleted and found not in allowed:
            raise Violation(
                f"{config} of {topic_name} is {found}, and was set to {sorted(map(str, allowed))}"
            )


def _log_starts_were_requested(history: History, partition: Partition, starts: dict[int, int]) -> None:
    """Records are removed only where an admin or a config asks for it."""
    if not history.is_safe(partition):
        return
    for node_id, start in starts.items():
        if start > history.last_start(partition):
            raise Violation(
                f"{name(partition)} begins at {start} on node {node_id}, which no admin requested"
            )
    topic = history.topic(partition[0])
    if (
        topic is not None
        and topic.expires
        and max(starts.values()) > history.requested_starts.get(partition, 0)
    ):
        history.count("partitions whose records expired")


def _compacted_topic_is_correct(history: History, partition: Partition, replicas: dict[int, Held]) -> None:
    """Each replica compacts by itself: two replicas hold the same record at an offset, and a missing record that was
    acknowledged or read has a later one with its key."""
    seen = history.values.get(partition, {})
    keys = {
        value: key
        for batch in history.batches
        if batch.partition == partition
        for key, value in zip(batch.keys, batch.values, strict=True)
    }
    wanted = dict(seen)
    for batch in history.batches:
        if (
            batch.partition == partition
            and batch.acks == -1
            and batch.outcome == "acked"
            and batch.offset >= 0
        ):
            wanted.update(enumerate(batch.values, batch.offset))
    at: dict[int, tuple[bytes | None, bytes | None, int]] = {}
    for node_id, held in replicas.items():
        there: dict[int, bytes] = {}
        last: dict[bytes, int] = {}
        for _, data in held:
            for record in iterate_records(data):
                content = record.key, record.value, record.timestamp
                if at.setdefault(record.offset, content) != content:
                    raise Violation(
                        f"{name(partition)}: node {node_id} has {content} at {record.offset}, another {at[record.offset]}"
                    )
                value = bytes(record.value or b"")
                if value not in keys:
                    raise Violation(f"{name(partition)} has {value!r}, which was never produced")
                there[record.offset] = value
                last[bytes(record.key or b"")] = record.offset
        for offset, value in wanted.items():
            if there.get(offset, value) != value:
                raise Violation(f"{name(partition)}: {value!r} was at {offset}, now {there[offset]!r} is")
            if offset not in there:
                if last.get(keys[value], -1) < offset:
                    raise Violation(
                        f"{name(partition)}: {value!r} at {offset} is missing on node {node_id}, and no later record has its key"
                    )
                history.count("records compacted away")


def _internal_topic_is_correct(partition: Partition, replicas: dict[int, Held]) -> None:
    """A coordinator whose clock is far ahead rolls its log, and then each replica compacts by itself: two replicas
    hold the same record at an offset, and each key has the same last value."""
    at: dict[int, tuple[bytes | None, bytes | None, int]] = {}
    states: list[dict[bytes, bytes]] = []
    for node_id, held in replicas.items():
        last: dict[bytes, bytes] = {}
        for _, data in held:
            for record in iterate_records(data):
                content = record.key, record.value, record.timestamp
                if at.setdefault(record.offset, content) != content:
                    raise Violation(
                        f"{name(partition)}: node {node_id} has {content} at {record.offset}, another {at[record.offset]}"
                    )
                key = bytes(record.key or b"")
                if record.value is None:
                    last.pop(key, None)
                else:
                    last[key] = bytes(record.value)
        states.append(last)
    if any(state != states[0] for state in states):
        raise Violation(f"{name(partition)}: the keys' last values differ between replicas: {states}")


def _epochs_are_known(partition: Partition, node_id: int, log: Any, held: Held) -> None:
    """Also of what this node has never had, as it began behind what is tiered."""
    for header, _ in held:
        offset = max(header.base_offset, log.log_start_offset)
        known = log.epochs.epoch_for_offset(offset)
        if known != header.partition_leader_epoch:
            raise Violation(
                f"{name(partition)}: node {node_id} takes epoch {known} for that of {offset}, {header.partition_leader_epoch}"
            )


def _producers_are_equal(partition: Partition, leader: int, logs: dict[int, Any], start: int) -> None:
    """A replica that becomes leader finds the same duplicates, of what is in the log from `start` on."""
    last = {
        node_id: {
            producer_id: (entry.producer_epoch, entry.batches[-1])
            for producer_id, entry in log.producers.active.items()
            if entry.batches and entry.batches[-1].base_offset >= start
        }
        for node_id, log in logs.items()
    }
    for node_id, found in last.items():
        if found != last[leader]:
            raise Violation(
                f"{name(partition)}: from {start} on node {node_id} knows producers {found}, its leader {leader} {last[leader]}"
            )


def _replicas_are_equal(
    partition: Partition, found: PartitionState, replicas: dict[int, Held], start: int
) -> None:
    """Replicas are byte-wise identical at every offset from `start` on. Nothing is in flight any more, so all records
    are committed."""
    replicas = {
        node_id: [batch for batch in held if batch[0].last_offset >= start]
        for node_id, held in replicas.items()
    }
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
                f"{name(partition)}: node {node_id} has {at[0]} and its leader {found.leader} has {at[1]}"
            )
    offset = leader[0][0].base_offset if leader else 0
    epoch = -1
    for header, _ in leader:
        if header.base_offset != offset:
            raise Violation(f"{name(partition)}: batch {header.base_offset} where {offset} is expected")
        if header.partition_leader_epoch < epoch:
            raise Violation(f"{name(partition)}: epoch {header.partition_leader_epoch} after {epoch}")
        offset, epoch = header.next_offset, header.partition_leader_epoch


def _read_records_exist(history: History, partition: Partition, held: Held, start: int) -> None:
    """Records that a consumer read still exist, except those removed at the log's beginning."""
    there = {header.base_offset: (header.last_offset, header.crc) for header, _ in held}
    for base_offset, (last_offset, crc, consumer, now) in history.seen.get(partition, {}).items():
        if last_offset >= start and there.get(base_offset) != (last_offset, crc):
            raise Violation(
                f"{consumer} saw {base_offset}-{last_offset} of {name(partition)} at {now:.3f}, which are missing: "
                f"{there.get(base_offset)}"
            )


def _acknowledged_batches_exist(history: History, partition: Partition, held: Held, start: int) -> None:
    """Acknowledged batches are at the acknowledged offsets and in order; idempotent ones are in the log once."""
    offsets: dict[bytes, list[int]] = {}
    for _, data in held:
        for record in iterate_records(data):
            offsets.setdefault(bytes(record.value or b""), []).append(record.offset)
    mine = [batch for batch in history.batches if batch.partition == partition]
    wanted = {value for batch in mine for value in batch.values}
    for value in offsets:
        if value not in wanted:
            raise Violation(f"{name(partition)} has {value!r}, which was never produced")
    is_safe = history.is_safe(partition)
    last: dict[str, tuple[int, int]] = {}  # producer -> (offset, number) of its last batch
    for batch in mine:
        found = [offsets.get(value, []) for value in batch.values]
        if batch.acks == -1 and is_safe:
            _check_acknowledged(batch, found, start)
        if batch.is_idempotent and any(len(places) > 1 for places in found):
            raise Violation(f"{name(partition)}: {batch} is in the log more than once: {found}")
        # Without sequence numbers a batch that its producer gave up may be appended late; acknowledged batches are in order.
        if batch.is_idempotent:
            place = found[0][0] if found[0] else -1
        else:
            place = batch.offset if batch.acks == -1 and is_safe and batch.outcome == "acked" else -1
        if place >= 0:
            offset, number = last.get(batch.producer, (-1, -1))
            if place <= offset:
                raise Violation(
                    f"{name(partition)}: {batch.producer}'s batch {batch.number} is before {number}"
                )
            last[batch.producer] = place, batch.number


def _check_acknowledged(batch: Batch, found: list[list[int]], start: int) -> None:
    if batch.outcome == "open":
        raise Violation(f"{batch} was never acknowledged or given up")
    if batch.outcome != "acked":
        return
    for index, places in enumerate(found):
        if batch.offset + index < start and (batch.offset >= 0 or not places):
            continue  # removed; a duplicate that came late may still be there
        if not places:
            raise Violation(f"{batch} was acknowledged and is missing")
        if batch.offset >= 0 and batch.offset + index not in places:
            raise Violation(f"{batch} was acknowledged at {batch.offset} and is at {places}")
