"""The object store: the interface through which the tier uses a bucket, and its errors.

All calls block and are made from threads. An object is written whole or not at all, and is read as it was written. `create` and
`replace` are conditional, so of several writers of one key exactly one succeeds; after an error other than a refused condition
it is not known whether the object was written.

Keys are of [A-Za-z0-9._/-], without an empty part, `.` or `..`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from barnabas.wire.compression import Bytes


class ObjectStoreError(OSError):
    """The store could not do what it was asked; the text names the key and the store's own words."""


class ObjectMissing(ObjectStoreError):
    """There is no object of this key."""


class ConditionFailed(ObjectStoreError):
    """The object exists already (`create`), or is not the version that was to be replaced."""


class StoreUnavailable(ObjectStoreError):
    """The store did not answer in time, or says that it is overloaded or failing: it may be asked again."""


class StoreRefused(ObjectStoreError):
    """The store will not do it: credentials, rights, a bucket that does not exist, a wrong request. An operator has to act."""


class Version(msgspec.Struct, frozen=True):
    """A version of an object as the store has named it; opaque, to be handed back to `replace`."""

    e_tag: str | None
    number: str | None = None


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object in a listing. `modified_ms`: when it was written, in ms since the epoch, by the store's clock."""

    key: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """A bucket, or a part of one below a prefix."""

    def put(self, key: str, parts: Iterable[Bytes]) -> None:
        """Write an object of these parts, one behind the other, replacing what there is. `parts` is read as the upload proceeds, so
        it may wait, to keep to a rate. When it raises, so does this, and nothing is written."""
        ...

    def create(self, key: str, data: Bytes) -> Version:
        """Write an object that must not exist. ConditionFailed where it does."""
        ...

    def replace(self, key: str, data: Bytes, version: Version) -> Version:
        """Write an object in place of this version of it. ConditionFailed where it is another, or there is none."""
        ...

    def copy(self, source: str, key: str) -> None:
        """Write an object with the content of another, replacing what there is; the bytes stay within the store. ObjectMissing where
        there is no `source`."""
        ...

    def get(self, key: str, size_max: int) -> tuple[bytes, Version]:
        """A whole object and its version. ObjectMissing; StoreRefused where it has more than `size_max` bytes."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` on; fewer where the object ends before. ObjectMissing."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """The objects whose keys begin with `prefix` and are greater than `after`, in the order of their keys."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects; one that does not exist is deleted already."""
        ...
