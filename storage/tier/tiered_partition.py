"""A tiered partition that this broker leads: claims its manifest, copies closed segments, removes what has expired.

`steps` is one pass over it, as Kafka's RemoteLogManager makes one every remote.log.manager.task.interval.ms. Nothing of the log
waits for it. What it has done is in the manifest, so a pass that fails anywhere is simply made again.

Order, so that a crash between any two steps loses nothing: objects, then the manifest that names them, then local segments; and
at the other end the manifest that no longer counts a segment, then the log's start, then the objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Steps
from barnabas.storage.disk.disk import Disk
from barnabas.storage.log.log import Log
from barnabas.storage.tier.garbage import ORPHAN_AGE_MS, Page, remove_orphans
from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import CorruptManifest, Entry, Manifest, in_lineage
from barnabas.storage.tier.manifest_writer import LeaderDeposed, ManifestWriter
from barnabas.storage.tier.object_store import ObjectStore, ObjectStoreError
from barnabas.storage.tier.remote_cache import RemoteCache
from barnabas.storage.tier.remote_log import Quota, RemoteLog, TierStats
from barnabas.storage.tier.upload import copy_segment, segment_to_copy

logger = logging.getLogger("barnabas.tier")

NONCE_BYTES: Final = 8
COLLECT_INTERVAL_S: Final = 24 * 60 * 60.0  # orphans, also at each claim
COLLECT_RETRY_S: Final = 600.0


class LogLost(Exception):
    """The store and the leader's log have nothing in common: the log's directory was lost, or it is another store. Nothing is tiered
    then, and nothing removed, until an operator has done something."""


class TieredPartition:
    """See the module. All but the work that `steps` yields runs on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        disk: Disk,
        store: ObjectStore,
        cache: RemoteCache,
        stats: TierStats,
        log: Log,
        keys: PartitionKeys,
        remote: RemoteLog,
        leader_epoch: int,
        deletion_time_ms: Callable[[], int | None],
        copy_quota: Quota,
    ) -> None:
        """`deletion_time_ms()`: the time by which to delete what is too old; None while nothing may be deleted by its age."""
        self.log = log
        self.remote = remote
        self.leader_epoch = leader_epoch
        self.is_ended = False  # no longer led here, or removed: a pass ends at its next step
        self._runtime = runtime
        self._disk = disk
        self._store = store
        self._cache = cache
        self._stats = stats
        self._keys = keys
        self._writer = ManifestWriter(store, keys, leader_epoch)
        self._claimed = False
        self._is_lost = False  # see LogLost
        # Whether its start lay before its first segment already: then there is a manifest.
        self._began_tiered = log.log_start_offset < log.segments.bases[0]
        self._deletion_time_ms = deletion_time_ms
        self._copy_quota = copy_quota
        self._uploaded: Entry | None = None  # its objects are in the store, and no manifest has named it yet
        self._is_full = False  # the manifest, which has been said
        self._collect_at = 0.0  # orphans, on the monotonic clock

    def steps(self) -> Steps[bool]:
        """One pass: what is due is removed, then one segment is copied. Whether it was, and another pass should follow at once: one
        that copied all that waits would keep others from their claims and removals for as long. ObjectStoreError,
        CorruptManifest, LeaderDeposed, LogLost, OSError, StorageError."""
        if self._has_ended():
            return False
        if not self._claimed:
            yield from self._claim()
        # Before anything is written, which may fail for as long as a store is full.
        try:
            yield from self._delete_going()
        except ObjectStoreError:
            if not self._claimed:
                raise
        yield from self._expire()
        if self._runtime.monotonic() >= self._collect_at:
            yield from self._collect()
        is_copied = not self.log.config.remote_log_copy_disable and (yield from self._copy())
        yield from self._expire()
        try:
            yield from self._delete_going()
        except ObjectStoreError:
            if not (is_copied and self._claimed):
                raise
        return is_copied

    def lag(self) -> tuple[int, int]:
        """(bytes, segments) that are closed and not tiered yet."""
        tiered = self.remote.tiered_offset
        waiting = [each for each in self.log.segments[:-1] if each.base_offset > tiered]
        return sum(segment.size for segment in waiting), len(waiting)

    # --- claim

    def _claim(self) -> Steps[None]:
        """Read the manifest and put this leader's epoch in it."""
        found: Manifest | None = yield self._writer.read
        log = self.log
        if found is None:
            # Nothing to fence: the first version is written on the condition that there is none.
            if self._has_ended():
                return
            if log.log_start_offset < log.segments.bases[0] and self._began_tiered:
                raise LogLost(
                    f"{log.name} begins at {log.log_start_offset} and is here from {log.segments.bases[0]} on, and the store has no "
                    f"{self._keys.manifest}: is it the right store? Nothing is tiered. If it never was, delete the records "
                    f"below the first that is here"
                )
            self.remote.claimed(self._next_manifest([], log.log_start_offset))
            self._claimed = True
            self._raise_start(self._readable_from([]))
            return
        present = found.present
        start = max(log.log_start_offset, found.log_start_offset)
        kept: list[Entry] = yield partial(in_lineage, present, log.epochs.entries, start, log.log_end_offset)
        if present and (self._is_lost or log.log_end_offset == 0 or not kept):
            self._is_lost = True
            raise LogLost(
                f"{log.name} has none of its records that remote storage has, from {present[0].first_offset} to "
                f"{present[-1].last_offset}: they are kept there, and nothing is tiered. Was its directory lost?"
            )
        for entry in present[len(kept) :]:
            logger.warning(
                "%s: records from %d to %d of leader epoch %d in remote storage are not in this leader's log, and are no longer read",
                log.name, entry.first_offset, entry.last_offset, entry.epochs[-1][0],
            )  # fmt: skip
        going = [entry for entry in found.entries if entry.going]
        yield from self._write([*going, *kept], max(start, self._readable_from(kept)))
        self._claimed = True
        self._collect_at = 0.0

    def _readable_from(self, entries: list[Entry]) -> int:
        """The first offset from which on there is no gap between what is tiered and what is here."""
        local = self.log.segments.bases[0]
        return entries[0].first_offset if entries and entries[-1].last_offset + 1 >= local else local

    def _raise_start(self, offset: int) -> None:
        log = self.log
        if not self._has_ended() and log.log_start_offset < offset <= log.high_watermark:
            log.increment_log_start_offset(offset)

    # --- copying

    def _copy(self) -> Steps[bool]:
        """The next segment that waits, if there is one."""
        if self._has_ended():
            return False
        first = max(self.remote.tiered_offset + 1, self.log.log_start_offset)
        wanted = segment_to_copy(self.log, first, self.leader_epoch, self._nonce())
        if wanted is None or not self._has_room():
            return False
        self._stats.copy_requests += 1
        try:
            entry = self._uploaded
            if entry is None or (entry.first_offset, entry.last_offset) != (
                wanted.first_offset,
                wanted.last_offset,
            ):
                entry = yield partial(
                    copy_segment, self._disk, self._store, self._keys, wanted, self._copy_quota.wait
                )
                assert entry is not None
                self._uploaded = entry
            if self._has_ended():
                return False
            # The log's start may have passed what was tiered so far: then the entries have a gap, below the start.
            start = self.log.log_start_offset
            yield from self._write([*self._entries_from(start), entry], start)
        except Exception:
            self._stats.copy_errors += 1
            raise
        self._uploaded = None
        self._stats.copied_bytes += entry.log_size
        logger.info(
            "%s: copied the records from %d to %d to remote storage, %d bytes",
            self.log.name,
            entry.first_offset,
            entry.last_offset,
            entry.log_size,
        )
        return True

    def _has_room(self) -> bool:
        """Whether the manifest can name one more segment; else they stay on the disk."""
        has_room = self._writer.has_room
        if not has_room and not self._is_full:
            logger.error(
                "%s has no room for more than its %d segments: no more are copied until some have expired",
                self._keys.manifest,
                len(self._entries()),
            )
        self._is_full = not has_room
        return has_room

    # --- expiry

    def _expire(self) -> Steps[None]:
        start = self._retained_from()
        if self._has_ended() or all(entry.last_offset >= start for entry in self.remote.entries):
            return
        yield from self._write(self._entries_from(start), start)

    def _retained_from(self) -> int:
        """The offset below which retention removes records, whole segments at a time; the log's start where it removes none."""
        log, config = self.log, self.log.config
        start = log.log_start_offset
        if "delete" not in config.cleanup_policy:
            return start
        entries = [entry for entry in self.remote.entries if entry.last_offset >= start]
        spare = -1
        if config.retention_bytes >= 0:
            tiered = self.remote.tiered_offset
            only_here = sum(each.size for each in log.segments if each.base_offset > tiered)
            spare = sum(entry.log_size for entry in entries) + only_here - config.retention_bytes
        now_ms = self._deletion_time_ms() if config.retention_ms >= 0 else None
        kept_from = log.log_end_offset - config.retention_messages if config.retention_messages >= 0 else 0
        for entry in entries:
            spare -= entry.log_size
            is_old = now_ms is not None and 0 <= entry.max_timestamp < now_ms - config.retention_ms
            if spare < 0 and not is_old and entry.last_offset >= kept_from:
                break
            start = entry.last_offset + 1
        return min(start, log.high_watermark)

    def _delete_going(self) -> Steps[None]:
        going = [entry for entry in self._entries() if entry.going]
        if not going or self._has_ended():
            return
        self._stats.delete_requests += len(going)
        try:
            keys = [
                key for entry in going for key in (self._keys.log(entry.name), self._keys.aux(entry.name))
            ]
            yield partial(self._store.delete, keys)
            yield from self._write(
                [entry for entry in self._entries() if not entry.going], self.log.log_start_offset
            )
        except Exception:
            self._stats.delete_errors += 1
            raise
        self._stats.deleted_bytes += sum(entry.log_size for entry in going)
        for entry in going:
            self._cache.forget(entry)

    # --- orphans

    def _collect(self) -> Steps[None]:
        """Remove them. Where the store fails they wait, and the rest of a pass does not."""
        now_ms = self._deletion_time_ms()
        older_than_ms = None if now_ms is None else now_ms - ORPHAN_AGE_MS
        after: str | None = ""
        removed = 0
        kept = "" if self._uploaded is None else self._uploaded.name
        self._collect_at = self._runtime.monotonic() + COLLECT_INTERVAL_S
        while after is not None and not self._has_ended():
            page = partial(
                remove_orphans, self._store, self._keys, self.leader_epoch, older_than_ms, after, kept
            )
            try:
                found: Page = yield page
            except (ObjectStoreError, CorruptManifest) as error:
                logger.warning("%s: orphans in remote storage are not removed yet: %s", self.log.name, error)
                self._collect_at = self._runtime.monotonic() + COLLECT_RETRY_S
                return
            after = found.last_key
            removed += found.removed
            self._stats.orphans_removed += found.removed
            self._stats.orphan_bytes_removed += found.removed_bytes
        if removed:
            logger.info(
                "%s: removed %d objects from remote storage that no manifest named", self.log.name, removed
            )

    # --- the end of tiering

    def end(self) -> Steps[None]:
        """Tiering has been switched off (KIP-950): remove everything of the partition from the store. First the
        manifest counts none of its segments any more: an end that is interrupted leaves nothing that could be read, or copied on."""
        self._stats.delete_requests += 1
        writer = ManifestWriter(self._store, self._keys, self.leader_epoch)
        nonce = self._nonce()

        def remove() -> None:
            found = writer.read()
            if found is not None:
                going = [msgspec.structs.replace(entry, going=True) for entry in found.entries]
                writer.write(msgspec.structs.replace(found, entries=going, nonce=nonce))
            keys = [each.key for each in self._store.list(self._keys.prefix)]
            keys.sort(key=lambda key: key == self._keys.manifest)
            self._store.delete(keys)

        try:
            yield remove
        except Exception:
            self._stats.delete_errors += 1
            raise

    def _has_ended(self) -> bool:
        return self.is_ended or self.log.closed or self.log.offline

    def _nonce(self) -> str:
        return self._runtime.random_bytes(NONCE_BYTES).hex()

    def _entries(self) -> list[Entry]:
        """Of the last manifest that was read or written."""
        manifest = self._writer.manifest
        return [] if manifest is None else manifest.entries

    def _entries_from(self, start: int) -> list[Entry]:
        """The same; those whose records all lie below `start` go."""
        return [
            msgspec.structs.replace(entry, going=True)
            if entry.last_offset < start and not entry.going
            else entry
            for entry in self._entries()
        ]

    def _next_manifest(self, entries: list[Entry], log_start_offset: int) -> Manifest:
        before = self._writer.manifest
        return Manifest(
            topic_id=self._keys.topic_id,
            partition=self._keys.partition,
            number=0,  # the writer counts
            leader_epoch=self.leader_epoch,
            nonce=self._nonce(),
            log_start_offset=max(log_start_offset, 0 if before is None else before.log_start_offset),
            entries=entries,
        )

    def _write(self, entries: list[Entry], log_start_offset: int) -> Steps[None]:
        manifest = self._next_manifest(entries, log_start_offset)
        try:
            yield partial(self._writer.write, manifest)
        except BaseException:
            self._claimed = False  # what lies in the store has to be read again
            raise
        if self._has_ended():  # another leader, or another epoch, may have written one since
            raise LeaderDeposed(f"{self.log.name} is no longer led here in leader epoch {self.leader_epoch}")
        assert self._writer.manifest is not None
        self.remote.claimed(self._writer.manifest)
        self._raise_start(self._writer.manifest.log_start_offset)
