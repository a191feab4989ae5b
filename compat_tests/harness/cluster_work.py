"""Load on a cluster during faults, and the check of its result.

`Work(cluster)` writes with several clients to topics with three replicas, commits a group's offsets one by one, and
reads with a group of two members. `verify()` ends it and checks the guarantees: every acknowledged record is in the log,
idempotent producers' records once and in order, and none that was not sent; the group's offsets are the acknowledged
ones and its members have read everything; all replicas hold the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from compat_tests.harness.asking import ask_for_topic
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_files import compare_replicas
from compat_tests.harness.committed import committed
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.loads import PARTITIONS, Load, Make, Reader, group_commits, kafka_python, librdkafka
from compat_tests.harness.members import AioKafkaMember, ConfluentMember, Member

QUIET = {"log_level": 0}
CLOSE_S = 10.0  # for all clients of a test that has failed


@dataclass(frozen=True)
class Writer:
    """A client that writes, and whether its records must be in the log once and in order."""

    make: Make
    once: bool


WRITERS: Mapping[str, Writer] = {
    "librdkafka-idempotent": Writer(librdkafka(idempotent=True, codec="lz4"), True),
    "librdkafka-plain": Writer(librdkafka(idempotent=False), False),
    "kafka-python-idempotent": Writer(kafka_python, True),
}


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = 1,
    replicas: int = 3,
    configs: Mapping[str, str] | None = None,
    assignment: list[list[int]] | None = None,
) -> str:
    """Create a topic and wait until every broker knows it and every replica is in sync; returns `name`.

    By default retention deletes nothing by age, because the samples' timestamps are old."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    where = {"replica_assignment": assignment} if assignment else {"replication_factor": replicas}
    count = len(assignment) if assignment else partitions
    ask_for_topic(admin, NewTopic(name, count, config={"retention.ms": "-1", **(configs or {})}, **where))

    def whole() -> bool:
        views = [cluster.metadata(node).partitions for node in cluster.live]
        return all(
            (name, number) in view and view[name, number].whole for view in views for number in range(count)
        )

    eventually(whole)
    return name


class Work:
    """Clients that run from construction on; `prefix` separates several `Work`s on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        writers: Mapping[str, Writer] = WRITERS,
        prefix: str = "",
        *,
        members: bool = True,
    ) -> None:
        self.cluster = cluster
        self.group = f"{prefix}group"
        self.writers = {f"{prefix}{name}": writer for name, writer in writers.items()}
        for name in self.writers:
            create_topic(cluster, name, PARTITIONS)
        self.loads = {name: Load(cluster, name, writer.make) for name, writer in self.writers.items()}
        first = next(iter(self.writers))
        self.commits = Load(cluster, first, group_commits(f"{self.group}-commits"))
        self.members: list[Member] = []
        if members:
            for library in (AioKafkaMember, ConfluentMember):
                self.members.append(library(cluster.bootstrap, f"{self.group}-{library.library}", [first]))
        cluster.on_close.append(self._abandon)

    def _abandon(self) -> None:
        """Close all clients: those of a test that has failed would disturb the tests behind it. They close while the cluster
        still runs; where it does not answer, those that wait for it end after it."""
        clients: list[Load | Member] = [*self.loads.values(), self.commits, *self.members]
        for client in clients:
            client.abandon()
        deadline = time.monotonic() + CLOSE_S
        for client in clients:
            client.join(max(0.0, deadline - time.monotonic()))

    def await_progress(self, count: int = 20, timeout: float = 60) -> float:
        """Wait until every writer has `count` more acknowledged records; return the seconds that took."""
        all_loads = [*self.loads.values(), self.commits]
        before = [len(load.acknowledged) for load in all_loads]
        started = time.monotonic()

        def all_did() -> bool:
            for member in self.members:
                if member.failure is not None:
                    raise member.failure
            return all(
                len(load.acknowledged) > count + was for load, was in zip(all_loads, before, strict=True)
            )

        try:
            eventually(all_did, timeout)
        except AssertionError:
            stuck = [
                (load.topic, len(load.acknowledged) - was, load.failed[:2])
                for load, was in zip(all_loads, before, strict=True)
            ]
            logs = "\n".join(
                f"--- {id_}: {one.log_text()[-2500:]}" for id_, one in self.cluster.nodes.items()
            )
            raise AssertionError(
                f"no progress within {timeout} s: {stuck}\n{self.cluster.metadata()}\n{logs}"
            ) from None
        return time.monotonic() - started

    def verify(self) -> int:
        """End all clients and check everything; the number of acknowledged records."""
        for load in (*self.loads.values(), self.commits):
            load.finish()
        self.cluster.wait_until_whole()
        total = 0
        for name, load in self.loads.items():
            reader = Reader(self.cluster, name)
            reader.catch_up()
            check(load, reader.values, once=self.writers[name].once)
            assert compare_replicas(self.cluster, name) > 0
            total += len(load.acknowledged)
        self._check_commits()
        self._check_members()
        return total

    def _check_members(self) -> None:
        wanted = {b"%d" % number for number in self.loads[next(iter(self.loads))].acknowledged}
        for member in self.members:
            try:
                member.await_values(lambda values: wanted <= set(values))
            except AssertionError as error:
                missing = sorted(map(int, wanted - set(member.values)))
                raise AssertionError(
                    f"{error}; {len(missing)} of {len(wanted)} missing, {missing[:5]} to {missing[-5:]}"
                ) from None
            member.leave()

    def _check_commits(self) -> None:
        """Each partition's committed offset is the last one that was acknowledged, or one sent since."""
        group = f"{self.group}-commits"
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, **QUIET})
        found = {one.partition: one.offset for one in committed(admin, group)}
        for offset in self.commits.acknowledged[-PARTITIONS:]:
            assert found.get(offset % PARTITIONS, -1) >= offset, f"committed {offset}, found {found}"


def check(load: Load, partitions: list[list[int]], *, once: bool) -> None:
    """Compare the records of a topic, by partition, with the answers that its writer got."""
    values = [value for partition in partitions for value in partition]
    lost = set(load.acknowledged) - set(values)
    assert not lost, f"{load.topic}: {len(lost)} acknowledged records lost, the first {min(lost)}"
    invented = set(values) - set(range(load.sent))
    assert not invented, f"{load.topic}: never sent: {sorted(invented)[:3]}"
    if not once:
        return
    for number, partition in enumerate(partitions):
        assert len(partition) == len(set(partition)), f"{load.topic}-{number}: duplicates"
        assert partition == sorted(partition), f"{load.topic}-{number}: out of order"
    assert not load.failed, f"{load.topic}: {len(load.failed)} failed, {load.failed[:3]}"
