"""What every object store does, as tests: a class to inherit from, whose fixture `store` a test module gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import pytest

from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectMissing,
    ObjectStore,
    StoreRefused,
    Version,
)
from barnabas.storage.tier.store_config import check_conditions
from barnabas.wire.compression import Bytes

RACERS = 8
ROUNDS = 10
MEGABYTE = 1024 * 1024
KEYS = (
    "a",
    "a-b",
    "a.b",
    "a_b",
    "A",
    "-",
    "_",
    "...",
    ".hidden",
    "x/.y/z..",
    "deep/" * 20 + "key",
    "0" * 200,
    "x/00000000000000000000-3-AbCd_-.log",
)


class ObjectStoreContract:
    """Each test has an empty store."""

    def test_written_objects_are_read_as_they_are(self, store: ObjectStore) -> None:
        """One part, several, and none at all; a second put replaces the first."""
        store.put("one", [b"abc"])
        store.put("several", [b"abc", bytearray(b"def"), memoryview(b"xghix")[1:4]])
        store.put("none", [])
        store.put("empty", [b"", b""])
        assert _content(store, "one") == b"abc"
        assert _content(store, "several") == b"abcdefghi"
        assert _content(store, "none") == b""
        assert _content(store, "empty") == b""
        store.put("several", iter([b"new"]))
        assert _content(store, "several") == b"new"

    def test_sizes(self, store: ObjectStore) -> None:
        """0 bytes, 1 byte, and 20 MiB in parts of odd size."""
        content = Random(1).randbytes(20 * MEGABYTE + 1)
        view = memoryview(content)
        sizes = [1, 0, 3 * MEGABYTE + 7, 5, 11 * MEGABYTE - 1, 4097]
        parts: list[Bytes] = []
        start = 0
        for size in [*sizes, len(content) - sum(sizes)]:
            parts.append(view[start : start + size])
            start += size
        store.put("large", iter(parts))
        store.put("byte", [b"x"])
        assert _content(store, "large") == content
        assert (
            store.get_range("large", 8 * MEGABYTE - 3, 9 * MEGABYTE)
            == view[8 * MEGABYTE - 3 :][: 9 * MEGABYTE]
        )
        assert store.get_range("large", 0, 30 * MEGABYTE) == content
        assert _content(store, "byte") == b"x"
        assert [(found.key, found.size) for found in store.list("")] == [("byte", 1), ("large", len(content))]

    @pytest.mark.parametrize("size", [10, 9 * MEGABYTE])
    def test_a_put_whose_parts_fail_writes_nothing(self, store: ObjectStore, size: int) -> None:
        """The error is passed on as it is; what was there stays."""

        def parts() -> Iterator[bytes]:
            yield bytes(size)
            raise OSError("the disk")

        store.put("old", [b"before"])
        for key in ("old", "new"):
            with pytest.raises(OSError, match="the disk"):
                store.put(key, parts())
        assert _content(store, "old") == b"before"
        with pytest.raises(ObjectMissing):
            store.get("new", 1)
        assert [found.key for found in store.list("")] == ["old"]

    def test_ranges(self, store: ObjectStore) -> None:
        """A range ends with the object; one behind it is empty."""
        store.put("k", [b"0123456789"])
        assert store.get_range("k", 0, 10) == b"0123456789"
        assert store.get_range("k", 3, 4) == b"3456"
        assert store.get_range("k", 8, 5) == b"89"
        assert store.get_range("k", 10, 5) == b""
        assert store.get_range("k", 99, 5) == b""
        assert store.get_range("k", 3, 0) == b""
        store.put("empty", [])
        assert store.get_range("empty", 0, 1) == b""

    def test_what_is_missing_and_what_is_too_large(self, store: ObjectStore) -> None:
        """ObjectMissing, also for what is a folder of keys, and StoreRefused."""
        store.put("folder/k", [b"12345"])
        for key in ("none", "folder", "folder/none", "folder/k/none"):
            with pytest.raises(ObjectMissing, match=key):
                store.get(key, 100)
            for length in (1, 0):
                with pytest.raises(ObjectMissing, match=key):
                    store.get_range(key, 0, length)
        with pytest.raises(StoreRefused, match="5 bytes"):
            store.get("folder/k", 4)
        assert store.get("folder/k", 5)[0] == b"12345"

    def test_create_and_replace(self, store: ObjectStore) -> None:
        """Each needs what was there before."""
        with pytest.raises(ConditionFailed):
            store.replace("k", b"0", Version(e_tag='"1"'))
        first = store.create("k", b"1")
        assert store.get("k", 9) == (b"1", first)
        with pytest.raises(ConditionFailed):
            store.create("k", b"2")
        second = store.replace("k", memoryview(b"3"), first)
        assert store.get("k", 9) == (b"3", second)
        with pytest.raises(ConditionFailed):
            store.replace("k", b"4", first)
        store.put("k", [b"5"])
        with pytest.raises(ConditionFailed):
            store.replace("k", b"6", second)
        assert _content(store, "k") == b"5"
        store.delete(["k"])
        with pytest.raises(ConditionFailed):
            store.replace("k", b"7", second)
        assert list(store.list("")) == []
        store.create("k", b"")
        assert _content(store, "k") == b""

    def test_of_racing_creators_one_wins(self, store: ObjectStore) -> None:
        """And its content is there."""
        for turn in range(ROUNDS):
            key = f"race/{turn}"
            winners = _race(lambda racer, key=key: store.create(key, b"%d" % racer))  # type: ignore[misc]
            ((winner, version),) = winners.items()
            assert store.get(key, 9) == (b"%d" % winner, version)

    def test_of_racing_replacers_one_wins(self, store: ObjectStore) -> None:
        """From round to round."""
        version = store.create("k", b"first")
        for turn in range(ROUNDS):
            content = {racer: b"%d-%d" % (turn, racer) for racer in range(RACERS)}
            winners = _race(lambda racer: store.replace("k", content[racer], version))  # noqa: B023 - done in this round
            ((winner, version),) = winners.items()
            assert store.get("k", 99) == (content[winner], version)

    def test_keys(self, store: ObjectStore) -> None:
        """All that is legal works; what isn't is refused by each call."""
        for key in KEYS:
            store.put(key, [key.encode()])
        for key in KEYS:
            assert _content(store, key) == key.encode()
        assert [found.key for found in store.list("")] == sorted(KEYS)
        store.delete(KEYS)
        assert list(store.list("")) == []
        for key in (
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            "a/../b",
            "..",
            ".",
            "a/.",
            "a b",
            "a\n",
            "\N{SNOWMAN}",
            "a\0",
            "~",
            "a" * 2000,
        ):
            calls: list[Callable[[], object]] = [
                lambda key=key: store.put(key, []),  # type: ignore[misc]
                lambda key=key: store.create(key, b""),  # type: ignore[misc]
                lambda key=key: store.replace(key, b"", Version("1")),  # type: ignore[misc]
                lambda key=key: store.get(key, 1),  # type: ignore[misc]
                lambda key=key: store.get_range(key, 0, 1),  # type: ignore[misc]
                lambda key=key: store.delete([key]),  # type: ignore[misc]
            ]
            for call in calls:
                with pytest.raises(StoreRefused):
                    call()

    def test_listing(self, store: ObjectStore) -> None:
        """In the order of the keys' bytes, by prefix and after a key, which need not exist."""
        keys = ["a-", "a/b", "a/b-c", "a/c/d", "a/c/e", "a0", "b/c", "ba"]
        for key in keys:
            store.put(key, [key.encode()])
        assert [(found.key, found.size) for found in store.list("")] == [(key, len(key)) for key in keys]
        assert all(found.modified_ms > 1_600_000_000_000 for found in store.list(""))
        for prefix in ("", "a", "a/", "a/b", "a/c", "a/c/", "a/c/d", "b", "c", "a/c/d/e"):
            for after in ("", "a", "a/", "a/b", "a/bb", "a/c/d", "a/c/f", "a0", "b", "z"):
                expected = [key for key in keys if key.startswith(prefix) and key > after]
                assert [found.key for found in store.list(prefix, after)] == expected, (prefix, after)

    def test_listing_of_more_than_a_thousand(self, store: ObjectStore) -> None:
        """Stores answer with a thousand at a time."""
        keys = [f"many/{number:05}" for number in range(1100)]
        numbers = count()

        def write(_: int) -> None:
            while (number := next(numbers)) < len(keys):
                store.put(keys[number], [b"x"])

        _run(write, 4)
        store.put("before", [b""])
        store.put("other", [b""])
        assert [found.key for found in store.list("many/")] == keys
        assert [found.key for found in store.list("many/", keys[41])] == keys[42:]
        assert [found.key for found in store.list("many/", keys[-2])] == keys[-1:]
        store.delete(keys)
        assert [found.key for found in store.list("")] == ["before", "other"]

    def test_deleting(self, store: ObjectStore) -> None:
        """What does not exist is deleted already; the others go all the same."""
        store.put("a/b/c", [b"1"])
        store.put("a/d", [b"2"])
        store.put("e", [b"3"])
        store.delete([])
        store.delete(["none", "a/b/c", "a/none/c", "a/b", "e"])
        assert [found.key for found in store.list("")] == ["a/d"]
        store.delete(["e"])
        store.put("a/b", [b"4"])
        assert _content(store, "a/b") == b"4"

    def test_conditions_are_honoured(self, store: ObjectStore) -> None:
        """The probe leaves nothing."""
        check_conditions(store, Random(1).randbytes)
        assert list(store.list("")) == []


def _content(store: ObjectStore, key: str) -> bytes:
    return store.get(key, 100 * MEGABYTE)[0]


def _race(write: Callable[[int], Version]) -> dict[int, Version]:
    """The versions of those who succeeded, by their number."""
    won: dict[int, Version] = {}
    barrier = threading.Barrier(RACERS)

    def run(racer: int) -> None:
        barrier.wait()
        try:
            won[racer] = write(racer)
        except ConditionFailed:
            pass

    _run(run, RACERS)
    return won


def _run(work: Callable[[int], None], threads: int) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]
