"""What a replica needs to begin its log behind what is tiered: from the manifest and the object beside a segment. Kafka calls it the
auxiliary state of the remote log, and has TierStateMachine build it."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.storage.log.producer_snapshot import SNAPSHOT_SUFFIX, CorruptSnapshot, decode_snapshot
from barnabas.storage.log.producers import ProducerEntry
from barnabas.storage.log.segments import AuxState
from barnabas.storage.segment.segment import offset_file_name
from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import Entry
from barnabas.storage.tier.object_store import ObjectMissing
from barnabas.storage.tier.remote_cache import DamagedObject, RemoteCache


def read_aux_state(
    cache: RemoteCache, keys: PartitionKeys, entries: Sequence[Entry], offset: int
) -> AuxState:
    """Of the end of the entry that holds the record before `offset`; `entries` ascend. Blocking. ObjectStoreError, OSError."""
    held = [entry for entry in entries if entry.first_offset < offset]
    if not held or held[-1].last_offset < offset - 1:
        raise ObjectMissing(f"no segment of {keys.manifest} holds the record before {offset}")
    last = held[-1]
    return AuxState(last.last_offset + 1, epochs_of(held), _producers(cache, keys, last))


def epochs_of(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """The leader epochs of the records in these, ascending, and where each begins."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        for epoch, start in entry.epochs:
            if epoch >= 0 and start <= entry.last_offset and (not found or epoch > found[-1][0]):
                found.append((epoch, max(start, entry.first_offset)))
    return found


def _producers(cache: RemoteCache, keys: PartitionKeys, entry: Entry) -> list[ProducerEntry]:
    cache.read_aux(keys, entry)
    path = f"{cache.segment_directory(entry)}/{offset_file_name(entry.base_offset, SNAPSHOT_SUFFIX)}"
    content = cache.disk.read_file(path)
    try:
        found = decode_snapshot(content) if content else []
    except CorruptSnapshot as error:
        raise DamagedObject(f"{keys.aux(entry.name)}: {error}") from error
    # Of a producer that has written behind the last record that counts, what it had written up to there is not known.
    return [each for each in found if not each.batches or each.batches[-1].last_offset <= entry.last_offset]
