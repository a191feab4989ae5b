"""The table of a session's states, and what is left to it alone: where `serve` stops, and what it has collected."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.network import session as states
from barnabas.broker.network.session import (
    ANSWERS_MAX,
    CLOCK_CHECK_MASK,
    LARGE_ANSWER_BYTES,
    TRANSITIONS,
    TURN_S,
    IllegalTransition,
    Session,
    State,
)
from barnabas.broker.network.tests.doubles import PRODUCE, ManualLoop, ScriptedDispatcher, answer, request
from barnabas.broker.requests.context import CLOSE_CONNECTION, NO_RESPONSE, PENDING
from barnabas.wire.frame import FrameSizeError

EVENTS = [event for event in State.__slots__ if event != "name"]
ALL = [each for each in vars(states).values() if isinstance(each, State)]


class World:
    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.dispatcher = ScriptedDispatcher(self.loop)
        self.session = Session(self, self.dispatcher, 10_000, self.loop.monotonic)  # type: ignore[arg-type]  # doubles
        self.session.admit()

    def serve(self, data: bytes, position: int = 0) -> int:
        return self.session.serve(memoryview(data), position, self.loop.monotonic())

    def complete(self, number: int) -> None:
        self.session.complete(number, None)  # type: ignore[arg-type]  # a context is a number here

    def pipeline(self, number: int) -> None:
        self.session.allow_pipelined_produces(number)  # type: ignore[arg-type]  # a context is a number here


@pytest.fixture
def world() -> World:
    return World()


def test_every_state_stands_in_the_table_and_can_be_closed() -> None:
    assert set(ALL) == set(TRANSITIONS)
    assert {row["close"] for row in TRANSITIONS.values()} == {states.CLOSED}
    assert all(event in EVENTS for row in TRANSITIONS.values() for event in row)


def test_every_state_can_be_reached() -> None:
    reached = {states.NOT_ADMITTED}
    for _ in TRANSITIONS:
        reached |= {following for state in reached for following in TRANSITIONS[state].values()}
    assert reached == set(TRANSITIONS)


@pytest.mark.parametrize("state", ALL, ids=str)
def test_an_event_that_is_not_listed_is_an_error(state: State) -> None:
    for event in EVENTS:
        if event in TRANSITIONS[state]:
            assert getattr(state, event) is TRANSITIONS[state][event]
        else:
            with pytest.raises(IllegalTransition, match=f"^{event} in state {state}$"):
                getattr(state, event)


def test_whole_requests_are_served(world: World) -> None:
    data = request(1) + request(2) + request(3)[:10]
    assert world.serve(data) == 2 * len(request())
    assert world.session.answers == [answer(1), answer(2)]
    assert world.session.state is states.READY
    assert world.serve(data, 2 * len(request())) == 2 * len(request())
    assert world.serve(request(1)[:3]) == 0


def test_nothing_is_served_before_admission() -> None:
    session = Session(None, None, 10_000, lambda: 0.0)  # type: ignore[arg-type]  # neither is used
    with pytest.raises(IllegalTransition, match="serve in state NOT_ADMITTED"):
        session.serve(memoryview(request()), 0, 0.0)


@pytest.mark.parametrize("size", [-1, 10_001])
def test_a_frame_of_a_wrong_size_ends_it(world: World, size: int) -> None:
    data = request(1) + size.to_bytes(4, "big", signed=True)
    with pytest.raises(FrameSizeError, match=f"a frame of {size} bytes, at most 10000 are allowed") as raised:
        world.serve(data)
    assert raised.value.size == size
    assert world.session.answers == [answer(1)]


def test_a_frame_of_the_maximum_is_served(world: World) -> None:
    assert world.serve(request(1, padding=10_000 - 8)) == 10_004
    assert world.session.answers == [answer(1)]


def test_it_stops_behind_a_large_answer_and_goes_on(world: World) -> None:
    large = bytes(LARGE_ANSWER_BYTES + 1)
    world.dispatcher.handlers[1] = lambda _requester: large
    data = request(1) + request(2)
    position = world.serve(data)
    assert position == len(request())
    assert world.session.answers == [large]
    assert world.session.state is states.READY
    assert world.serve(data, position) == len(data)


def test_it_stops_behind_an_answer_with_regions(world: World) -> None:
    world.dispatcher.handlers[1] = lambda _requester: [b"head", b"region", b"tail"]
    assert world.serve(request(1) + request(2)) == len(request())
    assert world.session.answers == [b"head", b"region", b"tail"]
    assert world.session.has_regions


def test_it_stops_when_many_answers_are_collected(world: World) -> None:
    assert world.serve(request() * 1000) == (ANSWERS_MAX + 1) * len(request())
    assert world.session.state is states.READY


def test_its_turn_ends(world: World) -> None:
    world.dispatcher.cost_s = TURN_S
    data = request() * 1000
    position = world.serve(data)
    assert position == (CLOCK_CHECK_MASK // len(request()) + 1) * len(request())
    assert world.session.state is states.YIELDED
    with pytest.raises(IllegalTransition, match="serve in state YIELDED"):
        world.serve(data, position)
    world.session.begin_turn()
    assert world.serve(data, position) > position


def test_a_pending_request_is_answered_late(world: World) -> None:
    world.dispatcher.handlers[1] = lambda _requester: PENDING
    data = request(1) + request(2)
    assert world.serve(data) == len(request())
    assert world.session.state is states.PENDING
    assert world.session.answers == []
    world.complete(1)
    assert world.session.state is states.READY
    assert world.session.answers == [answer(1)]


def test_a_request_may_not_be_answered_early_and_by_its_handler_as_well(world: World) -> None:
    def handler(_requester: Any) -> Any:
        world.complete(1)
        return answer(1)

    world.dispatcher.handlers[1] = handler
    with pytest.raises(IllegalTransition, match="pause in state SETTLED"):
        world.serve(request(1))


def test_a_pending_request_in_front_of_answers_in_line(world: World) -> None:
    def produce(_requester: Any) -> Any:
        world.pipeline(1)
        return PENDING

    world.dispatcher.handlers = {
        1: produce,
        2: lambda _requester: PENDING,
        3: lambda _requester: NO_RESPONSE,
    }
    data = b"".join(request(number, PRODUCE) for number in range(1, 6))
    position = world.serve(data)
    assert world.session.state is states.PENDING
    world.complete(2)
    position = world.serve(data, position)
    assert position == len(data)
    assert world.session.answers == []
    world.complete(1)
    assert world.session.answers == [answer(number) for number in (1, 2, 4, 5)]


def test_what_is_no_produce_is_held_back_until_the_line_is_empty(world: World) -> None:
    def produce(_requester: Any) -> Any:
        world.pipeline(1)
        return PENDING

    world.dispatcher.handlers[1] = produce
    data = request(1, PRODUCE) + request(2)
    position = world.serve(data)
    assert world.session.state is states.HELD_BACK
    assert world.serve(data, position) == position
    assert world.session.state is states.HELD_BACK
    world.complete(1)
    assert world.serve(data, position) == len(data)
    assert world.session.answers == [answer(1), answer(2)]


def test_a_request_that_is_answered_by_a_close_is_the_last(world: World) -> None:
    world.dispatcher.handlers[2] = lambda _requester: CLOSE_CONNECTION
    assert world.serve(request(1) + request(2) + request(3)) == 2 * len(request())
    assert world.session.state is states.CLOSING
    assert world.session.answers == [answer(1)]


def test_a_handler_may_close_the_connection(world: World) -> None:
    def handler(_requester: Any) -> Any:
        world.session.close()
        return answer(1)

    world.dispatcher.handlers[1] = handler
    world.serve(request(1) + request(2))
    assert world.session.state is states.CLOSED
    assert world.dispatcher.served == [1]


def test_the_next_request_is_noted_once_and_only_while_one_is_pending(world: World) -> None:
    keys: list[int] = []

    def handler(_requester: Any) -> Any:
        world.session.on_next_request(keys.append)
        return PENDING

    world.dispatcher.handlers = {1: handler, 2: handler}
    world.serve(request(1))
    world.session.note_next_request(3)
    world.session.note_next_request(4)
    assert keys == [3]
    world.complete(1)
    world.serve(request(2))
    world.complete(2)
    world.session.note_next_request(5)
    assert keys == [3]
