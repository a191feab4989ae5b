"""Log lines about unreachable nodes, and the loss of the majority."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.controller.link.reachability import ControllerWatch, has_lost_majority
from barnabas.controller.link.tests.link_nodes import PORT, LinkWorld
from compat_tests.virtual.runtime import VirtualRuntime


class HangsUp:
    """A server of something else: at the first bytes it closes."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


def test_a_port_that_is_no_controllers_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = LinkWorld()
    other = VirtualRuntime(99, network=world.network, host="n2")
    other.listen("", PORT, HangsUp)
    one = world.started(1)
    world.run(5)
    assert lines(caplog, "is it a controller listener") == [], "a node that starts may hang up too"
    world.run(50)
    (said,) = lines(caplog, "is it a controller listener")
    assert said.startswith(f"n2:{PORT}: what answers there hangs up before it sends a byte")
    world.run(60)
    assert len(lines(caplog, "is it a controller listener")) == 2
    assert one.linked == []


def test_without_an_active_controller_missing_nodes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.link")
    world = LinkWorld()
    one = world.started(1)
    ControllerWatch(one.runtime, one.links)
    VirtualRuntime(99, network=world.network, host="n3")  # a machine without the process
    world.run(26)
    said = lines(caplog, "still waiting for an active controller")
    missing = f"node 2 at n2:{PORT} (no connection within 2 s), node 3 at n3:{PORT} (connection refused)"
    assert (
        said
        == [
            f"still waiting for an active controller, which a majority of the voters elects; not there: {missing}"
        ]
        * 3
    )
    two = world.started(2)
    world.run(1)
    two.links.leader.announce(1, 2)
    world.run(30)
    assert len(lines(caplog, "still waiting")) == 3
    two.runtime.end()
    world.run(9)
    assert len(lines(caplog, "still waiting")) == 3, "it may be an election"
    world.run(20)
    assert len(lines(caplog, "still waiting")) > 3
    one.links.close()
    count = len(lines(caplog, "still waiting"))
    world.run(60)
    assert len(lines(caplog, "still waiting")) == count


def test_the_reason_of_a_refused_link_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.link")
    world = LinkWorld()
    world.started(1)
    other = world.started(2, voter_ids=[1, 2])
    ControllerWatch(other.runtime, other.links)
    world.run(30)
    said = lines(caplog, "still waiting for an active controller")
    assert len(said) >= 2
    assert all("(link refused: node 1 has the voters 1,2,3 " in line for line in said)


def test_a_majority_is_lost_when_its_addresses_refuse_connections() -> None:
    world = LinkWorld()
    one, two, three = (world.started(node_id) for node_id in (1, 2, 3))
    broker = world.started(9)
    world.run(1)
    for gone, of_one, of_broker in (two, False, False), (three, True, True):
        gone.links.close()
        world.run(1)
        assert (has_lost_majority(one.links), has_lost_majority(broker.links)) == (of_one, of_broker)
    world.started(2, host="n2")
    world.run(1)
    assert not has_lost_majority(one.links)
    assert not has_lost_majority(broker.links)


def test_a_voter_with_two_addresses_counts_once() -> None:
    world = LinkWorld()
    _, two, three = (world.started(node_id) for node_id in (1, 2, 3))
    two.links.listen("", PORT + 1)
    named: list[tuple[str, int, int | None]] = [(f"n{node_id}", PORT, node_id) for node_id in (1, 2, 3)]
    known = world.start(world.node(8), targets=[*named, ("n2", PORT + 1, None)])
    unknown = world.start(world.node(9), targets=[*named, ("n2", PORT + 2, None)])
    world.run(1)
    two.links.close()
    two.runtime.end()
    world.run(1)
    assert not has_lost_majority(known.links)
    assert not has_lost_majority(unknown.links)
    three.links.close()
    world.run(1)
    assert has_lost_majority(known.links)
    assert has_lost_majority(unknown.links)


def test_unreachable_voters_may_be_running() -> None:
    world = LinkWorld()
    one = world.started(1)
    world.run(10)
    assert not has_lost_majority(one.links), "nothing has refused"


def test_a_majority_is_one_of_the_voters_that_the_log_names() -> None:
    world = LinkWorld()
    one, two, three = (world.started(node_id) for node_id in (1, 2, 3))
    world.run(1)
    one.links.voter_ids = frozenset({1})
    two.links.voter_ids = frozenset({2, 3})
    three.links.close()
    world.run(1)
    assert not has_lost_majority(one.links), "it is the only voter"
    assert has_lost_majority(two.links), "one of two"
    two.links.voter_ids = frozenset({1, 3})
    assert has_lost_majority(two.links)
    two.links.voter_ids = frozenset({1})
    assert not has_lost_majority(two.links), "it is no voter"
