"""Removes deleted topics from the object store, also those whose leader was down when they were deleted.

Each broker that applies the committed removal of a tiered topic writes an empty object, `<cluster id>/deleted/<topic id>` (a
tombstone); the first one counts. When it is an hour old, so that its uploads have ended, one broker deletes
everything of the topic, and the tombstone a day later, when nothing has come since. Ids of topics are not used again.

Nothing is deleted without a tombstone, as a broker's metadata may be old or empty. Topics in the store that neither the metadata nor
a tombstone knows are counted and named only. A topic that the metadata knows is kept, whatever tombstone there is, and so is one that
another was restored from, for as long as that exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from barnabas.runtime.backoff import Backoff
from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Periodic, StepQueue, Steps
from barnabas.storage.tier.garbage import next_folder, remove_page, tombstones, write_tombstone
from barnabas.storage.tier.keys import ClusterKeys, is_topic_id
from barnabas.storage.tier.object_store import ObjectInfo, ObjectStore

logger = logging.getLogger("barnabas.tier")

GRACE_MS: Final = 60 * 60 * 1000  # from the tombstone to the deletion
TOMBSTONE_AGE_MS: Final = 25 * 60 * 60 * 1000  # after which it goes, where nothing is left of the topic
INTERVAL_S: Final = 10 * 60.0
REPORT_INTERVAL_S: Final = 24 * 60 * 60.0
TOPICS_MAX: Final = 100_000  # that a report looks at
RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 60.0
_NAMED: Final = 10  # topics in a line of the log


class DeletedTopics:
    """See the module. All but the work that its steps yield runs on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        store: ObjectStore,
        cluster_id: Callable[[], str],
        exists: Callable[[str], bool],
        is_source: Callable[[str], bool],
        collects: Callable[[], bool],
        deletion_time_ms: Callable[[], int | None],
    ) -> None:
        """`exists(topic_id)`: whether the metadata has this topic. `is_source(topic_id)`: whether it has one restored from it. `collects()`: whether this is the broker that deletes; several do no
        harm. `deletion_time_ms()`: the time by which to delete; None while nothing may be deleted by its age."""
        self.unknown: list[str] = []  # ids of topics in the store that were found in the last report
        self.removed = 0  # topics
        self._runtime = runtime
        self._store = store
        self._cluster_id = cluster_id
        self._exists = exists
        self._is_source = is_source
        self._collects = collects
        self._deletion_time_ms = deletion_time_ms
        self._report_at = 0.0
        self._is_stopped = False
        self._queue = StepQueue(runtime, remote=True, background=True)
        self._periodic = Periodic(runtime, INTERVAL_S, INTERVAL_S, self.run_pass)

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True
        self._periodic.stop()

    def deleted(self, topic_id: str) -> None:
        """The removal of this tiered topic is committed: write the tombstone, however often the store fails."""
        self._write(topic_id, Backoff(self._runtime, RETRY_FIRST_S, RETRY_LONGEST_S))

    def _write(self, topic_id: str, backoff: Backoff) -> None:
        if self._is_stopped:
            return
        key = ClusterKeys(self._cluster_id()).tombstone(topic_id)

        def written(_result: object, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("the deleted topic %s is not noted in remote storage yet: %s", topic_id, error)
                self._runtime.call_later(backoff.next_s(), partial(self._write, topic_id, backoff))

        self._runtime.run_in_thread(
            partial(write_tombstone, self._store, key), written, remote=True, background=True
        )

    def run_pass(self, done: Callable[[], object]) -> None:
        """Delete what is due; `done()` afterwards. It is made again every INTERVAL_S."""

        def passed(_result: object, error: BaseException | None) -> None:
            if error is not None:
                expected = isinstance(error, OSError)
                logger.warning(
                    "deleted topics are not removed from remote storage, which is tried again: %s",
                    error,
                    exc_info=None if expected else error,
                )
            done()

        if self._is_stopped or not self._collects():
            self.unknown = []
            done()
            return
        self._queue.add(self._steps(), passed)

    def _steps(self) -> Steps[None]:
        keys = ClusterKeys(self._cluster_id())
        found: list[ObjectInfo] = yield partial(tombstones, self._store, keys.tombstones)
        now_ms = self._deletion_time_ms()
        noted = {}
        for each in found:
            topic_id = each.key.removeprefix(keys.tombstones)
            if is_topic_id(topic_id):
                noted[topic_id] = each
        for topic_id, tombstone in noted.items():
            if now_ms is not None and tombstone.modified_ms < now_ms - GRACE_MS:
                yield from self._remove(
                    keys, topic_id, is_old=tombstone.modified_ms < now_ms - TOMBSTONE_AGE_MS
                )
        if self._runtime.monotonic() >= self._report_at:
            yield from self._report(keys, set(noted))
            self._report_at = self._runtime.monotonic() + REPORT_INTERVAL_S

    def _remove(self, keys: ClusterKeys, topic_id: str, *, is_old: bool) -> Steps[None]:
        """`is_old`: the tombstone may go as well."""
        removed = 0
        after: str | None = ""
        while after is not None:
            if self._is_stopped:
                return
            if self._is_source(topic_id):
                return
            if self._exists(topic_id):
                logger.error(
                    "%s says that a topic is deleted, and it exists: it is kept", keys.tombstone(topic_id)
                )
                return
            count, after = yield partial(remove_page, self._store, keys.topic(topic_id), after)
            removed += count
        if removed:
            self.removed += 1
            logger.info("removed the deleted topic %s from remote storage, %d objects", topic_id, removed)
        yield partial(self._store.delete, [keys.description(topic_id)])
        if is_old and not removed:
            yield partial(self._store.delete, [keys.tombstone(topic_id)])

    def _report(self, keys: ClusterKeys, noted: set[str]) -> Steps[None]:
        unknown = []
        after = ""
        for _ in range(TOPICS_MAX):
            found: tuple[str, str] | None = yield partial(next_folder, self._store, keys.prefix, after)
            if found is None or self._is_stopped:
                break
            topic_id, after = found
            if is_topic_id(topic_id) and topic_id not in noted and not self._exists(topic_id):
                unknown.append(topic_id)
        self.unknown = unknown
        if unknown:
            logger.warning(
                "%d topics in remote storage are not in the metadata, and were not deleted here: %s. `barnabas tier remove-unknown` "
                "removes them",
                len(unknown),
                ", ".join(unknown[:_NAMED]),
            )
