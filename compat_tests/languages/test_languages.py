"""The examples of tests in other languages pass; skipped without their toolchains."""

from __future__ import annotations

import pytest

from compat_tests.languages.toolchains import LANGUAGES, Language, run


@pytest.mark.barnabas_only
@pytest.mark.timeout(900)  # the first run fetches their dependencies
@pytest.mark.parametrize(
    "language",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.jvm] if each.name == "java" else [])
        for each in LANGUAGES
    ],
)
def test_the_example_passes(language: Language) -> None:
    """With its own runner."""
    missing = language.missing()
    if missing:
        pytest.skip(f"the example in {language.name} needs {missing}")
    assert run(language) >= 4
