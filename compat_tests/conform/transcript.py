"""Answers as plain trees, with values that always differ replaced by names.

The cluster id, ports, topic ids, member ids and the clock differ between two brokers. Each of these is replaced by a
descriptive name (`<topic id of a>`, `<member 1>`), so that an answer with the wrong topic's id still differs. The order
of arrays of structs has no meaning in Kafka's answers, so they are sorted. Everything else is compared unchanged.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from typing import Any

Tree = Any
"""Nested dicts, lists, numbers, strings, None."""

ABSENT = "<absent>"
_UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_CLOCK_BOUNDS = re.compile(r"within \[-?\d+, -?\d+\]")
_SORT_KEYS = (
    "api_key", "name", "topic", "topic_name", "resource_type", "resource_name", "group_id", "key", "log_dir",
    "node_id", "broker_id", "partition_index", "partition", "partition_id", "topic_id", "member_id",
)  # fmt: skip
_SORTED_NUMBERS = {"isr_nodes", "partitions"}
_TIMES = {"log_append_time_ms", "transaction_start_time_ms", "last_timestamp"}


class Names:
    """Replaces one broker's own values by names that both share, numbered in the order of appearance."""

    def __init__(self, run_tag: str, *ports: int) -> None:
        self._run_tag = run_tag
        self._ports = ports
        self._topic_ids: dict[bytes, str] = {}
        self._numbered: dict[tuple[str, object], str] = {}
        self.texts: dict[str, str] = {}
        """Further literal replacements in strings (cluster id, log directory)."""

    def learn_topic(self, topic_id: bytes, name: str) -> None:
        self._topic_ids[bytes(topic_id)] = f"<topic id of {self.text(name)}>"

    def numbered(self, kind: str, value: object) -> str:
        return self._numbered.setdefault(
            (kind, value), f"<{kind} {1 + sum(known == kind for known, _ in self._numbered)}>"
        )

    def text(self, value: str) -> str:
        for old, new in self.texts.items():
            value = value.replace(old, new)
        value = value.replace(self._run_tag, "RUN")
        value = _CLOCK_BOUNDS.sub("within <bounds>", value)
        return _UUID_TEXT.sub(lambda match: self.numbered("uuid", match.group()), value)

    def tree(self, value: object, field: str = "") -> Tree:
        """The comparable form of a message, or of one of its values."""
        fields = getattr(value, "__struct_fields__", None)
        if fields is not None:
            return {
                name: self.tree(getattr(value, name), name) for name in fields if name != "throttle_time_ms"
            }
        if isinstance(value, (list, tuple)):
            return self._list([self.tree(item, field) for item in value], field)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._bytes(bytes(value), field)
        return self._scalar(value, field)

    def _list(self, items: list[Tree], field: str) -> list[Tree]:
        if items and isinstance(items[0], dict):
            return sorted(items, key=_sort_key)
        if field in _SORTED_NUMBERS:
            return sorted(items)
        return items

    def _bytes(self, value: bytes, field: str) -> Tree:
        if field == "records":
            return list(batch_trees(value, self))
        if len(value) == 16 and (field.endswith("_id") or field == "topic_ids"):
            if value == bytes(16):
                return "<zero id>"
            return self._topic_ids.get(value) or _known_id(value) or "<id>"
        return value.hex() if len(value) <= 64 else hashlib.sha1(value).hexdigest()

    def _scalar(self, value: object, field: str) -> Tree:
        if field == "port" and value in self._ports:
            return "<port>"
        if field in _TIMES and value not in (-1, 0):
            return "<time>"
        if field == "producer_id" and isinstance(value, int) and value >= 0:
            return self.numbered("producer id", value)
        if field == "correlation_id":
            return None
        return value


def _known_id(value: bytes) -> str | None:
    """The name of an id that a case made up: 15 zero bytes and a number. All other ids are random."""
    return f"<made up id {value[15]}>" if value[:15] == bytes(15) else None


def _sort_key(item: Tree) -> str:
    return repr([item.get(key) for key in _SORT_KEYS]) + repr(item)


def batch_trees(data: bytes, names: Names) -> Iterator[Tree]:
    """The batches of a fetch answer: header fields, and a digest of the records.

    With LogAppendTime and in markers the broker writes its own clock into the header, so time and CRC are left out.
    """
    position = 0
    while position + 61 <= len(data):
        (base, length, epoch, magic, crc, attributes, delta, first, last, pid, pepoch, sequence, count) = (
            struct.unpack_from(">qiibIhiqqqhii", data, position)
        )
        end = position + 12 + length
        own_clock = bool(attributes & 0x28)  # LogAppendTime, and markers
        yield {
            "base_offset": base, "length": length, "leader_epoch": epoch, "magic": magic,
            "crc": None if own_clock or pid >= 0 else crc, "attributes": attributes, "last_offset_delta": delta,
            "base_timestamp": "<time>" if own_clock and pid >= 0 else first, "max_timestamp": "<time>" if own_clock else last,
            "producer_id": pid if pid < 0 else names.numbered("producer id", pid), "producer_epoch": pepoch,
            "base_sequence": sequence, "count": count,
            "records": hashlib.sha1(data[position + 61 : end]).hexdigest()[:12],
        }  # fmt: skip
        position = end
    if position < len(data):
        yield {"partial_batch_bytes": len(data) - position}


def differences(ours: Tree, theirs: Tree, path: str = "") -> Iterator[tuple[str, Tree, Tree]]:
    """Every leaf where the two trees differ: (path, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            yield from differences(ours.get(key, ABSENT), theirs.get(key, ABSENT), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and _named(ours) and _named(theirs):
        left, right = _by_name(ours), _by_name(theirs)
        for name in {**left, **right}:
            yield from differences(left.get(name, ABSENT), right.get(name, ABSENT), f"{path}[{name}]")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(left, right, f"{path}[{index}]")
    elif ours != theirs:
        yield path, ours, theirs


def _named(items: list[Tree]) -> bool:
    """Whether every element has a name of its own, so that two lists can be compared name by name."""
    names = [item.get("name", item.get("step")) if isinstance(item, dict) else None for item in items]
    return None not in names and len(set(names)) == len(names)


def _by_name(items: list[Tree]) -> dict[str, Tree]:
    return {item.get("name", item.get("step")): item for item in items}
