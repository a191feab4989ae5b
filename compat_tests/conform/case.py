"""Registration of cases: a function, the API it is about, and the versions it runs at."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from compat_tests.conform.apis import APIS
from compat_tests.conform.session import Session

Run = Callable[[Session], None]


class Setup(Enum):
    """What the two brokers of a case are started with besides the settings that all share."""

    PLAIN = "plain"
    AUTHORIZER = "authorizer"
    TIERED = "tiered"  # remote.log.storage.system.enable


class Case(NamedTuple):
    """One scenario; it runs once for every version in `versions`."""

    api: str
    name: str
    run: Run
    versions: range
    setup: Setup = Setup.PLAIN  # of the brokers that it is asked of

    @property
    def title(self) -> str:
        return f"{self.api}: {self.name}"


CASES: list[Case] = []


def case(
    api: str,
    first: int | None = None,
    last: int | None = None,
    *,
    authorizer: bool = False,
    tiered: bool = False,
    name: str = "",
) -> Callable[[Run], Run]:
    """Register a function as a case of `api`, at all its versions or from `first` to `last`. `name`: the function's, unless it is
    given. `authorizer`: of brokers that have one; `tiered`: of brokers with tiered storage."""
    known = APIS[api]
    setup = Setup.AUTHORIZER if authorizer else Setup.TIERED if tiered else Setup.PLAIN
    versions = range(known.first if first is None else first, (known.last if last is None else last) + 1)

    def register(run: Run) -> Run:
        called = name or run.__name__
        assert not any(other.api == api and other.name == called for other in CASES), f"{api}: {called} twice"
        CASES.append(Case(api, called, run, versions, setup))
        return run

    return register
