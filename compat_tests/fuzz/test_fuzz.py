"""Hostile requests against a broker: mutated, repeated and worst ones, beside a probe whose requests must stay fast.

`make fuzz` runs BARNABAS_FUZZ_SEEDS seeds; the default suite runs a few, always the same. A failure prints the
command that repeats its case.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from compat_tests.fuzz.case import Case
from compat_tests.fuzz.cases import cases
from compat_tests.fuzz.engine import run_cases
from compat_tests.fuzz.requests import World
from compat_tests.fuzz.systems import SYSTEMS, System

pytestmark = pytest.mark.barnabas_only

SEEDS = int(os.environ.get("BARNABAS_FUZZ_SEEDS", "0"))
# cases of the default suite by kind; grouped by system, so that each is started once
SHORT = {
    "broker": {
        "requests": range(0, 100, 5),
        "repetitions": range(0, 1000, 40),
        "large": range(0, 1000, 100),
        "pipelined": range(2, 1000, 40),
        "worst": range(1000),
        "metrics": range(15),
    },
    "test broker": {"control": range(15)},
    "cluster": {
        "inter-broker": range(10),
        "proof": range(5),
        "follower": range(8),
        "stranger": range(10),
        "peer": range(12),
    },
    "cluster without a secret": {"unguarded": range(0)},
}


@pytest.mark.timeout(0 if SEEDS else 300)
@pytest.mark.parametrize("system", SHORT)
def test_hostile_bytes(
    system: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kinds = SHORT[system]
    if not (SEEDS or any(kinds.values())):
        pytest.skip("in `make fuzz` alone")

    def chosen(world: World) -> Iterator[Case]:
        for kind, short in kinds.items():
            run = range(SEEDS) if SEEDS else short
            yield from itertools.islice(cases(kind, world), run.start, run.stop, run.step)

    def make() -> System:
        return SYSTEMS[next(iter(kinds))](
            tmp_path_factory.mktemp("fuzzed"), request.config.getoption("--loop")
        )

    findings = run_cases(make, chosen)
    print("\n".join(findings.worst()))
    assert not findings.failures, "\n\n".join(findings.failures)
    assert findings.verdicts
