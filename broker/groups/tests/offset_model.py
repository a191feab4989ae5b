"""A slow model of committed and pending offsets, which reads the log from its start each time."""

from __future__ import annotations

from typing import Any

import msgspec

Position = tuple[str, str, int]  # group, topic, partition


class Commit(msgspec.Struct, frozen=True):
    key: Position
    offset: int
    time_ms: int
    producer_id: int = -1  # inside its transaction


class Removal(msgspec.Struct, frozen=True):
    key: Position


class GroupRemoval(msgspec.Struct, frozen=True):
    group: str


class End(msgspec.Struct, frozen=True):
    producer_id: int
    commit: bool


class State:
    """What a log says, read from its start."""

    def __init__(self, log: list[list[Any]]) -> None:
        self.values: dict[Position, tuple[int, Commit]] = {}  # with its number in the log
        self.pending: dict[tuple[int, Position], tuple[int, Commit]] = {}
        self.groups: set[str] = set()
        for number, record in enumerate(record for batch in log for record in batch):
            self._take(number, record)
        self.groups |= {key[0] for _, key in self.pending}

    def _take(self, number: int, record: Any) -> None:
        if isinstance(record, Removal):
            self.values.pop(record.key, None)
            self.pending = {each: found for each, found in self.pending.items() if each[1] != record.key}
        elif isinstance(record, GroupRemoval):
            self.groups.discard(record.group)
        elif isinstance(record, End):
            for each in [each for each in self.pending if each[0] == record.producer_id]:
                found = self.pending.pop(each)
                if record.commit and self.values.get(each[1], (-1,))[0] < found[0]:
                    self._set(*found)
        elif record.producer_id >= 0:
            self.pending[record.producer_id, record.key] = number, record
        else:
            self._set(number, record)

    def _set(self, number: int, record: Commit) -> None:
        self.values[record.key] = number, record
        self.groups.add(record.key[0])

    def offsets(self) -> dict[Position, int]:
        return {key: record.offset for key, (_, record) in self.values.items()}

    def pending_keys(self) -> set[Position]:
        return {key for _, key in self.pending}
