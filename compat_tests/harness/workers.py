"""Distribution of tests to workers of pytest-xdist: one worker runs a whole file, and the Spark tests count as one file.

A Spark session takes ten seconds and a gigabyte, so only one worker starts it. That worker begins with the Spark tests,
which take longest; the short tests at the end keep all workers busy.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SPARK = "compat_tests/spark/"


class Scheduling(LoadScopeScheduling):
    """Scheduler described in the module's docstring. Used with --no-loadscope-reorder."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]


def place_in_queue(nodeid: str) -> int:
    """Sort key of a test file: Spark first, then tests with real clients and clusters, then unit tests."""
    if nodeid.startswith(SPARK):
        return 0
    return 1 if nodeid.startswith("compat_tests/") else 2
