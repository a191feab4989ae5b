"""Kills processes when the one that has started them has ended: a small process beside them.

It reads their ids from its standard input (`+PID`, `-PID`, `!` for the end), and kills them when that ends or when its parent does;
also those that a SIGSTOP holds, which could not watch their parent themselves. Then it removes a folder, if it has been given
one.

This file is run on its own, without the rest of the package: it has to be there at once.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

END_SECONDS_MAX = 10.0  # from a SIGKILL to the end


class ProcessGuard:
    """Runs it. `close` in order, when nothing is left to be guarded."""

    def __init__(self, folder: str = "") -> None:
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), folder]
        # a session of its own: a Ctrl-C is not for it
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def watch(self, pid: int) -> None:
        """It ends with us from now on. OSError where the guard is gone."""
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        """It has ended, and its id may soon be another's."""
        with suppress(OSError):  # the guard is gone
            self._tell(f"-{pid}\n")

    def close(self) -> None:
        """What it watches still is killed, and the folder removed."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the guard is gone
            self._tell("!\n")  # a process that was forked from this one may have this end of the pipe, too
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


class Watched:
    """A process, by a descriptor that is never another one's where the system has such."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = _descriptor_of(pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            if self._descriptor >= 0:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            else:
                os.kill(self._pid, signal.SIGKILL)

    def await_end(self) -> None:
        """What has been killed may still be about to write."""
        if self._descriptor >= 0:
            select.select([self._descriptor], [], [], END_SECONDS_MAX)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _descriptor_of(pid: int) -> int:
    """-1 where the system has none, or the process is gone."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def main(parent: int, folder: str) -> None:
    """Read what there is to guard until the parent is gone; then end that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched = _read_until_the_end(parent)
    for each in watched:
        each.kill()
    for each in watched:
        each.await_end()
    if folder:
        import shutil  # late: it loads every archive format there is

        shutil.rmtree(folder, ignore_errors=True)


def _read_until_the_end(parent: int) -> list[Watched]:
    watched: dict[int, Watched] = {}
    text = b""
    # besides standard input's end, which comes late where a child of the parent's holds the other end, too
    descriptor = _descriptor_of(parent)
    sources = [0] if descriptor < 0 else [0, descriptor]
    is_over = os.getppid() != parent
    while not is_over or select.select([0], [], [], 0)[0]:
        readable = select.select(sources, [], [])[0]
        is_over = is_over or descriptor in readable
        if 0 in readable:
            data = os.read(0, 65_536)
            if not data:
                break
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                if line == b"!":
                    return list(watched.values())
                _heed(watched, line[:1], int(line[1:]))
    return list(watched.values())


def _heed(watched: dict[int, Watched], sign: bytes, pid: int) -> None:
    if pid in watched:
        watched.pop(pid).close()
    if sign == b"+":
        watched[pid] = Watched(pid)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
