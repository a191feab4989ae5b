"""An object store in memory, for tests and the simulator, with faults on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

import msgspec

from barnabas.runtime.locks import Lock
from barnabas.storage.tier.keys import check_key, check_prefix
from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectInfo,
    ObjectMissing,
    StoreRefused,
    StoreUnavailable,
    Version,
)
from barnabas.wire.compression import Bytes


class Fault(Enum):
    """What goes wrong in a call; the caller gets StoreUnavailable each time."""

    BEFORE = "the request is lost"  # nothing is done
    HALF = "the upload ends halfway"  # `put` reads its first part; nothing is written
    AFTER = "the reply is lost"  # it is done


# Called with the verb (`put`, `create`, ...) and the key before each call; None where it succeeds. It may also raise an
# ObjectStoreError of its own, before any effect. `list` asks with the prefix, `delete` with each key.
Faults = Callable[[str, str], Fault | None]


class _Object(msgspec.Struct, frozen=True):
    data: bytes
    version: Version
    modified_ms: int


def _no_faults(_verb: str, _key: str) -> None:
    return None


class MemoryStore:
    """Objects in a dict. `time_ms`: the clock of `modified_ms`, in ms since the epoch."""

    def __init__(self, time_ms: Callable[[], int], faults: Faults = _no_faults) -> None:
        self.faults = faults  # may be set at any time
        self._time_ms = time_ms
        self._objects: dict[str, _Object] = {}
        self._writes = 0
        self._lock = Lock()

    def put(self, key: str, parts: Iterable[Bytes]) -> None:
        check_key(key)
        fault = self._fault_before("put", key)
        pieces = []
        for part in parts:
            if fault is Fault.HALF:
                break
            pieces.append(bytes(part))
        self._fail_if(fault, Fault.HALF, "put", key)
        with self._lock:
            self._write(key, b"".join(pieces))
        self._fail_if(fault, Fault.AFTER, "put", key)

    def create(self, key: str, data: Bytes) -> Version:
        check_key(key)
        fault = self._fault_before("create", key)
        self._fail_if(fault, Fault.HALF, "create", key)
        with self._lock:
            if key in self._objects:
                raise ConditionFailed(f"create {key}: it exists")
            version = self._write(key, data)
        self._fail_if(fault, Fault.AFTER, "create", key)
        return version

    def replace(self, key: str, data: Bytes, version: Version) -> Version:
        check_key(key)
        fault = self._fault_before("replace", key)
        self._fail_if(fault, Fault.HALF, "replace", key)
        with self._lock:
            found = self._objects.get(key)
            if found is None or found.version != version:
                raise ConditionFailed(f"replace {key}: it is {found and found.version}, not {version}")
            version = self._write(key, data)
        self._fail_if(fault, Fault.AFTER, "replace", key)
        return version

    def copy(self, source: str, key: str) -> None:
        check_key(key)
        data = self._read("copy", source).data
        fault = self._fault_before("copy", key)
        self._fail_if(fault, Fault.HALF, "copy", key)
        with self._lock:
            self._write(key, data)
        self._fail_if(fault, Fault.AFTER, "copy", key)

    def get(self, key: str, size_max: int) -> tuple[bytes, Version]:
        found = self._read("get", key)
        if len(found.data) > size_max:
            raise StoreRefused(f"get {key}: it has {len(found.data)} bytes, more than {size_max}")
        return found.data, found.version

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read("get_range", key).data[start : start + length]

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        fault = self._fault_before("list", prefix)
        with self._lock:
            objects = sorted(item for item in self._objects.items() if item[0].startswith(prefix))
        for key, found in objects[bisect_right(objects, after, key=lambda item: item[0]) :]:
            yield ObjectInfo(key, len(found.data), found.modified_ms)
        if fault is not None:
            raise StoreUnavailable(f"list {prefix}: {fault.value}")

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            fault = self._fault_before("delete", key)
            self._fail_if(fault, Fault.HALF, "delete", key)
            with self._lock:
                self._objects.pop(key, None)
            self._fail_if(fault, Fault.AFTER, "delete", key)

    def _write(self, key: str, data: Bytes) -> Version:
        self._writes += 1
        version = Version(e_tag=f'"{self._writes}"')
        self._objects[key] = _Object(bytes(data), version, self._time_ms())
        return version

    def _read(self, verb: str, key: str) -> _Object:
        check_key(key)
        fault = self._fault_before(verb, key)
        if fault is not None:  # with the reply, all of a read is lost
            raise StoreUnavailable(f"{verb} {key}: {fault.value}")
        found = self._objects.get(key)
        if found is None:
            raise ObjectMissing(f"{verb} {key}: there is no such object")
        return found

    def _fault_before(self, verb: str, key: str) -> Fault | None:
        fault = self.faults(verb, key)
        self._fail_if(fault, Fault.BEFORE, verb, key)
        return fault

    @staticmethod
    def _fail_if(fault: Fault | None, when: Fault, verb: str, key: str) -> None:
        if fault is when:
            raise StoreUnavailable(f"{verb} {key}: {when.value}")
