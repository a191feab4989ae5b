"""Writes inside transactions that have not ended, by key and by producer.

A write is pending until the marker of its producer. The commit marker makes it the value of its key, unless a record behind it
has become the value meanwhile: then it is superseded. The abort marker drops it. A later write of the same producer to the same
key replaces it, and a tombstone of the key, which is never part of a transaction, drops the writes of all producers.

The functions take and return the pending writes of one key, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

import msgspec

B = TypeVar("B")
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


class KeysBy(Generic[B, K]):
    """Keys by what some of them have in common, in the order of adding."""

    def __init__(self) -> None:
        self._keys: dict[B, dict[K, None]] = {}

    def of(self, common: B) -> Collection[K]:
        return self._keys.get(common, ())

    def add(self, common: B, key: K) -> None:
        self._keys.setdefault(common, {})[key] = None

    def discard(self, common: B, key: K) -> None:
        keys = self._keys.get(common)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._keys[common]

    def clear(self) -> None:
        self._keys.clear()


class PendingWrites(Generic[K, V]):
    """The pending writes of all keys."""

    def __init__(self) -> None:
        self._by_key: dict[K, Writes[V]] = {}
        self._keys: KeysBy[int, K] = KeysBy()  # by producer id

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __iter__(self) -> Iterator[tuple[K, Writes[V]]]:
        return iter(self._by_key.items())

    def of(self, key: K) -> Writes[V]:
        return self._by_key.get(key, ())

    def keys_of(self, producer_id: int) -> tuple[K, ...]:
        """The keys that the producer's open transaction has written."""
        return tuple(self._keys.of(producer_id))

    def set(self, key: K, writes: Writes[V]) -> None:
        """Replace the pending writes of a key."""
        before = self._by_key.get(key, ())
        if before is writes:
            return
        for write in before:
            self._keys.discard(write.producer_id, key)
        for write in writes:
            self._keys.add(write.producer_id, key)
        if writes:
            self._by_key[key] = writes
        else:
            self._by_key.pop(key, None)

    def clear(self) -> None:
        self._by_key.clear()
        self._keys.clear()
