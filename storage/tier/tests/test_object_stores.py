"""What every object store does, of those that need no network; and against a dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from barnabas.storage.tier.file_store import FileStore
from barnabas.storage.tier.memory_store import MemoryStore
from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectMissing,
    ObjectStore,
    StoreRefused,
    Version,
)
from compat_tests.harness.object_store_contract import ObjectStoreContract


def memory_store() -> MemoryStore:
    """One whose clock stands still."""
    return MemoryStore(lambda: 1_700_000_000_000)


class TestMemoryStore(ObjectStoreContract):
    """In memory."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """A new one."""
        return memory_store()


class TestFileStore(ObjectStoreContract):
    """In a folder."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        """A new one."""
        return FileStore(str(tmp_path / "store"))


# No key is the folder of another, which a file system can't have
_KEYS = st.sampled_from(["a", "a-b", "b/c", "b/c-", "b/d/e", "b/d/f", "b0", "c.d/e"])
_PREFIXES = st.sampled_from(["", "a", "b", "b/", "b/c", "b/d/", "c.d/e", "d"])
_CONTENT = st.binary(max_size=3)


class ObjectStoreModel(RuleBasedStateMachine):
    """Any calls one after the other, compared with a dict. A version is good until the next write of its key."""

    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.current: dict[str, Version] = {}

    def opened(self) -> ObjectStore:
        """An empty store."""
        return memory_store()

    @initialize()
    def open(self) -> None:
        """As `opened`."""
        self.store = self.opened()

    @rule(key=_KEYS, parts=st.lists(_CONTENT, max_size=3))
    def put(self, key: str, parts: list[bytes]) -> None:
        """Whatever was there."""
        self.store.put(key, parts)
        self.objects[key] = b"".join(parts)
        self.current.pop(key, None)

    @rule(target=versions, key=_KEYS, content=_CONTENT)
    def create(self, key: str, content: bytes) -> object:
        """Where there is none."""
        if key in self.objects:
            with pytest.raises(ConditionFailed):
                self.store.create(key, content)
            return multiple()
        return self._written(key, content, self.store.create(key, content))

    @rule(target=versions, old=versions, content=_CONTENT)
    def replace(self, old: tuple[str, Version], content: bytes) -> object:
        """Where it is this version."""
        key, version = old
        if self.current.get(key) != version:
            with pytest.raises(ConditionFailed):
                self.store.replace(key, content, version)
            return multiple()
        return self._written(key, content, self.store.replace(key, content, version))

    @rule(target=versions, key=_KEYS)
    def get(self, key: str) -> object:
        """With its version."""
        if key not in self.objects:
            with pytest.raises(ObjectMissing):
                self.store.get(key, 100)
            return multiple()
        content, version = self.store.get(key, 100)
        assert content == self.objects[key]
        assert self.current.setdefault(key, version) == version
        return key, version

    @rule(source=_KEYS, key=_KEYS)
    def copy(self, source: str, key: str) -> None:
        """Also over what is there, and over itself."""
        if source in self.objects:
            self.store.copy(source, key)
            self.objects[key] = self.objects[source]
            self.current.pop(key, None)
        else:
            with pytest.raises(ObjectMissing):
                self.store.copy(source, key)

    @rule(key=_KEYS, start=st.integers(0, 12), length=st.integers(0, 12))
    def get_range(self, key: str, start: int, length: int) -> None:
        """As a slice."""
        if key in self.objects:
            assert self.store.get_range(key, start, length) == self.objects[key][start : start + length]
        else:
            with pytest.raises(ObjectMissing):
                self.store.get_range(key, start, length)

    @rule(keys=st.lists(_KEYS, max_size=3))
    def delete(self, keys: list[str]) -> None:
        """Some that exist, and others."""
        self.store.delete(keys)
        for key in keys:
            self.objects.pop(key, None)
            self.current.pop(key, None)

    @rule(prefix=_PREFIXES, after=st.one_of(_KEYS, _PREFIXES))
    def list(self, prefix: str, after: str) -> None:
        """In order."""
        expected = [
            (key, len(content))
            for key, content in sorted(self.objects.items())
            if key.startswith(prefix) and key > after
        ]
        assert [(found.key, found.size) for found in self.store.list(prefix, after)] == expected

    @invariant()
    def sizes(self) -> None:
        """Nothing else is there."""
        assert not self.objects or {found.key for found in self.store.list("")} == set(self.objects)

    def _written(self, key: str, content: bytes, version: Version) -> tuple[str, Version]:
        self.objects[key] = content
        self.current[key] = version
        return key, version


class FileStoreModel(ObjectStoreModel):
    """The same in a folder."""

    def opened(self) -> ObjectStore:
        """A new folder, removed at the end."""
        self.folder = tempfile.mkdtemp()
        return FileStore(self.folder)

    def teardown(self) -> None:
        """Nothing is left aside, and no empty folder."""
        if "folder" in self.__dict__:
            self.store.delete(list(self.objects))
            names = [str(path.relative_to(self.folder)) for path in Path(self.folder).rglob("*")]
            shutil.rmtree(self.folder)
            assert set(names) <= {".barnabas~", ".barnabas~/lock"}


TestMemoryStoreModel = ObjectStoreModel.TestCase
TestFileStoreModel = FileStoreModel.TestCase


def test_a_key_can_not_be_the_folder_of_another_one(tmp_path: Path) -> None:
    """In a bucket it can."""
    store = FileStore(str(tmp_path))
    store.put("a/b", [b"1"])
    store.put("c", [b"2"])
    for key in ("a", "c/d"):
        with pytest.raises(StoreRefused, match=key):
            store.put(key, [b""])
        with pytest.raises(StoreRefused if key == "c/d" else ConditionFailed, match=key):
            store.create(key, b"")
    assert [found.key for found in store.list("")] == ["a/b", "c"]
