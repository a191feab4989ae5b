"""Opens the object store that the `rsm.config.` properties name.

`rsm.config.url` says all that is needed: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
`abfs://container@account.dfs.core.windows.net/prefix`, `file:///folder` or `memory://name`. For S3 the names of Aiven's plugin
(tiered-storage-for-apache-kafka) are read as well, so its server.properties can stay. Credentials that no property has come from
the environment or the instance.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from barnabas.storage.tier.file_store import FileStore
from barnabas.storage.tier.keys import check_key
from barnabas.storage.tier.memory_store import MemoryStore
from barnabas.storage.tier.object_store import ConditionFailed, ObjectStore, StoreRefused, Version

if TYPE_CHECKING:
    from barnabas.storage.tier.obstore_store import Scheme

PREFIX: Final = "rsm.config."
URL: Final = PREFIX + "url"

_BUCKET = PREFIX + "storage.s3.bucket.name"
_KEY_PREFIX = PREFIX + "key.prefix"
# Of S3: obstore's option, and the properties that set it, ours first
_TEXTS: Final = {
    "endpoint": (PREFIX + "endpoint.url", PREFIX + "storage.s3.endpoint.url"),
    "region": (PREFIX + "region", PREFIX + "storage.s3.region"),
    "access_key_id": (PREFIX + "access.key.id", PREFIX + "storage.aws.access.key.id"),
    "secret_access_key": (PREFIX + "secret.access.key", PREFIX + "storage.aws.secret.access.key"),
}
_PATH_STYLE = (PREFIX + "path.style", PREFIX + "storage.s3.path.style.access.enabled")
_UNSIGNED = PREFIX + "unsigned.payload"
_S3_ONLY = (*(name for names in _TEXTS.values() for name in names), *_PATH_STYLE, _UNSIGNED)

_PROBE = "condition-probe-"
_memory: dict[str, MemoryStore] = {}


class StoreConfigError(ValueError):
    """A property of the object store is wrong or missing; the text names it."""


def open_store(properties: Mapping[str, str], time_ms: Callable[[], int]) -> ObjectStore:
    """The store that these properties name. No request is made to it yet, but a folder has to be writable.

    `time_ms`: the wall clock, for `memory:`. A name there is one store for the life of the process. StoreConfigError; of a folder
    StoreRefused and StoreUnavailable."""
    url = _url(properties)
    prefix = url.path.strip("/")
    key_prefix = properties.get(_KEY_PREFIX, "").strip("/")
    prefix = f"{prefix}/{key_prefix}".strip("/")
    if url.scheme != "s3":
        for name in _S3_ONLY:
            if name in properties:
                raise StoreConfigError(f"{name} is of S3, but {URL} is of {url.scheme}:")
    if url.scheme == "file":
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise StoreConfigError(f"{URL}: {url.geturl()!r} has to be file:///path")
        return FileStore(os.path.join(unquote(url.path), key_prefix))
    if url.scheme == "memory":
        return _memory.setdefault(f"{url.netloc}/{prefix}", MemoryStore(time_ms))
    if not url.netloc:
        raise StoreConfigError(f"{URL}: {url.geturl()!r} names no bucket")
    try:
        if prefix:
            check_key(prefix)
    except StoreRefused as error:
        raise StoreConfigError(f"{URL} or {_KEY_PREFIX}: {error}") from None
    if url.scheme == "s3":
        config = _s3_config(properties, url.netloc)
        allow_http = str(config.get("endpoint", "")).startswith("http://")
        return _over_http("s3", url.netloc, prefix, config, allow_http=allow_http)
    if url.scheme == "gs":
        return _over_http("gs", url.netloc, prefix, {}, allow_http=False)
    if url.scheme in ("az", "abfs", "abfss"):
        container, _, account = url.netloc.partition("@")
        config = {"account_name": account.partition(".")[0]} if account else {}
        return _over_http("az", container, prefix, config, allow_http=False)
    raise StoreConfigError(f"{URL}: {url.scheme or url.geturl()!r} is none of s3, gs, az, abfs, file, memory")


def check_conditions(store: ObjectStore, random_bytes: Callable[[int], bytes]) -> None:
    """Try whether the store keeps `create` and `replace` to their conditions, with an object of its own, which is removed.

    StoreRefused where it does not: an old leader could then overwrite a new one's manifest. StoreUnavailable."""
    key = _PROBE + random_bytes(16).hex()
    try:
        first = store.create(key, b"1")
        if not _is_refused(lambda: store.create(key, b"2")):
            raise StoreRefused("the object store creates an object that exists: it has no conditional writes")
        second = store.replace(key, b"3", first)
        if not _is_refused(lambda: store.replace(key, b"4", first)):
            raise StoreRefused("the object store replaces an old version: it has no conditional writes")
        if store.get(key, 1) != (b"3", second):
            raise StoreRefused("the object store does not return what was written last")
    finally:
        store.delete([key])


def _is_refused(write: Callable[[], Version]) -> bool:
    try:
        write()
    except ConditionFailed:
        return True
    return False


def _url(properties: Mapping[str, str]) -> SplitResult:
    bucket = properties.get(_BUCKET)
    if URL in properties:
        if bucket is not None:
            raise StoreConfigError(f"{URL} and {_BUCKET} are both set; one of them names the store")
        return urlsplit(properties[URL])
    if bucket is None:
        raise StoreConfigError(f"{URL} has to be set, such as to s3://bucket/prefix")
    return urlsplit(f"s3://{bucket}")


def _s3_config(properties: Mapping[str, str], bucket: str) -> dict[str, str | bool]:
    config: dict[str, str | bool] = {}
    for option, names in _TEXTS.items():
        for name in names:
            if name in properties:
                config.setdefault(option, properties[name])
    if ("access_key_id" in config) != ("secret_access_key" in config):
        missing = "secret_access_key" if "access_key_id" in config else "access_key_id"
        raise StoreConfigError(f"{_TEXTS[missing][0]} has to be set, too: a key has two parts")
    endpoint = urlsplit(str(config.get("endpoint", "https://")))
    if endpoint.scheme not in ("http", "https") or ("endpoint" in config and not endpoint.netloc):
        raise StoreConfigError(
            f"{_TEXTS['endpoint'][0]}: {endpoint.geturl()!r} is no http:// or https:// URL"
        )
    for name in _PATH_STYLE:
        if name in properties:
            if _boolean(properties, name):
                break
            config["virtual_hosted_style_request"] = True
            if "endpoint" in config:  # obstore does not add the bucket to it
                config["endpoint"] = endpoint._replace(netloc=f"{bucket}.{endpoint.netloc}").geturl()
            break
    # Under TLS a hash of the content protects nothing more, and costs as much CPU as all the rest
    unsigned = _boolean(properties, _UNSIGNED) if _UNSIGNED in properties else endpoint.scheme == "https"
    config["unsigned_payload"] = unsigned
    return config


def _boolean(properties: Mapping[str, str], name: str) -> bool:
    text = properties[name].strip().lower()
    if text not in ("true", "false"):
        raise StoreConfigError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def _over_http(
    scheme: Scheme, bucket: str, prefix: str, config: Mapping[str, str | bool], *, allow_http: bool
) -> ObjectStore:
    try:
        from barnabas.storage.tier.obstore_store import ObstoreStore
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise StoreConfigError(
            f"{URL}: a {scheme}: store needs the package obstore; pip install 'barnabas[tier]'"
        ) from None
    try:
        return ObstoreStore(scheme, bucket, prefix, config, allow_http=allow_http)
    except ValueError as error:
        raise StoreConfigError(f"{URL}: {error}") from error
