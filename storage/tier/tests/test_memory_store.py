"""Faults of MemoryStore, and its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from barnabas.storage.tier.memory_store import Fault, MemoryStore
from barnabas.storage.tier.object_store import ObjectInfo, StoreRefused, StoreUnavailable


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("verb", ["put", "create", "replace", "delete"])
def test_a_write_that_fails(verb: str, fault: Fault) -> None:
    """The caller can't tell whether it was done; it was only where the reply was lost."""
    store = MemoryStore(lambda: 5)
    version = store.create("old", b"old")
    store.faults = lambda asked, _: fault if asked == verb else None
    read: list[bytes] = []

    def parts() -> Iterator[bytes]:
        for part in (b"new", b"er"):
            read.append(part)
            yield part

    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("k", parts()),
        "create": lambda: store.create("k", b"newer"),
        "replace": lambda: store.replace("old", b"newer", version),
        "delete": lambda: store.delete(["old"]),
    }
    with pytest.raises(StoreUnavailable, match=verb):
        calls[verb]()
    done = {"put": ["k", "old"], "create": ["k", "old"], "replace": ["old"], "delete": []}
    assert [found.key for found in store.list("")] == (done[verb] if fault is Fault.AFTER else ["old"])
    if verb == "replace":
        assert store.get("old", 9)[0] == (b"newer" if fault is Fault.AFTER else b"old")
    if verb == "put":
        assert len(read) == {Fault.BEFORE: 0, Fault.HALF: 1, Fault.AFTER: 2}[fault]


@pytest.mark.parametrize("fault", Fault)
def test_a_read_that_fails(fault: Fault) -> None:
    """Whenever it does."""
    store = MemoryStore(lambda: 5)
    store.put("k", [b"1"])
    store.faults = lambda _verb, _key: fault
    reads: list[Callable[[], object]] = [
        lambda: store.get("k", 9),
        lambda: store.get_range("k", 0, 1),
        lambda: list(store.list("")),
    ]
    for call in reads:
        with pytest.raises(StoreUnavailable):
            call()


def test_faults_may_raise_errors_of_their_own() -> None:
    """Such as those that are no matter of time."""
    store = MemoryStore(lambda: 5)

    def faults(_verb: str, key: str) -> None:
        raise StoreRefused(key)

    store.faults = faults
    with pytest.raises(StoreRefused, match="k"):
        store.put("k", [b""])


def test_times_are_of_the_given_clock() -> None:
    """A simulator's, for example."""
    store = MemoryStore(iter([7, 9]).__next__)
    store.put("a", [b"1"])
    store.put("b", [b"22"])
    assert list(store.list("")) == [ObjectInfo("a", 1, 7), ObjectInfo("b", 2, 9)]
