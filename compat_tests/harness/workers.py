"""How tests are shared out among workers of pytest-xdist: a file is one worker's, and the Spark tests are one file.

A Spark session takes ten seconds and a gigabyte, so one worker has it, and it begins with it, because nothing else takes as
long; the short tests at the end keep both busy until all is done.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SPARK = "compat_tests/spark/"


class Scheduling(LoadScopeScheduling):
    """See the module. Used with --no-loadscope-reorder."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]


def place_in_queue(nodeid: str) -> int:
    """What begins early: Spark, then real clients and clusters, then what tests the parts by themselves."""
    if nodeid.startswith(SPARK):
        return 0
    return 1 if nodeid.startswith("compat_tests/") else 2
