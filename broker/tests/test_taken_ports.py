"""A port that is taken between the check at the start and the moment when the cluster has taken the broker in."""

from __future__ import annotations

from barnabas.broker.tests.virtual_cluster import VirtualCluster


def test_a_broker_that_cannot_listen_says_so_and_is_never_ready() -> None:
    cluster = VirtualCluster()
    cluster.runtimes[2].listen("n2", 9092, object)
    cluster.advance(20)
    assert cluster.said[1] == cluster.said[3] == ["ready"]
    (why,) = cluster.said[2]
    assert why.startswith("cannot listen on n2:9092: ")
    assert "listeners" in why


def test_brokers_whose_ports_are_free_are_ready() -> None:
    cluster = VirtualCluster()
    cluster.advance(20)
    assert set(map(tuple, cluster.said.values())) == {("ready",)}
