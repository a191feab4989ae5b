"""A broker's supply of producer ids, over a controller that answers late, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.cluster.producer_ids import ProducerIdAllocator
from barnabas.wire.errors import ErrorCode

BLOCK = 10


class Supply:
    """An allocator whose questions to the controller wait until the test answers."""

    def __init__(self) -> None:
        self.asked: list[Callable[[range, ErrorCode], object]] = []
        self.answers: list[tuple[int, ErrorCode]] = []
        self.first = 0
        self.allocator = ProducerIdAllocator(self.asked.append)

    def next(self) -> None:
        self.allocator.next(lambda producer_id, error: self.answers.append((producer_id, error)))

    def give(self, error: ErrorCode = ErrorCode.NONE) -> None:
        done = self.asked.pop(0)
        first = self.first
        if error:
            done(range(0), error)
        else:
            self.first += BLOCK
            done(range(first, first + BLOCK), error)


@given(steps=st.lists(st.sampled_from(["next", "next", "next", "next", "give", "fail"]), max_size=80))
def test_every_request_gets_one_unique_id(steps: list[str]) -> None:
    supply = Supply()
    for step in steps:
        if step == "next":
            supply.next()
        elif supply.asked:
            supply.give(ErrorCode.REQUEST_TIMED_OUT if step == "fail" else ErrorCode.NONE)
        assert len(supply.asked) <= 1
    while len(supply.answers) < steps.count("next"):
        supply.give()
    given_out = [producer_id for producer_id, error in supply.answers if not error]
    assert given_out == list(range(len(given_out)))
    assert all(producer_id == -1 for producer_id, error in supply.answers if error)
    assert len(supply.answers) == steps.count("next")


def test_the_next_block_is_requested_in_advance() -> None:
    supply = Supply()
    supply.next()
    supply.give()
    for _ in range(BLOCK - 2):
        supply.next()
    assert not supply.asked
    supply.next()
    assert supply.asked
    supply.give()
    supply.next()
    assert [producer_id for producer_id, _ in supply.answers] == list(range(BLOCK + 1))


def test_producers_get_the_error_and_the_next_one_requests_a_block() -> None:
    supply = Supply()
    supply.next()
    supply.next()
    supply.give(ErrorCode.NOT_CONTROLLER)
    assert supply.answers == [(-1, ErrorCode.NOT_CONTROLLER)] * 2
    supply.next()
    supply.give()
    assert supply.answers[2:] == [(0, ErrorCode.NONE)]
