"""A segment's aborted transactions in Kafka's `.txnindex` format, for readers who want committed records only.

One entry of 34 bytes for each ABORT marker in the segment, in the order of the markers, big-endian:

    version i16 = 0 | producer id i64 | first offset i64 | last offset (the marker's) i64 | last stable offset i64

The last field is the last stable offset of the log when the marker was written: an entry behind one whose last stable
offset is at least X covers only offsets from X on, so a search ends there. A segment without an entry has no file. As with
the other indexes, the entries of the active segment are in memory and are written when it is rolled or closed; after a crash
they are rebuilt from the markers. Those of an older segment are searched in its file, which may hold millions.

While a transaction is open the last stable offset stays, so a search that passes its records meets every entry up to its
marker. A thread notes the lowest first offset of each block of entries; a search then reads only blocks that may have a
transaction it looks for. Entries are only ever added, so what has been noted stays true.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from barnabas.storage.disk.disk import Disk
from barnabas.storage.segment.segment import Segment
from barnabas.wire.compression import Bytes

TRANSACTION_INDEX_SUFFIX = ".txnindex"
TRANSACTION_INDEX_VERSION = 0

_ENTRY = struct.Struct(">hqqqq")
_OFFSET = struct.Struct(">q")
_LAST_OFFSET_AT = 18
_LAST_STABLE_OFFSET_AT = 26
_READ_AT_ONCE = 120  # entries: one page

BLOCK: Final = 32  # entries
UNNOTED_MAX: Final = 2000  # entries that one search reads on the loop where nothing is noted


class CorruptTransactionIndex(ValueError):
    """The file does not consist of entries of this version, or has offsets before the segment."""


class AbortedTransaction(msgspec.Struct, frozen=True, gc=False):
    """One entry. Offsets of the first batch, of the marker, and the log's last stable offset behind it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def transaction_index_path(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}{TRANSACTION_INDEX_SUFFIX}"


def encode_transactions(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The file's content."""
    return b"".join(
        _ENTRY.pack(
            TRANSACTION_INDEX_VERSION,
            transaction.producer_id,
            transaction.first_offset,
            transaction.last_offset,
            transaction.last_stable_offset,
        )
        for transaction in transactions
    )


def decode_transactions(content: Bytes, base_offset: int) -> list[AbortedTransaction]:
    """Every entry of the segment at `base_offset`. Raises CorruptTransactionIndex."""
    if len(content) % _ENTRY.size:
        raise CorruptTransactionIndex(f"{len(content)} bytes are no whole entries")
    transactions = []
    for version, *fields in _ENTRY.iter_unpack(content):
        if version != TRANSACTION_INDEX_VERSION:
            raise CorruptTransactionIndex(f"unknown version {version}")
        transaction = AbortedTransaction(*fields)
        if transaction.last_offset < base_offset:
            raise CorruptTransactionIndex(
                f"a transaction that ends at {transaction.last_offset}, before the segment"
            )
        transactions.append(transaction)
    return transactions


class TransactionIndex:
    """The aborted transactions of one segment. OSError as the disk gives it."""

    __slots__ = ("_content", "_disk", "_lowest", "base_offset", "path", "unsaved")

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, entries: Iterable[AbortedTransaction] | None
    ) -> None:
        """`entries` None: they are on the disk."""
        self._disk = disk
        self.path = transaction_index_path(directory, base_offset)
        self.base_offset = base_offset
        self._content: bytearray | None = None if entries is None else bytearray(encode_transactions(entries))
        self._lowest = array(
            "q"
        )  # the lowest first offset of each of the first blocks, as far as it is noted
        self.unsaved = entries is not None

    @classmethod
    def of_swapped(cls, disk: Disk, directory: str, segment: Segment) -> TransactionIndex | None:
        """The index of a segment whose files do not have their final names yet; None when it has none."""
        (path,) = (path for path in segment.files if TRANSACTION_INDEX_SUFFIX in path)
        try:
            content = disk.read_file(path)
        except FileNotFoundError:
            return None
        index = cls(disk, directory, segment.base_offset, None)
        index._content = bytearray(content)
        return index

    def hold(self) -> None:
        """Bring the entries into memory to stay, so that `append` does not need the disk."""
        if self._content is None:
            self._content = bytearray(self._disk.read_file(self.path))

    def append(self, transaction: AbortedTransaction) -> None:
        """Its marker is in the segment now, behind all others."""
        self.hold()
        assert self._content is not None
        self._content += encode_transactions((transaction,))
        self.unsaved = True

    def entries(self) -> list[AbortedTransaction]:
        """Every entry. Raises CorruptTransactionIndex."""
        return decode_transactions(self._bytes(), self.base_offset)

    @property
    def last_offset(self) -> int:
        """Of the last marker; -1 when there is none."""
        content = self._bytes()
        if len(content) < _ENTRY.size:
            return -1
        offset: int = _OFFSET.unpack_from(content, len(content) - _ENTRY.size + _LAST_OFFSET_AT)[0]
        return offset

    def collect(
        self,
        start: int,
        end: int,
        found: list[AbortedTransaction],
        limit: int | None = None,
        *,
        wait: bool = True,
    ) -> bool:
        """Add the transactions with records in [start, end); True when no later segment can have more, or `found` has `limit`.
        Without `wait` BlockingIOError when `load` has to bring the file into memory, or to note offsets, first."""
        count, read = self._reading(wait)

        def last_offset(number: int) -> int:
            offset: int = _OFFSET.unpack_from(read(number, 1), _LAST_OFFSET_AT)[0]
            return offset

        def last_stable_offset(number: int) -> int:
            offset: int = _OFFSET.unpack_from(read(number, 1), _LAST_STABLE_OFFSET_AT)[0]
            return offset

        first = bisect_left(range(count), start, key=last_offset)
        last = bisect_left(range(count), end, first, key=last_stable_offset)  # the search ends behind it
        stop = min(last + 1, count)
        lowest = self._lowest
        noted = min(len(lowest) * BLOCK, stop)
        if not wait and stop - max(first, noted) > UNNOTED_MAX:
            raise BlockingIOError

        def collect_from(number: int, behind: int) -> bool:
            """Add those of the entries [number, behind); True when `found` has `limit`."""
            for _, producer_id, first_offset, *rest in _ENTRY.iter_unpack(read(number, behind - number)):
                if first_offset < end:
                    found.append(AbortedTransaction(producer_id, first_offset, *rest))
                    if len(found) == limit:
                        return True
            return False

        if first < noted:
            for block in range(first // BLOCK, -(-noted // BLOCK)):
                if lowest[block] < end:
                    number = block * BLOCK
                    if collect_from(max(first, number), min(number + BLOCK, noted)):
                        return True
        for number in range(max(first, noted), stop, _READ_AT_ONCE):
            if collect_from(number, min(number + _READ_AT_ONCE, stop)):
                return True
        return last < count

    def _reading(self, wait: bool) -> tuple[int, Callable[[int, int], Bytes]]:
        """How many entries there are, and a function that reads some of them: (number of the first, count)."""
        size = _ENTRY.size
        content = self._content
        if content is not None:
            return len(content) // size, lambda number, count: content[
                number * size : (number + count) * size
            ]
        file = self._disk.open(self.path)
        length = file.size()
        if not wait and not file.is_cached(0, length):
            raise BlockingIOError
        return length // size, lambda number, count: file.pread(count * size, number * size)

    def load(self) -> None:
        """Bring the file's entries into memory, waiting for the disk, and note their offsets: for threads."""
        content = self._content
        if content is None:
            file = self._disk.open(self.path)
            file.load(0, file.size())
        count, read = self._reading(wait=True)
        lowest = self._lowest[:]
        for number in range(len(lowest) * BLOCK, count - BLOCK + 1, BLOCK):
            lowest.append(min(entry[2] for entry in _ENTRY.iter_unpack(read(number, BLOCK))))
        self._lowest = lowest

    def save(self, *, sync: bool = False) -> None:
        """Write the entries to the file, whole. OSError leaves them in memory."""
        if self.unsaved and self._content is not None:
            self._disk.write_file(self.path, bytes(self._content), sync=sync)
            self.unsaved = False

    def unload(self) -> None:
        """Drop the entries from memory, if the file has them."""
        if not self.unsaved:
            self._content = None

    def _bytes(self) -> Bytes:
        return self._content if self._content is not None else self._disk.read_file(self.path)
