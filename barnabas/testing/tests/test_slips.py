"""What a test gets wrong is said, and where it is wrong."""

from __future__ import annotations

import asyncio
import socket
import warnings
from typing import Any

import pytest

from barnabas.testing import Broker
from barnabas.testing.contents import NoLeader


def test_a_property_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"^unknown property num.partition; did you mean num.partitions\?$"):
        Broker({"num.partition": 3})
    with pytest.raises(ValueError, match=r"^unknown property nothing.like.it$"):
        Broker({"nothing.like.it": 3})
    Broker({"listener.name.plaintext.x": 1, "super.users": "User:a", "nats.servers": "nats://a:4222"})


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


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_port_in_use(nodes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Broker(port=port, nodes=nodes).start()


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

    asyncio.run(work())


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
