"""A small local Spark session with the stock Kafka connector of the installed pyspark version."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def local_spark(name: str, folder: Path, java_options: str = SHORT_LIVED) -> Iterator[SparkSession]:
    """Yield a session on two cores, without the web page.

    Its scratch files and the output of its Java process (`spark.log`) go into `folder`.
    Raises RuntimeError, with the end of that log, if Spark does not start.
    """
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise RuntimeError("Spark needs Java 17 or newer: install a JRE, or set JAVA_HOME")
    log = folder / "spark.log"
    scratch = folder / "java"  # where native libraries unpack themselves: a killed Java leaves them behind
    scratch.mkdir(exist_ok=True)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.jars.packages", connector())
        .config("spark.jars.ivy", str(JAR_CACHE))
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch} {java_options}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
    )
    try:
        with _error_output_to(log):
            spark = builder.getOrCreate()
    except Exception as error:
        raise RuntimeError(f"Spark did not start: {log.read_text()[-3000:]}") from error
    try:
        yield spark
    finally:
        spark.stop()


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
