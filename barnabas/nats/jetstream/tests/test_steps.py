"""Procedures: where they wait, how they fail, that they can be given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.nats.jetstream.steps import Answer, Steps, in_thread, pause
from compat_tests.virtual.runtime import VirtualRuntime


class Waits:
    """Answers that a test gives when it likes."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Any, Any], object]] = []

    def answer(self) -> Answer[Any]:
        return Answer(self.waiting.append)


def test_answers_come_later_or_at_once_and_errors_are_raised() -> None:
    waits = Waits()
    seen: list[Any] = []
    ended: list[Exception | None] = []

    async def run() -> None:
        seen.append(await waits.answer())
        seen.append(await Answer[str](lambda done: done("at once", None)))
        with pytest.raises(KeyError):
            await waits.answer()
        seen.append(await waits.answer())
        raise ValueError("the end")

    Steps(run(), ended.append)
    waits.waiting.pop()("later", None)
    assert seen == ["later", "at once"]
    waits.waiting.pop()(None, KeyError("x"))
    assert not ended
    waits.waiting.pop()(3, None)
    assert seen == ["later", "at once", 3]
    assert isinstance(ended[0], ValueError)


def test_a_question_that_can_not_be_asked_is_an_error_of_the_procedure() -> None:
    ended: list[Exception | None] = []

    def fails(_done: object) -> None:
        raise OverflowError("a number of 200 bits")

    async def run() -> None:
        with pytest.raises(OverflowError):
            await Answer[int](fails)
        await Answer[int](fails)

    Steps(run(), ended.append)
    assert isinstance(ended[0], OverflowError)


def test_an_answer_counts_once() -> None:
    waits = Waits()
    ended: list[Exception | None] = []

    async def run() -> None:
        await waits.answer()
        await waits.answer()

    Steps(run(), ended.append)
    first = waits.waiting.pop()
    first(1, None)
    first(2, None)
    assert not ended
    waits.waiting.pop()(3, None)
    assert ended == [None]


def test_what_is_given_up_does_nothing_more() -> None:
    waits = Waits()
    seen: list[Any] = []
    ended: list[Exception | None] = []

    async def run() -> None:
        try:
            seen.append(await waits.answer())
        finally:
            seen.append("closed")

    steps = Steps(run(), ended.append)
    steps.cancel()
    steps.cancel()
    waits.waiting.pop()("late", None)
    assert (seen, ended) == (["closed"], [])


def test_a_procedure_may_give_itself_up() -> None:
    waits = Waits()
    seen: list[Any] = []
    ended: list[Exception | None] = []
    kept: list[Steps] = []

    async def run() -> None:
        await waits.answer()
        kept[0].cancel()
        seen.append("goes on to where it waits")
        await waits.answer()
        seen.append("never")

    kept.append(Steps(run(), ended.append))
    waits.waiting.pop()(1, None)
    assert (seen, ended) == (["goes on to where it waits"], [])


def test_many_answers_at_once_take_no_depth() -> None:
    ended: list[Exception | None] = []

    async def run() -> None:
        for _ in range(20_000):
            await Answer[int](lambda done: done(1, None))

    Steps(run(), ended.append)
    assert ended == [None]


def test_time_and_threads() -> None:
    runtime = VirtualRuntime()
    seen: list[Any] = []

    async def run() -> None:
        await pause(runtime, 3)
        seen.append(runtime.monotonic())
        seen.append(await in_thread(runtime, lambda: 7))

    start = runtime.monotonic()
    Steps(run(), seen.append)
    runtime.advance(10)
    assert seen == [start + 3, 7, None]
