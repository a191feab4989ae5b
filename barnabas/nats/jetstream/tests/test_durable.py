"""Existing durable consumers, and failing requests to JetStream, with a real nats-server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.binding.binding import Binding
from barnabas.nats.client.errors import NoResponders
from barnabas.nats.jetstream.api import (
    CONSUMER_NOT_FOUND,
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    JetStreamApi,
    JetStreamError,
    StreamInfo,
    nanoseconds_of,
)
from barnabas.nats.jetstream.durable import durable_name, open_durable
from barnabas.nats.jetstream.setup import Blocked, Consumer, find_stream
from barnabas.nats.tests.stream_world import StreamWorld, binding
from barnabas.runtime.procedures import Call, Procedure
from compat_tests.harness.nats_server import NatsServer

pytestmark = pytest.mark.sockets

NAMED = {"nats_delivery": "at-least-once", "nats_durable": "taker"}


@pytest.fixture
def world(nats_server: Callable[..., NatsServer]) -> Iterator[StreamWorld]:
    world = StreamWorld(nats_server(jetstream=True))
    world.until(lambda: world.client.is_connected)
    yield world
    world.close()


def outcome(world: StreamWorld, work: Coroutine[Any, Any, Any]) -> Any:
    """What the procedure returns; raises what it raises."""
    results: list[Any] = []
    ended: list[Exception | None] = []

    async def run() -> None:
        results.append(await work)

    Procedure(run(), ended.append).start()
    world.until(lambda: ended)
    if ended[0] is not None:
        raise ended[0]
    return results[0]


def opened(world: StreamWorld, bound: Binding) -> Consumer:
    api = JetStreamApi(world.client)
    stream = outcome(world, find_stream(api, bound))
    name = durable_name(bound, "cluster-1")
    found: Consumer = outcome(world, open_durable(api, stream, bound, name))
    return found


def add_consumer(world: StreamWorld, **config: Any) -> None:
    world.run(world.jetstream.add_consumer("S", durable_name="taker", **config))


@pytest.mark.every_nats_server
def test_a_durable_is_created_and_found_again(world: StreamWorld) -> None:
    world.add("S", "a.>", "b.>")
    bound = binding(nats_delivery="at-least-once", nats_subjects="a.1,a.2")
    made = opened(world, bound)
    assert made.info.name == durable_name(bound, "cluster-1") == "barnabas-cluster-1-t"
    filters = world.server.version >= (2, 10)  # by several subjects
    assert made.info.config.filters == (("a.1", "a.2") if filters else ())
    assert made.takes_all is not filters
    assert opened(world, bound).info.created == made.info.created
    changed = binding(nats_delivery="at-least-once", nats_subjects="a.1,b.>")
    assert opened(world, changed).info.config.filters == (("a.1", "b.>") if filters else ())
    assert opened(world, changed).info.created == made.info.created


@pytest.mark.every_nats_server
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"ack_policy": "none"}, "must be explicit"),
        ({"ack_policy": "explicit", "deliver_subject": "somewhere"}, "pushes"),
        ({"ack_policy": "explicit", "filter_subject": "a.other"}, "change one of them"),
    ],
)
def test_a_durable_that_does_not_fit_is_left_alone(
    world: StreamWorld, config: dict[str, str], said: str
) -> None:
    world.add()
    add_consumer(world, **config)
    with pytest.raises(Blocked, match=said):
        opened(world, binding(**NAMED))


@pytest.mark.every_nats_server
def test_a_work_queue_has_one_consumer(world: StreamWorld) -> None:
    world.add(retention="workqueue")
    add_consumer(world, ack_policy="explicit")
    with pytest.raises(Blocked, match="one taker"):
        opened(world, binding(nats_delivery="at-least-once"))


@pytest.mark.every_nats_server
def test_a_server_that_can_not_filter_may_not_empty_a_work_queue(world: StreamWorld) -> None:
    world.add("S", "a.>", "b.>", retention="workqueue")
    bound = binding(nats_delivery="at-least-once", nats_subjects="a.1,a.2")
    if world.server.version >= (2, 10):
        assert opened(world, bound).info.config.filters == ("a.1", "a.2")
        return
    with pytest.raises(Blocked, match=r"older than 2\.10"):
        opened(world, bound)
    assert world.run(world.jetstream.consumers_info("S")) == []


def test_missing_and_ambiguous_streams_are_errors(world: StreamWorld) -> None:
    api = JetStreamApi(world.client)
    with pytest.raises(Blocked, match="no stream takes a"):
        outcome(world, find_stream(api, binding()))
    with pytest.raises(Blocked, match="there is no stream NAMED"):
        outcome(world, find_stream(api, binding(nats_stream="NAMED")))
    world.add("S", "a.1")
    world.add("S2", "a.2")
    with pytest.raises(Blocked, match="several streams, S, S2"):
        outcome(world, find_stream(api, binding()))
    found: StreamInfo = outcome(world, find_stream(api, binding(nats_subjects="a.2")))
    assert found.config.name == "S2"


@pytest.mark.every_nats_server
def test_errors_have_jetstreams_numbers(world: StreamWorld) -> None:
    api = JetStreamApi(world.client)
    world.add()

    async def ask(begin: Callable[..., object]) -> Any:
        return await Call(begin)

    for begin, number in (
        (lambda done: api.stream_info("NONE", done), STREAM_NOT_FOUND),
        (lambda done: api.consumer_info("S", "none", done), CONSUMER_NOT_FOUND),
        (lambda done: api.message("S", 7, done), MESSAGE_NOT_FOUND),
    ):
        with pytest.raises(JetStreamError) as caught:
            outcome(world, ask(begin))
        assert (caught.value.code, caught.value.err_code) == (404, number)
    with pytest.raises(NoResponders):
        outcome(world, ask(lambda done: JetStreamApi(world.client, "elsewhere").stream_info("S", done)))


@pytest.mark.parametrize(
    "moment",
    [
        "",
        "x",
        "2026-13-99T99:99:99Z",
        "2026-11-21T16:56:22",
        "2026-11-21T16:56:22.²Z",
    ],
)
def test_a_malformed_time_is_an_error_of_the_server(moment: str) -> None:
    with pytest.raises(JetStreamError, match="no moment"):
        nanoseconds_of(moment)


@given(st.datetimes(timezones=st.timezones()), st.integers(0, 999_999_999))
def test_times_as_nanoseconds(moment: Any, nanoseconds: int) -> None:
    whole = moment.replace(microsecond=0)
    offset = whole.utcoffset()
    if offset.total_seconds() % 60:
        return  # of times before there were zones, which RFC 3339 can't write
    text = whole.isoformat()
    written = f"{text[:19]}.{nanoseconds:09d}".rstrip("0").rstrip(".") + text[19:]
    assert nanoseconds_of(written) == round(whole.timestamp()) * 1_000_000_000 + nanoseconds
    assert nanoseconds_of("2026-11-21T16:56:22.080540055Z") % 1000 == 55
