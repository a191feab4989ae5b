"""The metadata log of a single node: a journal and a snapshot in the metadata directory (local_journal.py).

Each group of records is written and synced before it is applied. When the journal exceeds its bound, a snapshot is written and a
new journal begins. One write is in flight at a time, in a thread; proposals made meanwhile wait and are written together.

A group that could not be written (disk full) is cut off again and fails. After a failed sync the disk's content is unknown, so the
log refuses all proposals until a restart, which reads the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.local_journal import (
    JOURNAL,
    JOURNAL_FORMAT,
    SNAPSHOT,
    Snapshot,
    encode_journal_header,
    encode_records,
    encode_snapshot,
    read_local_metadata,
)
from barnabas.controller.metadata.metadata_log import Apply, Done, Replace
from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk
from barnabas.storage.frame_log import FrameLog

if TYPE_CHECKING:
    from barnabas.controller.metadata.committed_groups import CommittedGroup, CommittedGroups

JOURNAL_BYTES_MIN = 1 << 20  # the journal may always grow to this size
JOURNAL_TO_SNAPSHOT = 4  # and to this many times the size of the snapshot

log = logging.getLogger("barnabas.metadata")


class LocalMetadataLog:
    """A MetadataLog in `directory`, which is created when missing. One process at a time (the caller locks)."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        runtime: Runtime,
        *,
        journal_bytes_min: int = JOURNAL_BYTES_MIN,
        on_error: Callable[[OSError], object] = lambda _: None,
    ) -> None:
        """`on_error`: the journal can't be written."""
        self._disk = disk
        self._on_error = on_error
        self._directory = directory
        self._journal = FrameLog(disk, f"{directory}/{JOURNAL}", JOURNAL_FORMAT)
        self._snapshot_path = f"{directory}/{SNAPSHOT}"
        self._runtime = runtime
        self._journal_bytes_min = journal_bytes_min
        self._next_offset = 0
        self._snapshot_size = 0
        self._waiting: list[tuple[Sequence[bytes], Done]] = []
        self._writing = False
        self._serving = False
        self._closed = False
        self._on_finished: Callable[[], object] = lambda: None
        self._apply: Apply
        self._snapshot: Callable[[], list[bytes]]
        self._groups: CommittedGroups | None = None  # for followers, once there may be any
        self._commit_listeners: list[Callable[[], object]] = []

    @property
    def is_leader(self) -> bool:
        return True

    @property
    def term(self) -> int:
        return 1

    @property
    def at_rest(self) -> bool:
        """Whether the files have exactly the applied groups: no write is in flight or has failed."""
        return not self._writing and self._journal.failure is None

    @property
    def _failure(self) -> Exception | None:
        """The reason why proposals are refused."""
        return MetadataError("the metadata log is closed") if self._closed else self._journal.failure

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """A single node always leads: the callback is never called."""

    # For brokers that follow this controller (link/metadata_feed.py)

    @property
    def end_offset(self) -> int:
        """One past the last committed record."""
        return self._next_offset

    def on_commit(self, callback: Callable[[], object]) -> None:
        """From now on committed groups are kept for `read_committed`, and `callback` is called after each write."""
        if self._groups is None:
            # late: a node without followers does not need it
            from barnabas.controller.metadata.committed_groups import CommittedGroups

            self._groups = CommittedGroups(self._next_offset - 1)
        self._commit_listeners.append(callback)

    def read_committed(self, after_offset: int, bytes_max: int = 1 << 20) -> list[CommittedGroup] | None:
        """Groups after the record of this offset; None when they are no longer kept: then use `read_snapshot`."""
        return None if self._groups is None else self._groups.after(after_offset, bytes_max)

    def read_snapshot(self) -> tuple[list[bytes], int]:
        """Records that lead to the committed state, and the offset of the last record in it."""
        return self._snapshot(), self._next_offset - 1

    def open(self, apply: Apply, snapshot: Callable[[], list[bytes]], replace: Replace) -> int:  # noqa: ARG002
        self._apply, self._snapshot = apply, snapshot
        disk = self._disk
        if not disk.exists(self._directory):
            disk.make_directory(self._directory, parents=True)
        path = self._journal.path
        if not disk.exists(path):
            if disk.exists(self._snapshot_path):
                raise MetadataError(
                    f"{path} is missing next to {self._snapshot_path}: changes made after the snapshot "
                    f"would be lost. Restore the file, or move both away to start with empty metadata."
                )
            disk.write_file(path, encode_journal_header(0, 0), secret=True)
        found = read_local_metadata(disk, self._directory)
        if found.snapshot_bytes:
            apply(found.snapshot.records)
        for group in found.groups:
            apply(group)
        self._next_offset = found.end_offset
        self._snapshot_size = found.snapshot_bytes
        if found.dropped_bytes:
            log.warning(
                "%s: the last %d bytes were not completely written; cutting them off at %d",
                path,
                found.dropped_bytes,
                found.journal_end,
            )
        self._journal.open(found.journal_end, found.next_index)
        return self._next_offset - 1

    def serve(self) -> None:
        self._serving = True

    def propose(self, records: Sequence[bytes], done: Done) -> None:
        if self._failure is not None:
            done(self._failure)
            return
        self._waiting.append((records, done))
        if not self._writing:
            self._write_waiting()

    def finish(self, finished: Callable[[], object]) -> None:
        """Refuse proposals that are not being written yet; `finished()` when the write in flight has ended."""
        self._closed = True
        if self._writing:
            self._on_finished = finished
        else:
            finished()

    def close(self) -> None:
        """Refuse later proposals. A write in its thread ends by itself, and its groups are not acknowledged."""
        self._closed = True
        if not self._writing:
            self._journal.close()

    # Writing

    def _write_waiting(self) -> None:
        """Write all waiting groups as one entry, so that a torn write damages one entry only."""
        groups, self._waiting = self._waiting, []
        self._writing = True
        records = [record for group, _ in groups for record in group]
        payload = encode_records(records)

        def written(_: object, error: BaseException | None) -> None:
            self._written(groups, len(records), error)

        self._run(lambda: self._journal.append(payload), written)

    def _run(
        self, work: Callable[[], object], done: Callable[[object, BaseException | None], object]
    ) -> None:
        """Run `work` in a thread, or, before the loop runs, at once."""
        if self._serving:
            self._runtime.run_in_thread(work, done)
            return
        try:
            work()
        except OSError as error:
            done(None, error)
        else:
            done(None, None)

    def _written(
        self, groups: list[tuple[Sequence[bytes], Done]], count: int, error: BaseException | None
    ) -> None:
        if error is not None:
            log.error("%s: writing failed, the change is refused: %s", self._journal.path, error)
            if isinstance(error, OSError):
                self._on_error(error)
            failure = error if isinstance(error, Exception) else MetadataError(str(error))
            groups += self._waiting  # decided on top of the groups that failed
            self._waiting = []
            for _, done in groups:
                done(failure)
            self._continue()
            return
        self._next_offset += count
        for group, done in groups:
            self._apply(group)
            if self._groups is not None:
                self._groups.append(group)
            done(None)
        for callback in self._commit_listeners:
            callback()
        if self._journal.size > max(self._journal_bytes_min, JOURNAL_TO_SNAPSHOT * self._snapshot_size):
            self._write_snapshot()
        else:
            self._continue()

    def _continue(self) -> None:
        failure = self._failure
        if self._waiting and failure is None:
            self._write_waiting()
            return
        self._writing = False
        groups, self._waiting = self._waiting, []
        for _, done in groups:
            done(failure)
        if not self._writing:
            self._on_finished()

    def _write_snapshot(self) -> None:
        """Shorten the journal; proposals wait. After a failure the journal stays in use."""
        next_index = self._journal.next_number
        content = encode_snapshot(Snapshot(next_index - 1, self._next_offset - 1, self._snapshot()))
        header = encode_journal_header(next_index, self._next_offset)

        def write() -> None:
            self._disk.write_file(self._snapshot_path, content, secret=True)
            self._journal.replace(header)

        def written(_: object, error: BaseException | None) -> None:
            self._snapshot_size = len(content)
            if error is not None:
                log.error(
                    "%s: writing a snapshot failed, the journal stays in use: %s", self._snapshot_path, error
                )
                self._snapshot_size = self._journal.size  # try again when the journal has grown by as much
            self._continue()

        self._run(write, written)
