"""The operating system's files, for a node of this process that may be killed: what it has written stays, and nothing follows.

kill -9 takes a process's memory, its locks and its descriptors, and leaves what it has handed to the system. `cut` and
`close` do so to a node that shares its process with others: between the two a thread may still be at work for it, whose
next touch of a file is an OSError. The next run of the node has a disk of its own, finds no marker of a clean stop, and
recovers.
"""

from __future__ import annotations

import errno
import os
import weakref
from typing import TYPE_CHECKING

from barnabas.storage.disk.disk import RealDisk, RealFile, open_descriptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.storage.disk.disk import File, Lock
    from barnabas.wire.compression import Bytes


class KillableFile(RealFile):
    """A file that takes nothing more once its disk is cut."""

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

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        self._disk.check()
        return super().pwritev(buffers, position)

    def pwrite(self, data: Bytes, position: int) -> int:
        self._disk.check()
        return super().pwrite(data, position)

    def truncate(self, size: int) -> None:
        self._disk.check()
        super().truncate(size)

    def write_back(self, position: int, count: int) -> None:
        self._disk.check()
        super().write_back(position, count)

    def sync(self) -> None:
        self._disk.check()
        super().sync()


class KillableDisk(RealDisk):
    """See the module. Of one run of one node, or of several that were stopped in order."""

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
        """From now on nothing changes by this disk's doing, and its locks are free."""
        self._is_cut = True
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def close(self) -> None:
        """Give back the descriptors, when no thread works with them any more."""
        for file in tuple(self._files):
            file.close()

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        self.check()
        file = KillableFile(open_descriptor(path, create=create, writable=writable), self)
        self._files.add(file)
        return file

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.check()
        super().set_modified_ms(path, modified_ms)

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        self.check()
        super().make_directory(path, parents=parents)

    def rename(self, source: str, target: str) -> None:
        self.check()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.check()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self.check()
        super().remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self.check()
        super().sync_directory(path)

    def write_file(self, path: str, content: Bytes, *, sync: bool = True, secret: bool = False) -> None:
        self.check()
        super().write_file(path, content, sync=sync, secret=secret)

    def lock(self, path: str) -> Lock:
        self.check()
        lock = super().lock(path)
        self._locks.append(lock)
        return lock
