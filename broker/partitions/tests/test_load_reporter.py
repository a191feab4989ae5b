"""Load reports over three whole nodes on a virtual network, and what the balancer does with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.partitions.load_reporter import LoadReporter
from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.broker.tests.leader import batch
from barnabas.broker.tests.reply import Reply, send
from barnabas.broker.tests.virtual_cluster import NODE_IDS, VirtualCluster
from barnabas.controller.balancer.balancer import Balancer
from barnabas.controller.balancer.load_reports import LoadReport
from barnabas.controller.metadata.decision import Decision
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from barnabas.wire.messages.metadata_records import ConfigRecord
from compat_tests.virtual.runtime import VirtualRuntime

CREATE_TOPICS = 19
BROKER_RESOURCE = 4  # ConfigResource.Type
PARTITIONS = 6
RECORD = "x" * 200_000


class LoadedCluster(VirtualCluster):
    """Topic t, all of whose partitions are led by one broker at first."""

    def __init__(self, *settings: str) -> None:
        super().__init__("barnabas.balancer.rest.ms=20000", "num.partitions=1", *settings)
        self.advance(10)
        self.first = self.active() % 3 + 1  # another than the active controller
        replicas = [self.first, *(each for each in NODE_IDS if each != self.first)]
        assignments = [CreatableReplicaAssignment(index, replicas) for index in range(PARTITIONS)]
        self.create(
            CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
        )

    def create(self, topic: CreatableTopic) -> None:
        reply = Reply()
        send(
            self.nodes[1].services,
            CREATE_TOPICS,
            7,
            CreateTopicsRequest(topics=[topic], timeout_ms=10_000),
            reply,
        )
        self.run_until(lambda: reply.done)
        self.advance(2)

    @property
    def leaders(self) -> list[int]:
        image = self.nodes[1].services.controller.image
        return [state.leader for state in image.topics["t"].partitions.values()]

    @property
    def balancer(self) -> Balancer:
        member = self.nodes[self.active()]._member
        assert member is not None
        assert member.balancer is not None
        return member.balancer

    def produce(self, seconds: int) -> None:
        """A record of 200 kB a second into each partition, at its leader."""
        for _ in range(seconds):
            for index, leader in enumerate(self.leaders):
                partition = self.nodes[leader].services.partitions.get("t", index)
                assert partition is not None
                if partition.is_leader:
                    partition.append(batch(RECORD), required_acks=ACKS_ALL)
            self.advance(1)


@pytest.mark.slow
def test_the_active_controller_gets_the_load_of_each_broker() -> None:
    cluster = LoadedCluster("barnabas.balancer=plan")
    cluster.produce(25)
    reports = cluster.balancer.loads.reports
    assert sorted(reports) == list(NODE_IDS)
    report = reports[cluster.first]
    assert len(report.partitions) == PARTITIONS
    assert 0.9 < report.bytes_in / (PARTITIONS * len(RECORD)) < 1.1
    assert report.bytes_out == 0
    assert report.size > 20 * len(RECORD)
    assert 0 <= report.usable_bytes <= report.total_bytes
    assert all(reports[each].bytes_in == 0 for each in NODE_IDS if each != cluster.first)
    assert max(cluster.balancer.report_ages().values()) < 11


@pytest.mark.slow
def test_the_load_spreads() -> None:
    cluster = LoadedCluster("barnabas.balancer=on", "barnabas.balancer.interval.ms=10000")
    cluster.produce(60)
    assert Counter(cluster.leaders) == dict.fromkeys(NODE_IDS, 2)
    assert cluster.balancer.moved[False] == 4


@pytest.mark.slow
def test_no_reports_are_sent_before_it_is_switched_on() -> None:
    cluster = LoadedCluster("barnabas.balancer.interval.ms=10000")
    cluster.produce(60)
    assert set(cluster.leaders) == {cluster.first}
    assert cluster.balancer.loads.reports == {}
    record = ConfigRecord(BROKER_RESOURCE, "", "barnabas.balancer", "on")
    controller = cluster.nodes[cluster.active()].services.controller
    controller.run(lambda _: Decision([record], None), lambda _: None)
    cluster.produce(60)
    assert Counter(cluster.leaders) == dict.fromkeys(NODE_IDS, 2)


@pytest.mark.slow
def test_hedges_make_a_broker_give_up_its_leaders() -> None:
    cluster = LoadedCluster("barnabas.balancer=on", "barnabas.balancer.interval.ms=10000")
    cluster.advance(30)
    slow = cluster.first
    for node_id in NODE_IDS:
        if node_id != slow:
            cluster.nodes[node_id].services.partitions.rules.hedge.hedges[slow] += 15
    cluster.advance(40)
    assert slow not in cluster.leaders
    image = cluster.nodes[1].services.controller.image
    assert all(slow in state.replicas for state in image.topics["t"].partitions.values())


@pytest.mark.slow
def test_new_partitions_avoid_a_hot_broker() -> None:
    cluster = LoadedCluster("barnabas.balancer=on")
    cluster.produce(25)
    cluster.create(CreatableTopic(name="new", num_partitions=3, replication_factor=3))
    image = cluster.nodes[1].services.controller.image
    states = image.topics["new"].partitions.values()
    assert cluster.first not in [state.leader for state in states]
    assert all(sorted(state.replicas) == list(NODE_IDS) for state in states)


class Settings:
    barnabas_balancer = "on"
    barnabas_balancer_report_interval_ms = 1000


def test_one_report_an_interval_after_a_stop_and_a_start_while_it_measures() -> None:
    runtime, settings = VirtualRuntime(1), Settings()
    sent: list[LoadReport] = []
    directories: Any = SimpleNamespace(paths=(), offline=())

    class Partitions:
        is_disturbed = True

        def all(self) -> Iterator[Any]:
            if self.is_disturbed:
                self.is_disturbed = False
                reporter.stop()
                settings.barnabas_balancer_report_interval_ms = 700
                reporter.start()
                settings.barnabas_balancer_report_interval_ms = 1000
            return iter(())

    partitions: Any = Partitions()
    reporter = LoadReporter(runtime, settings, partitions, directories, {}, sent.append)
    reporter.start()
    runtime.advance(10.5)
    assert len(sent) == 9, "at 1.7 s, 2.7 s and so on"
