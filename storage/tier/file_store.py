"""An object store in a folder, which several processes may share; what `file:///path` opens.

An object is a file of its key's name. It is written aside, in a folder whose name no key can have, synced, and renamed to its
place, so a reader sees all of it or nothing. `create` links it there, which fails where the file exists. Every change of the
folder's names is made under one lock (flock on a file, so it excludes threads as well as processes, and ends with its process);
the data are written and synced outside of it.

A version is the file's time of writing in ns and a hash of its content. A file that replaces another one gets a later time than
that one has, and every time some random ns, so a version does not come back, however coarse the file system's clock is.

Paths are walked folder by folder without following symbolic links, so nothing outside of the root is read or written. One key
can't be the folder of another (`a` beside `a/b`): StoreRefused, where a bucket would take both.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from barnabas.storage.disk.disk import DIRECTORY_MODE, FILE_MODE, WRITE_BYTES_MAX
from barnabas.storage.tier.keys import check_key, check_prefix
from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreRefused,
    StoreUnavailable,
    Version,
)
from barnabas.wire.compression import Bytes

ASIDE: Final = ".barnabas~"  # `~` is in no key
LEFTOVER_SECONDS = (
    24 * 60 * 60
)  # a file aside that was not written to for so long belongs to no writer any more

_LOCK = "lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: of a FIFO, opening waits
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# An operator has to act; of all others a later try may succeed (full disk, too many open files, an NFS server that is away)
_REFUSED = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)
# There is no object: its name, or a folder on the way to it, is missing or is something else
_ABSENT = (FileNotFoundError, NotADirectoryError)


class FileStore:
    """Objects below the folder `root`, which is made where its parent exists. StoreRefused or StoreUnavailable where it can't be
    used."""

    def __init__(self, root: str) -> None:
        self._root_path = root
        self._cleaned_ns = 0
        with self._errors("open", root):
            for path in (root, os.path.join(root, ASIDE)):
                try:
                    os.mkdir(path, DIRECTORY_MODE)
                except FileExistsError:
                    pass
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._aside = os.open(ASIDE, _FOLDER, dir_fd=self._root)
        with self._written(
            "open", root, []
        ):  # whether it can be written to; and what is left there is removed
            pass

    def __del__(self) -> None:
        for name in ("_root", "_aside"):
            descriptor = self.__dict__.pop(name, None)
            if descriptor is not None:
                os.close(descriptor)

    def put(self, key: str, parts: Iterable[Bytes]) -> None:
        check_key(key)
        with self._written("put", key, parts) as (descriptor, name):
            with self._lock():
                try:
                    with self._opened("put", key) as (_, old):
                        pass
                except ObjectMissing:
                    old = None
                self._rename(key, descriptor, name, old)
            self._sync_folders(key)

    def create(self, key: str, data: Bytes) -> Version:
        check_key(key)
        with self._written("create", key, [data]) as (descriptor, name):
            with self._lock(), self._folder(key, make=True) as (folder, file):
                _set_time(descriptor, None)
                try:
                    os.link(name, file, src_dir_fd=self._aside, dst_dir_fd=folder, follow_symlinks=False)
                except FileExistsError:
                    raise ConditionFailed(f"create {key}: it exists") from None
            self._sync_folders(key)
            return _version(os.fstat(descriptor), data)

    def replace(self, key: str, data: Bytes, version: Version) -> Version:
        check_key(key)
        with self._written("replace", key, [data]) as (descriptor, name):
            with self._lock():
                try:
                    with self._opened("replace", key) as (file, old):
                        found = _version(old, _read(file, 0, old.st_size))
                except ObjectMissing:
                    raise ConditionFailed(f"replace {key}: there is no such object") from None
                if found != version:
                    raise ConditionFailed(f"replace {key}: it is {found.e_tag}, not {version.e_tag}")
                self._rename(key, descriptor, name, old)
            self._sync_folders(key)
            return _version(os.fstat(descriptor), data)

    def copy(self, source: str, key: str) -> None:
        check_key(source)
        with self._opened("copy", source) as (descriptor, status):
            self.put(key, _pieces(descriptor, status.st_size))

    def get(self, key: str, size_max: int) -> tuple[bytes, Version]:
        check_key(key)
        with self._opened("get", key) as (descriptor, status):
            if status.st_size > size_max:
                raise StoreRefused(f"get {key}: it has {status.st_size} bytes, more than {size_max}")
            data = _read(descriptor, 0, status.st_size)
            return data, _version(status, data)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        with self._opened("get_range", key) as (descriptor, status):
            return _read(descriptor, start, max(0, min(length, status.st_size - start)))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """As ObjectStore.list. Of each folder on the way down the names are in memory; a folder is read when the listing has reached
        it, and those that can't hold a key of it are not."""
        check_prefix(prefix)
        top = prefix.rpartition("/")[0]
        with self._errors("list", prefix):
            try:
                folder = self._open_folder(top.split("/") if top else [], make=False)
            except _ABSENT:
                return
            yield from _list(folder, f"{top}/" if top else "", prefix, after)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        changed: set[str] = set()
        for key in keys:
            with self._errors("delete", key), self._lock():
                try:
                    with self._folder(key, make=False) as (folder, file):
                        os.unlink(file, dir_fd=folder)
                except (*_ABSENT, IsADirectoryError):
                    continue
                changed.add(self._remove_empty(key))
        for folder_of in changed:
            with self._errors("delete", folder_of):
                self._sync_folders(folder_of, depth=1)

    def _rename(self, key: str, descriptor: int, name: str, old: os.stat_result | None) -> None:
        """Move a file aside to its place; under the lock. `old`: what is there."""
        _set_time(descriptor, old)
        with self._folder(key, make=True) as (folder, file):
            os.rename(name, file, src_dir_fd=self._aside, dst_dir_fd=folder)

    @contextmanager
    def _written(self, verb: str, key: str, parts: Iterable[Bytes]) -> Iterator[tuple[int, str]]:
        """A file aside of these parts, synced: its descriptor and name. It is removed afterwards if it is still there. OSErrors become
        those of a store, but those of `parts` stay what they are."""
        name = os.urandom(16).hex()
        with self._errors(verb, key):
            descriptor = os.open(name, _NEW, FILE_MODE, dir_fd=self._aside)
        try:
            for part in parts:
                with self._errors(verb, key):
                    view = memoryview(part)
                    while view:
                        view = view[os.write(descriptor, view[:WRITE_BYTES_MAX]) :]
            with self._errors(verb, key):
                os.fsync(descriptor)
                self._clean(os.fstat(descriptor).st_mtime_ns)
                yield descriptor, name
        finally:
            os.close(descriptor)
            try:
                os.unlink(name, dir_fd=self._aside)
            except OSError:  # renamed; or else it is a leftover, removed after a day
                pass

    def _clean(self, now_ns: int) -> None:
        """Remove what killed writers have left, once a day. `now_ns` is of a file that was just written: the same clock."""
        oldest_ns = now_ns - LEFTOVER_SECONDS * 1_000_000_000
        if self._cleaned_ns > oldest_ns:
            return
        self._cleaned_ns = now_ns
        for name in os.listdir(self._aside):
            try:
                if name != _LOCK and os.stat(name, dir_fd=self._aside).st_mtime_ns < oldest_ns:
                    os.unlink(name, dir_fd=self._aside)
            except FileNotFoundError:  # renamed, or cleaned by another process
                pass

    @contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(
            _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=self._aside
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _opened(self, verb: str, key: str) -> Iterator[tuple[int, os.stat_result]]:
        with self._errors(verb, key):
            try:
                with self._folder(key, make=False) as (folder, file):
                    descriptor = os.open(file, _READ, dir_fd=folder)
            except _ABSENT:
                raise ObjectMissing(f"{verb} {key}: there is no such object") from None
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise ObjectMissing(f"{verb} {key}: there is no such object")
                yield descriptor, status
            finally:
                os.close(descriptor)

    @contextmanager
    def _folder(self, key: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """The folder of a key, open, and the file's name in it."""
        *folders, file = key.split("/")
        folder = self._open_folder(folders, make=make)
        try:
            yield folder, file
        finally:
            os.close(folder)

    def _open_folder(self, names: Sequence[str], *, make: bool) -> int:
        folder = os.dup(self._root)
        try:
            for name in names:
                if make:
                    try:
                        os.mkdir(name, DIRECTORY_MODE, dir_fd=folder)
                    except FileExistsError:
                        pass
                below = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _remove_empty(self, key: str) -> str:
        """Remove the folders of a key that have become empty; under the lock, so that no writer is about to use them. Returns a key
        whose folder is the lowest that is left."""
        parts = key.split("/")
        while len(parts) > 1:
            with self._folder("/".join(parts[:-1]), make=False) as (folder, name):
                try:
                    os.rmdir(name, dir_fd=folder)
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                        break
                    raise
            parts.pop()
        return "/".join(parts)

    def _sync_folders(self, key: str, depth: int | None = None) -> None:
        """Make the names on the way to a key durable: those of the lowest `depth` folders, None: of all."""
        folders = key.split("/")[:-1]
        lowest = 0 if depth is None else max(0, len(folders) + 1 - depth)
        for count in range(len(folders), lowest - 1, -1):
            try:
                folder = self._open_folder(folders[:count], make=False)
            except _ABSENT:  # deleted since
                continue
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        """OSErrors as those of a store."""
        try:
            yield
        except ObjectStoreError:
            raise
        except OSError as error:
            kind = StoreRefused if error.errno in _REFUSED else StoreUnavailable
            raise kind(f"{verb} {key} in {self._root_path}: {error.strerror}") from error


def _set_time(descriptor: int, old: os.stat_result | None) -> None:
    """Give a new file its time: see the module's text."""
    time_ns = os.fstat(descriptor).st_mtime_ns + int.from_bytes(os.urandom(4)) % 1_000_000
    if old is not None:
        time_ns = max(time_ns, old.st_mtime_ns + 1)
    os.utime(descriptor, ns=(time_ns, time_ns))


def _version(status: os.stat_result, data: Bytes) -> Version:
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return Version(e_tag=f'"{status.st_mtime_ns:x}-{digest}"')


def _read(descriptor: int, start: int, length: int) -> bytes:
    data = os.pread(descriptor, length, start)
    if len(data) == length:
        return data
    pieces = [data]  # a read ends early beyond 2 GiB, and on a signal on some file systems
    while data and (missing := length - sum(map(len, pieces))):
        data = os.pread(descriptor, missing, start + length - missing)
        pieces.append(data)
    return b"".join(pieces)


def _pieces(descriptor: int, size: int) -> Iterator[bytes]:
    for start in range(0, size, WRITE_BYTES_MAX):
        yield _read(descriptor, start, min(WRITE_BYTES_MAX, size - start))


def _list(folder: int, path: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
    """The objects of an open folder, which it closes. `path`: its keys' beginning, empty or with a slash at the end."""
    try:
        # A folder stands where its keys do: "a-b" is before "a/c", which is before "a0"
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries
            )
        for name in names:
            key = path + name
            if not name.endswith("/"):
                if key.startswith(prefix) and key > after:
                    try:
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)
                continue
            has_keys = key.startswith(prefix) or prefix.startswith(key)
            if has_keys and (key > after or after.startswith(key)) and key != f"{ASIDE}/":
                try:
                    below = os.open(name[:-1], _FOLDER, dir_fd=folder)
                except _ABSENT:
                    continue
                yield from _list(below, key, prefix, after)
    finally:
        os.close(folder)
