"""Registration of cases: a function, the API it is about, and the versions it runs at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from compat_tests.conform.apis import APIS
from compat_tests.conform.session import Session

Run = Callable[[Session], None]


class Case(NamedTuple):
    """One scenario; it runs once for every version in `versions`."""

    api: str
    name: str
    run: Run
    versions: range
    authorizer: bool = False  # asked of brokers that have one

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
    name: str = "",
) -> Callable[[Run], Run]:
    """Register a function as a case of `api`, at all its versions or from `first` to `last`. `name`: the function's, unless it is
    given. `authorizer`: of brokers that have one."""
    known = APIS[api]
    versions = range(known.first if first is None else first, (known.last if last is None else last) + 1)

    def register(run: Run) -> Run:
        called = name or run.__name__
        assert not any(other.api == api and other.name == called for other in CASES), f"{api}: {called} twice"
        CASES.append(Case(api, called, run, versions, authorizer))
        return run

    return register
