"""Key -> offset of its last record, over the dirty section of a log: what compaction decides by.

Bounded: a map that is full ends the section early, and the next cleaning goes on from there, as Kafka's does.
Keys beyond 32 bytes are kept as their BLAKE2b digest of 33, so no key can be mistaken for a digest. A value is
`offset << 1 | is_tombstone`, which saves a second table. Sealed, the map also knows the surviving offsets in
order, and so tells of a whole dirty batch without reading its records how much of it survives.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left

RAW_KEY_MAX = 32
DIGEST_SIZE = RAW_KEY_MAX + 1
ENTRY_BYTES = 208  # of a Python dict with such keys, at its fullest; Kafka's table takes 24


def map_key(key: bytes) -> bytes:
    """What `key` is kept under."""
    return key if len(key) <= RAW_KEY_MAX else hashlib.blake2b(key, digest_size=DIGEST_SIZE).digest()


class OffsetMap:
    """See the module. `latest_offset` is the last offset that the map speaks for, -1 before the first."""

    __slots__ = ("entries_max", "latest_offset", "live", "values")

    def __init__(self, memory_bytes: int, load_factor: float) -> None:
        """At least one entry fits, so that every cleaning gets on."""
        self.entries_max = max(1, int(memory_bytes / ENTRY_BYTES * load_factor))
        self.values: dict[bytes, int] = {}
        self.live = array("q")  # the values, ascending; filled by `seal`
        self.latest_offset = -1

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
        """Nothing more is put; `live_between` works from now on."""
        self.live = array("q", sorted(self.values.values()))

    def offset_of(self, key: bytes) -> int:
        """Offset of the key's last record in the dirty section, -1 when it has none there."""
        return self.values.get(map_key(key), -2) >> 1

    def live_between(self, base_offset: int, last_offset: int) -> tuple[int, int]:
        """The slice of `live` whose offsets lie in [base_offset, last_offset]."""
        start = bisect_left(self.live, base_offset << 1)
        return start, bisect_left(self.live, (last_offset + 1) << 1, start)
