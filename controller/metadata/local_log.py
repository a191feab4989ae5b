"""The metadata log of a single node: a journal and a snapshot in the metadata directory.

`metadata.journal` holds the groups committed since the snapshot, each written and synced before it is
applied. `metadata.snapshot` holds the records that lead to the state before the journal's first group. When
the journal has outgrown its bound, a snapshot is written and the journal starts anew, each by replacing the
file in one step; a crash in between leaves groups in the journal that the snapshot holds already, and they
are passed over.

One write is under way at a time, in a thread; what is proposed meanwhile waits and is written together.

A group that could not be written (disk full) is cut off again and refused. After a sync that failed nobody
knows what is on the disk, so the log refuses everything from then on (a restart reads what is there).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.journal_format import (
    Entry,
    Snapshot,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    journal_header,
    read_journal,
)
from barnabas.controller.metadata.metadata_log import Apply, Done, Replace
from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk, File, write_rest

if TYPE_CHECKING:
    from barnabas.controller.raft.committed_groups import CommittedGroup, CommittedGroups

JOURNAL = "metadata.journal"
SNAPSHOT = "metadata.snapshot"
JOURNAL_BYTES_MIN = 1 << 20  # the journal may always grow to this size
JOURNAL_TO_SNAPSHOT = 4  # and to this many times the size of the snapshot

log = logging.getLogger("barnabas.metadata")


class LocalMetadataLog:
    """A MetadataLog in `directory`, which is made when missing. One process at a time (the caller locks)."""

    def __init__(
        self, disk: Disk, directory: str, runtime: Runtime, *, journal_bytes_min: int = JOURNAL_BYTES_MIN
    ) -> None:
        self._disk = disk
        self.on_error: Callable[[OSError], object] = lambda _: None  # hears why the journal can't be written
        self._directory = directory
        self._journal_path = f"{directory}/{JOURNAL}"
        self._snapshot_path = f"{directory}/{SNAPSHOT}"
        self._runtime = runtime
        self._journal_bytes_min = journal_bytes_min
        self._file: File | None = None
        self._position = 0  # end of the last whole entry
        self._next_index = 0
        self._next_offset = 0
        self._snapshot_size = 0
        self._waiting: list[tuple[Sequence[bytes], Done]] = []
        self._writing = False
        self._serving = False
        self._failure: Exception | None = None
        self._apply: Apply
        self._snapshot: Callable[[], list[bytes]]
        self._groups: CommittedGroups | None = None  # for those who follow from outside, if any may
        self._commit_listeners: list[Callable[[], object]] = []

    @property
    def is_leader(self) -> bool:
        return True

    @property
    def term(self) -> int:
        return 1

    @property
    def at_rest(self) -> bool:
        """Whether the files hold what has been applied, no more and no less: no write is under way or has
        failed."""
        return not self._writing and self._failure is None

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """The only node leads from the start and for ever: nothing will call back."""

    # For brokers that follow this controller from outside (link/metadata_feed.py)

    @property
    def end_offset(self) -> int:
        """Behind the last record that is committed."""
        return self._next_offset

    def on_commit(self, callback: Callable[[], object]) -> None:
        """From now on what is committed is kept for `read_committed`, and `callback` called after each write."""
        if self._groups is None:
            # Late: a node alone has no followers.
            from barnabas.controller.raft.committed_groups import CommittedGroups

            self._groups = CommittedGroups(self._next_offset - 1)
        self._commit_listeners.append(callback)

    def read_committed(self, after_offset: int, bytes_max: int = 1 << 20) -> list[CommittedGroup] | None:
        """Groups behind the record of this offset; None when only a snapshot leads there."""
        return None if self._groups is None else self._groups.after(after_offset, bytes_max)

    def read_snapshot(self) -> tuple[list[bytes], int]:
        """Records that lead to the committed state, and the offset of the last record in it."""
        return self._snapshot(), self._next_offset - 1

    def open(self, apply: Apply, snapshot: Callable[[], list[bytes]], replace: Replace) -> int:  # noqa: ARG002
        self._apply, self._snapshot = apply, snapshot
        disk = self._disk
        if not disk.exists(self._directory):
            disk.make_directory(self._directory, parents=True)
        if not disk.exists(self._journal_path):
            if disk.exists(self._snapshot_path):
                raise MetadataError(
                    f"{self._journal_path} is missing next to {self._snapshot_path}: changes made after the snapshot "
                    f"would be lost. Restore the file, or move both away to start with empty metadata."
                )
            disk.write_file(self._journal_path, journal_header(0, 0), secret=True)
        self._load_snapshot()
        self._load_journal()
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

    def close(self) -> None:
        """Refuses what comes later. A write under way in its thread ends by itself; it was not acknowledged."""
        if self._failure is None:
            self._failure = MetadataError("the metadata log is closed")
        if not self._writing:
            self._file = None  # which closes it

    # Loading

    def _load_snapshot(self) -> None:
        if not self._disk.exists(self._snapshot_path):
            return
        content = self._disk.read_file(self._snapshot_path)
        snapshot = decode_snapshot(content, self._snapshot_path)
        self._apply(snapshot.records)
        self._next_index = snapshot.index + 1
        self._next_offset = snapshot.offset + 1
        self._snapshot_size = len(content)

    def _load_journal(self) -> None:
        content = self._disk.read_file(self._journal_path)
        journal = read_journal(content, self._journal_path)
        if journal.base_index > self._next_index:
            raise MetadataError(
                f"{self._journal_path} starts at group {journal.base_index}, but {self._snapshot_path} "
                f"{'ends before group ' + str(self._next_index) if self._next_index else 'is missing'}: groups between "
                f"them are lost. Restore the two files from the same time."
            )
        for entry in journal.entries:
            if entry.index >= self._next_index:
                self._apply(entry.records)
                self._next_index = entry.index + 1
                self._next_offset += len(entry.records)
        self._file = self._disk.open(self._journal_path, writable=True)
        self._position = journal.end
        if journal.end < len(content):
            log.warning(
                "%s: the last %d bytes were not completely written; cutting them off at %d",
                self._journal_path,
                len(content) - journal.end,
                journal.end,
            )
            self._file.truncate(journal.end)
            self._file.sync()

    # Writing

    def _write_waiting(self) -> None:
        """Write all that waits as one entry, so that a torn write tears one entry only."""
        groups, self._waiting = self._waiting, []
        self._writing = True
        records = [record for group, _ in groups for record in group]
        entry = encode_entry(Entry(self._next_index, records))

        def written(_: object, error: BaseException | None) -> None:
            self._written(groups, len(records), len(entry), error)

        if self._serving:
            self._runtime.run_in_thread(lambda: self._append(entry), written)
            return
        try:
            self._append(entry)
        except OSError as error:
            written(None, error)
        else:
            written(None, None)

    def _append(self, entry: bytes) -> None:
        """In a thread. OSError: not written; a failure beyond that closes the log through `_failure`."""
        assert self._file is not None
        try:
            write_rest(self._file, entry, 0, self._position)
        except OSError:
            try:
                self._file.truncate(self._position)
            except OSError as error:
                self._failure = error
            raise
        try:
            self._file.sync()
        except OSError as error:
            self._failure = error
            raise

    def _written(
        self, groups: list[tuple[Sequence[bytes], Done]], count: int, size: int, error: BaseException | None
    ) -> None:
        if error is not None:
            log.error("%s: writing failed, the change is refused: %s", self._journal_path, error)
            if isinstance(error, OSError):
                self.on_error(error)
            failure = error if isinstance(error, Exception) else MetadataError(str(error))
            groups += self._waiting  # decided on top of what has just failed
            self._waiting = []
            self._writing = False
            for _, done in groups:
                done(failure)
            return
        self._position += size
        self._next_index += 1
        self._next_offset += count
        for group, done in groups:
            self._apply(group)
            if self._groups is not None:
                self._groups.append(group)
            done(None)
        for callback in self._commit_listeners:
            callback()
        if self._position > max(self._journal_bytes_min, JOURNAL_TO_SNAPSHOT * self._snapshot_size):
            self._write_snapshot()
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._writing = False
        if not self._waiting:
            return
        if self._failure is None:
            self._write_waiting()
            return
        groups, self._waiting = self._waiting, []
        for _, done in groups:
            done(self._failure)

    def _write_snapshot(self) -> None:
        """Shorten the journal; proposals wait. A failure leaves the journal in use as it is."""
        content = encode_snapshot(Snapshot(self._next_index - 1, self._next_offset - 1, self._snapshot()))
        header = journal_header(self._next_index, self._next_offset)

        def write() -> File:
            self._disk.write_file(self._snapshot_path, content, secret=True)
            try:
                self._disk.write_file(self._journal_path, header, secret=True)
                return self._disk.open(self._journal_path, writable=True)
            except OSError:
                self._check_journal(header)
                raise

        def written(file: File | None, error: BaseException | None) -> None:
            self._snapshot_written(file, len(content), len(header), error)

        if self._serving:
            self._runtime.run_in_thread(write, written)
            return
        try:
            file = write()
        except OSError as error:
            written(None, error)
        else:
            written(file, None)

    def _check_journal(self, header: bytes) -> None:
        """After a failure: was the journal replaced all the same? Then what goes to the open file, which has no
        name any more, would be lost at the next start."""
        try:
            replaced = self._disk.read_file(self._journal_path).startswith(header)
        except OSError as error:
            self._failure = error
            return
        if replaced:
            self._failure = MetadataError(f"{self._journal_path} was begun anew, but can't be opened")

    def _snapshot_written(
        self, file: File | None, size: int, header_size: int, error: BaseException | None
    ) -> None:
        self._snapshot_size = size  # also after a failure: try again when the journal has grown by as much
        if file is not None:
            self._file = file
            self._position = header_size
        else:
            log.error("%s: writing a snapshot failed, the journal goes on: %s", self._snapshot_path, error)
            self._snapshot_size = self._position
        self._go_on()
