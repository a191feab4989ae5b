"""Stands in for kafka-python's `test/service.py`, which its source distribution leaves out.

Its fixtures start and stop brokers with these two classes; here the broker runs already. plugin.py puts this
module in its place.
"""

from __future__ import annotations


class ExternalService:
    """A broker that is not ours to run: nothing to open, close or wait for."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Nothing: it runs."""

    def close(self) -> None:
        """Nothing: it goes on."""

    def dump_logs(self) -> None:
        """Nothing: its owner has them."""

    def wait_for(self, pattern: str, timeout: float = 30) -> bool:
        """Nothing: it is ready."""
        return True


class SpawnedService:
    """A broker that the suite itself would start; never made here."""
