"""Procedures: how they wait, fail and are cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.runtime.procedures import Call, Procedure, in_thread, pause
from compat_tests.virtual.runtime import VirtualRuntime


class Waits:
    """Calls that a test ends."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Any, Any], object]] = []

    def call(self) -> Call[Any]:
        return Call(self.waiting.append)


def test_results_come_later_or_at_once_and_errors_are_raised() -> None:
    waits = Waits()
    seen: list[Any] = []
    ended: list[Exception | None] = []

    async def run() -> None:
        seen.append(await waits.call())
        seen.append(await Call[str](lambda done: done("at once", None)))
        with pytest.raises(KeyError):
            await waits.call()
        seen.append(await waits.call())
        raise ValueError("the end")

    Procedure(run(), ended.append).start()
    waits.waiting.pop()("later", None)
    assert seen == ["later", "at once"]
    waits.waiting.pop()(None, KeyError("x"))
    assert not ended
    waits.waiting.pop()(3, None)
    assert seen == ["later", "at once", 3]
    assert isinstance(ended[0], ValueError)


def test_a_call_that_can_not_begin_raises_in_the_procedure() -> None:
    ended: list[Exception | None] = []

    def fails(_done: object) -> None:
        raise OverflowError("a number of 200 bits")

    async def run() -> None:
        with pytest.raises(OverflowError):
            await Call[int](fails)
        await Call[int](fails)

    Procedure(run(), ended.append).start()
    assert isinstance(ended[0], OverflowError)


def test_only_the_first_result_of_a_call_counts() -> None:
    waits = Waits()
    ended: list[Exception | None] = []

    async def run() -> None:
        await waits.call()
        await waits.call()

    Procedure(run(), ended.append).start()
    first = waits.waiting.pop()
    first(1, None)
    first(2, None)
    assert not ended
    waits.waiting.pop()(3, None)
    assert ended == [None]


def test_a_cancelled_procedure_does_nothing_more() -> None:
    waits = Waits()
    seen: list[Any] = []
    ended: list[Exception | None] = []

    async def run() -> None:
        try:
            seen.append(await waits.call())
        finally:
            seen.append("closed")

    procedure = Procedure(run(), ended.append)
    procedure.start()
    procedure.cancel()
    procedure.cancel()
    waits.waiting.pop()("late", None)
    assert (seen, ended) == (["closed"], [])


def test_a_procedure_may_cancel_itself() -> None:
    waits = Waits()
    seen: list[Any] = []
    ended: list[Exception | None] = []
    kept: list[Procedure] = []

    async def run() -> None:
        await waits.call()
        kept[0].cancel()
        seen.append("continues to its next call")
        await waits.call()
        seen.append("never")

    kept.append(Procedure(run(), ended.append))
    kept[0].start()
    waits.waiting.pop()(1, None)
    assert (seen, ended) == (["continues to its next call"], [])


def test_many_results_at_once_do_not_nest() -> None:
    ended: list[Exception | None] = []

    async def run() -> None:
        for _ in range(20_000):
            await Call[int](lambda done: done(1, None))

    Procedure(run(), ended.append).start()
    assert ended == [None]


def test_pauses_and_threads() -> None:
    runtime = VirtualRuntime()
    seen: list[Any] = []

    async def run() -> None:
        await pause(runtime, 3)
        seen.append(runtime.monotonic())
        seen.append(await in_thread(runtime, lambda: 7))

    start = runtime.monotonic()
    Procedure(run(), seen.append).start()
    runtime.advance(10)
    assert seen == [start + 3, 7, None]
