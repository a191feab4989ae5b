"""Messages that wait for the disk: each is sent once everything it depends on is synced.

A voter must not lose what it has sent: a term, a vote, the entries it claims to hold. So each message carries the number of the
last change before it (journal.py) and waits until that is on disk; messages behind it wait too. A heartbeat or its answer does
not wait: a reduced message is sent in its place that promises nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from barnabas.controller.raft.messages import Alive, Append, Message, Progress


class _Waiting(NamedTuple):
    number: int
    node_id: int
    message: Message


class Outbox:
    """`send` is the way out; `synced_number` is the last change that is on disk."""

    def __init__(self, send: Callable[[int, Message], object]) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self.synced_number = 0

    def put(self, node_id: int, message: Message, number: int, term_number: int) -> None:
        """`number` of the last change at all, `term_number` of the last one of term or vote."""
        if number <= self.synced_number and not self._waiting:
            self._send(node_id, message)
            return
        is_sign_of_life = isinstance(message, Append) and not message.entries
        if is_sign_of_life or isinstance(message, Progress):
            if term_number <= self.synced_number:
                alive = Alive(message.term) if is_sign_of_life else Progress(message.term, 0, False, False)
                self._send(node_id, alive)
            if is_sign_of_life:
                return
        self._waiting.append(_Waiting(number, node_id, message))

    def synced(self, number: int) -> None:
        """Everything up to this change is on disk."""
        self.synced_number = max(number, self.synced_number)
        while self._waiting and self._waiting[0].number <= self.synced_number:
            waiting = self._waiting.popleft()
            self._send(waiting.node_id, waiting.message)

    def drop(self, node_id: int) -> None:
        """The connection is closed, and its messages are dropped."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.node_id != node_id)

    def clear(self) -> None:
        self._waiting.clear()
