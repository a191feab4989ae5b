"""A Spark session, on this machine or on a cluster, with the stock Kafka connector of the installed pyspark version."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

# Jars are fetched once, about 60 MB, into this git-ignored folder.
JAR_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "spark-ivy"


# For programs that run for a minute: without the JIT's second stage and with a collector without threads of its own,
# Spark starts in half of the processor time. Omit these options for longer work.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def connector() -> str:
    """Maven coordinates of the connector for the installed versions of Spark and Scala.

    Both are in the name of a jar: pyspark 3.5 contains Scala 2.12, pyspark 4 contains 2.13.
    """
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    found = sorted((home / "jars").glob("spark-core_*.jar"))
    if not found:
        raise RuntimeError(f"{home} holds no Spark: there is no jars/spark-core_*.jar")
    scala, _, version = found[0].stem.removeprefix("spark-core_").partition("-")
    return f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{version}"


LOCAL = "local[2]"


@dataclass(frozen=True, slots=True)
class Target:
    """Where Spark runs: `master` as spark-submit takes it (empty: what spark-submit says, otherwise this machine), and further
    properties, which override ours."""

    master: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether the tasks run in the driver's process."""
        return (self.master or LOCAL).startswith("local") and not is_submitted()


def is_submitted() -> bool:
    """Whether spark-submit runs this program: then its Java runs already, with its --master, --conf and --packages."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def local_spark(name: str, folder: Path, java_options: str = SHORT_LIVED) -> Iterator[SparkSession]:
    """Yield a session on two cores of this machine."""
    with start_spark(name, folder, Target(LOCAL), java_options) as spark:
        yield spark


@contextmanager
def start_spark(
    name: str, folder: Path, target: Target, java_options: str = SHORT_LIVED
) -> Iterator[SparkSession]:
    """Yield a session there, without the web page unless `target` asks for it.

    Scratch files of the driver and the output of its Java process (`spark.log`) go into `folder`.
    Raises RuntimeError, with the end of that log, if Spark does not start.
    """
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise RuntimeError("Spark needs Java 17 or newer: install a JRE, or set JAVA_HOME")
    log = folder / "spark.log"
    builder = SparkSession.builder.appName(name)
    for property_name, value in {**_properties(folder, target, java_options), **target.conf}.items():
        builder = builder.config(property_name, value)
    try:
        with _error_output_to(log):
            spark = builder.getOrCreate()
    except Exception as error:
        raise RuntimeError(f"Spark did not start: {log.read_text()[-3000:]}") from error
    try:
        yield spark
    finally:
        spark.stop()


def _properties(folder: Path, target: Target, java_options: str) -> dict[str, str]:
    session = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    if is_submitted():
        return session
    scratch = folder / "java"  # where native libraries unpack themselves: a killed Java leaves them behind
    scratch.mkdir(exist_ok=True)
    of_the_driver = {
        "spark.master": target.master or LOCAL,
        "spark.jars.packages": connector(),
        "spark.jars.ivy": str(JAR_CACHE),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} {java_options}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if not target.is_local:
        return {**session, **of_the_driver}
    return {
        **session,
        **of_the_driver,
        "spark.local.dir": str(folder / "spark"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


@contextmanager
def _error_output_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes started inside to a file, as Spark's is long."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
