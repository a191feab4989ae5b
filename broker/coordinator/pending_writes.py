"""Writes inside transactions that have not ended, by key and by producer.

A write is pending until the marker of its producer. The commit marker makes it the value of its key, unless a record behind it
has become the value meanwhile: then it is superseded. The abort marker drops it. A later write of the same producer to the same
key replaces it, and a tombstone of the key, which is never part of a transaction, drops the writes of all producers.

The functions take and return the pending writes of one key, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")


class PendingWrite(msgspec.Struct, Generic[V], frozen=True):
    producer_id: int
    value: V
    is_superseded: bool = False


Writes = tuple[PendingWrite[V], ...]


def add(writes: Writes[V], write: PendingWrite[V]) -> Writes[V]:
    """After a write inside a transaction."""
    return (*(each for each in writes if each.producer_id != write.producer_id), write)


def supersede(writes: Writes[V]) -> Writes[V]:
    """After a later record became the value of the key."""
    return tuple(PendingWrite(each.producer_id, each.value, True) for each in writes)


def end(writes: Writes[V], producer_id: int, *, commit: bool) -> tuple[Writes[V], V | None]:
    """After the producer's marker: what is still pending, and the key's new value, None if it stays as it is."""
    for number, write in enumerate(writes):
        if write.producer_id == producer_id:
            before, behind = writes[:number], writes[number + 1 :]
            if commit and not write.is_superseded:
                return supersede(before) + behind, write.value
            return before + behind, None
    return writes, None


class PendingWrites(Generic[K, V]):
    """The pending writes of all keys."""

    def __init__(self) -> None:
        self._by_key: dict[K, Writes[V]] = {}
        self._keys: dict[int, dict[K, None]] = {}  # by producer id, in the order of writing

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __iter__(self) -> Iterator[tuple[K, Writes[V]]]:
        return iter(self._by_key.items())

    def of(self, key: K) -> Writes[V]:
        return self._by_key.get(key, ())

    def keys_of(self, producer_id: int) -> tuple[K, ...]:
        """The keys that the producer's open transaction has written."""
        return tuple(self._keys.get(producer_id, ()))

    def set(self, key: K, writes: Writes[V]) -> None:
        """Replace the pending writes of a key."""
        before = self._by_key.get(key, ())
        if before is writes:
            return
        for write in before:
            keys = self._keys[write.producer_id]
            keys.pop(key, None)
            if not keys:
                del self._keys[write.producer_id]
        for write in writes:
            self._keys.setdefault(write.producer_id, {})[key] = None
        if writes:
            self._by_key[key] = writes
        else:
            self._by_key.pop(key, None)

    def clear(self) -> None:
        self._by_key.clear()
        self._keys.clear()
