"""The full circle as a program: NATS publishers, a bound topic, Spark, a bound topic, a NATS subscriber."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jvm, pytest.mark.barnabas_only, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = 20_000


def test_from_nats_through_spark_to_nats() -> None:
    command = [sys.executable, "-m", "spark_examples.nats_demo", "--flights", str(FLIGHTS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert re.search(rf"all \d{{3}} totals agree with pandas on the same {FLIGHTS:,} flights", ended.stdout)
    assert f"published {FLIGHTS:,} messages on flights.*.*" in ended.stdout
    assert f"nats-flights holds {FLIGHTS:,} records" in ended.stdout
