"""The packages for tests in other languages, and the examples that use them, pass; skipped without their toolchains."""

from __future__ import annotations

import pytest

from compat_tests.languages.toolchains import LANGUAGES, Language, run, run_package


@pytest.mark.barnabas_only
@pytest.mark.timeout(900)  # the first run fetches their dependencies
@pytest.mark.parametrize(
    "language",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.jvm] if each.name == "java" else [])
        for each in LANGUAGES
    ],
)
def test_the_package_and_its_example_pass(language: Language) -> None:
    """With their own runners."""
    missing = language.missing()
    if missing:
        pytest.skip(f"the example in {language.name} needs {missing}")
    assert run_package(language) >= 4
    assert len(language.artifacts()) == {"java": 2, "go": 0, "node": 1}[language.name]
    assert run(language) >= 4
