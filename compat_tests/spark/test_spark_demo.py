"""The demo of spark_examples/, whole and as a program: 336,776 real flights in, the same totals out as pandas'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.harness.broker import Broker
from spark_examples.demo import differences_between
from spark_examples.flights import load_flights, totals_by_pandas

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]


def test_demo_ends_well(broker: Broker) -> None:
    command = [sys.executable, "-m", "spark_examples.demo", "--bootstrap", broker.bootstrap]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "all 207 totals agree with pandas on the same 336,776 flights" in ended.stdout
    assert "UA United Air Lines Inc" in ended.stdout


def test_one_wrong_total_is_a_difference() -> None:
    expected = totals_by_pandas(load_flights())
    assert differences_between(expected, expected) == []
    one_less = {key: dict(row) for key, row in expected.items()}
    one_less["HA", 9]["arrival_delay_minutes"] -= 1
    assert len(differences_between(one_less, expected)) == 1
    del one_less["HA", 9]
    assert len(differences_between(one_less, expected)) == 1
