"""Messages that a server takes and a topic does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from barnabas.nats.binding.binding import Binding
from barnabas.nats.binding.reader import read_binding
from barnabas.nats.records.batch_builder import BatchBuilder, TooLarge
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.keys import compile_key
from barnabas.nats.records.partitioners import compile_partitioner
from barnabas.nats.size_limits import SizeWarnings, overhead_of, size_warning
from barnabas.nats.tests.stream_world import Partitions

if TYPE_CHECKING:
    from barnabas.nats.connections import NatsConnections

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


class Connections:
    """One server, whose max_payload changes."""

    def __init__(self) -> None:
        self.payload = 0

    def max_payload(self, _name: str) -> int:
        return self.payload


def test_similar_topics_share_a_line_that_is_logged_once(
    world: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    connections = Connections()
    warnings = SizeWarnings(cast("NatsConnections", connections))
    bindings = [replace(bound(), topic=f"t{number}") for number in range(8)]
    leading: dict[int, Any] = {}

    def look() -> list[str]:
        caplog.clear()
        warnings.log((binding, leading) for binding in bindings)
        return [each.getMessage().partition(": ")[0] for each in caplog.records]

    assert look() == []  # nothing is led
    leading[0] = world.partition()
    assert look() == []  # no server is known
    connections.payload = MAX_PAYLOAD
    assert look() == ["topic t0, t1, t2, t3, t4 and 3 more"]
    assert look() == []
    bindings[3] = replace(bound(nats_acks="reply"), topic="t3")
    assert look() == []
    connections.payload = 1000
    assert look() == []
    connections.payload = MAX_PAYLOAD
    assert look() == ["topic t0, t1, t2, t3, t4 and 3 more"]


def test_the_limit_in_a_warning_is_exact() -> None:
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
