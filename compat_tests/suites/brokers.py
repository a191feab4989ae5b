"""The broker that a suite runs against, by the name that the command line gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker, ExternalBroker


def make_broker(kind: str, directory: Path, settings: Mapping[str, str]) -> Broker:
    """`kind` is barnabas, apache or HOST:PORT , which has settings of its own."""
    if kind == "barnabas":
        return BarnabasBroker(directory, settings)
    if kind == "apache":
        return ApacheBroker(directory, settings)
    return ExternalBroker(kind)
