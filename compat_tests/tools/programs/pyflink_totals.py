"""`BOOTSTRAP NAMING DIRECTORY JAR`: counts the orders of each customer, as SQL in a cluster of this process; checkpoints go to DIRECTORY,
and the last one that is there is where it starts.

NAMING is how the sink names its transactions: `incrementing` (a new name at each checkpoint; a restart tries the names that may be
open) or `pooling` (a few names; a restart lists open transactions).
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.common import Configuration  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

bootstrap, naming, directory, jar = sys.argv[1:]

configuration = Configuration()
for name, value in {
    "pipeline.jars": Path(jar).as_uri(),
    "parallelism.default": "2",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.dir": Path(directory).as_uri(),
    "execution.checkpointing.num-retained": "3",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "restart-strategy.type": "disable",
}.items():
    configuration.set_string(name, value)
checkpoints = [path.parent for path in Path(directory).glob("*/chk-*/_metadata")]
if checkpoints:
    last = max(checkpoints, key=lambda path: int(path.name.partition("-")[2]))
    configuration.set_string("execution.state-recovery.path", last.as_uri())

tables = TableEnvironment.create(
    EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
)
kafka = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{bootstrap}', 'format' = 'json'"
tables.execute_sql(f"""
    CREATE TABLE orders (number INT, customer STRING, arrived AS PROCTIME()) WITH ({kafka},
      'topic' = 'orders-{naming}', 'properties.group.id' = 'flink-{naming}', 'scan.startup.mode' = 'earliest-offset')""")
tables.execute_sql(f"""
    CREATE TABLE totals (number INT, customer STRING, total BIGINT) WITH ({kafka},
      'topic' = 'totals-{naming}', 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'flink-{naming}',
      'sink.transaction-naming-strategy' = '{naming}', 'properties.transaction.timeout.ms' = '900000')""")
tables.execute_sql("""
    INSERT INTO totals SELECT number, customer, COUNT(*) OVER (PARTITION BY customer ORDER BY arrived) FROM orders""").wait()
