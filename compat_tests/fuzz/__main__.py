"""`python -m compat_tests.fuzz requests 17`: runs one case, with its description and figures. `--seeds 1000` runs
1,000 cases from there on.

Kinds are those of `cases.py`. Exits with 1 when a case fails.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from compat_tests.fuzz.case import Case
from compat_tests.fuzz.cases import KINDS, cases
from compat_tests.fuzz.engine import run_cases
from compat_tests.fuzz.requests import World
from compat_tests.fuzz.systems import SYSTEMS


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("seed", type=int, nargs="?", help="the first case (default: all of the kind)")
    parser.add_argument("--seeds", type=int, default=0, help="number of cases (default: one, or all)")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many (default 5)")
    options = parser.parse_args()
    first = options.seed or 0
    count = options.seeds or (1 if options.seed is not None else 1_000_000)

    def chosen(world: World) -> Iterable[Case]:
        for case in itertools.islice(cases(options.kind, world, first), count):
            if count == 1:
                print("\n".join(case.story), case.hex(), sep="\n")
            yield case

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        numbers = itertools.count()

        def say(line: str) -> None:
            print(line, flush=True)

        findings = run_cases(
            lambda: SYSTEMS[options.kind](Path(folder) / str(next(numbers)), ""),
            chosen,
            failures_max=options.failures,
            say=say,
        )
    print("\nthe costliest:", *findings.worst(), sep="\n")
    print(*findings.failures, sep="\n")
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
