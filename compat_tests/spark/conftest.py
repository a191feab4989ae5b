"""Fixtures of the Spark tests: one small Spark for the whole run, and the topics of one test.

The fixture `broker` of the harness provides the broker under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.spark.streams import Job, JobFactory
from compat_tests.spark.summary import SUMMARY
from compat_tests.spark.topics import Topics
from spark_examples.shared.spark_session import local_spark


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the last line of each example: when it ended and how many checks it made."""
    passed = terminalreporter.stats.get("passed", [])
    lines = [text for report in passed for name, text in report.user_properties if name == SUMMARY]
    if lines:
        terminalreporter.section("Spark examples")
        for line in lines:
            terminalreporter.line(str(line))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: starting it costs more than most of them."""
    with local_spark("compat-tests", tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder for the checkpoint of one streaming job."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def topics(broker: Broker) -> Topics:
    """A plain client's view of the broker's topics."""
    return Topics(broker.bootstrap)


@pytest.fixture
def job(spark: SparkSession, topics: Topics, tmp_path: Path) -> JobFactory:
    """`job(subscribe=..., ...)` makes a streaming job; its checkpoint and output lie in the test's folder."""

    def make(**options: str) -> Job:
        return Job(spark, topics, tmp_path / "job", options)

    return make
