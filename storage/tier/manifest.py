"""The manifest of a tiered partition: which segments are in the object store, in the bucket itself.

One object a partition, `<cluster id>/<topic id>/<partition>/manifest`. Its writer is the partition's leader, and each version
replaces the one that the leader has read or written last, on the condition that it still is the last (object_store.py). So a
leader that has been deposed, or that has missed a version, can't write. A new leader's first write puts its leader epoch in (a
claim), and from then on nothing of an older epoch can be noted.

A segment counts as tiered from the moment a manifest names it; what lies in the bucket beside that is an orphan, of an upload
that was interrupted or whose leader was deposed. An entry that is `going` is no longer read; its objects are being deleted.

Format: a line `barnabas-manifest 1 <CRC-32C of the rest, 8 hexadecimal digits>`, then JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from barnabas.storage.log.leader_epochs import UNDEFINED_EPOCH
from barnabas.storage.tier.keys import is_name
from barnabas.wire.checksum import crc32c

CHUNK_BYTES: Final = 4 * 1024 * 1024  # of a log, which are read from the store at once and have a checksum
SIZE_MAX: Final = 16 * 1024 * 1024  # of a manifest: some 60,000 segments
ENTRY_BYTES_MAX: Final = (
    64 * 1024
)  # of one more entry; the epochs of a segment are hardly ever more than some
_MAGIC: Final = b"barnabas-manifest 1 "
_HEAD_BYTES: Final = len(_MAGIC) + 9


class CorruptManifest(ValueError):
    """Not a manifest, or not this partition's, or damaged."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A tiered segment. Its records from `first_offset` to `last_offset` are read from it. Its file begins at `base_offset`, which is
    lower where another leader has tiered the first of its records, in a segment of other bounds, and ends before `end_offset`, which
    is higher where the last ones are not in a later leader's log. Sizes in bytes. `aux_sizes`: of the parts of the object beside the
    log, in their order there: offset index, time index, transaction index, snapshot of the producers at the segment's end, and the
    checksums of the log's chunks. `epochs`: the leader epochs of its records and where each begins, from the segment's start on."""

    base_offset: int
    first_offset: int
    last_offset: int
    end_offset: int
    max_timestamp: int  # -1: none
    log_size: int
    aux_sizes: tuple[int, int, int, int, int]
    aux_checksum: int  # CRC-32C of that object
    epochs: list[tuple[int, int]]
    name: str  # of its objects: <base offset, 20 digits>-<leader epoch>-<random>
    going: bool = False

    @property
    def aux_size(self) -> int:
        """Of the object beside the log."""
        return sum(self.aux_sizes)

    @property
    def is_cut(self) -> bool:
        """Whether its file has more than what is read from it."""
        return self.last_offset + 1 < self.end_offset

    @property
    def has_aborted(self) -> bool:
        """Whether a transaction was aborted in it."""
        return self.aux_sizes[2] > 0

    @property
    def chunk_count(self) -> int:
        return -(-self.log_size // CHUNK_BYTES)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. `number` rises by one with each version; `nonce` is of the attempt that has written it: a writer whose reply
    was lost finds out by it. `log_start_offset`: of the log, tiered part included."""

    topic_id: str
    partition: int
    number: int
    leader_epoch: int
    nonce: str
    log_start_offset: int
    entries: list[Entry] = []

    @property
    def present(self) -> list[Entry]:
        """The entries that can be read, ascending, one behind the other."""
        return [entry for entry in self.entries if not entry.going]

    @property
    def size(self) -> int:
        """Bytes of their log files."""
        return sum(entry.log_size for entry in self.present)


# Made here, on one thread: msgspec works out what a struct's fields are when one is first decoded, and two threads that did so at the
# same time ended the process.
_DECODER: Final = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """The object's content. CorruptManifest where `decode` would refuse it."""
    _check(manifest)
    content = msgspec.json.encode(manifest)
    return b"%s%08x\n%s" % (_MAGIC, crc32c(content), content)


def decode(data: bytes, topic_id: str, partition: int) -> Manifest:
    """The manifest of this partition. CorruptManifest."""
    head, content = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if not head.startswith(_MAGIC):
        raise CorruptManifest("it does not begin like a manifest of this version")
    if head[len(_MAGIC) :] != b"%08x\n" % crc32c(content):
        raise CorruptManifest("its CRC differs")
    try:
        manifest = _DECODER.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptManifest(str(error)) from error
    if manifest.topic_id != topic_id or manifest.partition != partition:
        raise CorruptManifest(f"it is of partition {manifest.partition} of {manifest.topic_id}")
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """CorruptManifest where the entries could not have been written by a leader."""
    end = -1
    for entry in manifest.entries:
        sizes = entry.aux_sizes
        if (
            min(sizes) < 0
            or entry.log_size <= 0
            or sizes[-1] != 4 * entry.chunk_count
            or not is_name(entry.name)
        ):
            raise CorruptManifest(f"sizes or the name of the segment at {entry.base_offset}")
        if not 0 <= entry.base_offset <= entry.first_offset <= entry.last_offset < entry.end_offset:
            raise CorruptManifest(f"offsets {entry.base_offset}, {entry.first_offset}, {entry.last_offset}")
        if entry.going or entry.last_offset < manifest.log_start_offset:  # not read any more
            continue
        if end >= 0 and entry.first_offset != end:
            raise CorruptManifest(f"records from {entry.first_offset} on behind those up to {end}")
        end = entry.last_offset + 1


def in_lineage(
    entries: Iterable[Entry], epochs: Sequence[tuple[int, int]], log_start_offset: int, log_end_offset: int
) -> list[Entry]:
    """The first of these entries, up to the first record that can't be one of a log with these leader epochs: what was tiered
    before an unclean election, and is not in the new leader's log. An entry that holds this record ends before it. `epochs`:
    ascending (epoch, start offset); of what lies before the first of them the log can say nothing, and it is kept."""
    kept = []
    known_from = max(log_start_offset, epochs[0][1]) if epochs else log_end_offset
    for entry in entries:
        end = min(_end_of_lineage(entry, epochs, known_from), log_end_offset)
        if end > entry.last_offset:
            kept.append(entry)
            continue
        if end > entry.first_offset:
            kept.append(msgspec.structs.replace(entry, last_offset=end - 1))
        break
    return kept


def _end_of_lineage(entry: Entry, epochs: Sequence[tuple[int, int]], known_from: int) -> int:
    """The first offset of the entry, from `known_from` on, whose leader epoch is another in the log; behind its last if none is."""
    first, last = max(entry.first_offset, known_from), entry.last_offset
    if first > last:
        return last + 1
    here, there = epochs_between(epochs, first, last), epochs_between(entry.epochs, first, last)
    changes = sorted({start for _, start in (*here, *there)})
    for start in changes:
        if epochs_between(here, start, start) != epochs_between(there, start, start):
            return start
    return last + 1


def epochs_between(epochs: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The epochs of the records from offset `first` to `last`; the one that holds `first` begins there."""
    found: list[tuple[int, int]] = []
    for epoch, start in epochs:
        if start <= first:
            found = [(epoch, first)]
        elif start <= last:
            found.append((epoch, start))
    return found or [(UNDEFINED_EPOCH, first)]
