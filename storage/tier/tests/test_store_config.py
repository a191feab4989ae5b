"""The properties that name an object store, and stores without conditional writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from barnabas.storage.tier import obstore_store
from barnabas.storage.tier.file_store import FileStore
from barnabas.storage.tier.memory_store import MemoryStore
from barnabas.storage.tier.object_store import StoreRefused, Version
from barnabas.storage.tier.store_config import StoreConfigError, check_conditions, open_store
from barnabas.wire.compression import Bytes

AIVEN = {
    "rsm.config.storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
    "rsm.config.storage.s3.bucket.name": "bucket",
    "rsm.config.storage.s3.region": "eu-central-1",
    "rsm.config.key.prefix": "tiered/",
    "rsm.config.chunk.size": "4194304",
}
KEYS = {"rsm.config.access.key.id": "A", "rsm.config.secret.access.key": "S"}


def _no_clock() -> int:
    return 0


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"rsm.config.url": "s3://bucket"}, ("s3", "bucket", "", {"unsigned_payload": True}, False)),
        (
            {"rsm.config.url": "s3://bucket/a/b/", "rsm.config.key.prefix": "c"},
            ("s3", "bucket", "a/b/c", {"unsigned_payload": True}, False),
        ),
        (
            {"rsm.config.url": "s3://bucket", "rsm.config.endpoint.url": "http://h:1", **KEYS},
            (
                "s3",
                "bucket",
                "",
                {
                    "endpoint": "http://h:1",
                    "access_key_id": "A",
                    "secret_access_key": "S",
                    "unsigned_payload": False,
                },
                True,
            ),
        ),
        (
            {
                "rsm.config.url": "s3://bucket",
                "rsm.config.unsigned.payload": "false",
                "rsm.config.region": "r",
            },
            ("s3", "bucket", "", {"region": "r", "unsigned_payload": False}, False),
        ),
        (AIVEN, ("s3", "bucket", "tiered", {"region": "eu-central-1", "unsigned_payload": True}, False)),
        (
            {
                **AIVEN,
                "rsm.config.storage.s3.endpoint.url": "https://h:2",
                "rsm.config.storage.s3.path.style.access.enabled": "false",
                "rsm.config.storage.aws.access.key.id": "A",
                "rsm.config.storage.aws.secret.access.key": "S",
            },
            (
                "s3",
                "bucket",
                "tiered",
                {
                    "endpoint": "https://bucket.h:2",
                    "region": "eu-central-1",
                    "access_key_id": "A",
                    "secret_access_key": "S",
                    "virtual_hosted_style_request": True,
                    "unsigned_payload": True,
                },
                False,
            ),
        ),
        (
            {**AIVEN, "rsm.config.storage.s3.path.style.access.enabled": "true"},
            ("s3", "bucket", "tiered", {"region": "eu-central-1", "unsigned_payload": True}, False),
        ),
        ({"rsm.config.url": "gs://bucket/p"}, ("gs", "bucket", "p", {}, False)),
        ({"rsm.config.url": "az://container/p"}, ("az", "container", "p", {}, False)),
        (
            {"rsm.config.url": "abfss://container@account.dfs.core.windows.net/p"},
            ("az", "container", "p", {"account_name": "account"}, False),
        ),
    ],
)
def test_stores_over_http(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], expected: tuple[object, ...]
) -> None:
    """What obstore is given."""
    given: list[tuple[object, ...]] = []

    class Noted:
        def __init__(
            self, scheme: str, bucket: str, prefix: str, config: Mapping[str, Any], *, allow_http: bool
        ) -> None:
            given.append((scheme, bucket, prefix, config, allow_http))

    monkeypatch.setattr(obstore_store, "ObstoreStore", Noted)
    open_store(properties, _no_clock)
    assert given == [expected]


@pytest.mark.parametrize(
    "url", ["s3://bucket/p", "gs://bucket/p", "az://c/p", "abfs://c@account.dfs.core.windows.net/p"]
)
def test_obstore_opens_all_of_them(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """No request is made."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert isinstance(open_store({"rsm.config.url": url}, _no_clock), obstore_store.ObstoreStore)


def test_folders_and_memory(tmp_path: Path) -> None:
    """A name in memory is one store."""
    folder = open_store({"rsm.config.url": (tmp_path / "a b").as_uri()}, _no_clock)
    assert isinstance(folder, FileStore)
    folder.put("k", [b"1"])
    assert (tmp_path / "a b" / "k").read_bytes() == b"1"
    one = open_store({"rsm.config.url": "memory://one"}, _no_clock)
    assert isinstance(one, MemoryStore)
    assert open_store({"rsm.config.url": "memory://one"}, _no_clock) is one
    assert open_store({"rsm.config.url": "memory://two"}, _no_clock) is not one


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "rsm.config.url has to be set"),
        ({"rsm.config.url": "ftp://x"}, "rsm.config.url: 'ftp' is none of"),
        ({"rsm.config.url": "bucket"}, "rsm.config.url"),
        ({"rsm.config.url": "s3:///p"}, "rsm.config.url.*names no bucket"),
        ({"rsm.config.url": "s3://b/a//b"}, "rsm.config.url"),
        ({"rsm.config.url": "az://container"}, "rsm.config.url.*[Aa]ccount"),
        ({"rsm.config.url": "file://host/p"}, "file:///path"),
        ({"rsm.config.url": "s3://b", **AIVEN}, "both set"),
        ({"rsm.config.url": "gs://b", "rsm.config.region": "r"}, "rsm.config.region is of S3"),
        ({"rsm.config.url": "s3://b", "rsm.config.path.style": "yes"}, "rsm.config.path.style: 'yes'"),
        ({"rsm.config.url": "s3://b", "rsm.config.unsigned.payload": ""}, "rsm.config.unsigned.payload"),
        ({"rsm.config.url": "s3://b", "rsm.config.endpoint.url": "h:1"}, "rsm.config.endpoint.url"),
        ({"rsm.config.url": "s3://b", "rsm.config.access.key.id": "A"}, "rsm.config.secret.access.key"),
        ({"rsm.config.url": "s3://b", "rsm.config.secret.access.key": "hidden"}, "rsm.config.access.key.id"),
    ],
)
def test_errors_name_the_property(properties: dict[str, str], message: str) -> None:
    """And no secret."""
    with pytest.raises(StoreConfigError, match=message) as raised:
        open_store(properties, _no_clock)
    assert "hidden" not in str(raised.value)


@pytest.mark.sockets
def test_without_obstore() -> None:
    """The rest of the tier needs none, and the message says what to install."""
    program = """
import sys
sys.modules["obstore"] = None
from barnabas.storage.tier.store_config import open_store
assert open_store({"rsm.config.url": "memory://one"}, int) is not None
open_store({"rsm.config.url": "s3://bucket"}, int)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'barnabas[tier]'" in done.stderr


class _Careless(MemoryStore):
    """A store that knows no conditions."""

    def __init__(self, careless: str) -> None:
        super().__init__(_no_clock)
        self._careless = careless

    def create(self, key: str, data: Bytes) -> Version:
        if self._careless == "create":
            self.delete([key])
        return super().create(key, data)

    def replace(self, key: str, data: Bytes, version: Version) -> Version:
        if self._careless == "replace":
            version = self.get(key, 99)[1]
        return super().replace(key, data, version)


@pytest.mark.parametrize(
    ("careless", "message"), [("create", "creates an object that"), ("replace", "an old version")]
)
def test_a_store_without_conditional_writes_is_refused(careless: str, message: str) -> None:
    """The probe is removed."""
    store = _Careless(careless)
    with pytest.raises(StoreRefused, match=message):
        check_conditions(store, Random(1).randbytes)
    assert list(store.list("")) == []
