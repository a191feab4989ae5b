"""The examples on a Spark cluster and a cluster of brokers, of which a worker and a leader die in the middle: the totals are right.

A standalone master and two workers (standalone.py) run the tasks; three nodes hold the topics.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.harness.cluster import Cluster
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.nats_server import NatsServerFactory
from compat_tests.spark.standalone import HOME, SparkCluster
from compat_tests.spark.summary import SUMMARY
from spark_examples.shared.spark_session import JAR_CACHE, connector

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900), pytest.mark.barnabas_only]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (sys.executable, "-m", "spark_examples")

# Of each example: its arguments, the topic whose leader dies, and the line of its output at which that happens.
IN_THE_MIDDLE = {
    "backfill": (("--flights", "20000"), "backfill-flights", r"month 3 of 12 is written"),
    "enrichment": (("--flights", "10000"), "enrichment-flights", r"5,000 flights are named"),
    "exactly_once": (("--flights", "24000"), "once-flights", r"the same job again"),
    "flights": (("--flights", "80000"), "demo-flights", r"stream, batch 0"),
    "transactions": (("--flights", "20000"), "transactions-flights", r"batch 1: "),
    "failover": (("--flights", "20000"), "failover-flights", r"now is the time to kill a node"),
}


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "spark") as cluster:
        yield cluster


def run(
    command: tuple[str | Path, ...], spark: SparkCluster, line: str, then: Callable[[], None]
) -> tuple[int, str]:
    """Run the program, call `then` at the first line that has the pattern; its exit status and output."""
    said: list[str] = []
    called = False
    # A driver that is killed leaves its Java behind, which ends by itself
    with (spark.folder / "program.log").open("w+") as errors:
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={**spark.environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                for text in process.stdout:
                    said.append(text)
                    if not called and re.search(line, text):
                        called = True
                        then()
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        output = "".join(said)
        assert called, output + errors.read()[-3000:]
        return process.returncode, output + (errors.read()[-3000:] if process.returncode else "")


def deaths(spark: SparkCluster, brokers: Cluster, topic: str) -> Callable[[], None]:
    """kill -9 of a worker with its executors, and of the leader of the topic's first partition."""

    def happen() -> None:
        brokers.kill(brokers.leader(topic))
        spark.kill_worker(0)

    return happen


@pytest.mark.long
@pytest.mark.parametrize("example", IN_THE_MIDDLE)
def test_a_worker_and_a_leader_die(
    request: pytest.FixtureRequest, spark_cluster: SparkCluster, fresh_cluster: ClusterFactory, example: str
) -> None:
    brokers = fresh_cluster()
    arguments, topic, line = IN_THE_MIDDLE[example]
    command = (
        *EXAMPLE,
        example,
        *spark_cluster.options,
        "--bootstrap-servers",
        brokers.bootstrap,
        *arguments,
    )
    status, said = run(command, spark_cluster, line, deaths(spark_cluster, brokers, topic))
    assert status == 0, said
    assert re.search(r"all \d+ checks hold", said), said
    request.node.user_properties.append((SUMMARY, f"{request.node.name:<40}{said.splitlines()[-1]}"))


@pytest.mark.long
def test_a_worker_and_a_leader_die_under_topics_bound_to_nats(
    spark_cluster: SparkCluster, fresh_cluster: ClusterFactory, nats_server: NatsServerFactory
) -> None:
    server = nats_server()
    brokers = fresh_cluster(settings={"nats.servers": server.url})
    given = ("--bootstrap-servers", brokers.bootstrap, "--nats", server.url, "--flights", "20000")
    status, said = run(
        (*EXAMPLE, "nats", *spark_cluster.options, *given),
        spark_cluster,
        r"nats-flights holds 20,000 records",
        deaths(spark_cluster, brokers, "nats-flights"),
    )
    assert status == 0, said


@pytest.mark.long
def test_spark_submit_with_the_connector_as_a_package(
    spark_cluster: SparkCluster, fresh_cluster: ClusterFactory
) -> None:
    """As docs/spark.md says it."""
    brokers = fresh_cluster()
    submit = (HOME / "bin" / "spark-submit", "--master", spark_cluster.master, "--packages", connector())
    conf = ("--conf", f"spark.jars.ivy={JAR_CACHE}", "--conf", "spark.executor.memory=512m")
    program = (ROOT / "spark_examples" / "__main__.py", "backfill", "--flights", "20000")
    given = ("--folder", str(spark_cluster.folder / "shared"), "--bootstrap-servers", brokers.bootstrap)
    status, said = run(
        (*submit, *conf, *program, *given),
        spark_cluster,
        r"month 3 of 12",
        deaths(spark_cluster, brokers, "backfill-flights"),
    )
    assert status == 0, said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--master", "spark://127.0.0.1:1"), "a Spark cluster needs --folder PATH"),
        (("--conf", "spark.executor.memory"), "--conf takes NAME=VALUE"),
    ],
)
def test_options_that_cannot_be(arguments: tuple[str, ...], reason: str) -> None:
    done = subprocess.run(
        (*EXAMPLE, "backfill", *arguments), cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1
    assert reason in done.stderr


def test_an_example_that_starts_its_job_itself_is_not_for_spark_submit(tmp_path: Path) -> None:
    done = subprocess.run(
        (*EXAMPLE, "exactly_once", "--bootstrap-servers", "127.0.0.1:1", "--folder", str(tmp_path)),
        cwd=ROOT,
        env={**os.environ, "PYSPARK_GATEWAY_PORT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1
    assert "give it --master in place of spark-submit" in done.stderr
