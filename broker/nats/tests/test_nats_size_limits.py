"""Messages that a server takes and a topic does not."""

from __future__ import annotations

import pytest
from barnabas.broker.nats.records.batch_builder import BatchBuilder, TooLarge
from barnabas.broker.nats.records.encoder import Encoder
from barnabas.broker.nats.records.keys import compile_key
from barnabas.broker.nats.records.partitioners import compile_partitioner
from barnabas.broker.nats.size_limits import overhead_of, size_warning
from barnabas.broker.nats.tests.stream_world import Partitions
from barnabas.controller.nats.binding import Binding, read_binding

MAX_PAYLOAD = 1_048_576  # nats-server's default
MAX_MESSAGE_BYTES = 1_048_588  # Kafka's


@pytest.fixture(scope="module")
def world() -> Partitions:
    return Partitions([1], 1, {})


def bound(**configs: str) -> Binding:
    values = {
        "nats.subjects": "orders.*",
        **{name.replace("_", "."): value for name, value in configs.items()},
    }
    found = read_binding("t", values)
    assert found is not None
    return found


def test_both_sides_defaults_overlap(world: Partitions) -> None:
    warning = size_warning(bound(), world.partition(), MAX_PAYLOAD)
    limit = MAX_MESSAGE_BYTES - overhead_of(bound())
    assert f"messages of more than about {limit} bytes are refused" in warning
    assert f"raise max.message.bytes of the topic to {MAX_PAYLOAD + overhead_of(bound())} or more" in warning
    assert not size_warning(bound(), world.partition(), limit)
    assert not size_warning(bound(nats_subjects="", nats_publish_subject="a"), world.partition(), MAX_PAYLOAD)


def test_what_is_said_to_be_taken_is_taken_and_hardly_more() -> None:
    subject = b"orders.x"
    encoder = Encoder(
        compile_key("subject"),
        compile_partitioner("murmur2", 1),
        1,
        {},
        special=_unused,
        refused=_unused,
    )
    limit = MAX_MESSAGE_BYTES - overhead_of(bound())
    for size, is_taken in ((limit, True), (limit + 40, False)):
        encoded = encoder.encode(subject, b"", b"", bytes(size))
        assert encoded is not None
        builder = BatchBuilder()
        builder.add(encoded[2])
        (batch,) = builder.finish(0, MAX_MESSAGE_BYTES)
        assert isinstance(batch, TooLarge) is not is_taken


def _unused(*_arguments: object) -> None:
    raise AssertionError
