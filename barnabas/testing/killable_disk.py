"""Files of a node in this process that can be killed: what it has written stays, and nothing is written afterwards.

kill -9 takes a process's memory, its locks and its descriptors, and leaves what it has handed to the system. `cut` and
`close` do the same to a node that shares its process with others. Between the two, a thread may still work for the node;
its next change of a file raises OSError. The next run of the node has a disk of its own, finds no marker of a clean stop, and
recovers.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from barnabas.storage.disk.disk import RealDisk, RealFile, open_descriptor

if TYPE_CHECKING:
    from barnabas.storage.disk.disk import File, Lock

P = ParamSpec("P")
T = TypeVar("T")


def _unless_cut(change: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The method of the real file or disk, refused once the disk is cut."""

    def checked(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        self.check()
        return change(self, *arguments, **options)

    return checked


class KillableFile(RealFile):
    """A file that can't be changed once its disk is cut."""

    __slots__ = ("__weakref__", "_disk")

    def __init__(self, descriptor: int, disk: KillableDisk) -> None:
        super().__init__(descriptor)
        self._disk = disk

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """For a holder that outlives the disk."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    pwritev = _unless_cut(RealFile.pwritev)
    pwrite = _unless_cut(RealFile.pwrite)
    truncate = _unless_cut(RealFile.truncate)
    write_back = _unless_cut(RealFile.write_back)
    sync = _unless_cut(RealFile.sync)

    def check(self) -> None:
        """OSError where the disk is cut."""
        self._disk.check()


class KillableDisk(RealDisk):
    """See the module. A disk serves one run of a node, or several that each ended with an orderly stop."""

    def __init__(self) -> None:
        super().__init__()
        self._is_cut = False
        self._files: weakref.WeakSet[KillableFile] = weakref.WeakSet()
        self._locks: list[Lock] = []

    def check(self) -> None:
        """OSError where it is cut."""
        if self._is_cut:
            raise OSError(errno.EIO, "the node that had this file was killed")

    def cut(self) -> None:
        """Refuse changes from now on, and release the locks."""
        self._is_cut = True
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def close(self) -> None:
        """Close the descriptors, when no thread works with them any more."""
        for file in tuple(self._files):
            file.close()

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        self.check()
        file = KillableFile(open_descriptor(path, create=create, writable=writable), self)
        self._files.add(file)
        return file

    set_modified_ms = _unless_cut(RealDisk.set_modified_ms)
    make_directory = _unless_cut(RealDisk.make_directory)
    rename = _unless_cut(RealDisk.rename)
    remove = _unless_cut(RealDisk.remove)
    remove_tree = _unless_cut(RealDisk.remove_tree)
    sync_directory = _unless_cut(RealDisk.sync_directory)
    write_file = _unless_cut(RealDisk.write_file)

    def lock(self, path: str) -> Lock:
        self.check()
        lock = super().lock(path)
        self._locks.append(lock)
        return lock
