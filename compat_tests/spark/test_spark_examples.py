"""The examples of spark_examples/ as programs, each from its start to its exit status.

`make test-spark` runs them all, three of them against Apache Kafka as well, and ends with a line about each. The three
shortest are part of every run, in the Spark session of the other tests.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.nats_server import NatsServerFactory
from compat_tests.spark.summary import SUMMARY
from spark_examples.enrichment import __main__ as enrichment
from spark_examples.flights.__main__ import PICTURE
from spark_examples.nats.__main__ import circle
from spark_examples.shared.flights import flight_records, load_flights, totals_by_hour
from spark_examples.shared.program import Checks, Run, verdict
from spark_examples.shared.spark_session import connector
from spark_examples.transactions import __main__ as transactions

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ["backfill", "enrichment", "exactly_once", "failover", "flights", "nats", "transactions"]

Program = Callable[..., str]  # takes the example's name and its arguments


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_examples", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)


@pytest.fixture
def run_program(request: pytest.FixtureRequest) -> Program:
    """Run an example, assert exit status 0 and return its output. The summary shows its last line."""

    def run(example: str, *arguments: str) -> str:
        process = ended(example, *arguments)
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
        assert "checks hold" in process.stdout
        last = process.stdout.rstrip().splitlines()[-1]
        request.node.user_properties.append((SUMMARY, f"{request.node.name:<40}{last}"))
        return process.stdout

    return run


def test_enrichment_in_the_shared_spark(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    at = Run(broker.bootstrap, tmp_path, flights=2000, session=spark)
    enrichment.run(at)
    assert verdict(at.checks) == 0


def test_transactions_in_the_shared_spark(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    at = Run(broker.bootstrap, tmp_path, flights=2000, session=spark)
    transactions.run(at)
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
@pytest.mark.parametrize("example", ["exactly_once", "enrichment", "backfill", "transactions"])
def test_example(run_program: Program, broker: Broker, example: str) -> None:
    run_program(example, "--bootstrap-servers", broker.bootstrap)


@pytest.mark.long
@pytest.mark.barnabas_only  # with --broker apache it is the test above
@pytest.mark.parametrize(
    ("example", "flights"), [("enrichment", 10_000), ("backfill", 40_000), ("transactions", 10_000)]
)
def test_example_on_apache_kafka(
    run_program: Program, java_tools: JavaTools, tmp_path: Path, example: str, flights: int
) -> None:
    apache = ApacheBroker(tmp_path / "kafka", tools=java_tools)
    apache.start(timeout=180)
    try:
        run_program(example, "--bootstrap-servers", apache.bootstrap, "--flights", str(flights))
    finally:
        apache.stop()


@pytest.mark.long
@pytest.mark.barnabas_only
def test_failover(run_program: Program) -> None:
    said = run_program("failover")
    assert "kill -9 of node" in said
    assert "was restarted in good order" in said


@pytest.mark.long
def test_flights(run_program: Program, broker: Broker) -> None:
    picture = ROOT / PICTURE
    picture.unlink(missing_ok=True)
    said = run_program("flights", "--bootstrap-servers", broker.bootstrap)
    assert "ok: all 207 totals agree with pandas on the same 336,776 flights" in said
    assert "UA United Air Lines Inc" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.barnabas_only
def test_nats(run_program: Program) -> None:
    said = run_program("nats", "--flights", "20000")
    assert "published 20,000 messages on flights.*.*" in said
    assert "nats-flights holds 20,000 records" in said


@pytest.mark.parametrize("name", [[], ["flight"]])
def test_without_the_name_of_an_example_the_list_is_printed(name: list[str]) -> None:
    process = ended(*name)
    assert process.returncode == 2
    assert [line.split()[0] for line in process.stderr.splitlines()[1:]] == EXAMPLES


def test_the_table_of_examples_has_them_all() -> None:
    readme = (ROOT / "spark_examples" / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[(\w+)\]\(\1/README.md\)", readme, re.MULTILINE)) == EXAMPLES


@pytest.mark.parametrize(
    ("jar", "expected"),
    [
        ("spark-core_2.12-3.5.5.jar", "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.5"),
        ("spark-core_2.13-4.1.0-preview1.jar", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0-preview1"),
    ],
)
def test_the_connector_is_that_of_the_installed_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jar: str, expected: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert connector().endswith(f":{pyspark.__version__}")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="holds no Spark"):
        connector()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / jar).touch()
    assert connector() == expected


@pytest.mark.parametrize("count", [1, 5000, 60_000, 200_000])
def test_some_of_the_flights_are_spread_over_the_year(count: int) -> None:
    some = load_flights(count)
    assert len(some) == count == len(some.drop_duplicates())
    assert count == 1 or set(some["month"]) == set(range(1, 13))
    assert len(list(flight_records(some.iloc[:1]))) == 1
    assert list(flight_records(some.iloc[:0])) == []


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
