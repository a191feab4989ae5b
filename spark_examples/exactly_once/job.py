"""The streaming job that gets killed: flights from a topic into files, and into a second topic.

Run as a program of its own (`python -m spark_examples.exactly_once.job BOOTSTRAP FOLDER BATCH MASTER CONF`, the last one JSON),
so that kill -9 takes all of it, Python and Java; started again on the same folder it continues from its checkpoints. The file sink records the files of
each finished batch in a log of its own, `_spark_metadata`; files of a killed batch are not in the log, so readers of the
folder ignore them. The Kafka sink has no such log: a batch that was killed is written again, and its first records are in
the topic twice. Each record has an id here, the position of its flight in the source, by which a reader removes duplicates.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)
from pyspark.sql.streaming.query import StreamingQuery

from spark_examples.shared.measures import parsed
from spark_examples.shared.program import say
from spark_examples.shared.spark_session import Target, start_spark
from spark_examples.shared.streams import into_topic, run_to_end, stream_topic

FLIGHTS_TOPIC, COPIES_TOPIC = "once-flights", "once-copies"


def files_of(folder: Path) -> Path:
    """Where the file sink writes."""
    return folder / "files"


def copies_checkpoint(folder: Path) -> Path:
    """The checkpoint folder of the query into the topic."""
    return folder / "copies-checkpoint"


def start(
    spark: SparkSession, bootstrap: str, folder: Path, batch: int
) -> tuple[StreamingQuery, StreamingQuery]:
    """Both queries, over what the topic holds, in batches of so many records: into files, into a topic."""
    records = stream_topic(spark, bootstrap, FLIGHTS_TOPIC, maxOffsetsPerTrigger=str(batch))
    flights = parsed(records, "partition", "offset")
    files = (
        flights.writeStream.format("parquet")
        .option("path", str(files_of(folder)))
        .option("checkpointLocation", str(folder / "files-checkpoint"))
    )
    place = F.concat_ws("-", "partition", "offset")
    copies = into_topic(
        records.select(place.alias("key"), "value"), bootstrap, COPIES_TOPIC, str(copies_checkpoint(folder))
    )
    return files.trigger(availableNow=True).start(), copies.trigger(availableNow=True).start()


def run_job(spark: SparkSession, bootstrap: str, folder: Path, batch: int) -> None:
    """Until the end of the topic."""
    files, copies = start(spark, bootstrap, folder, batch)
    run_to_end(files, lambda number, rows: say(f"files, batch {number}: {rows:,} flights"))
    run_to_end(copies, lambda number, rows: say(f"copies, batch {number}: {rows:,} flights"))


if __name__ == "__main__":
    where = Path(sys.argv[2])
    target = Target(sys.argv[4], json.loads(sys.argv[5]))
    with start_spark("a job that is killed", where, target) as own:
        run_job(own, sys.argv[1], where, int(sys.argv[3]))
