"""What a tool of others is to the tests here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class ToolFailed(AssertionError):
    """The tool found fault, or did not do what it should; the message contains its output."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`missing()`: what is not here, nothing when the tool is. `check()` starts a broker, and returns what was checked."""

    name: str
    missing: Callable[[], str]
    version: Callable[[], str]
    check: Callable[[], str]
