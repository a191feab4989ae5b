"""Records of a broker of any make, written and read with kafka-python: `seed`, `produce` and `records` where the broker can't be
looked into.

Each call has a client of its own, for the time it takes: nothing stays behind, and a broker that was started anew meanwhile
is found again.
"""

from __future__ import annotations

import contextlib
import time  # noqa: TID251 - waits for a broker
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.contents import StoredRecord
from barnabas.testing.operations import RequestFailed
from barnabas.testing.seeding import Seed, choose_partitions
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAIT_SECONDS_MAX: Final = 30.0
_REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024  # the broker says what is too large
_POLL_MS: Final = 500


def append(
    bootstrap_servers: str, topic: str, partition_count: int, seeds: Sequence[Seed]
) -> list[StoredRecord]:
    """Produce them to where Barnabas itself would put them; as they are stored, when all are committed. RequestFailed;
    ValueError names a partition that there is not."""
    places = list(choose_partitions(topic, partition_count, seeds))
    producer = _kafka().KafkaProducer(
        bootstrap_servers=bootstrap_servers, acks="all", max_request_size=_REQUEST_BYTES_MAX
    )
    with contextlib.closing(producer), _told():
        waiting = [
            producer.send(
                topic, seed.value, seed.key, seed.headers, partition=place, timestamp_ms=seed.timestamp
            )
            for seed, place in zip(seeds, places, strict=True)
        ]
        producer.flush(WAIT_SECONDS_MAX)
        stored = [future.get(WAIT_SECONDS_MAX) for future in waiting]
    return [
        StoredRecord(topic, at.partition, at.offset, at.timestamp, seed.key, seed.value, tuple(seed.headers))
        for seed, at in zip(seeds, stored, strict=True)
    ]


def read(
    bootstrap_servers: str, topic: str, partitions: Sequence[int], isolation_level: str
) -> list[StoredRecord]:
    """All that consumers of this isolation level may read now, partition by partition. RequestFailed; TimeoutError where some of it does not come."""
    kafka = _kafka()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level=isolation_level, enable_auto_commit=False
    )
    with contextlib.closing(consumer), _told():
        places = [kafka.TopicPartition(topic, index) for index in partitions]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: dict[int, list[StoredRecord]] = {index: [] for index in partitions}
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while any(consumer.position(place) < ends[place] for place in places):
            polled = consumer.poll(_POLL_MS)
            for place, records in polled.items():
                found[place.partition] += [_stored(each) for each in records if each.offset < ends[place]]
            if polled:
                deadline = time.monotonic() + WAIT_SECONDS_MAX
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: not all records have come after {WAIT_SECONDS_MAX:g} s")
    return [record for index in partitions for record in found[index]]


def _stored(record: Any) -> StoredRecord:
    return StoredRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple((name, value) for name, value in record.headers),
    )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """RequestFailed for what the broker has refused."""
    try:
        yield
    except _kafka().errors.KafkaError as error:
        code = getattr(error, "errno", None)
        if not isinstance(code, int) or code < 0:
            raise
        raise RequestFailed(ErrorCode.of(code), str(error)) from error


def _kafka() -> Any:
    try:
        import_module("kafka.errors")
        return import_module("kafka")
    except ImportError as error:
        raise ImportError(
            f"records of a broker outside this process take kafka-python, which is not installed ({error}): "
            f"pip install kafka-python"
        ) from error
