"""Exchange of wall clocks between linked nodes."""

from __future__ import annotations

from barnabas.controller.link.clocks import CLOCK_S, Clocks
from barnabas.controller.link.tests.link_nodes import LinkWorld
from barnabas.storage.wall_clock import WallClock

AHEAD_MS = 400 * 86_400_000


def test_voters_and_brokers_know_whose_clock_is_wrong() -> None:
    world = LinkWorld()
    nodes = [world.node(node_id) for node_id in (1, 2, 3, 4)]  # 4 is no voter
    clocks = [WallClock(node.runtime, is_alone=False) for node in nodes]
    for node, clock in zip(nodes, clocks, strict=True):
        Clocks(node.links, clock)
    nodes[0].runtime.wall_offset_ms = AHEAD_MS
    for node in nodes:
        world.start(node)
    world.run(1)
    assert [clock.is_trusted for clock in clocks] == [False, True, True, True]
    nodes[0].runtime.wall_offset_ms = 0
    nodes[3].runtime.wall_offset_ms = -AHEAD_MS
    assert [clock.is_trusted for clock in clocks] == [True, True, True, False]
    world.run(CLOCK_S)
    assert [clock.is_trusted for clock in clocks] == [True, True, True, False]
    assert [clock.ahead_ms // 1000 for clock in clocks] == [0, 0, 0, -AHEAD_MS // 1000]
    for node in nodes:
        node.links.close()
    world.run(2 * CLOCK_S)
    assert not clocks[3].is_trusted, "what was heard last counts"


def test_older_nodes_get_no_clocks() -> None:
    world = LinkWorld()
    one, two = world.node(1), world.node(2)
    clock = WallClock(two.runtime, is_alone=False)
    Clocks(two.links, clock)
    one.links.add_listener(lambda peer: setattr(peer, "version", 2), lambda _: None)
    Clocks(one.links, WallClock(one.runtime, is_alone=False))
    world.start(one)
    world.start(two)
    world.run(1)
    assert one.linked == [2]
    assert not clock.is_trusted
