"""`python -m compat_tests.bench.groups`: cost of groups, on this broker and on Apache Kafka 4.3.1.

1,000 members of one group join at once, by the classic protocol and by that of consumer groups (KIP-848), and then heartbeat;
members of a share group accept records; 10,000 groups have committed offsets, with which the broker starts again. Both brokers run with Kafka's defaults:
group.initial.rebalance.delay.ms 3 s, group.consumer.assignment.interval.ms 1 s, heartbeats every 3 s (classic) and 5 s. Rounds
alternate between them. CPU is that of the broker's process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
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
from compat_tests.bench import driver
from compat_tests.bench.__main__ import say
from compat_tests.bench.group_members import (
    ClassicMember,
    ConsumerMember,
    Member,
    MemberConnection,
    Progress,
    leave_all,
)
from compat_tests.bench.report import Results
from compat_tests.bench.share import measure_shares
from compat_tests.bench.startup import make_brokers
from compat_tests.bench.workloads import Measures
from compat_tests.conform.client import Connection
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds

# Kafka's defaults, where those of this broker or of the harness are others.
SETTINGS = {
    "offsets.topic.num.partitions": "50",
    "group.initial.rebalance.delay.ms": "3000",
    "group.consumer.assignment.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "5000",
}
_TOPIC = "bench-groups"
_JOIN_TIMEOUT_S = 120
_TICK_S = 0.01
_GROUPS_A_REQUEST = 500
_COMMITTED = 4_711
_LOADING_S = 120


def create_topic(broker: Broker, partitions: int) -> bytes:
    """The id of a new topic; returns when its last partition and the coordinators are there."""
    connection = Connection(broker.host, broker.port)
    answer = connection.ask(CreateTopicsRequest([CreatableTopic(_TOPIC, partitions, 1)], 60_000), 7, 60)
    assert answer.topics[0].error_code == 0, answer
    driver.wait_until_served(broker.bootstrap, _TOPIC)
    connection.ask(FindCoordinatorRequest(coordinator_keys=["any"]), 6, 60)
    connection.close()
    return bytes(answer.topics[0].topic_id)


async def members_of(
    broker: Broker, kind: type[Member], group: str, topic_id: bytes, count: int, partitions: int
) -> list[Member]:
    """As many connected members, that have not joined."""
    loop = asyncio.get_running_loop()
    members: list[Member] = []
    for _ in range(count):
        _, connection = await loop.create_connection(MemberConnection, broker.host, broker.port)
        members.append(kind(connection, group, _TOPIC, topic_id, partitions))
    return members


async def measure_group(
    broker: Broker, kind: type[Member], topic_id: bytes, options: argparse.Namespace, group: str
) -> Measures:
    """One group: all join, heartbeat as fast as they can, and at a rate; then they leave."""
    members = await members_of(broker, kind, group, topic_id, options.members, options.members)
    name = f"{kind.protocol}, {options.members:,} members"
    try:
        progress = Progress(len(members), options.members)
        cpu, started = cpu_seconds(broker.pid), time.perf_counter()
        async with asyncio.timeout(_JOIN_TIMEOUT_S):
            await asyncio.gather(*(member.join(progress) for member in members))
        measures = {
            f"{name}: all have partitions, s": time.perf_counter() - started,
            f"{name}: CPU of joining, s": cpu_seconds(broker.pid) - cpu,
        }
        await _settle(members, options.members)
        frames = [member.heartbeat() for member in members]
        answers = [
            await member.connection.ask_frame(frame) for member, frame in zip(members, frames, strict=True)
        ]
        cpu, started = cpu_seconds(broker.pid), time.perf_counter()
        count = await _repeat(members, frames, answers, options.seconds)
        seconds, used = time.perf_counter() - started, cpu_seconds(broker.pid) - cpu
        measures[f"{kind.protocol} heartbeats, as many as go: each second"] = count / seconds
        measures[f"{kind.protocol} heartbeats, as many as go: in a second of CPU"] = count / used
        cpu = cpu_seconds(broker.pid)
        count = await _paced(members, frames, answers, options.seconds, options.rate)
        used = cpu_seconds(broker.pid) - cpu
        measures[f"{kind.protocol} heartbeats, {options.rate:,}/s: CPU us each"] = used / count * 1e6
        await leave_all(members)
    finally:
        for member in members:
            member.connection.transport.close()
    return measures


async def _settle(members: Sequence[Member], partitions: int) -> None:
    """Until all are in one epoch; the partitions are all assigned, each to one member."""
    async with asyncio.timeout(_JOIN_TIMEOUT_S):
        while True:
            await asyncio.gather(*(member.settle() for member in members))
            positions = [member.position() for member in members]
            if len({epoch for epoch, _ in positions}) == 1 and all(owned for _, owned in positions):
                break
            await asyncio.sleep(0.5)
    assigned = [number for _, owned in positions for number in owned]
    assert sorted(assigned) == list(range(partitions)), f"{len(assigned)} of {partitions} are assigned"


async def _repeat(
    members: Sequence[Member], frames: Sequence[bytes], answers: Sequence[bytes], seconds: float
) -> int:
    until = asyncio.get_running_loop().time() + seconds
    work = zip(members, frames, answers, strict=True)
    return sum(
        await asyncio.gather(
            *(member.connection.repeat(frame, answer, until) for member, frame, answer in work)
        )
    )


async def _paced(
    members: Sequence[Member], frames: Sequence[bytes], answers: Sequence[bytes], seconds: float, rate: int
) -> int:
    """Heartbeats of the members in turn, `rate` a second, a few each tick as their timers would have it."""
    loop = asyncio.get_running_loop()
    started, sent = loop.time(), 0
    asked: list[asyncio.Future[bytes]] = []
    while (elapsed := loop.time() - started) < seconds:
        due = int(elapsed * rate)
        while sent < due and sent - len(members) < len(asked):
            turn = sent % len(members)
            if sent >= len(members):
                assert await asked[sent - len(members)] == answers[turn]
            asked.append(asyncio.ensure_future(members[turn].connection.ask_frame(frames[turn])))
            sent += 1
        await asyncio.sleep(_TICK_S)
    for number, found in enumerate(await asyncio.gather(*asked)):
        assert found == answers[number % len(members)], "a heartbeat was refused"
    return sent


def commit_offsets(broker: Broker, groups: int) -> None:
    """One offset for each group, from a client that is no member."""
    connection = Connection(broker.host, broker.port)
    for number in range(groups):
        partition = OffsetCommitRequestPartition(0, _COMMITTED)
        request = OffsetCommitRequest(
            _group(number), topics=[OffsetCommitRequestTopic(_TOPIC, partitions=[partition])]
        )
        while (error := _commit_error(connection, request)) in (14, 15, 16):
            time.sleep(_TICK_S)
        assert error == 0, f"error {error}"
    connection.close()


def _commit_error(connection: Connection, request: OffsetCommitRequest) -> int:
    return int(connection.ask(request, 9, 30).topics[0].partitions[0].error_code)


def wait_until_loaded(broker: Broker, groups: int) -> None:
    """Until OffsetFetch has the offset of every group."""
    deadline = time.perf_counter() + _LOADING_S
    connection = Connection(broker.host, broker.port)
    for first in range(0, groups, _GROUPS_A_REQUEST):
        names = [_group(number) for number in range(first, min(groups, first + _GROUPS_A_REQUEST))]
        wanted = [
            OffsetFetchRequestGroup(name, topics=[OffsetFetchRequestTopics(_TOPIC, partition_indexes=[0])])
            for name in names
        ]
        while True:
            found = connection.ask(OffsetFetchRequest(groups=wanted), 9, 60).groups
            if not any(group.error_code for group in found):
                break
            assert time.perf_counter() < deadline, "the groups are not loaded"
            time.sleep(_TICK_S)
        offsets = {group.topics[0].partitions[0].committed_offset for group in found}
        assert len(found) == len(names), f"{len(found)} groups of {len(names)}"
        assert offsets == {_COMMITTED}, offsets
    connection.close()


def _group(number: int) -> str:
    return f"group-{number:05}"


def measure_offsets(broker: Broker, groups: int) -> Measures:
    """Memory and starts, before and with the groups."""
    many = f"{groups:,} groups with offsets"
    empty = _restart(broker, 0)
    before = broker.resident_bytes()
    cpu = cpu_seconds(broker.pid)
    commit_offsets(broker, groups)
    measures = {
        f"{many}: CPU of a commit, us": (cpu_seconds(broker.pid) - cpu) / groups * 1e6,
        f"{many}: memory of a group after its commit, KB": (broker.resident_bytes() - before) / groups / 1e3,
    }
    seconds, used = _restart(broker, groups)
    after = broker.resident_bytes()
    return measures | {
        "no groups: clean restart until served, s": empty[0],
        "no groups: CPU of the restart, s": empty[1],
        f"{many}: clean restart until all are answered, s": seconds,
        f"{many}: CPU of the restart, s": used,
        f"{many}: memory of a group after the restart, KB": (after - before) / groups / 1e3,
        f"{many}: memory of the broker after the restart, MB": after / 1e6,
    }


def _restart(broker: Broker, groups: int) -> tuple[float, float]:
    """Seconds from exec until all is answered, and the CPU."""
    broker.stop()
    started = time.perf_counter()
    broker.start()
    driver.wait_until_served(broker.bootstrap, _TOPIC)
    wait_until_loaded(broker, groups)
    return time.perf_counter() - started, cpu_seconds(broker.pid)


def measure(brokers: dict[str, Broker], results: Results, options: argparse.Namespace) -> None:
    """Rounds of joining in turns, after one that warms up (Kafka: two); then the offsets."""
    topic_ids = {}
    for name, broker in brokers.items():
        broker.start()
        topic_ids[name] = create_topic(broker, options.members)
    for number in range(-2 if options.rounds else 0, options.rounds):
        for name, broker in list(brokers.items())[:: 1 if number % 2 == 0 else -1]:
            if number == -2 and name == "Barnabas":
                continue
            for kind in (ClassicMember, ConsumerMember):
                group = f"{kind.protocol}-{number}"
                found = asyncio.run(measure_group(broker, kind, topic_ids[name], options, group))
                if number >= 0:
                    results.add(name, found)
                say(f"{name}: " + ", ".join(f"{what} {value:,.3f}" for what, value in found.items()))
            found = measure_shares(broker, str(number), options.share_members, options.share_records)
            if number >= 0:
                results.add(name, found)
            say(f"{name}: " + ", ".join(f"{what} {value:,.3f}" for what, value in found.items()))
        say(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}")
    for name, broker in brokers.items():
        results.add(name, measure_offsets(broker, options.groups))
        say(f"{name}: {options.groups:,} groups")


def main() -> int:
    """Measure and print the table to standard output."""
    parser = argparse.ArgumentParser(description="What groups cost.")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of joining that count (default 3); 0: none at all"
    )
    parser.add_argument("--members", type=int, default=1000, help="members, and partitions (default 1000)")
    parser.add_argument("--groups", type=int, default=10_000, help="groups with offsets (default 10000)")
    parser.add_argument("--seconds", type=float, default=3, help="of heartbeats, each time (default 3)")
    parser.add_argument("--rate", type=int, default=1000, help="paced heartbeats in a second (default 1000)")
    parser.add_argument("--share-members", type=int, default=4, help="members of a share group (default 4)")
    parser.add_argument(
        "--share-records",
        type=int,
        nargs=2,
        default=(100_000, 5_000),
        help="records that each of them accepts, in batches of 100 and alone (default 100000 5000)",
    )
    options = parser.parse_args()
    results = Results(["Apache Kafka", "Barnabas"])
    with tempfile.TemporaryDirectory(prefix="bench-groups-") as folder:
        brokers = make_brokers(Path(folder))
        try:
            for broker in brokers.values():
                broker.settings.update(SETTINGS)
            measure(brokers, results, options)
        finally:
            for broker in brokers.values():
                if broker.alive():
                    broker.kill()
            print(
                f"Medians of {options.rounds} rounds (lowest - highest); {os.cpu_count()} cores, load "
                f"{os.getloadavg()[0]:.1f}, {platform.system()} {platform.release()}, "
                f"Python {platform.python_version()}\n\n{results.table()}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
