"""What the simulator's tests leave as they found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restored_log_level() -> Iterator[None]:
    """A seed runs without the lines of INFO, as in a process of its own."""
    logger = logging.getLogger("barnabas")
    level = logger.level
    yield
    logger.setLevel(level)
