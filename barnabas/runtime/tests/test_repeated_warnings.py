"""Warnings about peers: the first line at once, then counts, and a bound on lines whatever is sent."""

from __future__ import annotations

import logging

import pytest

from barnabas.runtime.repeated_warnings import INTERVAL_S, PEERS_MAX, REASONS_MAX, RepeatedWarnings
from compat_tests.virtual.runtime import VirtualRuntime


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.runtime = VirtualRuntime()
        self.warnings = RepeatedWarnings(self.runtime, logging.getLogger("test"))
        self.caplog = caplog

    def pass_interval(self) -> list[str]:
        """What is logged within it."""
        self.caplog.clear()
        self.runtime.advance(INTERVAL_S + 1)
        return self.lines()

    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    return World(caplog)


def test_the_first_at_once_then_a_count(world: World) -> None:
    for port in range(30):
        world.warnings.warn("h", "garbage", f"h:{port} sends garbage")
    world.warnings.warn("h", "silence", "h:1 says nothing")
    world.warnings.warn("other", "garbage", "other:1 sends garbage")
    assert world.lines() == ["h:0 sends garbage", "h:1 says nothing", "other:1 sends garbage"]
    assert world.pass_interval() == ["h:29 sends garbage (29 times more since)"]
    world.warnings.warn("h", "garbage", "h:30 sends garbage")  # it goes on: counted
    assert world.pass_interval() == ["h:30 sends garbage (1 times more since)"]
    assert world.pass_interval() == []
    world.warnings.warn("h", "garbage", "h:31 sends garbage")  # it had ended: news
    assert world.lines() == ["h:31 sends garbage"]


def test_a_peer_that_is_forgotten_is_news_again(world: World) -> None:
    for peer in ("h", "other"):
        for _ in range(2):
            world.warnings.warn(peer, "garbage", f"{peer} sends garbage")
    world.warnings.forget("h")
    world.warnings.forget("unknown")
    assert world.pass_interval() == ["other sends garbage (1 times more since)"]
    world.warnings.warn("h", "garbage", "h sends garbage")
    world.warnings.forget("h")
    world.warnings.forget("other")
    world.warnings.warn("h", "garbage", "h sends garbage")
    assert world.lines()[1:] == ["h sends garbage"] * 2
    assert world.pass_interval() == []


def test_a_traceback_is_logged_once(world: World) -> None:
    for _ in range(3):
        world.warnings.warn("h", "KeyError", "h: failed", level=logging.ERROR, error=KeyError("x"))
    (record,) = world.caplog.records
    assert (record.levelname, record.exc_info is not None) == ("ERROR", True)


def test_lines_are_bounded_whatever_varies(world: World) -> None:
    for number in range(10_000):
        world.warnings.warn("h", f"API key {number}", f"API key {number}")
    assert len(world.lines()) == REASONS_MAX + 1
    assert world.pass_interval() == [f"API key 9999 ({10_000 - REASONS_MAX - 1} times more since)"]
    world.caplog.clear()
    for number in range(10_000):
        world.warnings.warn(f"2001:db8::{number:x}", "garbage", "garbage")
    assert len(world.lines()) <= PEERS_MAX + 1
    assert len(world.pass_interval()) == 1
