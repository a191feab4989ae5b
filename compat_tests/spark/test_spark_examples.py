"""The examples of spark_examples/ as programs, each from its start to its exit status.

They take a while: `make test-spark` runs them. The two shortest are part of every run, in the Spark of the other tests.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServerFactory
from spark_examples.enrichment import __main__ as enrichment
from spark_examples.flights.__main__ import PICTURE
from spark_examples.nats.__main__ import circle
from spark_examples.shared.flights import load_flights, totals_by_hour
from spark_examples.shared.program import Checks, Run, verdict

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]


def run_program(example: str, *arguments: str) -> str:
    """What the example said; it has to end well."""
    command = [sys.executable, "-m", f"spark_examples.{example}", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=360, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def test_enrichment_in_the_shared_spark(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    at = Run(broker.bootstrap, tmp_path, flights=2000, session=spark)
    enrichment.run(at)
    assert verdict(at.checks) == 0


@pytest.mark.barnabas_only
def test_nats_in_the_shared_spark(
    spark: SparkSession, nats_server: NatsServerFactory, fresh_broker: BrokerFactory, tmp_path: Path
) -> None:
    server = nats_server()
    broker = fresh_broker({"nats.servers": server.url})
    at = Run(broker.bootstrap, tmp_path, flights=2000, session=spark)
    asyncio.run(circle(at, server.url))
    assert verdict(at.checks) == 0


@pytest.mark.long
@pytest.mark.parametrize("example", ["exactly_once", "enrichment", "backfill"])
def test_example(broker: Broker, example: str) -> None:
    said = run_program(example, "--bootstrap-servers", broker.bootstrap)
    assert "checks hold" in said


@pytest.mark.long
@pytest.mark.barnabas_only
def test_failover() -> None:
    said = run_program("failover")
    assert "kill -9 of node" in said
    assert "was restarted in good order" in said


@pytest.mark.long
def test_flights(broker: Broker) -> None:
    picture = ROOT / PICTURE
    picture.unlink(missing_ok=True)
    said = run_program("flights", "--bootstrap-servers", broker.bootstrap)
    assert "ok: all 207 totals agree with pandas on the same 336,776 flights" in said
    assert "UA United Air Lines Inc" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.barnabas_only
def test_nats() -> None:
    said = run_program("nats", "--flights", "20000")
    assert "published 20,000 messages on flights.*.*" in said
    assert "nats-flights holds 20,000 records" in said


def test_one_wrong_total_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    expected = totals_by_hour(load_flights())
    checks = Checks()
    checks.same("the same", expected, expected)
    assert verdict(checks) == 0
    one_less = {key: dict(row) for key, row in expected.items()}
    one_less["HA", 9]["arrival_delay_minutes"] -= 1
    checks.same("one less", one_less, expected)
    assert checks.wrong == ["one less"]
    assert verdict(checks) == 1
    del one_less["HA", 9]
    checks.same("one is missing", one_less, expected)
    checks.same("one too many", expected, one_less)
    assert checks.wrong == ["one less", "one is missing", "one too many"]
    assert capsys.readouterr().out.count("DIFFERENT: ('HA', 9)") == 3


def test_an_example_that_checks_nothing_fails() -> None:
    checks = Checks()
    assert verdict(checks) == 1
    checks.same("nothing is no result", {}, {})
    assert verdict(checks) == 1
