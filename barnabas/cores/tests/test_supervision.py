"""What a supervisor does at each event, without processes."""

from __future__ import annotations

import pytest

from barnabas.cores.supervision import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    STABLE_S,
    TRANSITIONS,
    Announce,
    Event,
    Finish,
    Start,
    StartLater,
    State,
    Stop,
    Supervision,
)


def serving() -> Supervision:
    """Nodes 1 to 3, the first the controller, all ready at time 0."""
    nodes = Supervision([1, 2, 3], [1])
    assert nodes.begin() == [Start(1), Start(2), Start(3)]
    assert nodes.ready(2, 0) == nodes.ready(1, 0) == []
    assert nodes.ready(3, 0) == [Announce()]
    return nodes


def test_brokers_stop_before_the_controller() -> None:
    nodes = serving()
    assert nodes.stop() == [Stop(2), Stop(3)]
    assert nodes.ended(3, 0, 1) == []
    assert nodes.ended(2, 0, 1) == [Stop(1)]
    assert nodes.ended(1, 0, 1) == [Finish(0)]


def test_a_second_stop_is_at_once() -> None:
    nodes = serving()
    nodes.stop()
    assert nodes.ended(3, 0, 1) == []
    assert nodes.stop() == [Stop(1, at_once=True), Stop(2, at_once=True)]
    assert nodes.ended(1, 0, 1) == []
    assert nodes.ended(2, -9, 1) == [Finish(1)], "it has not ended cleanly"


def test_a_dead_node_is_started_again_after_growing_pauses() -> None:
    nodes = serving()
    assert nodes.ended(2, -9, 1) == [StartLater(2, PAUSE_FIRST_S)]
    assert nodes.states[2] is State.WAITING
    assert nodes.due(2) == [Start(2)]
    assert nodes.ended(2, 1, 2) == [StartLater(2, 2 * PAUSE_FIRST_S)]
    nodes.due(2)
    assert nodes.ready(2, 3) == [], "announced once"
    assert nodes.ended(2, 1, 3 + STABLE_S) == [StartLater(2, PAUSE_FIRST_S)], "it had served for long"
    for _ in range(50):
        nodes.due(2)
        (again,) = nodes.ended(2, 1, 20)
    assert again == StartLater(2, PAUSE_MAX_S)
    assert nodes.restarts == {1: 0, 2: 52, 3: 0}


def test_a_node_that_waits_is_not_started_while_the_others_stop() -> None:
    nodes = serving()
    nodes.ended(2, -9, 1)
    assert nodes.stop() == [Stop(3)]
    assert nodes.due(2) == []
    assert nodes.ended(3, 0, 1) == [Stop(1)]
    assert nodes.ended(1, 0, 1) == [Finish(0)]


def test_a_failed_start_stops_the_others() -> None:
    nodes = Supervision([1, 2], [1])
    nodes.begin()
    nodes.ready(1, 0)
    assert nodes.ended(2, 1, 0) == [Stop(1)]
    assert nodes.ended(1, 0, 0) == [Finish(1)]


def test_ready_while_it_is_to_stop() -> None:
    nodes = Supervision([1, 2], [1])
    nodes.begin()
    nodes.ready(1, 0)
    assert nodes.stop() == [Stop(2)]
    assert nodes.ready(2, 0) == []
    assert nodes.ended(2, 0, 0) == [Stop(1)]


def test_pairs_that_are_not_listed_are_errors() -> None:
    nodes = serving()
    with pytest.raises(KeyError):
        nodes.ready(1, 0)
    assert not any(state is State.ENDED for state, _ in TRANSITIONS)
    assert {event for _, event in TRANSITIONS} == set(Event)
