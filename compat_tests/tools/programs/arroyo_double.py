"""`BOOTSTRAP IN OUT`: doubles numbers until SIGTERM; offsets are staged as each step ends, and committed by their policy."""

from __future__ import annotations

import signal
import sys
from typing import Any

from arroyo.backends.kafka import KafkaConsumer, KafkaPayload, KafkaProducer  # type: ignore[import-not-found]
from arroyo.backends.kafka.configuration import (  # type: ignore[import-not-found]
    build_kafka_consumer_configuration,
    build_kafka_producer_configuration,
)
from arroyo.commit import CommitPolicy  # type: ignore[import-not-found]
from arroyo.processing import StreamProcessor  # type: ignore[import-not-found]
from arroyo.processing.strategies import (  # type: ignore[import-not-found]
    CommitOffsets,
    Produce,
    RunTask,
)
from arroyo.types import Topic  # type: ignore[import-not-found]

bootstrap, source, sink = sys.argv[1:]
COMMIT_S, COMMIT_RECORDS = 0.5, 50


def double(message: Any) -> Any:
    """A record for the second topic."""
    return KafkaPayload(
        message.payload.key, b"%d" % (2 * int(message.payload.value)), message.payload.headers
    )


class Steps:
    """The factory of the processing's steps (a ProcessingStrategyFactory in all but the inheritance)."""

    def create_with_partitions(self, commit: Any, partitions: Any) -> Any:
        """Called at each assignment."""
        producer = KafkaProducer(build_kafka_producer_configuration({"bootstrap.servers": bootstrap}))
        return RunTask(double, Produce(producer, Topic(sink), CommitOffsets(commit)))

    def shutdown(self) -> None:
        """Called at the end."""


settings = build_kafka_consumer_configuration(
    {"bootstrap.servers": bootstrap},
    group_id="arroyo",
    auto_offset_reset="earliest",
    strict_offset_reset=False,
)
processor = StreamProcessor(
    KafkaConsumer(settings), Topic(source), Steps(), CommitPolicy(COMMIT_S, COMMIT_RECORDS), join_timeout=10
)
signal.signal(signal.SIGTERM, lambda number, frame: processor.signal_shutdown())
processor.run()
