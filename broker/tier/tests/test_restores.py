"""A topic that begins with what another has in remote storage (barnabas.remote.restore)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.virtual_cluster import VirtualCluster
from barnabas.controller.config.topic_configs import RESTORE, RestoreSource
from barnabas.storage.errors import WouldWait
from barnabas.storage.log.log import Log
from barnabas.storage.tests.workshop import verified
from barnabas.storage.tier.keys import ClusterKeys, PartitionKeys
from barnabas.storage.tier.manifest import Manifest
from barnabas.storage.tier.manifest_writer import read_manifest
from barnabas.storage.tier.memory_store import Fault, MemoryStore
from barnabas.storage.tier.store_config import open_store
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.record_batch import iterate_whole_headers
from barnabas.wire.records import Record, build_batch, iterate_records
from barnabas.wire.uuids import uuid_to_string

CREATE_TOPICS = 19
DELETE_TOPICS = 20
PRODUCER = 7001
CONFIGS = {"remote.storage.enable": "true", "local.retention.ms": "1", "file.delete.delay.ms": "0"}
_numbers = itertools.count()


class RestoringCluster(VirtualCluster):
    """Three nodes; closed segments are in the store within a second, and leave the disk."""

    def __init__(self) -> None:
        url = f"memory://restores-{next(_numbers)}"
        store = open_store({"rsm.config.url": url}, lambda: 0)
        assert isinstance(store, MemoryStore)
        self.store = store
        super().__init__(
            "remote.log.storage.system.enable=true",
            f"rsm.config.url={url}",
            "remote.log.manager.task.interval.ms=200",
            "log.retention.check.interval.ms=200",
            "log.initial.task.delay.ms=100",
        )
        self.run_until(lambda: all(said == ["ready"] for said in self.said.values()))

    @property
    def keys(self) -> ClusterKeys:
        return ClusterKeys(self.nodes[1].cluster_id)

    def create(self, name: str, replicas: list[int], **configs: str) -> Any:
        """The topic of the response. `configs`: besides CONFIGS, with underscores for dots."""
        given = {**CONFIGS, **{each.replace("_", "."): text for each, text in configs.items()}}
        topic = CreatableTopic(
            name,
            -1,
            -1,
            assignments=[CreatableReplicaAssignment(0, replicas)],
            configs=[CreatableTopicConfig(*each) for each in given.items()],
        )
        request = CreateTopicsRequest([topic], 10_000)
        (created,) = self.ask(self.active(), CREATE_TOPICS, 7, request).topics
        return created

    def partition(self, name: str, node_id: int) -> Partition:
        found = self.nodes[node_id].services.partitions.get(name, 0)
        assert found is not None
        return found

    def leader(self, name: str, node_id: int) -> Partition:
        """That node's partition, once it leads."""
        partitions = self.nodes[node_id].services.partitions

        def leads() -> bool:
            found = partitions.get(name, 0)
            return found is not None and found.is_leader

        self.run_until(leads)
        return self.partition(name, node_id)

    def fill(self, partition: Partition, segments: int, first: int = 0) -> None:
        """Segments of one record each of an idempotent producer, all tiered but the last, which is empty."""
        for number in range(first, first + segments):
            now_ms = self.runtimes[1].time_ms()
            batch = build_batch(
                [Record(0, now_ms, None, b"%d" % number)],
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=number,
            )
            partition.append(memoryview(bytearray(batch)))
            self.run_until(lambda: partition.high_watermark == partition.log.log_end_offset)
            partition.log.roll()
        end = partition.log.log_end_offset
        self.run_until(lambda: partition.log.local_log_start_offset == end)

    def source(self, topic_id: str) -> RestoreSource:
        manifest = self.manifest(topic_id)
        assert manifest is not None
        return RestoreSource(self.keys.cluster_id, topic_id, manifest.leader_epoch + 1)

    def manifest(self, topic_id: str) -> Manifest | None:
        found = read_manifest(self.store, PartitionKeys(self.keys.cluster_id, topic_id, 0))
        return None if found is None else found[0]

    def values(self, partition: Partition) -> list[int]:
        """Of all records, as a consumer that waits for the store."""
        found: list[int] = []
        log, offset = partition.log, partition.log.log_start_offset
        while offset < log.log_end_offset:
            try:
                result = log.read(offset, 1000)
            except WouldWait as cold:
                cold.prepare()
                continue
            data = b"".join(region.read() for region in result.regions)
            for position, header in iterate_whole_headers(data):
                batch = data[position : position + header.size]
                found += [int(record.value or b"") for record in iterate_records(batch, 1 << 20)]
                offset = header.next_offset
        return found


def filled() -> tuple[RestoringCluster, str]:
    """Five records of which all are in the store, and the topic's id."""
    cluster = RestoringCluster()
    topic_id = uuid_to_string(bytes(cluster.create("t", [1]).topic_id))
    cluster.fill(cluster.leader("t", 1), 5)
    return cluster, topic_id


def has_end(log: Log, offset: int) -> bool:
    return log.log_end_offset == offset


def restored(cluster: RestoringCluster, source: object, replicas: list[int]) -> Any:
    return cluster.create("r", replicas, barnabas_remote_restore=str(source))


def test_a_topic_begins_with_what_another_has_in_the_store() -> None:
    cluster, topic_id = filled()
    source = cluster.source(topic_id)
    created = restored(cluster, source, [2, 3, 1])
    partition = cluster.leader("r", 2)
    log, of_the_other = partition.log, cluster.partition("t", 1).log
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 5, 5)
    assert partition.leader_epoch >= source.leader_epoch
    assert cluster.values(partition) == list(range(5))
    assert log.producers.active[PRODUCER].batches[-1] == of_the_other.producers.active[PRODUCER].batches[-1]
    # It goes on, its followers have it all, and the other topic is as it was.
    cluster.fill(partition, 2, first=5)
    for node_id in (1, 3):
        follower = cluster.partition("r", node_id)
        cluster.run_until(partial(has_end, follower.log, 7))
        assert cluster.values(follower) == list(range(7))
        assert follower.log.epochs.entries == log.epochs.entries
    own = cluster.manifest(uuid_to_string(bytes(created.topic_id)))
    assert own is not None
    assert len(own.entries) == 7
    assert cluster.values(cluster.partition("t", 1)) == list(range(5))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["copy", "create", "list", "get"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_store_that_fails_delays_it(verb: str, fault: Fault) -> None:
    cluster, topic_id = filled()
    source = cluster.source(topic_id)
    failures = itertools.count()
    cluster.store.faults = lambda called, key: (
        fault if called == verb and topic_id not in key.partition("/s/")[0] and next(failures) < 7 else None
    )
    restored(cluster, source, [2])
    partitions = cluster.nodes[2].services.partitions
    cluster.run_until(lambda: partitions.get("r", 0))
    partition = cluster.partition("r", 2)
    assert not partition.is_leader  # nothing is appended where records are missing
    cluster.leader("r", 2)
    assert cluster.values(partition) == list(range(5))
    cluster.fill(partition, 1, first=5)
    assert cluster.values(partition) == list(range(6))


def test_another_leader_goes_on_where_the_first_was_killed() -> None:
    cluster, topic_id = filled()
    copies = itertools.count()
    cluster.store.faults = lambda verb, _: Fault.BEFORE if verb == "copy" and next(copies) > 3 else None
    restored(cluster, cluster.source(topic_id), [2, 3])
    cluster.run_until(lambda: next(copies) > 8)
    cluster.runtimes[2].end()
    cluster.store.faults = lambda *_: None
    assert cluster.values(cluster.leader("r", 3)) == list(range(5))


def test_a_topic_of_which_nothing_was_tiered_begins_empty() -> None:
    cluster = RestoringCluster()
    topic_id = uuid_to_string(bytes(cluster.create("t", [1]).topic_id))
    cluster.run_until(lambda: list(cluster.store.list(cluster.keys.descriptions)))
    restored(cluster, RestoreSource(cluster.keys.cluster_id, topic_id, 3), [1])
    partition = cluster.leader("r", 1)
    assert partition.log.log_end_offset == 0
    cluster.fill(partition, 1)
    assert cluster.values(partition) == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cluster, topic_id: RestoreSource(cluster.keys.cluster_id, "A" * 22, 3),
        lambda cluster, topic_id: RestoreSource(cluster.keys.cluster_id, topic_id, 0),
    ],
    ids=["unknown topic", "epoch too low"],
)
def test_it_has_no_leader_where_that_would_lose_records(
    wrong: Callable[[RestoringCluster, str], RestoreSource], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, topic_id = filled()
    restored(cluster, wrong(cluster, topic_id), [1])
    cluster.run_until(lambda: "can't be restored" in caplog.text)
    assert not cluster.partition("r", 1).is_leader


def test_what_the_config_may_be() -> None:
    cluster = RestoringCluster()
    for text in ("x", "c/short/1", "c/" + "A" * 22, "../" + "A" * 22 + "/1", "c/" + "A" * 22 + "/-1"):
        assert restored(cluster, text, [1]).error_code == ErrorCode.INVALID_CONFIG
    source = RestoreSource("c", "A" * 22, 1)
    created = cluster.create("r", [1], remote_storage_enable="false", barnabas_remote_restore=str(source))
    assert (created.error_code, RESTORE in created.error_message) == (ErrorCode.INVALID_CONFIG, True)


def test_a_transaction_whose_end_is_lost_is_aborted() -> None:
    """Its marker lay behind what is in the store. Nothing would be read or tiered behind it."""
    cluster = RestoringCluster()
    topic_id = uuid_to_string(bytes(cluster.create("t", [1]).topic_id))
    partition = cluster.leader("t", 1)
    cluster.fill(partition, 5)
    log = partition.log
    batch = build_batch(
        [Record(0, cluster.runtimes[1].time_ms(), None, b"5")],
        producer_id=99,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append_as_leader(batch, partition.leader_epoch, verification=verified(log, batch))
    log.roll()
    marker = log.marker_to_append(99, 0, commit=True, coordinator_epoch=4, transaction_version=1)
    log.append_as_leader(marker, partition.leader_epoch, from_client=False)
    cluster.run_until(lambda: log.local_log_start_offset == 6)
    restored(cluster, cluster.source(topic_id), [2, 3, 1])
    leader = cluster.leader("r", 2)
    end = leader.log.log_end_offset
    cluster.run_until(lambda: leader.last_stable_offset == end)
    assert [each.producer_id for each in leader.log.aborted_between(0, end, None, wait=True)] == [99]
    follower = cluster.partition("r", 3)
    cluster.run_until(lambda: follower.log.last_stable_offset == end)
    cluster.fill(leader, 2, first=5)


def test_a_deleted_topic_stays_until_what_is_restored_from_it_is_deleted() -> None:
    """Copying may take longer than the hour after which it would go."""
    cluster, topic_id = filled()
    source = cluster.source(topic_id)
    cluster.store.faults = lambda verb, _key: Fault.BEFORE if verb == "copy" else None
    delete = DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)
    cluster.ask(cluster.active(), DELETE_TOPICS, 5, delete)
    restored(cluster, source, [2])
    until = cluster.runtimes[1].monotonic() + 2000
    cluster.run_until(lambda: cluster.runtimes[1].monotonic() > until, seconds=2100)
    assert list(cluster.store.list(cluster.keys.topic(topic_id)))
    cluster.store.faults = lambda _verb, _key: None
    assert cluster.values(cluster.leader("r", 2)) == list(range(5))
    delete = DeleteTopicsRequest(topic_names=["r"], timeout_ms=10_000)
    cluster.ask(cluster.active(), DELETE_TOPICS, 5, delete)
    cluster.run_until(lambda: not list(cluster.store.list(cluster.keys.topic(topic_id))), seconds=2100)


@pytest.mark.parametrize("failed", ["", ".aux"])
def test_a_restore_that_is_called_off_when_all_is_copied_is_completed(failed: str) -> None:
    """The topic's manifest names the segments by then: an empty log beside it could never be tiered. `failed`: what is read next."""
    cluster, topic_id = filled()
    source = cluster.source(topic_id)
    calls: list[str] = []

    def faults(verb: str, key: str) -> Fault | None:
        if topic_id in key:
            return None
        if verb == "create" and key.endswith("manifest"):
            log = cluster.partition("r", 2).log
            log.update_config(msgspec.structs.replace(log.config, remote_restore=""))
            calls.append(verb)
        elif verb == "get" and calls == ["create"] and failed and key.endswith(failed):
            calls.append(verb)
            return Fault.BEFORE
        return None

    cluster.store.faults = faults
    restored(cluster, source, [2])
    leader = cluster.leader("r", 2)
    assert len(calls) == 1 + bool(failed)
    assert not leader.log.config.remote_restore
    assert cluster.values(leader) == list(range(5))
    cluster.fill(leader, 2, first=5)


@pytest.mark.parametrize("first_deleted", [0, 1])
def test_a_live_transaction_outlives_a_change_of_leaders(first_deleted: int) -> None:
    """Of a topic that was restored long ago, also where its first record has been deleted."""
    cluster, topic_id = filled()
    restored(cluster, cluster.source(topic_id), [2, 3])
    leader, follower = cluster.leader("r", 2), cluster.partition("r", 3)
    log = leader.log
    base, now_ms = log.log_end_offset, cluster.runtimes[2].time_ms()
    batch = build_batch(
        [Record(0, now_ms, None, b"5")],
        producer_id=99,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append_as_leader(batch, leader.leader_epoch, verification=verified(log, batch))
    cluster.run_until(lambda: follower.log.log_end_offset == base + 1)
    log.roll()
    follower.log.roll()
    leader.append(memoryview(bytearray(build_batch([Record(0, now_ms, None, b"6")]))))
    cluster.run_until(lambda: leader.high_watermark == follower.log.log_end_offset == base + 2)
    log.increment_log_start_offset(base + first_deleted)
    cluster.run_until(lambda: follower.log.log_start_offset == base + first_deleted)
    cluster.runtimes[2].end()
    led = cluster.leader("r", 3).log
    assert led.log_end_offset == base + 2
    assert led.producers.state is not None
    assert led.producers.state.ongoing == {base: 99}
