"""What a test gets wrong is said, and where it is wrong."""

from __future__ import annotations

import asyncio
import math
import socket
import warnings
from typing import Any

import pytest

from barnabas.testing import Broker, BrokerFailed
from barnabas.testing.contents import NoLeader
from compat_tests.harness.eventually import eventually


def test_a_property_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"^unknown property num.partition; did you mean num.partitions\?$"):
        Broker({"num.partition": 3})
    with pytest.raises(ValueError, match=r"^unknown property nothing.like.it$"):
        Broker({"nothing.like.it": 3})
    Broker({"listener.name.plaintext.x": 1, "super.users": "User:a", "nats.servers": "nats://a:4222"})


@pytest.mark.sockets
def test_values_of_another_kind() -> None:
    number: Any = 2.8
    with pytest.raises(TypeError, match=r'as_version is a string, such as "2.8", and not 2.8'):
        Broker(as_version=number)
    nothing: Any = None
    with Broker() as broker:
        broker.create_topic("kept")
        with pytest.raises(TypeError, match="not None"):
            broker.restore(nothing)
        assert broker.topics() == {"kept": 1}


@pytest.mark.sockets
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_port_in_use(nodes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Broker(port=port, nodes=nodes).start()


@pytest.mark.sockets
def test_an_await_that_is_forgotten() -> None:
    async def work() -> None:
        async with Broker(nodes=2) as broker:
            with pytest.warns(RuntimeWarning, match="'create_topic' was never awaited") as told:
                broker.create_topic("forgotten")
            assert told[0].filename == __file__
            with pytest.warns(RuntimeWarning, match="'advance' was never awaited"):
                broker.clock.advance(0.01)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await asyncio.gather(broker.create_topic("a"), broker.create_topic("b"))
                await asyncio.wait_for(broker.seed("a", ["v"]), 30)
                with pytest.raises(RuntimeError, match="await the other form"):
                    broker.produce("a", "v")
                assert len(broker.records("a")) == 1

    asyncio.run(work())


@pytest.mark.sockets
@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 1e12])
def test_ways_that_no_clock_goes(seconds: float) -> None:
    with Broker() as broker:
        with pytest.raises(ValueError, match="a clock "):
            broker.clock.advance(seconds)
        broker.clock.advance(1)
        assert broker.clock.ahead_s == 1


@pytest.mark.sockets
def test_a_field_that_no_record_has() -> None:
    with (
        Broker() as broker,
        pytest.raises(TypeError, match="a record has no 'headres'; it has headers, key,"),
    ):
        broker.produce("t", "v", headres={"a": "1"})


@pytest.mark.sockets
def test_records_of_a_leader_that_has_just_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(nodes=3) as broker:
        broker.create_topic("t", 3)
        broker.seed("t", [str(number) for number in range(30)])
        broker.kill_node(broker.partition("t").leader)
        assert len(broker.records("t")) == 30
        broker.kill_node(broker.partition("t").leader)  # of three controllers one is left: no leader follows
        monkeypatch.setattr("barnabas.testing.operations.LEADERS_S", 0.05)
        with pytest.raises(NoLeader, match=r"t-\d has no leader that runs"):
            broker.records("t")
        with pytest.raises(NoLeader):
            broker.seed("t", [str(number) for number in range(30)])


@pytest.mark.sockets
def test_records_of_a_leader_that_has_just_come() -> None:
    """It does not know yet what is committed."""
    with Broker(nodes=3) as broker:
        broker.create_topic("t", 3)
        broker.seed("t", [str(number) for number in range(30)])
        gone = broker.partition("t").leader
        broker.kill_node(gone)
        eventually(lambda: broker.partition("t").leader not in (gone, -1))
        assert len(broker.records("t")) == 30


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ({"nth": 0}, "nth is a whole number, 1 or more, and not 0"),
        ({"nth": "2"}, "not '2'"),
        ({"times": -1}, "times is a whole number, 1 or more"),
        ({"probability": 5}, "probability is a number from 0 to 1, and not 5"),
        ({"node": 9}, "there is no node 9; known are 1, 2"),
        ({"api": "Heartbeat", "topic": "t"}, "Heartbeat requests name no topics: a rule without topic="),
        ({"api": "ApiVersions", "partition": 1}, "without partition="),
        ({"api": "Produce", "group": "g"}, "Produce requests name no groups"),
        ({"api": "Hartbeat"}, r"there is no API 'Hartbeat'; did you mean Heartbeat\?"),
    ],
)
def test_rules_that_never_act(conditions: dict[str, Any], why: str) -> None:
    broker = Broker(nodes=2)
    with pytest.raises(ValueError, match=why):
        broker.on(**{"api": "Produce", **conditions})
    broker.on("*", topic="t", group="g", node=2, nth=1, times=1, probability=0.0)
    broker.on("OffsetCommit", topic="t", partition=0, group="g")


def test_actions_that_there_are_not() -> None:
    broker = Broker()
    rule = broker.on("Produce", topic="t", nth=2)
    text: Any = "x"
    less = -1
    for act, why in (
        (lambda: rule.delay(less), "a delay in seconds is a number, 0 or more, and not -1"),
        (lambda: rule.delay(text), "not 'x'"),
        (lambda: rule.delay(float("nan")), "not nan"),
        (lambda: rule.truncate(less), "the count of bytes is a whole number, 0 or more"),
        (lambda: rule.error("NOT_LEADER"), r"no error 'NOT_LEADER'; did you mean NOT_LEADER_OR_FOLLOWER\?"),
        (lambda: rule.error("NOT_LEADER_FOR_PARTITION"), "NOT_LEADER_OR_FOLLOWER"),
        (lambda: broker.faults.latency(less), "a latency in seconds is a number, 0 or more"),
        (lambda: broker.faults.latency(bytes_per_second=0), "bytes_per_second is a number, more than 0"),
        (lambda: broker.faults.latency(node=2), "there is no node 2; known are 1"),
    ):
        with pytest.raises(ValueError, match=why):
            act()
    assert not broker.faults.rules
    assert not broker.faults.links
    assert repr(rule) == "<Rule 0 on('Produce', topic='t', nth=2, times=1): nothing yet; 0 of 0 calls>"
    rule.delay(1).error("NOT_LEADER_OR_FOLLOWER")
    assert repr(rule).startswith(
        "<Rule 1 on('Produce', topic='t', nth=2, times=1): delay 1 s, error NOT_LEADER_OR"
    )


def test_where_a_broker_is_that_has_not_been_started() -> None:
    with pytest.raises(BrokerFailed, match=r"start\(\)"):
        _ = Broker().bootstrap_servers
    assert Broker(port=9092).bootstrap_servers == "127.0.0.1:9092"
