"""The disk in memory is a disk: it does what the real one does, and loses only what was not synced."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from barnabas.storage.disk.disk import Disk, RealDisk
from barnabas.storage.memory_disk import MemoryDisk
from barnabas.storage.memory_file import ProcessKilled

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
