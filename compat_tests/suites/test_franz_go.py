"""What `make test-franz-go` calls wrong. The suite itself runs there only: compiling it takes a minute."""

from __future__ import annotations

from compat_tests.suites.franz_go import judge

FAILS = {"TestTransactions": "a reason"}
SKIPS = {"TestShares": "a reason", "TestGroups/848": "a reason"}
AS_LISTED = {
    "TestTransactions": "FAIL",
    "TestShares": "SKIP",
    "TestGroups": "PASS",
    "TestGroups/848": "SKIP",
}


def test_what_is_listed_is_right() -> None:
    """Nothing differs from the lists."""
    assert judge(AS_LISTED, FAILS, SKIPS, stale=True) == []


def test_everything_else_is_wrong() -> None:
    """Another failure or skip, a listed one that passes or fails in another way, and one that is gone."""
    for name, outcome in (
        ("TestGroups", "FAIL"),
        ("TestGroups", "SKIP"),
        ("TestTransactions", "PASS"),
        ("TestTransactions", "SKIP"),
        ("TestShares", "PASS"),
        ("TestShares", "FAIL"),
    ):
        (wrong,) = judge({**AS_LISTED, name: outcome}, FAILS, SKIPS, stale=True)
        assert wrong.startswith(f"{name}: {outcome}")
    gone = {name: outcome for name, outcome in AS_LISTED.items() if name != "TestGroups/848"}
    assert judge(gone, FAILS, SKIPS, stale=True) == ["TestGroups/848: listed, and not run"]


def test_kafka_passes_what_is_listed() -> None:
    """Against a broker that serves more, what is listed may pass, and nothing may fail."""
    passed = dict.fromkeys(AS_LISTED, "PASS")
    assert judge(passed, {}, SKIPS, stale=False) == []
    assert len(judge({**passed, "TestTransactions": "FAIL"}, {}, SKIPS, stale=False)) == 1
