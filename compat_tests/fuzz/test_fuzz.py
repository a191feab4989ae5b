"""A broker of its own under mutated, repeated and worst requests, with a client beside them that must not suffer.

`make fuzz` runs BARNABAS_FUZZ_SEEDS seeds; the default suite a few, always the same. A failure prints the command that
runs its case alone.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

import pytest

from compat_tests.fuzz.case import Case
from compat_tests.fuzz.cases import cases
from compat_tests.fuzz.engine import run_cases
from compat_tests.fuzz.requests import World

pytestmark = pytest.mark.barnabas_only

SEEDS = int(os.environ.get("BARNABAS_FUZZ_SEEDS", "0"))
# found, and not mended yet
UNMENDED = {
    "wide batch far ahead",
    "wide batch, compacted",
    "wide batch, validated",
    "wide batch, bounded times",
    "bomb looked up, zstd",
    "bomb looked up, gzip",
    "bomb looked up, lz4",
    "topic described 10,000 times",
    "broker described 10,000 times",
}
SHORT = {"requests": 150, "repetitions": 1000, "worst": 1000}


@pytest.mark.timeout(0 if SEEDS else 300)
@pytest.mark.parametrize("kind", SHORT)
def test_a_client_listener(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def chosen(world: World) -> Iterable[Case]:
        mended = (case for case in cases(kind, world) if case.story[-1] not in UNMENDED)
        return itertools.islice(mended, SEEDS or SHORT[kind])

    findings = run_cases(
        lambda: tmp_path_factory.mktemp("fuzzed"), chosen, loop=request.config.getoption("--loop")
    )
    print("\n".join(findings.worst()))
    assert not findings.failures, "\n\n".join(findings.failures)
    assert findings.verdicts
