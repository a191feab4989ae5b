"""The offset map of compaction: key -> offset of its last record, over the dirty section of a log.

Bounded: a full map ends the section early, and the next cleaning continues from there, as in Kafka.
Keys beyond 32 bytes are kept as their BLAKE2b digest of 33, so no key can be mistaken for a digest. A value is
`offset << 1 | is_tombstone`, which saves a second table. Sealed, the map also has the surviving offsets in
order, so how much of a whole dirty batch survives is known without reading its records.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict

RAW_KEY_MAX = 32
DIGEST_SIZE = RAW_KEY_MAX + 1
_BUCKET_SHIFT = 13  # 4096 offsets
ENTRY_BYTES = 208  # of a Python dict with such keys, at its fullest; Kafka's table takes 24


def map_key(key: bytes) -> bytes:
    """What `key` is kept under."""
    return key if len(key) <= RAW_KEY_MAX else hashlib.blake2b(key, digest_size=DIGEST_SIZE).digest()


class OffsetMap:
    """See the module. `latest_offset` is the last offset that the map covers, -1 before the first.

    No call holds the interpreter lock for long, however many entries there are: the event loop runs between two steps of a
    Python loop in another thread, but not during a sort.
    """

    __slots__ = ("_buckets", "_sorted", "entries_max", "latest_offset", "values")

    def __init__(self, memory_bytes: int, load_factor: float) -> None:
        """At least one entry fits, so that every cleaning makes progress."""
        self.entries_max = max(1, int(memory_bytes / ENTRY_BYTES * load_factor))
        self.values: dict[bytes, int] = {}
        self.latest_offset = -1
        self._buckets: defaultdict[int, list[int]] = defaultdict(list)  # the values by offset, see `seal`
        self._sorted: set[int] = set()

    @property
    def utilization(self) -> float:
        return len(self.values) / self.entries_max

    def put(self, key: bytes, offset: int, is_tombstone: bool) -> bool:
        """Note a record; False when there is no room, even for a key that is known, as in Kafka."""
        if len(self.values) >= self.entries_max:
            return False
        self.values[map_key(key)] = offset << 1 | is_tombstone
        self.latest_offset = offset
        return True

    def seal(self) -> None:
        """End the puts; `live_between` works from now on."""
        buckets = self._buckets
        for value in self.values.values():
            buckets[value >> _BUCKET_SHIFT].append(value)

    def live_between(self, base_offset: int, last_offset: int) -> list[int]:
        """The values whose offsets lie in [base_offset, last_offset], ascending."""
        low, high = base_offset << 1, (last_offset + 1) << 1
        found: list[int] = []
        for number in range(low >> _BUCKET_SHIFT, (last_offset << 1 >> _BUCKET_SHIFT) + 1):
            bucket = self._buckets.get(number)
            if bucket is None:
                continue
            if number not in self._sorted:
                self._sorted.add(number)
                bucket.sort()
            found += bucket[bisect_left(bucket, low) : bisect_left(bucket, high)]
        return found

    def clear(self) -> None:
        """Free the memory in small steps."""
        while self.values:
            self.values.popitem()
        while self._buckets:
            self._buckets.popitem()
