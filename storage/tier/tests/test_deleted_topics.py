"""Deleted topics leave the store after an hour, and nothing else does."""

from __future__ import annotations

import pytest

from barnabas.storage.tests.workshop import InlineRuntime
from barnabas.storage.tier import garbage
from barnabas.storage.tier.deleted_topics import DeletedTopics
from barnabas.storage.tier.keys import ClusterKeys, PartitionKeys
from barnabas.storage.tier.memory_store import Fault, MemoryStore

HOUR_S = 3600
DAY_S = 24 * HOUR_S
GONE, KEPT, UNKNOWN = ("g" * 22, "-k_" + "k" * 19, "u" * 22)
KEYS = ClusterKeys("cluster")


class Collector:
    """With two topics in the store, of which the metadata knows one."""

    def __init__(self) -> None:
        self.runtime = InlineRuntime()
        self.store = MemoryStore(self.runtime.time_ms)
        self.known = {GONE, KEPT}
        self.sources: set[str] = set()  # of topics that are restored
        self.collects = True
        self.trusts_clock = True
        self.deleted = self.open()
        for topic_id in (GONE, KEPT):
            self.fill(topic_id)

    def open(self) -> DeletedTopics:
        """As after a restart."""
        return DeletedTopics(
            self.runtime,
            self.store,
            lambda: "cluster",
            lambda topic_id: topic_id in self.known,
            lambda topic_id: topic_id in self.sources,
            lambda: self.collects,
            lambda: self.runtime.time_ms() if self.trusts_clock else None,
        )

    def fill(self, topic_id: str, objects: int = 5) -> None:
        """Objects of two partitions."""
        for partition in (0, 1):
            keys = PartitionKeys("cluster", topic_id, partition)
            self.store.put(keys.manifest, [b""])
            for number in range(objects):
                self.store.put(f"{keys.segments}{number}.log", [b""])

    def delete(self) -> None:
        """As the metadata does it."""
        self.known.discard(GONE)
        self.deleted.deleted(GONE)
        self.runtime.run_until_idle()

    def topics(self) -> set[str]:
        """Those with objects."""
        names = {each.key.split("/")[1] for each in self.store.list("cluster/")}
        return names - {"deleted", "topics"}


def test_a_deleted_topic_goes_after_an_hour() -> None:
    here = Collector()
    here.store.put(KEYS.description(GONE), [b"{}"])
    here.store.put(f"{KEYS.topic(GONE)[:-1]}x/0/manifest", [b""])  # not of the topic
    here.delete()
    here.runtime.advance(HOUR_S - 60)
    assert here.topics() >= {GONE, KEPT}
    here.runtime.advance(20 * 60)
    assert here.topics() == {KEPT, f"{GONE}x"}
    assert here.deleted.removed == 1
    assert [each.key for each in here.store.list(KEYS.descriptions)] == []
    assert [each.key for each in here.store.list(KEYS.tombstones)] == [KEYS.tombstone(GONE)]
    here.runtime.advance(DAY_S + HOUR_S)
    assert list(here.store.list(KEYS.tombstones)) == []


def test_what_comes_after_the_deletion_goes_as_well() -> None:
    here = Collector()
    here.delete()
    here.runtime.advance(2 * HOUR_S)
    here.fill(GONE)  # an upload that hung
    here.runtime.advance(HOUR_S)
    assert here.topics() == {KEPT}


def test_another_broker_goes_on_after_a_restart() -> None:
    here = Collector()
    here.collects = False
    here.delete()
    here.runtime.advance(2 * HOUR_S)
    assert here.topics() == {GONE, KEPT}
    here.deleted.stop()
    here.collects = True
    here.deleted = here.open()
    here.runtime.advance(HOUR_S)
    assert here.topics() == {KEPT}


def test_a_store_that_is_away_does_not_lose_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PAGE_OBJECTS", 3)
    here = Collector()
    here.store.faults = lambda _verb, _key: Fault.BEFORE
    here.delete()
    here.runtime.advance(HOUR_S)
    here.store.faults = lambda verb, key: Fault.AFTER if verb == "create" else None
    here.runtime.advance(120)
    assert [each.key for each in here.store.list(KEYS.tombstones)] == [KEYS.tombstone(GONE)]
    here.store.faults = lambda verb, key: Fault.BEFORE if verb == "delete" and key.endswith("3.log") else None
    here.runtime.advance(2 * HOUR_S)
    assert here.topics() == {GONE, KEPT}
    here.store.faults = lambda _verb, _key: None
    here.runtime.advance(HOUR_S)
    assert here.topics() == {KEPT}


def test_a_topic_that_exists_is_kept_whatever_says_that_it_is_deleted() -> None:
    here = Collector()
    here.deleted.deleted(KEPT)
    here.runtime.advance(2 * DAY_S)
    assert here.topics() == {GONE, KEPT}


def test_what_a_topic_is_restored_from_is_kept_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Copying may take long."""
    here = Collector()
    here.sources = {GONE}
    here.delete()
    here.runtime.advance(2 * HOUR_S)
    assert here.topics() == {GONE, KEPT}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    here.sources = set()
    here.runtime.advance(HOUR_S)
    assert here.topics() == {KEPT}


def test_nothing_is_removed_without_a_tombstone() -> None:
    """An image may be old, or empty."""
    here = Collector()
    here.fill(UNKNOWN)
    here.known = set()
    here.runtime.advance(2 * DAY_S)
    assert here.topics() == {GONE, KEPT, UNKNOWN}
    assert here.deleted.unknown == sorted([GONE, KEPT, UNKNOWN])
    here.known = {GONE, KEPT}
    here.runtime.advance(DAY_S + HOUR_S)
    assert here.deleted.unknown == [UNKNOWN]


def test_nothing_is_removed_by_a_clock_that_may_be_wrong() -> None:
    here = Collector()
    here.delete()
    here.trusts_clock = False
    here.runtime.advance(2 * DAY_S)
    assert here.topics() == {GONE, KEPT}


def test_odd_keys_are_no_topics() -> None:
    here = Collector()
    odd = {
        "cluster/x",
        "cluster/deleted/..x",
        "cluster/deleted/a/b",
        f"cluster/deleted/{'a' * 23}",
        "cluster/zz/0/manifest",
    }
    odd |= {f"other/{UNKNOWN}/0/manifest", f"cluster/{UNKNOWN[:-1]}/0/manifest"}
    for key in odd:
        here.store.put(key, [b""])
    here.runtime.advance(2 * DAY_S)
    assert here.deleted.unknown == []
    assert odd <= {each.key for each in here.store.list("")}
