"""The kinds of cases, each numbered from 0: endless ones by seed, the others from a list."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from compat_tests.fuzz.case import Case
from compat_tests.fuzz.http_requests import http
from compat_tests.fuzz.links import peer, proof, stranger
from compat_tests.fuzz.requests import World, follower, mutated, pipelined, repetitions
from compat_tests.fuzz.worst import worst_cases

_SEEDED: Mapping[str, Callable[[int, World], Case]] = {
    "requests": mutated,
    "inter-broker": mutated,
    "proof": proof,
    "follower": follower,
    "stranger": stranger,
    "peer": peer,
    "unguarded": peer,  # the cluster has no secret
    "metrics": partial(http, "metrics"),
    "control": partial(http, "control"),
}
_LISTED: Mapping[str, Callable[[World], list[Case]]] = {
    "repetitions": repetitions,
    "large": lambda world: repetitions(world, 1_000_000, 20_000_000),
    "pipelined": pipelined,
    "worst": lambda _world: worst_cases(),
}
KINDS = (*_SEEDED, *_LISTED)


def cases(kind: str, world: World, first: int = 0) -> Iterator[Case]:
    """Cases of a kind from number `first` on."""
    make = _SEEDED.get(kind)
    made: Iterator[Case]
    if make is not None:
        made = (make(seed, world) for seed in itertools.count(first))
    else:
        made = iter(_LISTED[kind](world)[first:])
    for number, case in enumerate(made, first):
        case.name, case.port = f"{kind} {number}", kind
        yield case
