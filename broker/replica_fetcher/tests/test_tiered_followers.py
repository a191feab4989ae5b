"""Followers of a tiered partition (KIP-405): they begin behind what is in remote storage, and let their leader say what that is."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from barnabas.broker.tests.replicas import Replicas
from barnabas.storage.errors import WouldWait
from barnabas.storage.log.log import Log
from barnabas.storage.tier.memory_store import Fault, MemoryStore
from barnabas.storage.tier.store_config import open_store
from barnabas.wire.messages.metadata_records import ConfigRecord
from barnabas.wire.record_batch import iterate_whole_headers
from barnabas.wire.records import Record, build_batch, iterate_records

_numbers = itertools.count()
TOPIC = 2  # ConfigResource.Type
PRODUCER = 7001
CONFIGS = {"remote.storage.enable": "true", "local.retention.ms": "1", "file.delete.delay.ms": "0"}


class TieredReplicas(Replicas):
    """Their closed segments are in the store within half a second, and leave the disk as soon as they may."""

    def __init__(self, **fetching: Any) -> None:
        self.url = f"memory://followers-{next(_numbers)}"
        store = open_store({"rsm.config.url": self.url}, lambda: 0)
        assert isinstance(store, MemoryStore)
        self.store = store
        super().__init__(
            fetching={"tier_interval_ms": 200, "backoff_ms": 100, **fetching},
            remote_log_storage_system_enable="true",
            rsm_config_url=self.url,
            remote_log_manager_task_interval_ms="200",
            log_retention_check_interval_ms="200",
            log_initial_task_delay_ms="100",
            log_flush_interval_messages="1",
        )
        self.commit(
            *(
                ConfigRecord(resource_type=TOPIC, resource_name="t", name=name, value=value)
                for name, value in CONFIGS.items()
            )
        )

    def fill(self, leader: int, segments: int, first: int = 0) -> None:
        """Segments of one batch of an idempotent producer each, all tiered but the last, which is empty."""
        partition = self[leader].partition
        for number in range(first, first + segments):
            batch = build_batch(
                [Record(0, self[leader].runtime.time_ms(), None, b"%d" % number)],
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=number,
            )
            partition.append(memoryview(bytearray(batch)))
            self.run(0.1)
            partition.log.roll()
        self.run(3)

    def restart_behind(self, broker_id: int) -> Log:
        self.start(broker_id)
        self.tell(broker_id)
        self.run(3)
        return self[broker_id].log

    def read(self, broker_id: int, offset: int = 0) -> list[str]:
        """The values of all records, as a consumer that waits for the store."""
        found = []
        log = self[broker_id].log
        while offset < log.log_end_offset:
            try:
                result = log.read(offset, 1000)
            except WouldWait as cold:
                cold.prepare()
                continue
            data = b"".join(region.read() for region in result.regions)
            for position, header in iterate_whole_headers(data):
                batch = data[position : position + header.size]
                found += [(record.value or b"").decode() for record in iterate_records(batch, 1 << 20)]
                offset = header.next_offset
        return found


def values(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_a_follower_begins_behind_what_its_leader_has_in_remote_storage_alone() -> None:
    replicas = TieredReplicas()
    replicas.kill(3)
    replicas.elect(1, [1, 2])
    replicas.fill(1, 3)
    replicas.elect(1, [1, 2])  # another leader epoch
    replicas.fill(1, 3, first=3)
    leader = replicas[1].log
    assert (leader.log_start_offset, leader.local_log_start_offset, leader.log_end_offset) == (0, 6, 6)
    log = replicas.restart_behind(3)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 6, 6)
    assert log.high_watermark == 6
    assert log.epochs.entries == leader.epochs.entries
    assert {key: entry.batches[-1] for key, entry in log.producers.active.items()} == {
        PRODUCER: leader.producers.active[PRODUCER].batches[-1]
    }
    assert replicas.read(3) == values(6)
    replicas.fill(1, 1, first=6)
    assert replicas.read(3) == values(7)


def test_a_follower_that_was_away_for_long_restarts_behind_it() -> None:
    replicas = TieredReplicas()
    replicas.fill(1, 2)
    replicas.kill(3)
    replicas.elect(1, [1, 2])
    replicas.fill(1, 4, first=2)
    log = replicas.restart_behind(3)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 6, 6)
    assert replicas.read(3) == values(6)


def test_what_it_had_learnt_survives_a_power_failure() -> None:
    replicas = TieredReplicas()
    replicas.kill(3)
    replicas.elect(1, [1, 2])
    replicas.fill(1, 5)
    before = replicas.restart_behind(3)
    epochs, last = before.epochs.entries, before.producers.active[PRODUCER].batches[-1]
    replicas.kill(3, power_fails=True)
    replicas.kill(1)
    log = replicas.restart_behind(3)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (0, 5, epochs)
    replicas.elect(3)
    assert log.producers.active[PRODUCER].batches[-1] == last
    replicas.fill(3, 1, first=5)
    assert replicas.read(3) == values(6)


def test_the_new_leader_of_rebuilt_replicas_keeps_what_is_tiered() -> None:
    replicas = TieredReplicas()
    replicas.kill(3)
    replicas.elect(1, [1, 2])
    replicas.fill(1, 5)
    replicas.restart_behind(3)
    replicas.kill(1, 2)
    replicas.elect(3)
    replicas.fill(3, 2, first=5)
    assert replicas[3].log.log_start_offset == 0
    assert replicas.read(3) == values(7)


def test_while_the_store_is_away_it_tries_again() -> None:
    replicas = TieredReplicas()
    replicas.kill(3)
    replicas.elect(1, [1, 2])
    replicas.fill(1, 3)
    replicas.store.faults = lambda _verb, _key: Fault.BEFORE
    log = replicas.restart_behind(3)
    assert log.log_end_offset == 0
    replicas.store.faults = lambda _verb, _key: None
    replicas.run(3)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    assert replicas.read(3) == values(3)


def test_followers_remove_what_their_leader_has_tiered() -> None:
    replicas = TieredReplicas()
    replicas.fill(1, 4)
    for broker_id in (2, 3):
        replicas[broker_id].log.roll()
    replicas.fill(1, 1, first=4)
    assert [replicas[broker_id].log.local_log_start_offset for broker_id in (1, 2, 3)] == [5, 5, 5]
    assert replicas.read(2) == values(5)


def test_an_empty_follower_may_begin_at_what_is_not_tiered_yet() -> None:
    """KIP-1023: although the leader has all on its disk."""
    for may_skip, local_start in ((False, 0), (True, 5)):
        replicas = TieredReplicas(may_skip_tiered=partial(bool, may_skip))
        keep = ConfigRecord(resource_type=TOPIC, resource_name="t", name="local.retention.ms", value="-2")
        replicas.commit(keep)
        replicas.kill(3)
        replicas.elect(1, [1, 2])
        replicas.fill(1, 5)
        replicas.produce(1, "5")
        assert replicas[1].log.local_log_start_offset == 0
        log = replicas.restart_behind(3)
        assert (log.log_start_offset, log.local_log_start_offset) == (0, local_start)
        assert replicas.read(3) == values(6)


def test_a_follower_does_not_trust_a_manifest_that_its_leader_has_not_claimed() -> None:
    replicas = TieredReplicas()
    replicas.kill(3)
    replicas.elect(1, [1, 2])
    replicas.fill(1, 3)
    replicas.store.faults = lambda verb, _key: Fault.BEFORE if verb in ("create", "replace") else None
    replicas.elect(1, [1, 2])
    log = replicas.restart_behind(3)
    assert log.log_end_offset == 0
    replicas.store.faults = lambda _verb, _key: None
    replicas.run(3)
    assert log.log_end_offset == 3
    assert replicas.read(3) == values(3)
