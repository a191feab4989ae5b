"""Caches the parts of a record that depend on the subject alone: partition, key and the first header.

A binding gets the same subjects again and again, so a message costs a look-up instead of a key, a hash and an encoding. If
keys are not made of the subject, their partitions and parts are cached by key. The caches are bounded in number and bytes;
a full one is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from barnabas.nats.records.keys import KeyFunction
from barnabas.nats.records.partitioners import Partitioner
from barnabas.nats.records.parts import SUBJECT_HEADER, VARINTS, header_parts, sized

SUBJECTS_KEPT_MAX: Final = 65_536
SUBJECT_BYTES_KEPT_MAX: Final = 8 << 20
KEYS_KEPT_MAX: Final = 65_536
KEY_KEPT_BYTES_MAX: Final = 128

# In place of a partition:
FROM_MESSAGE: Final = -1  # it depends on more than the subject
NOWHERE: Final = -2  # the subject is not bound

Take: TypeAlias = Callable[[bytes], object]  # takes the tail of a record
Wanted: TypeAlias = Callable[[bytes], bool]  # whether a subject is bound


class Route:
    """The parts of a record for one subject.

    `partition` may be FROM_MESSAGE, then `null_partition` is for messages without a key, or NOWHERE; then `key_part` is
    empty. `take` receives the tails of the partition; None when it is not served here. `subject_part` is the header
    nats.subject; `header_part` the same preceded by a header count of 1.
    """

    __slots__ = ("header_part", "key_part", "null_partition", "partition", "subject_part", "take")

    def __init__(self, subject: bytes, partition: int, key_part: bytes, take: Take | None) -> None:
        self.partition = partition
        self.key_part = key_part
        self.take = take
        self.null_partition = NOWHERE
        self.subject_part = b"".join(header_parts(SUBJECT_HEADER, subject))
        self.header_part = VARINTS[1] + self.subject_part


class Routes:
    """The routes of one subscription: `by_subject`, and `learn` for a subject that is not in it.

    `takes` has an entry for each partition that is served here. Both dictionaries stay the same objects.
    """

    __slots__ = ("_bytes_kept", "_key_of", "_partition_of", "_wanted", "by_subject", "takes")

    def __init__(
        self,
        key_of: KeyFunction,
        partition_of: Partitioner,
        takes: Mapping[int, Take],
        wanted: Wanted | None = None,
    ) -> None:
        self.by_subject: dict[bytes, Route] = {}
        self.takes = dict(takes)
        self._key_of = key_of
        self._partition_of = partition_of
        self._wanted = wanted
        self._bytes_kept = 0

    def learn(self, subject: bytes) -> Route:
        """Makes and keeps the route of a subject."""
        if len(self.by_subject) >= SUBJECTS_KEPT_MAX or self._bytes_kept > SUBJECT_BYTES_KEPT_MAX:
            self.forget()
        route = self.by_subject[subject] = self._find(subject)
        self._bytes_kept += len(subject)
        return route

    def forget(self) -> None:
        """Drops all routes."""
        self.by_subject.clear()
        self._bytes_kept = 0

    def serve(self, takes: Mapping[int, Take]) -> None:
        """Serves these partitions from now on, and no others."""
        self.takes.clear()
        self.takes.update(takes)
        self.forget()

    def _find(self, subject: bytes) -> Route:
        if self._wanted is not None and not self._wanted(subject):
            return Route(subject, NOWHERE, b"", None)
        if not self._key_of.of_subject_only:
            route = Route(subject, FROM_MESSAGE, b"", None)
            route.null_partition = self._partition_of(subject, None)
            return route
        key = self._key_of.of_part(subject)
        partition = self._partition_of(subject, key)
        return Route(subject, partition, sized(key), self.takes.get(partition))


class KeyRoutes(dict[bytes, tuple[int, bytes]]):
    """Key -> partition and the key's part, for a partitioner with `follows_key`."""

    __slots__ = ("_partition_of",)

    def __init__(self, partition_of: Partitioner) -> None:
        assert partition_of.follows_key
        self._partition_of = partition_of

    def __missing__(self, key: bytes) -> tuple[int, bytes]:
        found = self._partition_of(b"", key), sized(key)
        if len(key) <= KEY_KEPT_BYTES_MAX:
            if len(self) >= KEYS_KEPT_MAX:
                self.clear()
            self[key] = found
        return found
