"""The comparison finds differences; `make conform` runs it over every API and version."""

from __future__ import annotations

from compat_tests.conform.transcript import differences


def test_differences_are_found() -> None:
    """A changed leaf, a missing field, a missing element."""
    theirs = {"a": 1, "topics": [{"name": "x", "error": 0}, {"name": "y", "error": 3}]}
    ours = {"a": 2, "topics": [{"name": "x", "error": 0, "more": 1}]}
    found = {path for path, _, _ in differences(ours, theirs)}
    assert found == {".a", ".topics[x].more", ".topics[y]"}
    assert not list(differences(theirs, theirs))
