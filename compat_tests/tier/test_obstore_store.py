"""ObstoreStore against moto, and against servers that fail."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import obstore
import pytest

from barnabas.storage.tier import obstore_store
from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    StoreRefused,
    StoreUnavailable,
    Version,
)
from barnabas.storage.tier.store_config import check_conditions, open_store
from compat_tests.harness.object_store_contract import ObjectStoreContract
from compat_tests.harness.s3_servers import BUCKET, moto, properties_of

pytestmark = [pytest.mark.sockets, pytest.mark.barnabas_only]


@pytest.fixture(scope="module")
def moto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server of this module."""
    with moto(tmp_path_factory.mktemp("moto")) as port:
        yield port


class TestObstoreStore(ObjectStoreContract):
    """What every object store does."""

    @pytest.fixture
    def store(self, moto_port: int, request: pytest.FixtureRequest) -> ObjectStore:
        """A prefix of each test's own."""
        name = re.sub(r"\W", "-", request.node.name)
        return open_store(properties_of(moto_port, f"prefix/{name}"), _no_clock)

    # moto looks for the object and writes it in two steps, each in a thread of its own: `make test-tier` races on real servers.
    test_of_racing_creators_one_wins = None  # type: ignore[assignment]
    test_of_racing_replacers_one_wins = None  # type: ignore[assignment]


def test_an_upload_whose_parts_fail_is_aborted(moto_port: int) -> None:
    """Parts that were sent would cost money until a rule of the bucket removes them."""

    def parts() -> Iterator[bytes]:
        yield bytes(9_000_000)
        yield bytes(9_000_000)
        raise KeyError("halfway")

    store = open_store(properties_of(moto_port, "aborted"), _no_clock)
    with pytest.raises(KeyError, match="halfway"):
        store.put("k", parts())
    with urllib.request.urlopen(f"http://127.0.0.1:{moto_port}/{BUCKET}?uploads") as reply:
        assert b"<UploadId>" not in reply.read()


def test_a_large_object_is_read_in_parts_of_one_version(
    moto_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read anew where it was replaced between two of them."""
    store = open_store(properties_of(moto_port, "parts"), _no_clock)
    monkeypatch.setattr(obstore_store, "PART_BYTES", 1000)
    version = store.create("k", b"a" * 2500)
    original = obstore.get
    asked = 0

    def get(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            store.replace("k", b"b" * 2600, version)
        return original(*arguments, **options)

    monkeypatch.setattr(obstore, "get", get)
    assert store.get("k", 9999)[0] == b"b" * 2600


def test_a_bucket_that_does_not_exist(moto_port: int) -> None:
    """An operator has to act, so it isn't ObjectMissing."""
    for call in _calls(open_store(properties_of(moto_port, bucket="no-such-bucket"), _no_clock)).values():
        with pytest.raises(StoreRefused, match="NoSuchBucket"):
            call()


def test_no_server() -> None:
    """It may come back."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    store = open_store(properties_of(port), _no_clock)
    for call in _calls(store).values():
        with pytest.raises(StoreUnavailable):
            call()
    with pytest.raises(StoreUnavailable):
        check_conditions(store, bytes)


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request ends at its deadline; one that may not be repeated is sent once."""
    monkeypatch.setattr(obstore_store, "TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_store(properties_of(silent.getsockname()[1]), _no_clock)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.create("k", b"")
        assert 0.3 <= time.monotonic() - start < 5
        with pytest.raises(StoreUnavailable):
            store.get("k", 1)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "InvalidArgument", {"": StoreRefused}),
        (400, "RequestTimeout", {"": StoreUnavailable}),
        (403, "AccessDenied", {"": StoreRefused}),
        (404, "NoSuchBucket", {"": StoreRefused}),
        (
            404,
            "NoSuchKey",
            {"replace": ConditionFailed, "delete": None, "list": StoreRefused, "": ObjectMissing},
        ),
        (
            409,
            "ConditionalRequestConflict",
            {"create": StoreUnavailable, "replace": StoreUnavailable, "": StoreUnavailable},
        ),
        (412, "PreconditionFailed", {"create": ConditionFailed, "replace": ConditionFailed}),
        (429, "SlowDown", {"": StoreUnavailable}),
        (500, "InternalError", {"": StoreUnavailable}),
        (501, "NotImplemented", {"": StoreRefused}),
        (503, "SlowDown", {"": StoreUnavailable}),
    ],
)
def test_errors(status: int, code: str, expected: dict[str, type[ObjectStoreError] | None]) -> None:
    """By HTTP status and S3's code, for each call; the text has both, and no structure of obstore's."""
    with _scripted(status, code) as port:
        for verb, call in _calls(open_store(properties_of(port), _no_clock)).items():
            error = expected.get(verb, expected.get("", ObjectStoreError))
            if error is None:
                call()
                continue
            with pytest.raises(error, match=f"(?s){verb} .*{status}.*{code}") as raised:
                call()
            assert "Debug source" not in str(raised.value)


class _scripted:  # noqa: N801 - a context manager
    """A server that answers each request with the same error."""

    def __init__(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
        self._reply = (
            b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
        )
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65536)
                head, _, body = request.partition(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                missing = int(length[1]) - len(body) if length else 0
                while missing > 0:
                    missing -= len(connection.recv(65536))
                connection.sendall(self._reply)


def _calls(store: ObjectStore) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: store.put("k", [b"1"]),
        "create": lambda: store.create("k", b"1"),
        "replace": lambda: store.replace("k", b"1", Version('"1"')),
        "get": lambda: store.get("k", 9),
        "get_range": lambda: store.get_range("k", 0, 9),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete(["k"]),
    }


def _no_clock() -> int:
    return 0
