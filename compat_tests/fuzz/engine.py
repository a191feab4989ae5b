"""Runs cases against a system, judges each, and shrinks a failing one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from compat_tests.fuzz.case import Case
from compat_tests.fuzz.judge import Verdict
from compat_tests.fuzz.requests import World
from compat_tests.fuzz.systems import System

COMMAND = "python -m compat_tests.fuzz"
SHRINK_RUNS = 24
SHRINKABLE = ("requests", "inter-broker")  # kinds whose pieces are requests
CASES_PER_SYSTEM = 2000

Make = Callable[[], System]


class Findings:
    """Verdicts of a run: failed cases in full, costly ones by their figures."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.failures: list[str] = []

    def worst(self, count: int = 10) -> list[str]:
        """The cases with the slowest answers to the probe, and those that took most memory."""
        waited = sorted(self.verdicts, key=lambda one: -one.worst.cpu_seconds)[:count]
        grown = sorted(self.verdicts, key=lambda one: -one.peak_bytes)[: count // 2]
        return [one.line() for one in waited] + [one.line() for one in grown if one not in waited]


def run_cases(
    make: Make,
    make_cases: Callable[[World], Iterable[Case]],
    *,
    failures_max: int = 5,
    say: Callable[[str], object] = lambda _line: None,
) -> Findings:
    """Runs all cases against one system; a system that failed is replaced by a new one."""
    findings = Findings()
    system = make()
    run = 0
    try:
        for case in make_cases(system.world):
            verdict = system.run(case)
            findings.verdicts.append(verdict)
            say(verdict.line())
            run += 1
            if verdict.faults:
                system.kill()
                findings.failures.append(describe(case, verdict, make))
                say(findings.failures[-1])
                if len(findings.failures) >= failures_max:
                    return findings
            if verdict.faults or run % CASES_PER_SYSTEM == 0:
                findings.failures += [] if verdict.faults else system.end()
                system = make()
        findings.failures += system.end()
    finally:
        system.kill()
    return findings


def describe(case: Case, verdict: Verdict, make: Make) -> str:
    """A report of a failure: the faults, the command that repeats it, and the smallest failing form found."""
    small, runs = shrink(case, make) if case.name.startswith(SHRINKABLE) else (case, 0)
    faults = "\n  ".join(verdict.faults)
    return (
        f"FAILED {verdict.line()}\n  {faults}\n  again: {COMMAND} {case.name}\n"
        f"  what it sends ({small.size} of {case.size} bytes are enough, after {runs} runs):\n{small.hex()}"
    )


def shrink(case: Case, make: Make) -> tuple[Case, int]:
    """The case with fewer pieces and a shorter last one, as long as it still fails alone on a new system."""
    runs = 0

    def fails(candidate: Case) -> bool:
        nonlocal runs
        runs += 1
        system = make()
        try:
            return bool(system.run(candidate).faults)
        finally:
            system.kill()

    smallest = case
    if not fails(case):
        case.story.append("the case passes alone on a new system")
        return case, runs
    for piece in case.pieces if len(case.pieces) > 1 else ():
        if runs < SHRINK_RUNS and fails(alone := replace(case, pieces=[piece])):
            smallest = alone
            break
    if len(smallest.pieces) == 1:
        piece = smallest.pieces[0]
        step = len(piece) // 2
        while step and runs < SHRINK_RUNS:
            shorter = _resized(piece[: len(piece) - step])
            if fails(candidate := replace(smallest, pieces=[shorter])):
                smallest, piece = candidate, shorter
            else:
                step //= 2
    return smallest, runs


def _resized(frame: bytes) -> bytes:
    """A frame cut short, with a correct size."""
    return (len(frame) - 4).to_bytes(4, "big", signed=True) + frame[4:] if len(frame) >= 4 else frame
