"""The disk: the interface through which storage uses files, and its implementation. Tests use one that injects failures.

A file is closed when nothing refers to it any more. A FileRegion in a connection's queue keeps it open, so that a region can
always be sent, even after its segment has been deleted. Reads and writes name their position; no seek pointer is shared.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
from collections.abc import Sequence
from typing import Protocol

from barnabas.storage.disk import page_cache
from barnabas.storage.disk.open_files import OPEN_FILES_MAX, OpenFiles
from barnabas.storage.disk.write_pressure import WritePressure
from barnabas.wire.compression import Bytes

# Of what is created; the process's umask may take more away.
DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
SECRET_MODE = 0o600
# Of one write of a large file. From 2 MiB on Linux takes large folios: on a virtual machine a write of 4 MiB cost 1.6 CPU-s/GB,
# the same in pieces 0.3.
WRITE_BYTES_MAX = 1024 * 1024

_THIS_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # only Linux counts by thread


class File(Protocol):
    """An open file. OSError as the operating system gives it."""

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        """Write the buffers one behind the other; may write less and says how much."""
        ...

    def pwrite(self, data: Bytes, position: int) -> int:
        """As `pwritev` with one buffer, at half its price for small ones."""
        ...

    def pread(self, count: int, position: int) -> bytes:
        """At most `count` bytes; fewer at the end of the file."""
        ...

    def pread_now(self, count: int, position: int) -> bytes:
        """As `pread`, but BlockingIOError where that would wait for the disk."""
        ...

    def pread_into_now(self, buffer: memoryview, position: int) -> int:
        """Read into the buffer what it takes and what does not wait for the disk: the number of bytes.
        BlockingIOError where all of it would wait."""
        ...

    def is_cached(self, position: int, count: int) -> bool:
        """Whether sending these bytes would not wait for the disk."""
        ...

    def load(self, position: int, count: int) -> None:
        """Bring the bytes into memory, waiting for the disk: for threads."""
        ...

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        """sendfile: bytes sent, 0 at the end of the file; BlockingIOError when the socket is full."""
        ...

    def fileno(self) -> int:
        """A descriptor, or -1 where there is none."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def write_back(self, position: int, count: int) -> None:
        """Wait until the disk has taken these bytes, so that the kernel need not hold them: for threads. Not a sync, as the
        disk may still lose them; an error means the same as an error of `sync`."""
        ...

    def sync(self) -> None:
        """Return once the content would survive a power failure."""
        ...


class Lock(Protocol):
    """Holds a directory against other processes until released."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files and directories by path. OSError as the operating system gives it.

    `open_files`: which segments keep their files open between uses. `write_pressure`: which log directories are on a disk that
    does not keep up with the writes.
    """

    open_files: OpenFiles
    write_pressure: WritePressure

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written to, in ms since the epoch."""
        ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set that time."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        """With `parents`, missing parents are made too, an existing directory is no error, and each new name is synced."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens when there is none."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes: ...

    def write_file(self, path: str, content: Bytes, *, sync: bool = True, secret: bool = False) -> None:
        """Replace the file in one step: readers and crashes see the old content or the new. With `secret` only the
        owner of the process may read it."""
        ...

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock on a file; BlockingIOError when another holds it."""
        ...

    def waits(self) -> int:
        """How often this thread has slept so far, for the disk or for another reason."""
        ...

    def volume(self, path: str) -> tuple[int, int]:
        """(total bytes, usable bytes) of the file system that holds `path`."""
        ...


class FileRegion:
    """`length` bytes of a file at `position`, to be sent without being read. Immutable; keeps the file open.

    `is_hot`: the bytes were written a moment ago, so they are in memory if they are sent at once.
    """

    __slots__ = ("file", "is_hot", "length", "position")

    def __init__(self, file: File, position: int, length: int, is_hot: bool = False) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.is_hot = is_hot

    def __len__(self) -> int:
        return self.length

    def fileno(self) -> int:
        return self.file.fileno()

    def send_to(self, socket_descriptor: int, offset: int, count: int) -> int:
        """Send up to `count` bytes from `offset` inside the region: bytes sent, 0 when the file has ended."""
        return self.file.send_to(socket_descriptor, self.position + offset, count)

    def is_cached(self, offset: int, count: int) -> bool:
        """Whether sending `count` bytes from `offset` inside the region would not wait for the disk."""
        return self.file.is_cached(self.position + offset, count)

    def load(self, offset: int, count: int) -> None:
        """Bring them into memory, waiting for the disk: for threads."""
        self.file.load(self.position + offset, count)

    def read(self, offset: int = 0, count: int | None = None) -> bytes:
        """The region's bytes, for what can't be sent from the file (TLS, decoding)."""
        return self.file.pread(self.length - offset if count is None else count, self.position + offset)


def write_rest(file: File, data: Bytes, written: int, position: int) -> None:
    """Continue a short write: `written` bytes of `data` are at `position` already. OSError when the file takes no more."""
    rest = memoryview(data)[written:]
    position += written
    while len(rest):
        written = file.pwrite(rest, position)
        if written <= 0:
            raise OSError(errno.EIO, "the file took no more bytes")
        rest = rest[written:]
        position += written


def open_descriptor(path: str, *, create: bool, writable: bool) -> int:
    """OSError as the operating system gives it."""
    flags = os.O_CLOEXEC | (os.O_RDWR if writable or create else os.O_RDONLY)
    return os.open(path, flags | os.O_CREAT if create else flags, FILE_MODE)


class RealFile:
    """A file descriptor that is closed when nothing refers to the object any more."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        return os.pwritev(self._descriptor, buffers, position)

    def pwrite(self, data: Bytes, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def pread(self, count: int, position: int) -> bytes:
        return os.pread(self._descriptor, count, position)

    def pread_now(self, count: int, position: int) -> bytes:
        return page_cache.read_now(self._descriptor, count, position)

    def pread_into_now(self, buffer: memoryview, position: int) -> int:
        return page_cache.read_now_into(self._descriptor, buffer, position)

    def is_cached(self, position: int, count: int) -> bool:
        return page_cache.is_cached(self._descriptor, position, count)

    def load(self, position: int, count: int) -> None:
        page_cache.load(self._descriptor, position, count)

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        return os.sendfile(socket_descriptor, self._descriptor, position, count)

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def write_back(self, position: int, count: int) -> None:
        page_cache.write_back(self._descriptor, position, count)

    def sync(self) -> None:
        os.fsync(self._descriptor)


def _take(descriptor: int) -> None:
    """The kind of lock that Java takes, so that Kafka and this broker see each other's, held by the open file
    and not by the process. Where the system has no such lock, one that only this broker sees."""
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:  # struct flock: type, whence, start, length (0: all), pid
        fcntl.fcntl(descriptor, command, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


class RealLock:
    """A lock on a file that is not removed, like Kafka's `.lock`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealDisk:
    """The operating system's files. Segments use a quarter of the process's descriptors at most; connections need the
    others."""

    def __init__(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = limit // 4 if limit != resource.RLIM_INFINITY else OPEN_FILES_MAX
        self.open_files = OpenFiles(max(1, min(OPEN_FILES_MAX, few)))
        self.write_pressure = WritePressure()

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        return RealFile(open_descriptor(path, create=create, writable=writable))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        if not parents:
            os.mkdir(path, DIRECTORY_MODE)
            return
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(os.path.abspath(path))
        for name in reversed(missing):
            os.mkdir(name, DIRECTORY_MODE)
            self.sync_directory(os.path.dirname(os.path.abspath(name)))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_tree(self, path: str) -> None:
        import shutil  # late: it loads every archive format there is

        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, content: Bytes, *, sync: bool = True, secret: bool = False) -> None:
        temporary = path + ".tmp"
        mode = SECRET_MODE if secret else FILE_MODE
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            if secret:
                self.remove(temporary)  # left by a crash, and perhaps readable by others
            with open(os.open(temporary, flags, mode), "wb", buffering=0) as file:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest[:WRITE_BYTES_MAX]) :]
                if sync:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            self.remove(temporary)
            raise
        if sync:
            self.sync_directory(os.path.dirname(path))

    def lock(self, path: str) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _take(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return RealLock(descriptor)

    def waits(self) -> int:
        return resource.getrusage(_THIS_THREAD).ru_nvcsw

    def volume(self, path: str) -> tuple[int, int]:
        figures = os.statvfs(path)
        return figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize
