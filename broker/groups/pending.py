"""Appends of one shard that are on their way: their effect has been replayed and can be taken back, and their
requests wait.

They end in the order in which they were begun. One that takes longer than offsets.commit.timeout.ms is answered as
timed out and stays pending, as in Kafka: it is in the log, and whether it counts is decided there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.groups.timers import DeadlineTimer
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.groups.records import GroupRecord
    from barnabas.runtime.interface import Runtime

Answer = Callable[[ErrorCode], None]


class PendingAppend:
    """One append. `undo`: what takes its effect on the set of groups back, in the order in which it was done."""

    __slots__ = ("_waiting", "deadline", "records", "sequence", "undo")

    def __init__(self, sequence: int, records: list[GroupRecord], done: Answer, deadline: float) -> None:
        self.sequence = sequence
        self.records = records
        self.deadline = deadline
        self.undo: list[Callable[[], None]] = []
        self._waiting: list[Answer] | None = [done]  # None: answered

    def wait(self, callback: Answer) -> None:
        """Call back when it ends or times out; now, if it has timed out."""
        if self._waiting is None:
            callback(ErrorCode.REQUEST_TIMED_OUT)
        else:
            self._waiting.append(callback)

    def answer(self, error: ErrorCode) -> None:
        """Answer all that wait; nothing happens the second time."""
        waiting, self._waiting = self._waiting or (), None
        for callback in waiting:
            callback(error)


class PendingAppends:
    """All of a shard, oldest first."""

    def __init__(self, runtime: Runtime, timeout_ms: int) -> None:
        self._runtime = runtime
        self._timeout_ms = timeout_ms
        self._appends: dict[int, PendingAppend] = {}
        self._timer = DeadlineTimer(runtime, self._expire)

    def __bool__(self) -> bool:
        return bool(self._appends)

    def add(self, sequence: int, records: list[GroupRecord], done: Answer) -> PendingAppend:
        deadline = self._runtime.monotonic() + self._timeout_ms / 1000
        append = self._appends[sequence] = PendingAppend(sequence, records, done, deadline)
        if not self._timer.armed:
            self._timer.set(self._timeout_ms)
        return append

    def newest(self) -> PendingAppend:
        return self._appends[next(reversed(self._appends))]

    def take(self, sequence: int) -> PendingAppend | None:
        """The append ends. None when `close` has ended it before."""
        return self._appends.pop(sequence, None)

    def close(self, error: ErrorCode) -> None:
        """No more of them: all are answered with the error, and what becomes of them is of no interest."""
        self._timer.cancel()
        appends, self._appends = self._appends, {}
        for append in appends.values():
            append.answer(error)

    def _expire(self) -> None:
        now = self._runtime.monotonic()
        for append in tuple(self._appends.values()):
            if append.deadline > now + 0.0005:
                self._timer.set(round((append.deadline - now) * 1000))
                return
            append.answer(ErrorCode.REQUEST_TIMED_OUT)
