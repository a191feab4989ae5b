"""Messages that wait for the disk: each is sent once everything that it depends on is synced.

A voter must not lose state that it has sent to others: a term, a vote, entries that it says it has. So each message carries the
number of the last change before it (journal.py) and waits until that is on disk; later messages wait too. In place of a heartbeat
or its answer a reduced message is sent at once, which depends on no entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from barnabas.controller.raft.messages import Append, AppendResponse, Heartbeat, Message


class _Waiting(NamedTuple):
    number: int
    node_id: int
    message: Message


class Outbox:
    """`send(node id, message)` sends; `synced_number`: of the last change on disk."""

    def __init__(self, send: Callable[[int, Message], object]) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self.synced_number = 0

    def put(self, node_id: int, message: Message, number: int, term_number: int) -> None:
        """`number`: of the last change; `term_number`: of the last change of term or vote."""
        if number <= self.synced_number and not self._waiting:
            self._send(node_id, message)
            return
        is_heartbeat = isinstance(message, Append) and not message.entries
        if is_heartbeat or isinstance(message, AppendResponse):
            if term_number <= self.synced_number:
                reduced = (
                    Heartbeat(message.term) if is_heartbeat else AppendResponse(message.term, 0, False, False)
                )
                self._send(node_id, reduced)
            if is_heartbeat:
                return
        self._waiting.append(_Waiting(number, node_id, message))

    def synced(self, number: int) -> None:
        """All changes up to this number are on disk."""
        self.synced_number = max(number, self.synced_number)
        while self._waiting and self._waiting[0].number <= self.synced_number:
            waiting = self._waiting.popleft()
            self._send(waiting.node_id, waiting.message)

    def drop(self, node_id: int) -> None:
        """The connection is closed: drop its messages."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.node_id != node_id)

    def clear(self) -> None:
        self._waiting.clear()
