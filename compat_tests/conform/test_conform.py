"""The comparison with Apache Kafka as part of the suite: first, middle and last version of every case."""

from __future__ import annotations

import pytest

from compat_tests.conform.__main__ import report
from compat_tests.conform.brokers import start_apache, start_barnabas
from compat_tests.conform.case import CASES
from compat_tests.conform.cases import load_all
from compat_tests.conform.runner import compare, plan, run_both
from compat_tests.conform.transcript import differences


@pytest.mark.jvm
@pytest.mark.barnabas_only
@pytest.mark.timeout(400)
def test_every_answer_is_kafkas() -> None:
    load_all()
    runs = plan(CASES, few_versions=True)
    with start_barnabas() as ours, start_apache() as theirs:
        left, right = run_both(ours, theirs, runs, "rpytest")
    results = compare(runs, left, right)
    assert not any(result.unexplained for result in results), report(results)


def test_differences_are_seen() -> None:
    """The comparison itself: a changed leaf, a missing field, a missing element."""
    theirs = {"a": 1, "topics": [{"name": "x", "error": 0}, {"name": "y", "error": 3}]}
    ours = {"a": 2, "topics": [{"name": "x", "error": 0, "more": 1}]}
    found = {path for path, _, _ in differences(ours, theirs)}
    assert found == {".a", ".topics[x].more", ".topics[y]"}
    assert not list(differences(theirs, theirs))
