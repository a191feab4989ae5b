"""The kernel's page cache: whether bytes of a file are in memory, so that reading them does not wait for the disk.

Linux offers two ways. cachestat (6.5) counts the cached pages of a range and copies nothing, about 1 us; as
it also counts pages that are still being read, the last byte is tried as well. RWF_NOWAIT reads what is
cached and fails for the rest; without cachestat one byte in 64 KB is tried in this way. With neither, everything counts as
cached.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

LOAD_STEP_BYTES: Final = 256 * 1024
_PROBE_STEP_BYTES: Final = 64 * 1024
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_CACHESTAT: Final = 451  # the number of the system call, the same on every architecture
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})

_WRITE_AND_WAIT: Final = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | WRITE | WAIT_AFTER

SyncFileRange = Callable[[int, int, int], int]  # (descriptor, position, count) -> error number or 0
CachedPages = Callable[[int, int, int], int]  # (descriptor, position, count) -> pages


def read_now(descriptor: int, count: int, position: int) -> bytes:
    """As os.pread, but BlockingIOError where that would wait for the disk."""
    if not _NOWAIT:
        return os.pread(descriptor, count, position)
    buffer = bytearray(count)
    try:
        filled = os.preadv(descriptor, (buffer,), position, _NOWAIT)
        while 0 < filled < count:  # at the end of the file, or of what is in memory
            view = memoryview(buffer)[filled:]
            read = os.preadv(descriptor, (view,), position + filled, _NOWAIT)
            if read == 0:
                break
            filled += read
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return os.pread(descriptor, count, position)
    return bytes(buffer) if filled == count else bytes(memoryview(buffer)[:filled])


def read_now_into(descriptor: int, buffer: memoryview, position: int) -> int:
    """Fill the buffer from the file as far as that does not wait for the disk: bytes read. BlockingIOError where
    nothing can be read without."""
    try:
        return os.preadv(descriptor, (buffer,), position, _NOWAIT)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return os.preadv(descriptor, (buffer,), position)


def is_cached(descriptor: int, position: int, count: int) -> bool:
    """Whether all of these bytes, which the file has, can be read without waiting."""
    global _cached_pages
    if count <= 0 or not _NOWAIT:
        return True
    last = position + count - 1
    if _cached_pages is None:
        _cached_pages = _make_cached_pages()
    if _cached_pages is not _unknown_pages:
        wanted = last // _PAGE_BYTES - position // _PAGE_BYTES + 1
        found = _cached_pages(descriptor, position, count)
        if found >= wanted:
            return _try_byte(descriptor, last)
        if found > 0 or not _try_byte(descriptor, position):
            return False
        _cached_pages = _unknown_pages  # refused, or a file system that keeps its pages elsewhere
    return all(_try_byte(descriptor, at) for at in (*range(position, last, _PROBE_STEP_BYTES), last))


def load(descriptor: int, position: int, count: int) -> None:
    """Bring the bytes into memory. Waits for the disk: for threads."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, position, count, os.POSIX_FADV_WILLNEED)
    buffer = bytearray(min(count, LOAD_STEP_BYTES))
    end = position + count
    while position < end:
        read = os.preadv(descriptor, [memoryview(buffer)[: end - position]], position)
        if read == 0:
            return
        position += read


def write_back(descriptor: int, position: int, count: int) -> None:
    """Have the bytes written to the disk and wait for that: for threads. It is no sync: the disk may hold them in its own
    memory, and the file system's metadata about them may be missing."""
    global _sync_file_range
    if _sync_file_range is None:
        _sync_file_range = _make_sync_file_range()
    error = _sync_file_range(descriptor, position, count)
    if error in _UNSUPPORTED:
        _sync_file_range = _cannot_sync_range
        os.fsync(descriptor)
    elif error:
        raise OSError(error, os.strerror(error))


def _try_byte(descriptor: int, position: int) -> bool:
    try:
        os.preadv(descriptor, [bytearray(1)], position, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


_cached_pages: CachedPages | None = None  # made when it is first needed


def _unknown_pages(descriptor: int, position: int, count: int) -> int:  # noqa: ARG001 - as CachedPages
    return 0


_sync_file_range: SyncFileRange | None = None  # made when it is first needed


def _cannot_sync_range(descriptor: int, position: int, count: int) -> int:  # noqa: ARG001 - as SyncFileRange
    return errno.ENOSYS


def _make_sync_file_range() -> SyncFileRange:
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return _cannot_sync_range
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def sync_file_range(descriptor: int, position: int, count: int) -> int:
        return ctypes.get_errno() if call(descriptor, position, count, _WRITE_AND_WAIT) else 0

    return sync_file_range


def _make_cached_pages() -> CachedPages:
    # Imported late: a broker whose readers are all at the end of their logs does not need it.
    import ctypes

    try:
        system_call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return _unknown_pages
    range_type, figures_type = ctypes.c_uint64 * 2, ctypes.c_uint64 * 5

    def cached_pages(descriptor: int, position: int, count: int) -> int:
        figures = figures_type()
        wanted = range_type(position, count)
        if system_call(_CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(figures), 0):
            return 0
        return int(figures[0])

    return cached_pages
