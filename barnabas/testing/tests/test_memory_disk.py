"""The disk in memory does what the operating system does, and loses only what was not synced."""

from __future__ import annotations

import errno
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.disk.disk import Disk, RealDisk
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled

NAMES = ("a", "b", "d", "e/a", "e/b")
STEPS = (
    "open",
    "write",
    "truncate",
    "rename",
    "remove",
    "write_file",
    "mkdir",
    "move",
    "remove_tree",
    "list",
)


def act(disk: Disk, root: str, random: Random) -> object:
    """One random operation; what it answered, or the kind of error."""
    step = random.choice(STEPS)
    path, other = (f"{root}/{random.choice(NAMES)}" for _ in range(2))
    position, size = random.randrange(40), random.randrange(30)
    data = random.randbytes(size)

    def move() -> None:
        disk.rename(f"{root}/e", f"{root}/e2")
        disk.rename(f"{root}/e2", f"{root}/e")

    actions: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open(path, create=True).size(),
        "write": lambda: disk.open(path, writable=True).pwritev([data[:3], data[3:]], position),
        "truncate": lambda: disk.open(path, writable=True).truncate(position),
        "rename": lambda: disk.rename(path, other),
        "remove": lambda: disk.remove(path) if disk.exists(path) else None,
        "write_file": lambda: disk.write_file(path, data, sync=False),
        "mkdir": lambda: disk.make_directory(f"{root}/e"),
        "move": move,
        "remove_tree": lambda: disk.remove_tree(f"{root}/e"),
        "list": lambda: disk.list(f"{root}/e"),
    }
    try:
        return actions[step]()
    except OSError as error:
        return error.errno


def tree(disk: Disk, path: str) -> dict[str, object]:
    return {
        name: tree(disk, f"{path}/{name}")
        if disk.is_directory(f"{path}/{name}")
        else disk.read_file(f"{path}/{name}")
        for name in disk.list(path)
    }


@pytest.mark.parametrize("seed", range(30))
def test_it_does_what_the_real_one_does(seed: int, tmp_path: Path) -> None:
    real, memory = RealDisk(), MemoryDisk()
    memory.make_directory("/r")
    one, two = Random(seed), Random(seed)
    for _ in range(60):
        assert act(real, str(tmp_path), one) == act(memory, "/r", two)
        assert tree(real, str(tmp_path)) == tree(memory, "/r")


@pytest.mark.parametrize("ordered", [False, True])
def test_what_was_synced_survives_and_what_was_not_may(ordered: bool) -> None:
    disk = MemoryDisk()
    disk.sector = 4
    disk.ordered_names = ordered
    disk.make_directory("/d", parents=True)
    file = disk.open("/d/f", create=True)
    file.pwrite(b"0123456789", 0)
    file.sync()
    disk.sync_directory("/d")
    file.pwrite(b"abcdefgh", 6)
    disk.rename("/d/f", "/d/g")
    disk.open("/d/new", create=True)
    names, contents = set[tuple[str, ...]](), set[bytes]()
    random = Random(1)
    for _ in range(300):
        after = disk.crash(lambda n: random.randint(0, n))
        assert ("f" in after.list("/d")) != ("g" in after.list("/d"))
        content = after.read_file(f"/d/{after.list('/d')[0]}")
        assert content[:6] == b"012345"
        assert all(byte in b"\0" + old + new for byte, old, new in zip(content[6:], OLD, NEW, strict=False))
        names.add(tuple(after.list("/d")))
        contents.add(content)
    assert {b"0123456789", b"012345abcdefgh", b"0123456789cdef", b"012345ab89\0\0efgh"} & contents
    assert {len(content) for content in contents} == set(range(10, 15)), "torn at any byte"
    assert any(b"\0" in content for content in contents), "a later sector without an earlier one"
    assert (("f", "new") in names) != ordered, "the later name without the earlier rename"
    assert names >= {("f",), ("g",), ("g", "new")}
    assert tree(disk.crash(lambda _: 0), "/d") == {"f": b"0123456789"}
    assert tree(disk.crash(lambda n: n), "/d") == tree(disk, "/d")


OLD = [b"6", b"7", b"8", b"9", b"", b"", b"", b""]
NEW = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]


def test_a_directory_that_was_not_synced_takes_its_files_along() -> None:
    disk = MemoryDisk()
    disk.make_directory("/d", parents=True)
    disk.make_directory("/d/e")
    disk.write_file("/d/e/f", b"1")
    assert tree(disk.crash(lambda _: 0), "/d") == {}
    disk.sync_directory("/d")
    assert tree(disk.crash(lambda _: 0), "/d") == {"e": {"f": b"1"}}


def test_a_failed_sync_is_never_made_good_by_a_later_one() -> None:
    disk = MemoryDisk()
    file = disk.open("/f", create=True)
    disk.sync_directory("/")
    file.pwrite(b"lost", 0)
    disk.fault = lambda operation, _: errno.EIO if operation == "sync" else None
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    disk.fault = None
    file.pwrite(b"kept", 4)
    file.sync()
    assert disk.read_file("/f") == b"lostkept", "the page cache has it"
    assert disk.crash(lambda n: n).read_file("/f") == b"\0\0\0\0kept"


def test_a_killed_process_does_nothing_more() -> None:
    disk = MemoryDisk()
    file = disk.open("/f", create=True)
    disk.lock("/lock")
    disk.kill_after, disk.torn_bytes = 1, 2
    file.pwrite(b"one", 0)
    with pytest.raises(ProcessKilled):
        file.pwrite(b"two", 3)
    attempts: list[Callable[[], object]] = [
        lambda: file.pread(1, 0),
        lambda: disk.write_file("/f", b""),
        lambda: disk.list("/"),
    ]
    for late in attempts:
        with pytest.raises(ProcessKilled):
            late()
    disk.revive()
    assert disk.read_file("/f") == b"onetw"
    disk.lock("/lock")


PATHS = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "missing/a"])
POSITIONS = st.integers(0, 40)
ANY_BYTES = st.binary(max_size=20)
ANY_STEP = st.one_of(
    st.tuples(st.just("write"), PATHS, POSITIONS, ANY_BYTES),
    st.tuples(st.just("read"), PATHS, POSITIONS, st.integers(0, 50)),
    st.tuples(st.just("truncate"), PATHS, POSITIONS),
    st.tuples(st.just("replace"), PATHS, ANY_BYTES),
    st.tuples(st.just("rename"), st.one_of(PATHS, st.just("d/e")), st.one_of(PATHS, st.just("d/f"))),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("remove_tree"), st.sampled_from(["d", "d/e", "missing"])),
    st.tuples(st.just("make_directory"), st.sampled_from(["d", "d/e", "missing/e"]), st.booleans()),
    st.tuples(st.just("list"), st.sampled_from(["", "d", "d/e", "a"])),
    st.tuples(st.just("size"), PATHS),
    st.tuples(st.just("exists"), PATHS),
)


def answer(disk: Disk, root: str, step: tuple[object, ...]) -> object:
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
    """What the log never does: directories where files are meant, and files where directories are."""
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


@given(st.lists(ANY_STEP, max_size=20), st.booleans())
def test_it_answers_as_the_system_does(steps: list[tuple[object, ...]], power_failures: bool) -> None:
    memory, real = MemoryDisk(power_failures=power_failures), RealDisk()
    memory.make_directory("/top/d", parents=True)
    with tempfile.TemporaryDirectory() as root:
        real.make_directory(f"{root}/d")
        for step in steps:
            if not _is_unlike_a_broker(memory, "/top", step):
                assert answer(memory, "/top", step) == answer(real, root, step), step


def test_a_copy_is_one_of_its_own() -> None:
    disk = MemoryDisk(power_failures=False)
    disk.make_directory("/d")
    disk.write_file("/d/a", b"one")
    disk.set_modified_ms("/d/a", 5)
    disk.lock("/d/lock")
    copy = disk.copy()
    disk.open("/d/a").pwrite(b"two", 0)
    disk.remove_tree("/d")
    assert copy.read_file("/d/a") == b"one"
    assert copy.modified_ms("/d/a") == 5
    assert copy.bytes_count() == 3
    copy.lock("/d/lock").release()


def test_a_removed_file_can_be_read_while_it_is_open() -> None:
    disk = MemoryDisk(power_failures=False)
    disk.write_file("/a", b"bytes")
    file = disk.open("/a")
    disk.remove("/a")
    assert file.pread(5, 0) == b"bytes"
    assert disk.bytes_count() == 0


def test_a_lock_is_held_until_it_is_released() -> None:
    disk = MemoryDisk(power_failures=False)
    held = disk.lock("/lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")
    held.release()
    disk.lock("/lock").release()


def test_it_sends_to_sockets() -> None:
    disk = MemoryDisk(power_failures=False)
    disk.write_file("/a", b"0123456789")
    sender, receiver = socket.socketpair()
    with sender, receiver:
        assert disk.open("/a").send_to(sender.fileno(), 2, 5) == 5
        assert receiver.recv(100) == b"23456"
        assert disk.open("/a").send_to(sender.fileno(), 10, 5) == 0
