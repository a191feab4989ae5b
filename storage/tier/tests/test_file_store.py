"""FileStore: symbolic links, leftovers, versions that don't come back, errors of the file system, killed and racing processes."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.storage.disk.disk import DIRECTORY_MODE, FILE_MODE
from barnabas.storage.tier.file_store import ASIDE, LEFTOVER_SECONDS, FileStore
from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectMissing,
    ObjectStoreError,
    StoreRefused,
    StoreUnavailable,
)

KILLS = 20


def test_an_object_is_a_file_of_its_name(tmp_path: Path) -> None:
    """So other tools can read a store."""
    FileStore(str(tmp_path / "store")).put("a/b", [b"1", b"2"])
    assert (tmp_path / "store" / "a" / "b").read_bytes() == b"12"


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    """Neither a file's nor a folder's; the root may be one."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "k").write_bytes(b"secret")
    root = tmp_path / "store"
    (tmp_path / "real").mkdir()
    root.symlink_to("real")
    store = FileStore(str(root))
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "k")
    for key in ("folder/k", "file"):
        for read in (lambda key=key: store.get(key, 99), lambda key=key: store.get_range(key, 0, 9)):
            with pytest.raises((ObjectMissing, StoreRefused)):
                read()
        with pytest.raises(StoreRefused):
            store.put(key, [b"x"])
        with pytest.raises((StoreRefused, ConditionFailed)):
            store.create(key, b"x")
    with pytest.raises(StoreRefused):
        store.create("folder/new", b"x")
    store.delete(["folder/k"])
    assert list(store.list("")) == []
    assert list(store.list("folder/")) == []
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"k": b"secret"}


def test_what_killed_writers_left_is_removed_after_a_day(tmp_path: Path) -> None:
    """At the start, and with a write a day later; not what may still be written to."""
    root = tmp_path / "store"
    FileStore(str(root))
    aside = root / ASIDE
    day_ago = time.time() - LEFTOVER_SECONDS - 60
    for name, modified in (("old", day_ago), ("new", day_ago + 3600)):
        (aside / name).write_bytes(b"half")
        os.utime(aside / name, (modified, modified))
    store = FileStore(str(root))
    assert sorted(path.name for path in aside.iterdir()) == ["new"]
    os.utime(aside / "new", (day_ago, day_ago))
    store.put("a", [b"1"])
    assert [path.name for path in aside.iterdir() if path.name != "lock"] == ["new"]
    store._cleaned_ns -= LEFTOVER_SECONDS * 1_000_000_000
    store.put("b", [b"1"])
    assert [path.name for path in aside.iterdir() if path.name != "lock"] == []


def test_versions_do_not_come_back(tmp_path: Path) -> None:
    """Not with the same content, nor after a deletion, nor within one tick of the file system's clock."""
    store = FileStore(str(tmp_path))
    versions = [store.create("k", b"a")]
    for content in [b"b", b"a"] * 50:
        versions.append(store.replace("k", content, versions[-1]))
    for _ in range(50):
        store.put("k", [b"a"])
        versions.append(store.get("k", 9)[1])
    for _ in range(50):
        store.delete(["k"])
        versions.append(store.create("k", b"a"))
    assert len(set(versions)) == len(versions)


def test_a_folder_that_can_not_be_used(tmp_path: Path) -> None:
    """At the start."""
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "none" / "below", tmp_path / "file"):
        with pytest.raises(StoreRefused, match=str(root)):
            FileStore(str(root))


def test_a_write_beyond_a_limit(tmp_path: Path) -> None:
    """As on a full disk: there may be room later, and nothing is left aside."""
    store = FileStore(str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StoreUnavailable, match="put k"):
            store.put("k", [bytes(900), bytes(900)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.rglob("*")] == [ASIDE]


def test_a_listing_goes_on_while_objects_are_deleted(tmp_path: Path) -> None:
    """They are missing in the rest of it."""
    store = FileStore(str(tmp_path))
    keys = [f"{folder}/{name}" for folder in "abc" for name in "123"]
    for key in keys:
        store.put(key, [b""])
    listing = store.list("")
    assert next(listing).key == "a/1"
    store.delete(["a/2", "b/1", "b/2", "b/3"])
    assert [found.key for found in listing] == ["a/3", "c/1", "c/2", "c/3"]


_WRITER = """
import sys
from barnabas.storage.tier.file_store import FileStore
store = FileStore(sys.argv[1])
number = 0
version = None
while True:
    number += 1
    content = b"%08d" % number * 40_000
    store.put("put/k", [content[:100_000], content[100_000:]])
    store.delete(["folder/created"])
    store.create("folder/created", content)
    version = store.replace("folder/created", content, store.get("folder/created", 1_000_000)[1])
    print(number, flush=True)
"""

_COUNTER = """
import sys
from barnabas.storage.tier.file_store import FileStore
from barnabas.storage.tier.object_store import ConditionFailed
store = FileStore(sys.argv[1])
for _ in range(int(sys.argv[2])):
    while True:
        content, version = store.get("counter", 99)
        try:
            store.replace("counter", b"%d" % (int(content) + 1), version)
            break
        except ConditionFailed:
            pass
    store.put("deep/er/" + sys.argv[3], [b"x"])
    store.delete(["deep/er/" + sys.argv[3]])
"""


@pytest.mark.sockets
def test_a_killed_writer_leaves_no_half_object(tmp_path: Path) -> None:
    """At any moment; and the store works on."""
    root = tmp_path / "store"
    store = FileStore(str(root))
    for turn in range(KILLS):
        with _run(_WRITER, str(root)) as process:
            assert process.stdout is not None
            process.stdout.readline()  # one round is complete
            time.sleep(turn * 0.0007)  # time is the input here: any moment of the next rounds
            process.send_signal(signal.SIGKILL)
        for found in store.list(""):
            content = store.get(found.key, 1_000_000)[0]
            assert len(content) == 320_000
            assert content == content[:8] * 40_000
    store.delete([found.key for found in store.list("")])
    assert list(store.list("")) == []
    assert store.create("folder/created", b"1") == store.get("folder/created", 9)[1]


@pytest.mark.sockets
def test_several_processes_replace_one_object(tmp_path: Path) -> None:
    """None loses what another has written; folders that become empty under the others are no matter."""
    root = tmp_path / "store"
    store = FileStore(str(root))
    store.create("counter", b"0")
    processes = [_run(_COUNTER, str(root), "100", str(number)) for number in range(4)]
    for process in processes:
        with process:
            assert process.wait(60) == 0
    assert store.get("counter", 9)[0] == b"400"
    assert [path.name for path in root.iterdir()] in ([ASIDE, "counter"], ["counter", ASIDE])


@pytest.mark.sockets
def test_a_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    """flock ends with its holder."""
    store = FileStore(str(tmp_path))
    store.put("a", [b"1"])
    held = "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); time.sleep(99)"
    with _run(held, str(tmp_path / ASIDE / "lock")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with open(tmp_path / ASIDE / "lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process.kill()
        store.put("b", [b"1"])
    assert [found.key for found in store.list("")] == ["a", "b"]


def _run(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)


def test_errors_of_the_parts_stay_what_they_are(tmp_path: Path) -> None:
    """Though they are OSErrors, too."""

    def parts() -> Iterator[bytes]:
        yield b"1"
        raise PermissionError("the segment")

    store = FileStore(str(tmp_path))
    with pytest.raises(PermissionError, match="the segment") as raised:
        store.put("k", parts())
    assert not isinstance(raised.value, ObjectStoreError)
    assert [path.name for path in (tmp_path / ASIDE).iterdir()] == []


def test_other_users_cannot_read_what_is_tiered(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = FileStore(str(tmp_path / "tier"))
        store.put("topic/segment", [b"a record"])
    finally:
        os.umask(before)
    for path in (tmp_path / "tier").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not mode & ~(DIRECTORY_MODE if path.is_dir() else FILE_MODE), f"{path.name}: {mode:04o}"
