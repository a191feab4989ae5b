"""What a tool of others is to the tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker

BROKERS = {"barnabas": BarnabasBroker, "apache": ApacheBroker}
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "tools"


class ToolFailed(AssertionError):
    """The tool found fault, or did not do what it should; the message contains its output."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One check of a tool: an empty folder, and the kind of the broker."""

    directory: Path
    kind: str = "barnabas"

    @contextmanager
    def broker(self, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
        """A broker of this kind, killed at the end."""
        one = BROKERS[self.kind](self.directory / "broker", settings)
        one.start()
        try:
            yield one
        finally:
            one.kill()


@dataclass(frozen=True, slots=True)
class Tool:
    """`missing()`: what is not here and cannot be installed, nothing when the tool is here. `check()` starts a broker, and returns
    what was checked; it raises an AssertionError when the tool finds fault. `pinned`: the version, where one is asked for."""

    name: str
    missing: Callable[[], str]
    version: Callable[[], str]
    check: Callable[[Trial], str]
    pinned: str = ""
    barnabas_only: bool = False
