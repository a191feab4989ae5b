"""The object store of a simulated cluster whose topics are tiered (KIP-405), and what goes wrong in it.

Segments are closed after half a second and leave the disk as soon as they are in the store, so that most reads of old records, and
every leader's and follower's start, go through it. While faults happen, calls fail before or after their effect or halfway, and the
store is away for seconds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import SIZE_MAX, decode
from barnabas.storage.tier.memory_store import Fault, MemoryStore
from barnabas.storage.tier.store_config import open_store
from compat_tests.simulation.history import History, Violation

_numbers = itertools.count()
WITH_TIER = (8, 9)  # of ten seeds
TOPICS = {"remote.storage.enable": "true", "segment.ms": "500", "local.retention.ms": "1"}


class Tier:
    """Of one seed; `is_on` says whether its topics are tiered."""

    def __init__(
        self, seed: int, history: History, now: Callable[[], float], goes_on: Callable[[], bool]
    ) -> None:
        """`now()`: the virtual time in s. `goes_on()`: whether faults may still happen."""
        self._random = random.Random(f"tier {seed}")
        self._history = history
        self._now = now
        self._goes_on = goes_on
        self._away_until = 0.0
        self._rate = self._random.choice((0.0, 0.01, 0.1))
        self.is_on = seed % 10 in WITH_TIER
        self.properties: dict[str, str] = {}
        if self.is_on:
            # A name of its own, as a name is one store for the life of the process.
            url = f"memory://simulation-{next(_numbers)}"
            self.properties = {
                "remote.log.storage.system.enable": "true",
                "rsm.config.url": url,
                "remote.log.manager.task.interval.ms": "300",
                "remote.fetch.max.wait.ms": "100",
                "log.retention.check.interval.ms": "400",
                "log.initial.task.delay.ms": "100",
                "follower.fetch.last.tiered.offset.enable": str(seed % 4 == 0).lower(),
            }
            store = open_store({"rsm.config.url": url}, lambda: int(now() * 1000))
            assert isinstance(store, MemoryStore)
            store.faults = self._fault
            self._store = store

    @property
    def topics(self) -> dict[str, str]:
        """The configs of the topics that are tiered."""
        return dict(TOPICS) if self.is_on else {}

    def check(self) -> None:
        """What the manifests name is in the store."""
        if not self.is_on:
            return
        sizes = {found.key: found.size for found in self._store.list("")}
        for key in sizes:
            if not key.endswith("/manifest"):
                continue
            cluster_id, topic_id, partition, _ = key.split("/")
            keys = PartitionKeys(cluster_id, topic_id, int(partition))
            manifest = decode(self._store.get(key, SIZE_MAX)[0], topic_id, keys.partition)
            self._history.count("tier: segments", len(manifest.present))
            for entry in manifest.present:
                found = sizes.get(keys.log(entry.name)), sizes.get(keys.aux(entry.name))
                if found != (entry.log_size, entry.aux_size):
                    raise Violation(f"the manifest of {key} names {entry.name}, and the store has {found}")

    def _fault(self, verb: str, _key: str) -> Fault | None:
        self._history.count(f"tier: {verb}")
        if not self._goes_on():
            return None
        if self._now() < self._away_until:
            return Fault.BEFORE
        if self._random.random() >= self._rate:
            return None
        self._history.count("tier: faults")
        if self._random.random() < 0.1:
            self._away_until = self._now() + self._random.uniform(0.5, 5)
        return self._random.choice(list(Fault))
