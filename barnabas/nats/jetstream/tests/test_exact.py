"""Streams that are read exactly once, while streams, consumers, logs and leaders change.

With a real nats-server and real logs (in memory); nothing between them but the carrier.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nats.js.api import StreamSource

from barnabas.nats.binding.reader import read_binding
from barnabas.nats.dead_letters import DeadLetterTopic
from barnabas.nats.tests.stream_world import StreamWorld, binding
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.nats_server import NatsServer

pytestmark = pytest.mark.sockets


@pytest.fixture
def make_world(nats_server: Callable[..., NatsServer]) -> Iterator[Callable[..., StreamWorld]]:
    server = nats_server(jetstream=True)
    made: list[StreamWorld] = []

    def make(**options: Any) -> StreamWorld:
        made.append(StreamWorld(server, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., StreamWorld]) -> StreamWorld:
    return make_world()


def record_of(sequence: int, timestamp_ns: int, stream: bytes = b"S") -> bytes:
    """As ingress would have made it."""
    headers: list[tuple[str, bytes | None]] = [
        ("nats.subject", b"a.1"),
        ("nats.stream", stream),
        ("nats.seq", b"%d" % sequence),
        ("nats.timestamp", b"%d" % timestamp_ns),
    ]
    return build_batch([Record(0, 1, b"a.1", b"%d" % sequence, headers)], from_extension=True)


@pytest.mark.every_nats_server
def test_a_removed_consumer_is_created_again(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 300)
    carrier = world.carrier()
    world.until(lambda: world.count() >= 300)
    for turn in range(3):
        for consumer in world.run(world.jetstream.consumers_info("S")):
            world.run(world.jetstream.delete_consumer("S", consumer.name))
        world.publish(300 + 100 * turn, 100)
        expected = 400 + 100 * turn
        world.until(lambda expected=expected: world.count() >= expected)  # type: ignore[misc]
    world.stays(lambda: world.values() == list(range(600)))
    assert carrier.resets >= 1
    assert carrier.state == "running"


@pytest.mark.every_nats_server
def test_a_stream_without_subjects_is_read_whole(world: StreamWorld) -> None:
    """As a mirror, whose info has no subjects; excluded subjects are dropped."""
    world.add("S", "a.>", "$JS.EVENT.METRIC.>")
    world.run(world.jetstream.add_stream(name="COPY", mirror=StreamSource(name="S")))
    world.publish(0, 50)
    world.publish(100, 7, "a.test.")
    world.run(world.jetstream.publish("$JS.EVENT.METRIC.x", b"50"))
    whole = read_binding("t", {"nats.mode": "jetstream", "nats.stream": "COPY", "nats.exclude": "a.test.>"})
    carrier = world.carrier(whole)
    world.until(lambda: world.count() >= 51)
    world.stays(lambda: world.values() == list(range(51)))
    assert carrier.state == "running"


def test_a_new_run_continues_at_the_position_in_the_log(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 200)
    carrier = world.carrier()
    world.until(lambda: world.count() == 200)
    carrier.stop()
    world.carriers.clear()
    world.publish(200, 100)
    partition = world.world.partition(0)  # producers write to the partition as well
    for _ in range(50):
        partition.append(build_batch([Record(number, 1, b"k", b"another's", []) for number in range(40)]))
    world.carrier()
    world.until(lambda: world.count() >= 300 + 2000)
    world.stays(lambda: world.values() == list(range(300)))


@pytest.mark.every_nats_server
def test_a_recreated_stream_is_read_from_its_start(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 50)
    carrier = world.carrier()
    world.until(lambda: world.count() == 50)
    world.run(world.jetstream.delete_stream("S"))
    world.until(lambda: "no stream" in carrier.state or "waiting" in carrier.state)
    world.add()
    world.publish(50, 70)
    world.until(lambda: world.count() >= 120, 30)
    world.stays(lambda: world.values() == list(range(120)))


def test_a_stream_recreated_while_no_broker_reads_it(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 50)
    world.carrier()
    world.until(lambda: world.count() == 50)
    world.carriers.pop().stop()
    world.run(world.jetstream.delete_stream("S"))
    world.add()
    world.publish(50, 70)  # the last number that was taken is there again, and another message
    world.carrier()
    world.until(lambda: world.count() >= 120)
    world.stays(lambda: world.values() == list(range(120)))


def test_a_stream_restored_from_an_older_copy_blocks_until_nats_start_is_set(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 10)
    later = world.runtime.time_ms() + 3_600_000  # the message was taken after the copy had been made
    for index in range(2):
        world.world.partition(index).append(record_of(50, later * 1_000_000), from_client=False)
    carrier = world.carrier()
    world.until(lambda: carrier.state.startswith("blocked"))
    assert "its message 50 has been taken, and it ends at 10" in carrier.state
    assert "nats.start=time:T" in carrier.state
    assert world.count() == 2
    carrier.stop()
    world.carriers.clear()
    world.carrier(binding(nats_start="time:2999-01-01T00:00:00Z"))
    world.until(lambda: world.carriers[0].state == "running")


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_streams_that_remove_acknowledged_messages_are_refused(world: StreamWorld, retention: str) -> None:
    world.add(retention=retention)
    carrier = world.carrier()
    world.until(lambda: carrier.state.startswith("blocked"))
    assert "set nats.delivery=at-least-once" in carrier.state


@pytest.mark.every_nats_server
def test_removed_messages_are_counted(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 30)
    carrier = world.carrier()
    world.until(lambda: world.count() == 30)
    carrier.stop()
    world.carriers.clear()
    world.publish(30, 30)
    world.run(world.jetstream.purge_stream("S", seq=46))  # all before the 46th
    for sequence in (50, 52, 53):
        world.run(world.jetstream.delete_msg("S", sequence))
    carrier = world.carrier()
    world.until(lambda: world.count() >= 42)
    world.stays(
        lambda: world.values() == [*range(30), *[n - 1 for n in range(46, 61) if n not in (50, 52, 53)]]
    )
    assert carrier.missing in (
        15 + 3,
        16 + 3,
    )  # the log of one partition alone does not tell of the other's last


@pytest.mark.every_nats_server
@pytest.mark.parametrize(
    ("subjects", "excluded", "expected"),
    [
        ("a.1,a.2", "", {"a.1", "a.2"}),
        ("a.*", "a.3,a.4", {"a.0", "a.1", "a.2", "a.5", "a.6"}),
        ("a.1,*.1,a.2", "", {"a.1", "a.2", "b.1"}),  # they overlap: the server can't filter
        ("b.>", "", {f"b.{number}" for number in range(7)}),
    ],
)
def test_only_the_subjects_of_the_binding_become_records(
    world: StreamWorld, subjects: str, excluded: str, expected: set[str]
) -> None:
    world.add("S", "a.>", "b.>")
    world.publish(0, 14)
    world.publish(14, 14, "b.")
    carrier = world.carrier(binding(nats_subjects=subjects, nats_exclude=excluded, nats_stream="S"))
    world.until(lambda: world.count() >= 2 * len(expected))
    world.until(lambda: carrier.stats.lag == 0)
    keys = [record.key for index in range(2) for record in world.records(index)]
    assert {key.decode() for key in keys if key is not None} == expected
    assert len(keys) == 2 * len(expected)


def test_a_server_that_ignores_several_filters_is_detected(
    make_world: Callable[..., StreamWorld],
) -> None:
    """nats-server 2.9 does not know filter_subjects: here a proxy in front of a newer server removes them."""
    world = make_world(jetstream_domain="OLD")
    world.add("S", "a.>", "b.>")
    world.publish(0, 14)

    async def pass_on(message: Any) -> None:
        subject = message.subject.replace("$JS.OLD.API.", "$JS.API.")
        body: Any = json.loads(message.data) if message.data else None
        if ".CONSUMER.CREATE." in subject:
            body["config"].pop("filter_subjects", None)
        if ".MSG.NEXT." in subject:
            await world.peer.publish(subject, message.data, reply=message.reply)
            return
        answer = await world.peer.request(subject, json.dumps(body).encode() if body else b"")
        await message.respond(answer.data)

    world.run(world.peer.subscribe("$JS.OLD.API.>", cb=pass_on))
    world.run(world.peer.flush())
    carrier = world.carrier(binding(nats_subjects="a.1,a.2"))
    world.until(lambda: world.count() >= 4)
    world.until(lambda: carrier.stats.lag == 0)
    keys = {record.key for index in range(2) for record in world.records(index)}
    assert (keys, world.count()) == ({b"a.1", b"a.2"}, 4)
    (consumer,) = world.run(world.jetstream.consumers_info("S"))
    assert consumer.config.filter_subjects is None


def test_uncommitted_bytes_stay_within_the_budget(
    make_world: Callable[..., StreamWorld],
) -> None:
    world = make_world(replicas=(1, 2))  # the follower never comes, so nothing is committed
    world.add()
    world.publish(0, 3000)
    carrier = world.carrier(binding(nats_buffer_bytes="65536"))
    world.until(lambda: carrier.stats.messages_in > 0)
    world.until(lambda: carrier.stats.bytes_in > 30_000)
    world.stays(lambda: carrier.stats.bytes_in <= 70_000, 0.5)
    for index in range(2):
        world.world.change(index, replicas=[1], isr=[1])
    world.until(lambda: world.count() == 3000)
    assert world.values() == list(range(3000))


def test_messages_of_truncated_records_are_read_again(make_world: Callable[..., StreamWorld]) -> None:
    world = make_world(replicas=(1, 2))
    world.add()
    world.publish(0, 50)
    carrier = world.carrier()
    world.until(lambda: world.count() == 50)
    partition = world.world.partition(0)
    kept = partition.log.log_end_offset
    world.publish(50, 50)
    world.until(lambda: world.count() == 100)
    world.world.change(0, leader=2)
    carrier.roles_changed(world.leading)
    partition.log.truncate_to(kept)
    world.publish(100, 50)
    world.until(lambda: carrier.stats.lag == 0 and carrier.state == "running")
    world.world.change(0, leader=1)
    carrier.roles_changed(world.leading)
    world.until(lambda: world.count() == 150)
    world.stays(lambda: world.values() == list(range(150)))


def test_a_binding_with_nats_start_new_begins_at_the_end(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 20)
    carrier = world.carrier(binding(nats_start="new"))
    world.until(lambda: carrier.state == "running")
    world.publish(20, 5)
    world.until(lambda: world.count() == 5)
    assert world.values() == list(range(20, 25))


@pytest.mark.every_nats_server
def test_nats_start_at_a_sequence_or_time(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 20)
    world.carrier(binding(nats_start="seq:16"))
    world.until(lambda: world.count() == 5)
    world.carriers.pop().stop()
    assert world.values() == list(range(15, 20))
    world.run(asyncio.sleep(0.01))  # a time behind the last message
    moment = datetime.datetime.now(datetime.UTC).isoformat()
    world.publish(20, 3)
    world.carrier(binding(nats_start=f"time:{moment}"))  # no earlier than what has been taken, and no later
    world.until(lambda: world.count() == 8)
    assert world.values() == list(range(15, 23))


def test_a_message_too_large_for_the_topic_stops_the_binding(
    make_world: Callable[..., StreamWorld],
) -> None:
    world = make_world(properties={"max.message.bytes": "2000"})
    world.add()
    world.publish(0, 5)
    world.run(world.jetstream.publish("a.1", b"1" * 2000))
    world.publish(6, 5)
    carrier = world.carrier()
    world.until(lambda: carrier.state.startswith("blocked"))
    assert "message 6 of the stream" in carrier.state
    assert "max.message.bytes" in carrier.state
    assert world.values() == list(range(5))


def test_a_topic_with_many_small_segments(make_world: Callable[..., StreamWorld]) -> None:
    world = make_world(properties={"segment.bytes": "4096"})
    world.add()
    world.publish(0, 500)
    world.carrier()
    world.until(lambda: world.count() == 500)
    assert world.values() == list(range(500))


def test_messages_that_no_partition_takes_become_dead_letters(make_world: Callable[..., StreamWorld]) -> None:
    world = make_world(properties={"max.message.bytes": "2000"})
    letters: list[dict[str, bytes | None]] = []  # their headers
    answers = ["no leader", "", ""]

    class Buried(DeadLetterTopic):
        def __init__(self) -> None:
            pass

        def send(self, record: Record, done: Callable[[str], object]) -> None:
            letters.append(dict(record.headers))
            problem = answers[len(letters) - 1]
            world.runtime.call_soon(lambda: done(problem))

        def close(self) -> None:
            pass

    world.add()
    world.publish(0, 5)
    world.run(world.jetstream.publish("a.1", b"1" * 2000))
    world.run(world.jetstream.publish("a.2", b"x", headers={"Kafka-Partition": "17"}))
    world.publish(7, 5)
    world.carrier(dead_letters=Buried())
    world.until(lambda: world.count() == 10)
    assert world.values() == [*range(5), *range(7, 12)]
    assert [letter["nats.seq"] for letter in letters] == [b"6", b"6", b"7"]
    assert b"max.message.bytes" in (letters[1]["nats.error"] or b"")
    assert b"17" in (letters[2]["nats.error"] or b"")


def test_special_headers_of_messages(world: StreamWorld) -> None:
    world.add()
    kinds = [{}, {"Own": "x"}, {"Kafka-Partition": "1"}, {"Barnabas-Hops": "other/x, cluster/t"}]
    for number in range(40):
        world.run(world.jetstream.publish("a.1", b"%d" % number, headers=kinds[number % 4]))
    carrier = world.carrier()
    world.until(lambda: carrier.stats.messages_in == 40)
    assert carrier.stats.looped == 10
    by_value = {int(r.value or b""): (i, dict(r.headers)) for i in range(2) for r in world.records(i)}
    assert sorted(by_value) == [number for number in range(40) if number % 4 != 3]
    for number, (partition, found) in by_value.items():
        assert partition == 1 or number % 4 != 2
        assert found.get("Own") == (b"x" if number % 4 == 1 else None)
        assert int(found["nats.seq"] or b"") == number + 1


def test_patterns_without_a_subject_of_the_stream_are_logged(
    world: StreamWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "barnabas.nats")
    world.add()
    world.publish(0, 5)
    wanted = {"nats.mode": "jetstream", "nats.stream": "S", "nats.subjects": "orders.>,a.*,*.b"}
    carrier = world.carrier(read_binding("t", wanted))
    world.until(lambda: world.count() >= 5)
    carrier.roles_changed(world.leading)
    world.until(lambda: carrier.state == "running")
    assert caplog.text.count("topic t: its stream is S") == 1
    assert caplog.text.count("is no subject of the stream") == 1
    assert "topic t: orders.> is no subject of the stream S, which takes a.>" in caplog.text


def test_servers_without_jetstream_and_killed_servers(nats_server: Callable[..., NatsServer]) -> None:
    server = nats_server()
    world = StreamWorld(server)
    try:
        carrier = world.carrier()
        world.until(lambda: "has no JetStream for this account: start it with -js" in carrier.state)
        server.kill()
        world.until(lambda: carrier.state.startswith("connecting: server gone: "))
    finally:
        world.close()
