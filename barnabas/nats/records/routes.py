"""What of a message's record follows from its subject alone, kept per subject: partition, key and the first header.

A binding sees the same subjects again and again, so a message costs a look-up instead of a key, a hash and an encoding.
Where keys come from elsewhere in the message, the same is kept of keys. How many subjects and keys are kept is bounded,
in number and in bytes; beyond that all are forgotten and learned anew.
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
NOWHERE: Final = -2  # the subject is not wanted

Take: TypeAlias = Callable[[bytes], object]  # takes the tail of a record
Wanted: TypeAlias = Callable[[bytes], bool]  # of a subject


class Route:
    """One subject's share in its records.

    `take` gets the tails of its partition; None when the partition is not served here, or is none (then `key_part` is
    empty): FROM_MESSAGE when it depends on more than the subject (`null_partition` is for those messages that turn out to
    have no key), NOWHERE for a subject not wanted. `header_part` is the number of headers, 1, and
    nats.subject; `subject_part` is nats.subject alone, for records with more headers.
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
    """The routes of one subscription: `by_subject`, and `learn` for what is not in there.

    `takes` has an entry for each partition that is served here. The dictionaries stay the same objects.
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
        """The route of a subject, kept from now on."""
        if len(self.by_subject) >= SUBJECTS_KEPT_MAX or self._bytes_kept > SUBJECT_BYTES_KEPT_MAX:
            self.forget()
        route = self.by_subject[subject] = self._find(subject)
        self._bytes_kept += len(subject)
        return route

    def forget(self) -> None:
        """Learn all subjects anew."""
        self.by_subject.clear()
        self._bytes_kept = 0

    def serve(self, takes: Mapping[int, Take]) -> None:
        """From now on these partitions are served here, and no others."""
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
    """Key -> its partition and its part of the record, for a partitioner that follows the key alone."""

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
