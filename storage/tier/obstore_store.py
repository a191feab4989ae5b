"""Object stores over HTTP, through obstore: S3 and what speaks its protocol, Google Cloud Storage, Azure.

The only module that imports obstore (the extra `tier`).

obstore's own retries are few and only for calls that may be repeated: `create` and `replace` are sent once, so ConditionFailed
never comes from a first try whose reply was lost. A request takes at most 10 s, and 1 s more for each MB of a part; larger objects
are written and read in parts. `get` reads them of one version; `get_range` does not see to that, because objects that are read by
ranges are written once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

import obstore
from obstore import store as stores

from barnabas.storage.tier.keys import check_key, check_prefix
from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreRefused,
    StoreUnavailable,
    Version,
)
from barnabas.wire.compression import Bytes

if TYPE_CHECKING:
    from obstore import PutResult, UpdateVersion
    from obstore.store import ClientConfig, RetryConfig

PART_BYTES: Final = 8 * 1024 * 1024
READ_BYTES: Final = 4 * 1024 * 1024
PARTS_AT_ONCE = 2  # of one upload
TIMEOUT_S = 10 + PART_BYTES / 1_000_000  # of one request with at most one part
TRIES_AGAIN = 2
LIST_CHUNK = 1000

Scheme = Literal["s3", "gs", "az"]

_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
# S3: another write of the key was being made, and this one was not; or the request came too slowly
_AGAIN = re.compile(r"<Code>(ConditionalRequestConflict|OperationAborted|RequestTimeout)</Code>")
_AGAIN_STATUSES = frozenset({408, 409, 429})
_NOT_IMPLEMENTED = 501
_RANGE_NOT_SATISFIABLE = 416

_REFUSED = (
    obstore.exceptions.PermissionDeniedError,
    obstore.exceptions.UnauthenticatedError,
    obstore.exceptions.InvalidPathError,
    obstore.exceptions.NotSupportedError,
    obstore.exceptions.UnknownConfigurationKeyError,
)


class ObstoreStore:
    """A bucket, below a prefix of its own. `config`: obstore's options of this kind of store; what it lacks is taken from the
    environment or the instance. No request is made. ValueError where an option is wrong.

    Threads may share it. obstore works in threads of its own and releases the GIL while a call waits."""

    def __init__(
        self, scheme: Scheme, bucket: str, prefix: str, config: Mapping[str, Any], *, allow_http: bool
    ) -> None:
        client: ClientConfig = {
            "allow_http": allow_http,
            "connect_timeout": timedelta(seconds=5),
            "timeout": timedelta(seconds=TIMEOUT_S),
        }

        def opened(tries_again: int) -> stores.ObjectStore:
            retry: RetryConfig = {
                "max_retries": tries_again,
                "retry_timeout": timedelta(seconds=(1 + TRIES_AGAIN) * TIMEOUT_S),
            }
            options: dict[str, Any] = {
                "prefix": prefix or None,
                "config": dict(config),
                "client_options": client,
                "retry_config": retry,
            }
            if scheme == "s3":
                return stores.S3Store(bucket, **options)
            if scheme == "gs":
                return stores.GCSStore(bucket, **options)
            return stores.AzureStore(bucket, **options)

        try:
            self._store = opened(TRIES_AGAIN)
            self._once = opened(0)
        except (obstore.exceptions.BaseError, TypeError) as error:
            raise ValueError(_text(error)) from error

    def put(self, key: str, parts: Iterable[Bytes]) -> None:
        check_key(key)
        source = iter(parts)
        first: list[Bytes] = []
        size = 0
        for part in source:
            first.append(part)
            size += len(part)
            if size >= PART_BYTES:
                break
        raised: list[BaseException] = []

        def rest() -> Iterator[Bytes]:
            try:
                # obstore takes no empty buffer; it collects small ones and cuts large ones into parts
                yield from filter(len, chain(first, source))
            except BaseException as error:
                raised.append(error)
                raise

        try:
            if size < PART_BYTES:  # one request instead of three
                data = first[0] if len(first) == 1 else b"".join(first)
                obstore.put(self._store, key, data, use_multipart=False)
            else:
                obstore.put(
                    self._store,
                    key,
                    rest(),
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
        except Exception as error:
            if raised:
                raise raised[0] from None
            raise _translated("put", key, error) from error

    def create(self, key: str, data: Bytes) -> Version:
        check_key(key)
        try:
            return _written(obstore.put(self._once, key, data, mode="create"))
        except Exception as error:
            raise _translated("create", key, error) from error

    def replace(self, key: str, data: Bytes, version: Version) -> Version:
        check_key(key)
        try:
            mode: UpdateVersion = {}  # obstore takes no None in it
            if version.e_tag is not None:
                mode["e_tag"] = version.e_tag
            if version.number is not None:
                mode["version"] = version.number
            return _written(obstore.put(self._once, key, data, mode=mode))
        except Exception as error:
            raise _translated("replace", key, error) from error

    def copy(self, source: str, key: str) -> None:
        check_key(source)
        check_key(key)
        try:
            obstore.copy(self._store, source, key)
        except Exception as error:
            raise _translated("copy", f"{source} to {key}", error) from error

    def get(self, key: str, size_max: int) -> tuple[bytes, Version]:
        check_key(key)
        try:
            while True:
                result = obstore.get(self._store, key)
                meta = result.meta
                size = meta["size"]
                if size > size_max:
                    raise StoreRefused(f"get {key}: it has {size} bytes, more than {size_max}")
                version = Version(meta["e_tag"], meta["version"])
                if size <= PART_BYTES:
                    return bytes(result.bytes()), version
                del result  # ends the request; each part has its own
                try:
                    return self._parts(key, size, meta["e_tag"]), version
                except obstore.exceptions.PreconditionError:  # replaced in the meantime
                    pass
        except ObjectStoreError:
            raise
        except Exception as error:
            raise _translated("get", key, error) from error

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        pieces: list[obstore.Bytes] = []
        end = start + length
        while True:
            asked = min(READ_BYTES, end - start)
            try:
                # Stores refuse an empty range, and whether there is an object is still the question
                piece = obstore.get_range(self._store, key, start=start, length=max(asked, 1))
            except Exception as error:
                if _status(error) == _RANGE_NOT_SATISFIABLE:  # nothing there any more
                    break
                raise _translated("get_range", key, error) from error
            if asked:
                pieces.append(piece)
            start += len(piece)
            if len(piece) < asked or start >= end:
                break
        return b"".join(pieces)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]  # obstore lists whole folders
        try:
            chunks = obstore.list(self._store, folder or None, offset=after or None, chunk_size=LIST_CHUNK)
            for chunk in chunks:
                for meta in chunk:
                    key = meta["path"]
                    if key.startswith(prefix) and key > after:  # obstore takes "a/" for "a"
                        yield ObjectInfo(key, meta["size"], int(meta["last_modified"].timestamp() * 1000))
        except Exception as error:
            raise _translated("list", prefix, error) from error

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        try:
            obstore.delete(self._store, list(keys))
        except (
            FileNotFoundError
        ):  # not all stores take it for deleted; and after it the others may not have been
            for key in keys:
                self._delete_one(key)
        except Exception as error:
            raise _translated("delete", ", ".join(keys[:3]), error) from error

    def _delete_one(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except Exception as error:
            translated = _translated("delete", key, error)
            if not isinstance(translated, ObjectMissing):
                raise translated from error

    def _parts(self, key: str, size: int, e_tag: str | None) -> bytes:
        parts = []
        for start in range(0, size, PART_BYTES):
            options: obstore.GetOptions = {"range": (start, min(size, start + PART_BYTES))}
            if e_tag is not None:
                options["if_match"] = e_tag
            parts.append(obstore.get(self._store, key, options=options).bytes())
        return b"".join(parts)


def _written(result: PutResult) -> Version:
    return Version(result["e_tag"], result["version"])


def _text(error: BaseException) -> str:
    """What obstore says, without the structure that it prints behind it."""
    return str(error).partition("\n\nDebug source")[0]


def _status(error: BaseException) -> int | None:
    """The HTTP status; None where there was no answer."""
    found = _STATUS.search(_text(error))
    return int(found[1]) if found else None


def _translated(verb: str, key: str, error: Exception) -> ObjectStoreError:
    text = _text(error)
    return _kind(error, text, _status(error))(f"{verb} {key}: {text}")


def _kind(error: Exception, text: str, status: int | None) -> Callable[[str], ObjectStoreError]:
    if _NO_BUCKET.search(text):
        return StoreRefused
    if _AGAIN.search(text):
        return StoreUnavailable
    if isinstance(error, FileNotFoundError):
        return ObjectMissing
    if isinstance(error, obstore.exceptions.AlreadyExistsError | obstore.exceptions.PreconditionError):
        return ConditionFailed
    if isinstance(error, (*_REFUSED, ValueError, TypeError)):
        return StoreRefused
    if status is not None and status not in _AGAIN_STATUSES and (status < 500 or status == _NOT_IMPLEMENTED):
        return StoreRefused
    return StoreUnavailable
