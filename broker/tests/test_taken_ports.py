"""Ports that are taken: at the start, and between the check then and the moment when the cluster has taken the broker in."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.tests.virtual_cluster import VirtualCluster
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.runtime import VirtualRuntime


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


def test_a_controller_that_has_one_of_its_two_listeners_has_none() -> None:
    runtime = VirtualRuntime()
    runtime.listen("127.0.0.1", 9094, object)
    settings = [
        "log.dirs=/d",
        "node.id=1",
        "process.roles=controller",
        "controller.quorum.voters=1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9097",
        "listeners=OLD://127.0.0.1:9093,NEW://127.0.0.1:9094",
        "listener.security.protocol.map=OLD:PLAINTEXT,NEW:PLAINTEXT",
        "controller.listener.names=OLD,NEW",
    ]
    node = Node(BrokerConfig.load(None, {}, settings), runtime, MemoryDisk(), on_fatal=pytest.fail)
    with pytest.raises(OSError, match="9094 in use"):
        node.start()
    assert set(runtime.listening) == {9094}
