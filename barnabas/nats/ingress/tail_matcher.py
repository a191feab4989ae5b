"""Matches the messages that a broker has received with the records in its copy of the log.

Every broker in sync receives the messages of a binding; only the leader appends them, and the others get its records by
replication. By the tails of the records (records/parts.py) each broker knows which messages are not in its log yet: a new
leader has to append those; and which records it has not received as messages yet: a new leader must not append those a second
time when they are received. Equal tails are interchangeable, so only their numbers count.

Both sides expire: messages that the leader did not take, and records from before this broker subscribed. Brokers agree by a
mark on where matching begins (ingress/standbys.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from typing import Final, Generic, TypeVar

Extra = TypeVar("Extra")

COMPACT_FROM: Final = 1000


class TailMultiset(Generic[Extra]):
    """A multiset of tails in the order in which they came, each with its time and an extra value."""

    __slots__ = ("_count", "_entries", "_matched", "_unmatched", "size")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, bytes, Extra]] = deque()
        self._unmatched: dict[bytes, int] = {}
        self._matched: dict[
            bytes, int
        ] = {}  # entries that are matched and still in `_entries`; of equal ones the oldest
        self._count = 0  # of unmatched entries
        self.size = 0  # of unmatched entries, in bytes

    def __len__(self) -> int:
        return self._count

    def add(self, tail: bytes, now_s: float, extra: Extra) -> None:
        self._entries.append((now_s, tail, extra))
        self._unmatched[tail] = self._unmatched.get(tail, 0) + 1
        self._count += 1
        self.size += len(tail)

    def match(self, tail: bytes) -> bool:
        """Removes the oldest equal tail, and returns whether there was one."""
        count = self._unmatched.get(tail)
        if not count:
            return False
        self._forget(tail, count)
        entries, matched = self._entries, self._matched
        if entries[0][1] == tail and not matched:  # the usual case
            entries.popleft()
            return True
        matched[tail] = matched.get(tail, 0) + 1
        self._drop_matched()
        if len(entries) > COMPACT_FROM + 2 * self._count:
            self._compact()
        return True

    def oldest_s(self, default_s: float) -> float:
        """The time of the oldest entry."""
        return self._entries[0][0] if self._entries else default_s

    def count(self, tail: bytes) -> int:
        return self._unmatched.get(tail, 0)

    def since(self, since_s: float) -> Iterator[tuple[float, bytes, Extra]]:
        """Entries that are not older, in order."""
        return (entry for entry in self._rest() if entry[0] >= since_s)

    def put_first(self, entries: list[tuple[float, bytes, Extra]]) -> None:
        """Adds entries before all others, in this order."""
        self._compact()  # else a matched entry would count as one of these: of equal ones the oldest are the matched
        self._entries.extendleft(reversed(entries))
        for _, tail, _ in entries:
            self._unmatched[tail] = self._unmatched.get(tail, 0) + 1
            self._count += 1
            self.size += len(tail)

    def expire(self, before_s: float) -> int:
        """Removes older entries, and returns their number."""
        expired = 0
        entries = self._entries
        self._drop_matched()
        while entries and entries[0][0] < before_s:
            tail = entries.popleft()[1]
            self._forget(tail, self._unmatched[tail])
            expired += 1
            self._drop_matched()
        return expired

    def drain(self) -> list[tuple[bytes, Extra]]:
        """Removes all entries, and returns them in order."""
        rest = [(tail, extra) for _, tail, extra in self._rest()]
        self.clear()
        return rest

    def clear(self) -> None:
        self._entries.clear()
        self._unmatched.clear()
        self._matched.clear()
        self._count = self.size = 0

    def _forget(self, tail: bytes, count: int) -> None:
        if count == 1:
            del self._unmatched[tail]
        else:
            self._unmatched[tail] = count - 1
        self._count -= 1
        self.size -= len(tail)

    def _compact(self) -> None:
        if self._matched:
            self._entries = deque(self._rest())
            self._matched.clear()

    def _drop_matched(self) -> None:
        entries, matched = self._entries, self._matched
        while matched and entries and (count := matched.get(entries[0][1])):
            tail = entries.popleft()[1]
            if count == 1:
                del matched[tail]
            else:
                matched[tail] = count - 1

    def _rest(self) -> list[tuple[float, bytes, Extra]]:
        matched = dict(self._matched)
        rest = []
        for entry in self._entries:
            count = matched.get(entry[1])
            if count:
                matched[entry[1]] = count - 1
            else:
                rest.append(entry)
        return rest


class TailMatcher(Generic[Extra]):
    """Messages and records of one partition. Times in seconds."""

    __slots__ = ("ahead", "pending")

    def __init__(self) -> None:
        self.pending: TailMultiset[Extra] = TailMultiset()  # received, and not in the log
        self.ahead: TailMultiset[None] = TailMultiset()  # in the log, and not received

    def received(self, tail: bytes, now_s: float, extra: Extra) -> None:
        if not self.ahead.match(tail):
            self.pending.add(tail, now_s, extra)

    def stored(self, tail: bytes, now_s: float) -> None:
        """A record with this tail is in the log."""
        if not self.pending.match(tail):
            self.ahead.add(tail, now_s, None)

    def cut(self, tails: list[bytes], now_s: float, extra: Extra) -> None:
        """Records with these tails, in this order, were truncated from the log. They came before all pending messages."""
        came_s = self.pending.oldest_s(now_s)
        self.pending.put_first([(came_s, tail, extra) for tail in tails if not self.ahead.match(tail)])

    def differing(self, other: TailMatcher[Extra], since_s: float) -> dict[bytes, int]:
        """The tails on which the two differ, except older ones that only this matcher has; and by how many."""
        tails = {tail for side in (other.pending, other.ahead) for _, tail, _ in side.since(0)}
        tails.update(tail for side in (self.pending, self.ahead) for _, tail, _ in side.since(since_s))
        differences = {tail: other._balance(tail) - self._balance(tail) for tail in tails}
        return {tail: difference for tail, difference in differences.items() if difference}

    def correct(self, tails: Set[bytes], by: TailMatcher[Extra], since_s: float) -> None:
        """Makes the counts of these tails equal to those of `by`, which began earlier."""
        for tail in tails:
            for mine, right in ((self.pending, by.pending), (self.ahead, by.ahead)):
                while mine.count(tail) > right.count(tail):
                    mine.match(tail)
        earlier: list[tuple[float, bytes, Extra]] = []
        counts = {tail: by.pending.count(tail) - self.pending.count(tail) for tail in tails}
        for entry in by.pending.since(since_s):
            if counts.get(entry[1], 0) > 0:
                counts[entry[1]] -= 1
                earlier.append(entry)
        self.pending.put_first(earlier)
        for time_s, tail, _ in by.ahead.since(since_s):
            if tail in tails and self.ahead.count(tail) < by.ahead.count(tail):
                self.ahead.add(tail, time_s, None)

    def _balance(self, tail: bytes) -> int:
        return self.pending.count(tail) - self.ahead.count(tail)
