"""Work that is shared out over turns of the loop."""

from __future__ import annotations

from barnabas.runtime.slices import SHORT_TURN_S, TurnQueue
from compat_tests.virtual.runtime import VirtualRuntime


class WorkingRuntime(VirtualRuntime):
    """Its clock goes on while a callback works."""

    worked_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.worked_s


class World:
    def __init__(self) -> None:
        self.runtime = WorkingRuntime()
        self.queue = TurnQueue(self.runtime)
        self.called: list[str] = []

    def add(self, name: str, work_s: float = SHORT_TURN_S) -> None:
        def work() -> None:
            self.called.append(name)
            self.runtime.worked_s += work_s

        self.queue.add(work)

    def request(self) -> None:
        """Something else that the loop does in its next turn."""
        self.runtime.call_soon(lambda: self.called.append("request"))


def test_a_callback_that_no_other_waits_for_is_called_at_once() -> None:
    world = World()
    world.add("a")
    assert world.called == ["a"]
    world.runtime.run_until_idle()
    world.add("b")
    assert world.called == ["a", "b"]


def test_requests_are_served_between_callbacks_that_take_long() -> None:
    world = World()
    for name in "abc":
        world.add(name)
        world.request()
    world.runtime.run_until_idle()
    assert world.called == ["a", "b", "request", "request", "request", "c"]


def test_short_callbacks_share_a_turn_and_keep_their_order() -> None:
    world = World()
    world.add("a", SHORT_TURN_S / 2)
    world.add("b", SHORT_TURN_S / 2)
    for name in "cde":
        world.add(name, SHORT_TURN_S / 2)
    world.request()
    assert world.called == ["a", "b"]
    world.runtime.run_until_idle()
    assert world.called == ["a", "b", "c", "d", "request", "e"]
