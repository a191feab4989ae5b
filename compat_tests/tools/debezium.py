"""Debezium's connector for PostgreSQL in Kafka Connect: a snapshot, then changes, exactly once over a kill -9 of the broker and one of the worker."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from typing import Any

from barnabas.testing.ports import free_port
from compat_tests.company.connect import WORKER, Rest, worker_properties
from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.java_program import JavaProgram
from compat_tests.tools import postgres
from compat_tests.tools.installed import MavenFile
from compat_tests.tools.postgres import Postgres
from compat_tests.tools.tool import Tool, Trial

_DEBEZIUM = MavenFile("io.debezium", "debezium-connector-postgres", "3.3.1.Final", "tar.gz", "plugin")
_TOPIC = "shop.public.orders"
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
_START_S = 180


def check(trial: Trial) -> str:
    """One table."""
    plugins = trial.directory / "plugins"
    with tarfile.open(_DEBEZIUM.path) as archive:
        archive.extractall(plugins, filter="data")
    port = free_port()
    rest = Rest(port)
    with Postgres() as database, trial.broker() as broker:
        database.sql("CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, amount int NOT NULL)")
        database.sql("ALTER TABLE orders REPLICA IDENTITY FULL")
        _insert(database, 0, 200)
        settings = {"exactly.once.source.support": "enabled", "plugin.path": str(plugins)}
        properties = worker_properties(broker, "connect", port, trial.directory, **settings)

        def seen() -> Counter[str]:
            return Counter(change["op"] for _, change in _changes(broker) if change is not None)

        with JavaProgram(WORKER, [str(properties)], trial.directory / "worker") as worker:
            worker.wait_until(lambda: rest.get("/connectors") == [], _START_S)
            rest.put("/connectors/shop/config", _connector(database))
            worker.wait_until(lambda: rest.runs("shop"), _START_S)
            worker.wait_until(lambda: seen()["r"] == 200, _START_S)
            _insert(database, 200, 250)
            worker.wait_until(lambda: seen()["c"] > 0)
            broker.restart(kill=True)
            _insert(database, 250, 300)
            worker.wait_until(lambda: seen()["c"] > 50)
            worker.kill()
        database.sql("UPDATE orders SET amount = amount + 1 WHERE id < 100")
        with JavaProgram(WORKER, [str(properties)], trial.directory / "worker") as worker:
            worker.wait_until(lambda: seen()["u"] == 100, _START_S)
            database.sql("DELETE FROM orders WHERE id >= 250")
            worker.wait_until(lambda: seen()["d"] == 50)
        assert seen() == {"r": 200, "c": 100, "u": 100, "d": 50}, seen()
        table: dict[int, tuple[str, int]] = {}
        for key, change in _changes(broker):
            after = change["after"] if change else None
            if after:
                assert change["op"] != "c" or key not in table, f"order {key} is inserted twice"
                table[key] = (after["customer"], after["amount"])
            else:
                table.pop(key, None)
        rows = [line.split("|") for line in database.sql("SELECT id, customer, amount FROM orders")]
        assert table == {int(key): (customer, int(amount)) for key, customer, amount in rows}
        assert sum(change is None for _, change in _changes(broker)) == 50  # a tombstone for each deleted row
        return (
            f"PostgreSQL {database.version()}: a snapshot of 200 rows, then 250 inserts, updates and deletes with tombstones, each once over "
            "a kill -9 of the broker and one of the Connect worker; the changes make the table"
        )


def _insert(database: Postgres, start: int, end: int) -> None:
    database.sql(
        f"INSERT INTO orders SELECT n, 'customer ' || n % 7, n * 10 FROM generate_series({start}, {end - 1}) AS n"
    )


def _changes(broker: Broker) -> list[tuple[int, Any]]:
    """The key and the committed change of each record, None for a tombstone."""
    found = []
    for key, value in read_all(broker.bootstrap, _TOPIC):
        found.append((json.loads(key)["id"], None if value is None else json.loads(value)))
    return found


def _connector(database: Postgres) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": f"{database.port}",
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "topic.prefix": "shop",
        "exactly.once.support": "required",
        "key.converter": _CONVERTER,
        "key.converter.schemas.enable": "false",
        "value.converter": _CONVERTER,
        "value.converter.schemas.enable": "false",
    }


def _missing() -> str:
    return _DEBEZIUM.missing() or postgres.missing()


DEBEZIUM = Tool("debezium", _missing, lambda: _DEBEZIUM.version, check, pinned=_DEBEZIUM.version)
