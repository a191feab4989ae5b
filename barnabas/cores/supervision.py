"""What a supervisor does when a node is ready, ends, or is to stop. No I/O: each call returns the actions to take, in their order.

A node's state follows TRANSITIONS; a pair that is not listed is a bug. A node that ends is started again after a pause that doubles
with each end in a row. Until all nodes have been ready once an end is a failed start: the others are stopped, and the exit code is 1.
A stop reaches the brokers first and the controllers when those have ended, since a broker hands its leaderships on through them. A second
stop is for all nodes, at once.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

PAUSE_FIRST_S: Final = 0.2
PAUSE_MAX_S: Final = 30.0
STABLE_S: Final = 10.0  # a node that has served for as long ends for the first time again
_DOUBLINGS_MAX: Final = 10


class State(enum.Enum):
    """The state of a node's process."""

    NEW = enum.auto()
    STARTING = enum.auto()
    SERVING = enum.auto()
    WAITING = enum.auto()  # to be started again
    STOPPING = enum.auto()
    ENDED = enum.auto()


class Event(enum.Enum):
    """What happens to it."""

    START = enum.auto()
    READY = enum.auto()
    FAIL = enum.auto()  # its process has ended and is to be started again
    STOP = enum.auto()  # it is asked to stop
    END = enum.auto()  # its process has ended for good, or is not started again


TRANSITIONS: Final = {
    (State.NEW, Event.START): State.STARTING,
    (State.NEW, Event.END): State.ENDED,
    (State.STARTING, Event.READY): State.SERVING,
    (State.STARTING, Event.FAIL): State.WAITING,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.STARTING, Event.END): State.ENDED,
    (State.SERVING, Event.FAIL): State.WAITING,
    (State.SERVING, Event.STOP): State.STOPPING,
    (State.SERVING, Event.END): State.ENDED,
    (State.WAITING, Event.START): State.STARTING,
    (State.WAITING, Event.END): State.ENDED,
    (State.STOPPING, Event.READY): State.STOPPING,
    (State.STOPPING, Event.STOP): State.STOPPING,
    (State.STOPPING, Event.END): State.ENDED,
}
RUNNING: Final = (State.STARTING, State.SERVING, State.STOPPING)  # it has a process


class Start(msgspec.Struct, frozen=True):
    """Start a node's process."""

    node_id: int


class StartLater(msgspec.Struct, frozen=True):
    """Call `due` for the node after a pause."""

    node_id: int
    pause_s: float


class Stop(msgspec.Struct, frozen=True):
    """Ask a node's process to stop; `at_once`: without a controlled shutdown."""

    node_id: int
    at_once: bool = False


class Announce(msgspec.Struct, frozen=True):
    """All nodes are ready, for the first time."""


class Finish(msgspec.Struct, frozen=True):
    """All have ended: the supervisor's exit code."""

    code: int


Action = Start | StartLater | Stop | Announce | Finish


class Supervision:
    """The nodes of one supervisor. Times are seconds of a monotonic clock."""

    def __init__(self, node_ids: Sequence[int], controllers: Collection[int]) -> None:
        self.states = dict.fromkeys(node_ids, State.NEW)
        self.restarts = dict.fromkeys(node_ids, 0)
        self.last_codes: dict[int, int] = {}  # of the processes that have ended
        self.is_stopping = False
        self._controllers = frozenset(controllers)
        self._failures = dict.fromkeys(node_ids, 0)  # in a row
        self._ready_at: dict[int, float] = {}
        self.was_ready = False  # all of them
        self._code = 0

    def begin(self) -> list[Action]:
        """Start all."""
        return [self._start(node_id) for node_id in self.states]

    def ready(self, node_id: int, now: float) -> list[Action]:
        """A node serves."""
        self._change(node_id, Event.READY)
        self._ready_at[node_id] = now
        if self.was_ready or any(state is not State.SERVING for state in self.states.values()):
            return []
        self.was_ready = True
        return [Announce()]

    def ended(self, node_id: int, code: int, now: float) -> list[Action]:
        """A node's process has ended. `code`: as Popen has it, negative for a signal."""
        self.last_codes[node_id] = code
        if self.is_stopping:
            self._code = self._code or int(self.is_failure(node_id, code))
            self._change(node_id, Event.END)
            return self._go_on_stopping()
        if not self.was_ready:
            self._change(node_id, Event.END)
            self._code = 1
            return self.stop()
        self._change(node_id, Event.FAIL)
        return [StartLater(node_id, self._pause_s(node_id, now))]

    def is_failure(self, node_id: int, code: int) -> bool:
        """Whether a node has not stopped as it was asked to. One that the signal ended before it could handle it had nothing to lose."""
        is_stopped_at_start = code == -signal.SIGTERM and node_id not in self._ready_at
        return code != 0 and not is_stopped_at_start

    def due(self, node_id: int) -> list[Action]:
        """A pause of StartLater is over. Without effect while the nodes stop."""
        if self.is_stopping:
            return []
        self.restarts[node_id] += 1
        return [self._start(node_id)]

    def stop(self) -> list[Action]:
        """Stop all: the first time in order, then at once."""
        if self.is_stopping:
            return [self._stop(each, at_once=True) for each in self._in_state(*RUNNING)]
        self.is_stopping = True
        for node_id in self._in_state(State.NEW, State.WAITING):
            self._change(node_id, Event.END)
        return self._go_on_stopping()

    def _go_on_stopping(self) -> list[Action]:
        running = self._in_state(*RUNNING)
        if not running:
            return [Finish(self._code)]
        brokers = [each for each in running if each not in self._controllers]
        return [self._stop(each) for each in brokers or running if self.states[each] is not State.STOPPING]

    def _pause_s(self, node_id: int, now: float) -> float:
        ready_at = self._ready_at.pop(node_id, None)
        if ready_at is not None and now - ready_at >= STABLE_S:
            self._failures[node_id] = 0
        doublings = min(self._failures[node_id], _DOUBLINGS_MAX)
        self._failures[node_id] += 1
        return min(PAUSE_FIRST_S * 2.0**doublings, PAUSE_MAX_S)

    def _in_state(self, *states: State) -> list[int]:
        return [node_id for node_id, state in self.states.items() if state in states]

    def _start(self, node_id: int) -> Start:
        self._change(node_id, Event.START)
        return Start(node_id)

    def _stop(self, node_id: int, *, at_once: bool = False) -> Stop:
        self._change(node_id, Event.STOP)
        return Stop(node_id, at_once)

    def _change(self, node_id: int, event: Event) -> None:
        self.states[node_id] = TRANSITIONS[self.states[node_id], event]
