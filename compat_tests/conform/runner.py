"""Runs every case against both brokers and compares the transcripts.

Each broker has a thread of its own. A case that fails (a refused set-up, an answer without the expected field) records
a `<failed ...>` step, which is then a difference or shows that the case itself is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from compat_tests.conform.allowed import INTERNAL_ERROR, Difference, reason_for
from compat_tests.conform.case import Case
from compat_tests.conform.client import Connection
from compat_tests.conform.session import Session, Target
from compat_tests.conform.transcript import ABSENT, Names, Tree, differences

Transcripts = dict[tuple[str, int], Tree]
"""What one broker answered: (case title, version) -> steps."""


class Result(NamedTuple):
    """The comparison of one case at one version."""

    case: Case
    version: int
    unexplained: list[Difference]
    allowed: list[tuple[str, Difference]]


def plan(cases: Iterable[Case], few_versions: bool) -> list[tuple[Case, int]]:
    """The runs to make: every version, or the first, the middle and the last one."""
    runs: list[tuple[Case, int]] = []
    for case in cases:
        versions: Sequence[int] = case.versions
        if few_versions and len(versions) > 3:
            versions = [versions[0], versions[len(versions) // 2], versions[-1]]
        runs.extend((case, version) for version in versions)
    return runs


def play(
    target: Target,
    runs: Sequence[tuple[Case, int]],
    run_tag: str,
    progress: Callable[[str], None] | None = None,
) -> Transcripts:
    """Run `runs` against one broker and return its transcripts."""
    private = _private_texts(target)
    transcripts: Transcripts = {}
    for case, version in runs:
        names = Names(run_tag, target.port, target.sasl_port)
        names.texts = private
        prefix = f"{case.api}-{case.name}".replace("_", "-").lower()
        session = Session(target, names, prefix, version, run_tag)
        started = time.monotonic()
        try:
            case.run(session)
        except Exception as error:  # noqa: BLE001 - any failure of a case is part of its transcript
            session.record(f"<failed: {type(error).__name__}: {names.text(str(error))}>", ABSENT)
        finally:
            session.close()
        if progress is not None:
            progress(f"{target.name} {case.title} v{version} {time.monotonic() - started:.2f}s")
        transcripts[case.title, version] = session.steps
    return transcripts


def _private_texts(target: Target) -> dict[str, str]:
    """The broker's cluster id and log directories, which its answers contain."""
    connection = Connection(target.host, target.port)
    try:
        cluster_id = connection.ask(DescribeClusterRequest(), 0).cluster_id
        log_dirs = connection.ask(DescribeLogDirsRequest(topics=None), 1).results
    finally:
        connection.close()
    return {result.log_dir: "<log dir>" for result in log_dirs} | {cluster_id: "<cluster>"}


def compare(runs: Sequence[tuple[Case, int]], ours: Transcripts, theirs: Transcripts) -> list[Result]:
    """Compare two brokers' transcripts run by run."""
    results = []
    for case, version in runs:
        result = Result(case, version, [], [])
        key = (case.title, version)
        for difference in _differences(case, version, ours[key], theirs[key]):
            reason = reason_for(difference)
            if reason is None:
                result.unexplained.append(difference)
            else:
                result.allowed.append((reason, difference))
        if not result.unexplained:
            result.allowed.extend(_internal_errors(case, version, ours[key], theirs[key]))
        failures = [step["step"] for step in theirs[key] if step["answer"] == ABSENT]
        result.unexplained.extend(
            Difference(case.title, version, "case broken against the reference", None, failure)
            for failure in failures
        )
        results.append(result)
    return results


def _differences(case: Case, version: int, ours: Tree, theirs: Tree) -> Iterator[Difference]:
    """Differences, except in steps where Kafka answered with UNKNOWN_SERVER_ERROR."""
    skipped = {step["step"] for step in theirs if _fails_internally(step["answer"])}
    left = [step for step in ours if step["step"] not in skipped]
    right = [step for step in theirs if step["step"] not in skipped]
    for path, mine, other in differences(left, right):
        yield Difference(case.title, version, _readable(path, right), mine, other)


def _internal_errors(case: Case, version: int, ours: Tree, theirs: Tree) -> Iterator[tuple[str, Difference]]:
    """The steps left out of the comparison, to be counted."""
    for mine, other in zip(ours, theirs, strict=False):
        if _fails_internally(other["answer"]) and mine != other:
            yield INTERNAL_ERROR, Difference(case.title, version, other["step"], mine, other)


def _fails_internally(answer: Tree) -> bool:
    if isinstance(answer, dict):
        return answer.get("error_code") == -1 or any(map(_fails_internally, answer.values()))
    return isinstance(answer, list) and any(map(_fails_internally, answer))


def _readable(path: str, steps: Tree) -> str:
    """Replace the leading step index by the step's note."""
    head, _, rest = path.partition("]")
    index = head.removeprefix("[")
    if not index.isdigit() or int(index) >= len(steps):
        return path
    return f"#{index} {steps[int(index)]['step']}: {rest.removeprefix('.answer')}"


def run_both(
    ours: Target,
    theirs: Target,
    runs: Sequence[tuple[Case, int]],
    run_tag: str,
    progress: Callable[[str], None] | None = None,
) -> tuple[Transcripts, Transcripts]:
    """Play all runs against both brokers at once."""
    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(play, ours, runs, run_tag, progress)
        right = pool.submit(play, theirs, runs, run_tag, progress)
        return left.result(), right.result()
