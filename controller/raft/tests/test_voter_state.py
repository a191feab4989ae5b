"""The states of a voter: every listed transition, and no other."""

from __future__ import annotations

import itertools

import pytest

from barnabas.controller.raft.voter_state import TRANSITIONS, Event, State, VoterState


def after(*events: Event) -> VoterState:
    state = VoterState()
    for event in events:
        state.apply(event)
    return state


def test_a_voter_runs_writes_and_closes() -> None:
    assert not after().is_working
    running = after(Event.SERVE)
    assert running.is_working
    assert not (running.is_writing)
    assert not (running.is_silent)
    assert not (running.is_over)
    writing = after(Event.SERVE, Event.WRITE)
    assert writing.is_working
    assert writing.is_writing
    assert after(Event.SERVE, Event.WRITE, Event.WRITTEN).state is State.RUNNING
    assert after(Event.SERVE, Event.CLOSE).is_over


def test_a_voter_is_silent_until_its_disk_works() -> None:
    refused = [Event.SERVE, Event.WRITE, Event.REFUSED]
    silent = after(*refused)
    assert silent.is_silent
    assert not (silent.is_working)
    assert not (silent.is_writing)
    retrying = after(*refused, Event.WRITE)
    assert retrying.is_silent
    assert retrying.is_writing
    assert not retrying.is_working
    assert after(*refused, Event.WRITE, Event.REFUSED).state is State.SILENT
    assert after(*refused, Event.WRITE, Event.WRITTEN).state is State.RUNNING


@pytest.mark.parametrize("end", [Event.HALT, Event.CLOSE])
@pytest.mark.parametrize("outcome", [Event.WRITTEN, Event.REFUSED])
def test_a_write_in_flight_ends_without_effect(end: Event, outcome: Event) -> None:
    ended = after(Event.SERVE, Event.WRITE, end)
    before = ended.state
    ended.apply(outcome)
    assert ended.state is before
    assert ended.is_over


def test_unlisted_transitions_are_errors() -> None:
    for state, event in itertools.product(State, Event):
        voter = VoterState()
        voter.state = state
        if (state, event) in TRANSITIONS:
            voter.apply(event)
            assert voter.state is TRANSITIONS[state, event]
        else:
            with pytest.raises(
                RuntimeError, match=f"{event.name} does not occur while a voter is {state.name}"
            ):
                voter.apply(event)
    assert (State.RUNNING, Event.WRITTEN) not in TRANSITIONS, "no write was in flight"
    assert (State.WRITING, Event.WRITE) not in TRANSITIONS, "one write at a time"
    assert (State.LOADING, Event.WRITE) not in TRANSITIONS
