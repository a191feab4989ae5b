"""MemoryStore does what the operating system does, name by name and byte by byte."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.storage.disk.disk import Disk, RealDisk
from barnabas.testing.memory_store import MemoryStore

NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "missing/a"])
POSITIONS = st.integers(0, 40)
BYTES = st.binary(max_size=20)
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, POSITIONS, BYTES),
    st.tuples(st.just("read"), NAMES, POSITIONS, st.integers(0, 50)),
    st.tuples(st.just("truncate"), NAMES, POSITIONS),
    st.tuples(st.just("replace"), NAMES, BYTES),
    st.tuples(st.just("rename"), st.one_of(NAMES, st.just("d/e")), st.one_of(NAMES, st.just("d/f"))),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("remove_tree"), st.sampled_from(["d", "d/e", "missing"])),
    st.tuples(st.just("make_directory"), st.sampled_from(["d", "d/e", "missing/e"]), st.booleans()),
    st.tuples(st.just("list"), st.sampled_from(["", "d", "d/e", "a"])),
    st.tuples(st.just("size"), NAMES),
    st.tuples(st.just("exists"), NAMES),
)


def _do(disk: Disk, root: str, step: tuple[object, ...]) -> object:
    what, name, *rest = step
    path = f"{root}/{name}" if name else root
    actions: dict[object, Callable[..., object]] = {
        "write": lambda position, data: disk.open(path, create=True, writable=True).pwritev(
            [data, data], position
        ),
        "read": lambda position, count: disk.open(path).pread(count, position),
        "truncate": lambda size: disk.open(path, writable=True).truncate(size),
        "replace": lambda data: disk.write_file(path, data, sync=False),
        "rename": lambda other: disk.rename(path, f"{root}/{other}"),
        "remove": lambda: disk.remove(path),
        "remove_tree": lambda: disk.remove_tree(path),
        "make_directory": lambda parents: disk.make_directory(path, parents=parents),
        "list": lambda: disk.list(path),
        "size": lambda: disk.open(path).size(),
        "exists": lambda: disk.exists(path),
    }
    try:
        return actions[what](*rest)
    except OSError as error:
        return "OSError" if error.errno is None else type(error).__name__


def _is_unlike_a_broker(disk: Disk, root: str, step: tuple[object, ...]) -> bool:
    """What the store never does: directories where files are meant, and files where directories are."""
    what, name, *rest = step
    if what in ("write", "read", "truncate", "replace", "remove", "size"):
        return disk.is_directory(f"{root}/{name}")
    if what == "rename":
        source, target = f"{root}/{name}", f"{root}/{rest[0]}"
        return (
            source == target
            or target.startswith(f"{source}/")
            or (disk.exists(target) and disk.is_directory(source) != disk.is_directory(target))
        )
    if what == "make_directory":
        return not disk.is_directory(f"{root}/{name}") and disk.exists(f"{root}/{name}")
    if what in ("list", "remove_tree"):
        return disk.exists(f"{root}/{name}") and not disk.is_directory(f"{root}/{name}")
    return False


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=20))
def test_it_answers_as_the_system_does(steps: list[tuple[object, ...]]) -> None:
    memory, real = MemoryStore(), RealDisk()
    memory.make_directory("/top/d", parents=True)
    with tempfile.TemporaryDirectory() as root:
        real.make_directory(f"{root}/d")
        for step in steps:
            if not _is_unlike_a_broker(memory, "/top", step):
                assert _do(memory, "/top", step) == _do(real, root, step), step


def test_a_copy_is_one_of_its_own() -> None:
    store = MemoryStore()
    store.make_directory("/d")
    store.write_file("/d/a", b"one")
    store.set_modified_ms("/d/a", 5)
    store.lock("/d/lock")
    copy = store.copy()
    store.open("/d/a").pwrite(b"two", 0)
    store.remove_tree("/d")
    assert copy.read_file("/d/a") == b"one"
    assert copy.modified_ms("/d/a") == 5
    assert copy.bytes_count() == 3
    copy.lock("/d/lock").release()


def test_a_removed_file_lives_on_with_who_reads_it() -> None:
    store = MemoryStore()
    store.write_file("/a", b"bytes")
    file = store.open("/a")
    store.remove("/a")
    assert file.pread(5, 0) == b"bytes"
    assert store.bytes_count() == 0


def test_a_lock_is_held_until_it_is_released() -> None:
    store = MemoryStore()
    held = store.lock("/lock")
    with pytest.raises(BlockingIOError):
        store.lock("/lock")
    held.release()
    store.lock("/lock").release()


def test_it_sends_to_sockets() -> None:
    store = MemoryStore()
    store.write_file("/a", b"0123456789")
    sender, receiver = socket.socketpair()
    with sender, receiver:
        assert store.open("/a").send_to(sender.fileno(), 2, 5) == 5
        assert receiver.recv(100) == b"23456"
        assert store.open("/a").send_to(sender.fileno(), 10, 5) == 0
