"""The lock of a directory against other processes: this broker's own kind and the POSIX locks that Java takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.storage.disk.disk import RealDisk

_AS_JAVA_DOES = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused")
else:
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_two_in_one_process_do_not_get_it(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = RealDisk().lock(path)
    with pytest.raises(BlockingIOError):
        RealDisk().lock(path)
    lock.release()
    RealDisk().lock(path).release()


@pytest.mark.sockets
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the two kinds of lock do not meet")
def test_a_java_process_and_this_one_see_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = RealDisk().lock(path)
    command = [sys.executable, "-S", "-c", _AS_JAVA_DOES, path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "refused\n"
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(BlockingIOError):
            RealDisk().lock(path)
        other.stdin.close()
