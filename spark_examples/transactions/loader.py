"""Loads flights into a topic, a file in one transaction: all of its flights are there, or none.

A file may turn out to be broken when half of it is sent. Then the transaction is aborted and the file is loaded once more; what was
sent stays in the topic, and only readers with `isolation.level=read_committed` leave it out. A loader that does not answer any
more is replaced by another one with the same transactional id: that aborts what the first has left open, and shuts it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException, Producer

from spark_examples.shared.topics import Record

_TIMEOUT_S = 60.0


class Broken(Exception):
    """The rest of the file can't be read."""


class Loader:
    """A transactional producer of one topic."""

    def __init__(self, bootstrap: str, transactional_id: str, topic: str) -> None:
        """Aborts a transaction that another loader with this id has left open; that one can do nothing more."""
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "compression.type": "lz4",
                "linger.ms": 5,
                "log_level": 2,
            }
        )
        self._producer.init_transactions(_TIMEOUT_S)
        self.aborted = 0  # records of transactions that were aborted

    def load(self, records: Sequence[Record], broken_at: int | None = None) -> None:
        """One file in one transaction. A file that breaks after `broken_at` records is aborted: Broken."""
        self.begin(records[:broken_at])
        if broken_at is not None:
            self.abort()
            self.aborted += broken_at
            raise Broken(f"the file ends after {broken_at} of {len(records)} records")
        self.commit()

    def begin(self, records: Sequence[Record]) -> None:
        """Begin a transaction with these records, all of them in the topic when this returns."""
        self._producer.begin_transaction()
        for record in records:
            self._producer.produce(self._topic, record.value, record.key, timestamp=record.timestamp)
            self._producer.poll(0)
        left = self._producer.flush(_TIMEOUT_S)
        if left:
            raise RuntimeError(f"{left} records were not acknowledged within {_TIMEOUT_S:.0f} s")

    def commit(self) -> None:
        """KafkaException when another loader has taken the id over."""
        self._producer.commit_transaction(_TIMEOUT_S)

    def abort(self) -> None:
        """Readers of what is committed see none of it."""
        self._producer.abort_transaction(_TIMEOUT_S)

    def is_fenced(self) -> bool:
        """Try to commit, and find out whether another loader has taken over."""
        try:
            self.commit()
        except KafkaException as error:
            return bool(error.args[0].fatal())
        return False
