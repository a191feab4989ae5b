"""The kinds of cases, each numbered from 0: endless ones by seed, the others a list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from compat_tests.fuzz.case import Case
from compat_tests.fuzz.requests import World, mutated, repetitions
from compat_tests.fuzz.worst import worst_cases

KINDS = ("requests", "repetitions", "worst")


def cases(kind: str, world: World, first: int = 0) -> Iterator[Case]:
    """From number `first` on."""
    if kind == "requests":
        return (mutated(seed, world) for seed in itertools.count(first))
    listed = repetitions(world) if kind == "repetitions" else worst_cases()
    return iter(listed[first:])
