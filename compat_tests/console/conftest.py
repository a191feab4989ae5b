"""Fixtures: one Chromium for all tests, a test broker with its control port for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.testing import Broker
from barnabas.testing.control import Control
from compat_tests.console.browser import MISSING, Browser, Page, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip(f"needs {MISSING}")
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as made:
        yield made


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that has had no problem at the end of the test."""
    with browser.page() as made:
        yield made
        assert made.problems == []


@pytest.fixture
def control() -> Iterator[Control]:
    with Broker() as broker:
        made = Control(broker)
        yield made
        made.close()
