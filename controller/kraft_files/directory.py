"""A metadata directory that this broker and Apache Kafka use in turn.

Kafka's metadata is the log in `__cluster_metadata-0`. This broker's is its journal in a folder there, which Kafka ignores. A node
that stops cleanly writes its image as a checkpoint of Kafka's log, so Kafka can start there. When Kafka has run, the next start
imports its log into the journal.

It is always known which of the two is current:
- While this broker runs, and after a crash, the journal is. Then `quorum-state` has a note (the fence) instead of Kafka's state:
  Kafka refuses to start, and prints the note.
- A clean stop writes the checkpoint, then a mark in the journal's directory (the end offset and epoch at which both are equal),
  and then removes the fence.
- A `quorum-state` of Kafka means that Kafka has run. When its log ends at the mark there is nothing to do; when it continues, it is
  imported. When the journal has continued since the mark as well (the fence was removed by hand), each has changes that the
  other lacks, and the node does not start.

An import first marks its begin; until it has marked its end, each start imports Kafka's log again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from barnabas.controller.metadata.errors import MetadataError
from barnabas.storage.disk.disk import Disk

if TYPE_CHECKING:
    from barnabas.controller.kraft_files.format import Voter
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime

KRAFT_LOG: Final = "__cluster_metadata-0"
JOURNAL: Final = "barnabas"  # the folder inside
FIRST_JOURNAL: Final = "barnabas-metadata"  # its folder in the first releases, beside the partitions
QUORUM_STATE: Final = "quorum-state"
BOOTSTRAP: Final = "bootstrap.checkpoint"
MARK: Final = "kafka-mark.json"

FENCE: Final = (
    b'{"barnabas": "Barnabas has gone on with the metadata of this directory and has not been stopped cleanly '
    b'since. Let it start here and stop cleanly; then Kafka can start."}'
)

log = logging.getLogger("barnabas.metadata")


class Mark(msgspec.Struct, frozen=True):
    """The end offset and epoch of Kafka's log up to which the journal has the same content."""

    offset: int
    epoch: int
    state: Literal["importing", "imported", "exported"]  # importing: begun, perhaps not finished
    static_quorum: bool = False  # the voters are named in Kafka's properties, not in its log


class KraftDirectory:
    """Kafka's side of a node's metadata, in `directory` (metadata.log.dir, or the first of log.dirs)."""

    def __init__(self, disk: Disk, directory: str, runtime: Runtime) -> None:
        self._disk = disk
        self._runtime = runtime
        self._path = f"{directory}/{KRAFT_LOG}"
        self._fence_path = f"{self._path}/{QUORUM_STATE}"
        self._directory = directory
        self._bootstrap_path = f"{directory}/{BOOTSTRAP}"
        self.journal_directory = f"{self._path}/{JOURNAL}"
        self._first_journal = f"{directory}/{FIRST_JOURNAL}"
        self._mark_path = f"{self.journal_directory}/{MARK}"

    # Start

    def enter(self, node_id: int, directory_ids: Callable[[], Collection[bytes]]) -> None:
        """Blocking, before the journal is opened: import Kafka's changes, and keep Kafka from starting until `leave`.
        MetadataError when both have changes, or this node can't serve the metadata."""
        disk = self._disk
        if disk.exists(self._first_journal):
            disk.make_directory(self._path, parents=True)
            disk.rename(self._first_journal, self.journal_directory)
        if disk.exists(self._fence_path) and disk.read_file(self._fence_path) == FENCE:
            # An earlier start may have been killed before it did this: after a power failure Kafka could start again.
            disk.sync_directory(self._path)
            disk.sync_directory(self._directory)
            return
        if self._may_be_kafkas():
            self._import(node_id, directory_ids())
        disk.make_directory(self.journal_directory, parents=True)
        disk.sync_directory(self._directory)  # an earlier start may have been killed before it did this
        disk.write_file(self._fence_path, FENCE)

    def _may_be_kafkas(self) -> bool:
        """Whether Kafka may have run here: a quick check, done at every start."""
        disk = self._disk
        if disk.exists(self._fence_path):
            return True
        if disk.exists(self._mark_path):
            mark = self._read_mark()
            return mark.state == "importing" or not disk.exists(f"{self._path}/{_checkpoint_of(mark)}")
        return disk.exists(self._path) or disk.exists(self._bootstrap_path)

    def _import(self, node_id: int, directory_ids: Collection[bytes]) -> None:
        from barnabas.controller.kraft_files.importer import import_image
        from barnabas.controller.kraft_files.log import read_kraft_log
        from barnabas.controller.metadata.local_journal import read_local_metadata, replace_local_metadata
        from barnabas.controller.metadata.records import encode_record

        disk = self._disk
        source = read_kraft_log(disk, self._path, self._bootstrap_path)
        if not source.end_offset and not source.records:
            return  # Kafka has never started here
        mark = self._read_mark() if disk.exists(self._mark_path) else None
        if mark is None or mark.state != "importing":
            if mark is not None and (source.end_offset, source.epoch) == (mark.offset, mark.epoch):
                return
            end_offset = read_local_metadata(disk, self.journal_directory).end_offset
            if end_offset != (0 if mark is None else mark.offset):
                raise MetadataError(self._both_went_on())
        try:
            image = import_image(source, node_id, directory_ids)
        except MetadataError as error:
            raise MetadataError(f"{self._path}, which Kafka wrote, can't be imported: {error}") from error
        disk.make_directory(self.journal_directory, parents=True)
        reached = Mark(source.end_offset, source.epoch, "importing", not source.dynamic_quorum)
        self._write_mark(reached)
        records = [encode_record(record) for record in image.records()]
        replace_local_metadata(disk, self.journal_directory, records, source.end_offset)
        self._write_mark(msgspec.structs.replace(reached, state="imported"))
        log.info(
            "imported Kafka's metadata from %s up to offset %d: %d topics",
            self._path,
            source.end_offset,
            len(image.topics),
        )

    def _both_went_on(self) -> str:
        return (
            f"{self.journal_directory} and {self._path}, which Kafka wrote, both hold metadata that the other "
            f"lacks, so nothing is started. Look which of the two is the right one and move the other one away."
        )

    # Stop

    def leave(
        self,
        image: MetadataImage,
        directory_ids: Sequence[bytes],
        directory_of: Callable[[str, int], bytes | None],
        voter: Voter | None,
    ) -> None:
        """Blocking, after the last change: write the image for Kafka and let Kafka start. After an OSError Kafka can't start.

        `directory_of(topic, partition)`: see exporter.py; `voter`: see format.py. It is not written where Kafka's properties
        name the voters."""
        from barnabas.controller.kraft_files.exporter import kafka_records
        from barnabas.controller.kraft_files.format import encode_checkpoint
        from barnabas.controller.metadata.records import encode_record

        before = self._read_mark() if self._disk.exists(self._mark_path) else Mark(0, 0, "imported")
        # Kafka elects itself in a new epoch, which is the last one until it has run again
        epoch = before.epoch + (before.state != "exported")
        mark = Mark(image.offset + 1, epoch, "exported", before.static_quorum)
        if mark.static_quorum:
            voter = None
        records = map(encode_record, kafka_records(image, directory_ids, directory_of))
        content = encode_checkpoint(records, epoch=epoch, now_ms=self._runtime.time_ms(), voter=voter)
        kept = _checkpoint_of(mark)
        self._disk.write_file(f"{self._path}/{kept}", content, secret=True)
        for name in self._disk.list(self._path):  # older checkpoints, and a log that was imported
            if name not in (kept, QUORUM_STATE, JOURNAL, "partition.metadata"):
                self._disk.remove(f"{self._path}/{name}")
        self._write_mark(mark)
        self._disk.remove(self._fence_path)
        self._disk.sync_directory(self._path)

    # The mark

    def _read_mark(self) -> Mark:
        try:
            return msgspec.json.decode(self._disk.read_file(self._mark_path), type=Mark)
        except msgspec.DecodeError as error:
            raise MetadataError(
                f"{self._mark_path} is damaged: {error}. Restore it from a backup."
            ) from error

    def _write_mark(self, mark: Mark) -> None:
        self._disk.write_file(self._mark_path, msgspec.json.encode(mark))


def _checkpoint_of(mark: Mark) -> str:
    return f"{mark.offset:020d}-{mark.epoch:010d}.checkpoint"
