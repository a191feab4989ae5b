"""docs/schema-registry.md: its examples run as they are on the page."""

from __future__ import annotations

import pytest

from barnabas.api_table import registrations
from compat_tests.docs.pages import DOCS, read_page

PAGE = DOCS / "schema-registry.md"

pytestmark = pytest.mark.barnabas_only

pytest_plugins = ["pytester"]


def example(heading: str) -> str:
    [block] = read_page(PAGE)[heading]
    return block.text


def test_in_pytest(pytester: pytest.Pytester) -> None:
    registrations()  # a run of pytester drops the modules that it was the first to import, and handlers register once
    pytester.makepyfile(example("In pytest"))
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-W", "ignore")
    result.assert_outcomes(passed=1)


def test_without_pytest() -> None:
    exec(compile(example("Without pytest"), str(PAGE), "exec"), {})
