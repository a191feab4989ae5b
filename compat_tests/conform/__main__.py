"""`python -m compat_tests.conform`: compare this broker with Apache Kafka, answer by answer.

    --ours HOST:PORT / --theirs HOST:PORT   brokers that already run (default: start both)
    --api NAME (repeatable)                 only these APIs
    --case TEXT                             only cases whose title contains TEXT
    --authorizer, --tiered                  only cases of brokers with an authorizer, or with tiered storage
    --few-versions                          first, middle and last version of every case only
    --answers FILE                          also write what the reference answered, as text

Exits 1 when a difference is not on the list in allowed.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from compat_tests.conform.allowed import ALLOWED, strip_indexes
from compat_tests.conform.case import CASES, Setup
from compat_tests.conform.cases import load_all
from compat_tests.conform.runner import Result, Transcripts, compare, plan, run_both
from compat_tests.conform.session import Target


def main() -> int:
    options = _options()
    load_all()
    cases = [
        case
        for case in CASES
        if (not options.api or case.api in options.api)
        and (options.case or "") in case.title
        and (not options.setups or case.setup in options.setups)
    ]
    runs = plan(cases, options.few_versions)
    progress = _show_progress if options.verbose else None
    left: Transcripts = {}
    right: Transcripts = {}
    for setup in Setup:
        chosen = [run for run in runs if run[0].setup is setup]
        if chosen:
            with _targets(options.ours, options.theirs, setup) as (ours, theirs):
                mine, other = run_both(ours, theirs, chosen, f"r{os.getpid():06d}", progress)
            left |= mine
            right |= other
    if options.answers:
        Path(options.answers).write_text(answers_text(right))
    results = compare(runs, left, right)
    print(report(results))
    return 1 if any(result.unexplained for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compat_tests.conform", description="compare with Apache Kafka")
    parser.add_argument("--ours")
    parser.add_argument("--theirs")
    parser.add_argument("--api", action="append")
    parser.add_argument("--case")
    for setup in (Setup.AUTHORIZER, Setup.TIERED):
        parser.add_argument(f"--{setup.value}", dest="setups", action="append_const", const=setup)
    parser.add_argument("--few-versions", action="store_true")
    parser.add_argument("--answers")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def _show_progress(line: str) -> None:
    print(line, file=sys.stderr)


@contextlib.contextmanager
def _targets(ours: str | None, theirs: str | None, setup: Setup) -> Iterator[tuple[Target, Target]]:
    """The two brokers: given addresses, which are those of plain brokers, or started here and stopped afterwards."""
    from compat_tests.conform.brokers import start_apache, start_barnabas

    is_given = setup is Setup.PLAIN
    with contextlib.ExitStack() as stack:
        yield (
            _target("barnabas", ours) if ours and is_given else stack.enter_context(start_barnabas(setup)),
            _target("apache", theirs) if theirs and is_given else stack.enter_context(start_apache(setup)),
        )


def _target(name: str, address: str) -> Target:
    host, _, port = address.rpartition(":")
    return Target(name, host, int(port))


def report(results: Sequence[Result]) -> str:
    """The table of APIs, then every unexplained difference once with the versions it shows at."""
    lines = [
        f"{'API':26} {'versions':9} {'cases':>5} {'runs':>5} {'same':>5} {'allowed':>7} {'DIFFERENT':>9}"
    ]
    by_api: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_api[result.case.api].append(result)
    for api, mine in by_api.items():
        versions = [result.version for result in mine]
        different = sum(bool(result.unexplained) for result in mine)
        allowed = sum(bool(result.allowed) and not result.unexplained for result in mine)
        lines.append(
            f"{api:26} {f'{min(versions)}-{max(versions)}':9} {_case_count(mine):5} {len(mine):5} "
            f"{len(mine) - different - allowed:5} {allowed:7} {different:9}"
        )
    lines += _allowed_lines(results) + _difference_lines(results)
    total = sum(bool(result.unexplained) for result in results)
    lines.append(f"\n{len(results)} runs, {total} with unexplained differences")
    return "\n".join(lines)


def _case_count(results: Sequence[Result]) -> int:
    return len({result.case.title for result in results})


def _allowed_lines(results: Sequence[Result]) -> list[str]:
    counts = Counter(name for result in results for name, _ in result.allowed)
    used = [entry for entry in ALLOWED if counts[entry.name]]
    return ["", "Allowed differences:"] * bool(used) + [
        f"  {entry.name} ({counts[entry.name]}): {entry.reason}" for entry in used
    ]


def _difference_lines(results: Sequence[Result]) -> list[str]:
    versions: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for result in results:
        for one in result.unexplained:
            ours, theirs = (_short(json.dumps(value, default=str)) for value in (one.ours, one.theirs))
            seen = versions[one.title, strip_indexes(one.path), ours, theirs]
            if result.version not in seen:
                seen.append(result.version)
    lines = []
    title_before = ""
    for (title, path, ours, theirs), seen in versions.items():
        if title != title_before:
            lines.append(f"\nDIFFERENT {title}")
            title_before = title
        lines.append(f"  v{','.join(map(str, seen))} {path}\n      barnabas {ours}\n      apache   {theirs}")
    return lines


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "..."


def answers_text(transcripts: Transcripts) -> str:
    """The reference's answers as text; consecutive versions with one answer share a paragraph."""
    lines: list[str] = []
    before = ("", "")
    for (title, version), steps in transcripts.items():
        text = "\n".join(f"  {step['step']}: {json.dumps(step['answer'], default=str)}" for step in steps)
        if (title, text) == before:
            lines[-2] += f",{version}"
            continue
        before = (title, text)
        lines += [f"{title} v{version}", text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
