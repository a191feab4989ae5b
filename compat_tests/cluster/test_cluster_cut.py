"""Network partitions of the inter-broker and controller connections; clients reach every node.

The short forms isolate the leader once, and cut one node off from the active controller alone; with
BARNABAS_CHAOS_ROUNDS set every pair is cut in turn as well, and each node is cut one way, and sessions last nine seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import combinations

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from compat_tests.harness.asking import ask_for_topic
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_view import quorum
from compat_tests.harness.cluster_work import QUIET, Work
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import TIMEOUT_S, eventually
from compat_tests.harness.fixture_types import ClusterFactory

LONG = "BARNABAS_CHAOS_ROUNDS" in os.environ
ATTEMPTS = 20  # a busy machine may need some, each a few seconds
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "3000",
}


@pytest.mark.timeout(300)
def test_an_isolated_leader_is_replaced(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(settings=SETTINGS, proxied=True)
    assert cluster.network is not None
    work = Work(cluster)
    work.await_progress()
    topic = next(iter(work.loads))
    alone = cluster.leader(topic)
    others = [node for node in cluster.nodes if node != alone]
    cluster.network.isolate(alone, cluster.nodes)
    eventually(lambda: cluster.metadata(others[0]).partitions[topic, 0].leader in others)
    time.sleep(2)  # clients still reach the isolated leader, which must acknowledge nothing that will be lost
    cluster.network.heal()
    cluster.wait_until_whole()
    work.await_progress()
    assert work.verify() > 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "session_ms", ["2000", "9000" if LONG else "5000"]
)  # below and above replica.lag.time.max.ms
def test_a_broker_cut_off_from_the_controller_only(
    fresh_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str], session_ms: str
) -> None:
    cluster = fresh_cluster(settings={**SETTINGS, "broker.session.timeout.ms": session_ms}, proxied=True)
    assert cluster.network is not None
    work = Work(cluster)
    work.await_progress()
    for attempt in range(ATTEMPTS):
        seconds = cut_off_from_the_controller(cluster, f"late-{attempt}")
        cluster.wait_until_whole()
        eventually(lambda: all(late(cluster, node) == late(cluster) for node in cluster.nodes))
        if seconds is not None:
            break
    else:
        pytest.fail(f"each of {ATTEMPTS} times the voters have elected another leader during the cut")
    with capsys.disabled():
        print(
            f"\na broker cut off from the controller: others lead after {seconds:.1f} s", end="", flush=True
        )
    work.await_progress()
    assert work.verify() > 100


def cut_off_from_the_controller(cluster: Cluster, topic: str) -> float | None:
    """Cut one broker off, use the others, and heal; the seconds until they led all partitions. None when the voters have
    elected another leader meanwhile, as they may when they get no processor for longer than an election timeout: the broker
    that is cut off reaches that one, and is not fenced."""
    assert cluster.network is not None
    controller = cluster.active_controller()
    apart, third = (node for node in cluster.nodes if node != controller)
    before = eventually(lambda: leadership(cluster, third))
    assert before is not None
    if before[0] != controller:
        return None
    cluster.network.cut(controller, apart)
    try:
        seconds = use_without(cluster, apart, topic, lambda: leadership(cluster, third) in (None, before))
        if cluster.kind == "barnabas":
            assert f"broker {apart} is fenced" in cluster.nodes[controller].log_text()
    except (AssertionError, KafkaException):
        cluster.network.heal()
        if eventually(lambda: leadership(cluster, third)) == before:
            raise
        return None
    cluster.network.heal()
    return seconds if eventually(lambda: leadership(cluster, third)) == before else None


def use_without(cluster: Cluster, apart: int, topic: str, is_same: Callable[[], bool]) -> float:
    """Wait until the others lead all partitions, and write to a new topic; the seconds until they did. AssertionError once the
    leader of the quorum is not the same."""
    started = time.monotonic()
    eventually(
        lambda: agree_without(cluster, apart) or not is_same(),
        message=lambda: [cluster.metadata(node) for node in cluster.nodes if node != apart],
    )
    seconds = time.monotonic() - started
    assert is_same()
    bootstrap = ",".join(address for node, address in cluster.addresses.items() if node != apart)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    ask_for_topic(admin, NewTopic(topic, 1, 2))
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    delivered: list[object] = []
    producer.produce(topic, b"value", on_delivery=lambda error, _: delivered.append(error))
    producer.flush(30)
    assert delivered == [None], "clients of the other brokers continue"
    return seconds


def leadership(cluster: Cluster, node: int) -> tuple[int, int] | None:
    """The leader of the metadata quorum and its epoch, as a node sees them; None while it sees none."""
    try:
        view = quorum(cluster.addresses[node])
    except (OSError, EOFError):  # it is too busy to answer
        return None
    return None if view is None else (view.leader_id, view.leader_epoch)


def late(cluster: Cluster, node: int | None = None) -> set[str]:
    """The topics of all attempts."""
    return {topic for topic, _ in cluster.metadata(node).partitions if topic.startswith("late-")}


def agree_without(cluster: Cluster, apart: int) -> bool:
    """Whether the other brokers agree on the leaders of all partitions, and lead all of them."""
    views = [cluster.metadata(node) for node in cluster.nodes if node != apart]
    return all(view.partitions == views[0].partitions for view in views) and all(
        each.leader not in (-1, apart) and apart not in each.isr for each in views[0].partitions.values()
    )


@pytest.mark.skipif(not LONG, reason="with BARNABAS_CHAOS_ROUNDS set (make chaos)")
@pytest.mark.timeout(900)
def test_every_pair_is_cut_in_turn(fresh_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = fresh_cluster(settings=SETTINGS, proxied=True)
    assert cluster.network is not None
    work = Work(cluster)
    work.await_progress()
    for one, other in combinations(cluster.nodes, 2):
        before = cluster.quorum()
        (third,) = set(cluster.nodes) - {one, other}
        leader = eventually(lambda third=third: leadership(cluster, third))
        # A client may keep asking the broker that is cut off from the controller, and gets old metadata.
        may_stop = cluster.kind == "apache" or cluster.active_controller() in (one, other)
        cluster.network.cut(one, other)
        time.sleep(1)  # no node has noticed yet
        until = time.monotonic() + 10
        outage = "not all clients continue"
        try:
            seconds = work.await_progress(100, timeout=9 if may_stop else TIMEOUT_S)
        except AssertionError:
            if not may_stop and leadership(cluster, third) == leader:
                raise
        else:
            outage = f"all clients continue after {1 + seconds:.1f} s"
        time.sleep(max(0.0, until - time.monotonic()))  # the cut's length
        cluster.network.heal()
        cluster.wait_until_whole()
        after = cluster.quorum()
        assert before is not None
        assert after is not None
        with capsys.disabled():
            print(
                f"\n{one} and {other} apart: {outage}, "
                f"{after.leader_epoch - before.leader_epoch} terms, healed after {work.await_progress():.1f} s",
                end="",
                flush=True,
            )
    for silent in cluster.nodes:
        for other in cluster.nodes:
            if other != silent:
                cluster.network.cut_one_way(silent, other)
        time.sleep(8)  # the cut's length
        cluster.network.heal()
        cluster.wait_until_whole()
        with capsys.disabled():
            print(
                f"\n{silent} could not send, all clients continue after {work.await_progress():.1f} s",
                end="",
                flush=True,
            )
    assert work.verify() > 100
