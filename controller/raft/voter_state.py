"""States of a voter: a table of transitions, in which an unlisted pair is an error.

A voter loads its log, then runs. At most one write to its disk is in flight. When a write fails the voter is silent, as if it
were down, and rewrites the whole journal from memory until that succeeds. When a committed command can't be applied, or logs
contradict each other, it halts until it is restarted. A write that was in flight then ends without effect.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    LOADING = auto()
    RUNNING = auto()
    WRITING = auto()  # running, with a write in flight
    SILENT = auto()  # the disk has refused a write
    RETRYING = auto()  # silent, with a write in flight
    HALTED = auto()
    CLOSED = auto()


class Event(Enum):
    SERVE = auto()
    WRITE = auto()  # a write begins
    WRITTEN = auto()
    REFUSED = auto()  # the disk has refused it
    HALT = auto()
    CLOSE = auto()


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.LOADING, Event.SERVE): State.RUNNING,
    (State.RUNNING, Event.WRITE): State.WRITING,
    (State.WRITING, Event.WRITTEN): State.RUNNING,
    (State.WRITING, Event.REFUSED): State.SILENT,
    (State.SILENT, Event.WRITE): State.RETRYING,
    (State.RETRYING, Event.WRITTEN): State.RUNNING,
    (State.RETRYING, Event.REFUSED): State.SILENT,
    (State.HALTED, Event.WRITTEN): State.HALTED,
    (State.HALTED, Event.REFUSED): State.HALTED,
    (State.CLOSED, Event.WRITTEN): State.CLOSED,
    (State.CLOSED, Event.REFUSED): State.CLOSED,
    (State.CLOSED, Event.HALT): State.CLOSED,
    **{(state, Event.HALT): State.HALTED for state in State if state is not State.CLOSED},
    **{(state, Event.CLOSE): State.CLOSED for state in State},
}


class VoterState:
    """The state that one voter is in."""

    def __init__(self) -> None:
        self.state = State.LOADING

    def apply(self, event: Event) -> None:
        """RuntimeError when the event can't occur in this state."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise RuntimeError(f"{event.name} does not occur while a voter is {self.state.name}")
        self.state = following

    @property
    def is_working(self) -> bool:
        """Whether it takes part in the quorum."""
        return self.state is State.RUNNING or self.state is State.WRITING

    @property
    def is_writing(self) -> bool:
        return self.state is State.WRITING or self.state is State.RETRYING

    @property
    def is_silent(self) -> bool:
        return self.state is State.SILENT or self.state is State.RETRYING

    @property
    def is_over(self) -> bool:
        """Whether it will take no part in the quorum again."""
        return self.state is State.HALTED or self.state is State.CLOSED
