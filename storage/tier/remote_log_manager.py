"""All tiered partitions of a broker: which are led here, and a pass over each at intervals.

A pass that fails is made again after a pause of its own, which doubles up to RETRY_LONGEST_S; other partitions go on. At most
`copies_at_once` work at a time, and their threads are those of remote work, so a store that is slow or away holds up nothing but
the tier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from barnabas.runtime.backoff import Backoff
from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Done, Periodic, StepQueue, Steps, in_slices
from barnabas.storage.disk.disk import Disk
from barnabas.storage.log.log import Log
from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import Manifest
from barnabas.storage.tier.manifest_writer import LeaderDeposed, read_manifest
from barnabas.storage.tier.object_store import ObjectStore
from barnabas.storage.tier.remote_cache import RemoteCache
from barnabas.storage.tier.remote_log import Quota, RemoteLog, TierStats, Unlimited
from barnabas.storage.tier.restore import Restore, Restored
from barnabas.storage.tier.tiered_partition import NONCE_BYTES, LogLost, TieredPartition
from barnabas.storage.wall_clock import WallClock
from barnabas.wire.uuids import uuid_to_string

logger = logging.getLogger("barnabas.tier")

FIRST_PASS_S: Final = (
    1.0  # after the start: a claimed manifest says where a log that was not stopped cleanly begins
)
CLAIM_S: Final = 0.5  # after a partition has become led here: the first pass over it
RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 30.0


class _Led(msgspec.Struct, eq=False):
    """A partition that is led here. `not_before`: on the monotonic clock, after a failure."""

    partition: TieredPartition
    backoff: Backoff
    is_busy: bool = False
    is_deleted: bool = False  # to be removed from the store, once its pass has ended
    not_before: float = 0.0


class RemoteLogManager:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        disk: Disk,
        store: ObjectStore,
        cache: RemoteCache,
        wall_clock: WallClock,
        cluster_id: Callable[[], str],
        check_store: Callable[[], object],
        *,
        interval_ms: int,
        copies_at_once: int,
        copy_quota: Quota | None = None,
        fetch_quota: Quota | None = None,
    ) -> None:
        """`check_store()`: in a thread, before the first pass; StoreRefused where the store must not be used."""
        self.stats = TierStats()
        self.cache = cache
        self._runtime = runtime
        self._disk = disk
        self._store = store
        self._wall_clock = wall_clock
        self._cluster_id = cluster_id
        self._check_store = check_store
        self._copy_quota = copy_quota or Unlimited()
        self._fetch_quota = fetch_quota or Unlimited()
        self._is_checked = False
        self._led: dict[Log, _Led] = {}
        self._ending: dict[
            PartitionKeys, _Led
        ] = {}  # being removed from the store: nothing is copied meanwhile
        self._is_stopped = False
        self._is_pass_due = False  # soon, because partitions have become led here
        self._queue = StepQueue(runtime, copies_at_once, remote=True, background=True)
        self._restores = StepQueue(runtime, copies_at_once, remote=True, background=True)
        self._periodic = Periodic(runtime, FIRST_PASS_S, interval_ms / 1000, self.run_pass)

    def stop(self) -> None:
        """Begin nothing more. What threads do is without effect on the logs."""
        self._periodic.stop()
        self._is_stopped = True
        for led in self._led.values():
            led.partition.is_ended = True
        self._led.clear()

    def lead(self, log: Log, leader_epoch: int) -> None:
        """This broker leads the log's partition in this epoch, and the topic is tiered."""
        led = self._led.get(log)
        if led is not None and led.partition.leader_epoch == leader_epoch:
            return
        self.follow(log, leader_epoch)
        remote = log.remote
        assert isinstance(remote, RemoteLog)
        partition = TieredPartition(
            self._runtime,
            self._disk,
            self._store,
            self.cache,
            self.stats,
            log,
            remote.keys,
            remote,
            leader_epoch,
            self._wall_clock.deletion_time_ms,
            self._copy_quota,
        )
        self._led[log] = _Led(partition, Backoff(self._runtime, RETRY_FIRST_S, RETRY_LONGEST_S))
        self._claim_soon()

    def _claim_soon(self) -> None:
        """Followers can begin behind what is tiered once their leader has claimed its manifest."""
        if not self._is_pass_due:
            self._is_pass_due = True
            self._runtime.call_later(CLAIM_S, self._claim_all)

    def _claim_all(self) -> None:
        self._is_pass_due = False
        if not self._is_stopped:
            self.run_pass(lambda: None)

    def restore(
        self,
        log: Log,
        cluster_id: str,
        topic_id: str,
        leader_epoch: int,
        has_ended: Callable[[], bool],
        is_called_off: Callable[[], bool],
        done: Done[Restored],
    ) -> None:
        """What the log, which is empty, begins with when it takes what that topic has in the store; see Restore."""
        remote = log.remote
        assert isinstance(remote, RemoteLog)
        restore = Restore(
            self._store,
            self.cache,
            PartitionKeys(cluster_id, topic_id, log.partition),
            remote.keys,
            leader_epoch,
            self._runtime.random_bytes(NONCE_BYTES).hex(),
            has_ended,
            is_called_off,
        )

        def steps() -> Steps[Restored]:
            if not self._is_checked:
                yield self._check_store
                self._is_checked = True
            return (yield from restore.steps())

        self._restores.add(steps(), done)

    def follow(self, log: Log, leader_epoch: int) -> None:
        """The topic is tiered, and another broker leads the partition in this epoch, or none."""
        self._end(log)
        if log.remote is None:
            keys = PartitionKeys(self._cluster_id(), uuid_to_string(log.topic_id), log.partition)
            log.begin_tiering(
                RemoteLog(
                    self._runtime,
                    self.cache,
                    self.stats,
                    keys,
                    log.name,
                    partial(self._read_manifest, keys),
                    self._fetch_quota,
                )
            )
        assert isinstance(log.remote, RemoteLog)
        log.remote.forget(leader_epoch)

    def remove(self, log: Log, *, delete: bool) -> None:
        """The log's partition is no longer here, or no longer tiered; with `delete` its leader removes it from the store."""
        led = self._end(log)
        if led is not None and delete:
            led.is_deleted = True
            self._ending[led.partition.remote.keys] = led
            if not led.is_busy:
                self._delete(led)

    def _delete(self, led: _Led) -> None:
        self._queue.add(led.partition.end(), partial(self._deleted, led))

    def led(self) -> Iterator[TieredPartition]:
        """Those that are led here."""
        return iter([led.partition for led in self._led.values()])

    def run_pass(self, done: Callable[[], object]) -> None:
        """Begin a pass over each partition that is led here; `done()` once all have begun or wait for their turn."""

        def checked(_result: object, error: BaseException | None) -> None:
            if error is None:
                self._is_checked = True
                in_slices(self._runtime, self._begin_all(), done)
                return
            logger.error("nothing is tiered, the object store can't be used: %s", error)
            done()

        if self._is_checked:
            in_slices(self._runtime, self._begin_all(), done)
        elif self._led:
            self._runtime.run_in_thread(self._check_store, checked, remote=True, background=True)
        else:
            done()

    def _begin_all(self) -> Iterator[None]:
        for log, led in list(self._led.items()):
            if log.closed:  # another has taken its place, in another log directory
                self._end(log)
            elif (
                not led.is_busy
                and self._runtime.monotonic() >= led.not_before
                and not led.partition.is_ended
                and led.partition.remote.keys not in self._ending
            ):
                self._begin(led)
            yield

    def _begin(self, led: _Led) -> None:
        led.is_busy = True
        self._queue.add(led.partition.steps(), partial(self._passed, led))

    def _passed(self, led: _Led, has_copied: bool | None, error: BaseException | None) -> None:
        led.is_busy = False
        if led.is_deleted:
            self._delete(led)
            return
        name = led.partition.log.name
        if error is None:
            led.backoff.reset()
            # Another segment may wait; other partitions come first.
            if has_copied and not led.partition.is_ended:
                self._begin(led)
        elif isinstance(error, LeaderDeposed):
            logger.info("%s: tiering ends here: %s", name, error)
            led.partition.is_ended = True
        else:
            pause_s = led.backoff.next_s()
            led.not_before = self._runtime.monotonic() + pause_s
            text = "%s" if isinstance(error, LogLost) else "%s: tiering failed, and is tried again: %s"
            arguments = (error,) if isinstance(error, LogLost) else (name, error)
            expected = isinstance(error, (OSError, ValueError, LogLost))
            logger.warning(text, *arguments, exc_info=None if expected else error)

    def _deleted(self, led: _Led, _result: None, error: BaseException | None) -> None:
        if error is None or isinstance(error, LeaderDeposed):
            self._ending.pop(led.partition.remote.keys, None)
            return
        logger.error(
            "%s is not removed from remote storage, which is tried again: %s", led.partition.log.name, error
        )
        if not self._is_stopped:
            self._runtime.call_later(led.backoff.next_s(), partial(self._delete, led))

    def _end(self, log: Log) -> _Led | None:
        led = self._led.pop(log, None)
        if led is None:
            return None
        led.partition.is_ended = True
        return led

    def _read_manifest(self, keys: PartitionKeys) -> Manifest | None:
        found = read_manifest(self._store, keys)
        return None if found is None else found[0]
