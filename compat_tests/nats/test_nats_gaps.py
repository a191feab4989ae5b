"""Core NATS loses messages while no broker is subscribed: the broker reports the time of each gap, and no other
message is lost."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime

import nats.errors
import pytest
from nats.aio.client import Client as NatsClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory
from compat_tests.nats.bound_topics import await_standbys, await_subscribed, bind
from compat_tests.nats.received import by_subject
from compat_tests.nats.streams import Streams
from compat_tests.nats.test_nats_operations import metrics, state
from compat_tests.nats.timed_publisher import Published, TimedPublisher

pytestmark = pytest.mark.barnabas_only

TOPIC = "steady"
PARTITIONS = 3
SHORT_S = 15  # the longest gap for an outage of a second on a busy machine
_GAP = re.compile(rf"topic {TOPIC}: messages published from (\S+) to (\S+) \(.* s\) may be missing: (.*)")


class Gap:
    def __init__(self, begin: str, end: str, cause: str) -> None:
        self.begin_ms, self.end_ms = (
            datetime.fromisoformat(time).timestamp() * 1000 for time in (begin, end)
        )
        self.cause = cause

    def __repr__(self) -> str:
        return f"{self.begin_ms:.0f} to {self.end_ms:.0f}: {self.cause}"


def gaps_of(broker: Broker) -> list[Gap]:
    return [Gap(*found.groups()) for found in _GAP.finditer(broker.log_text())]


def await_gap(broker: Broker, count: int, cause: str) -> Gap:
    """The last reported gap, the `count`th."""
    eventually(lambda: len(gaps_of(broker)) >= count)
    gaps = gaps_of(broker)
    assert len(gaps) == count, gaps
    assert cause in gaps[-1].cause
    return gaps[-1]


def await_noted(broker: Broker) -> None:
    """Waits until the broker has written the time up to which it has received messages, as it does every second."""
    now_ms = time.time() * 1000

    def is_noted() -> bool:
        noted = (broker.log_dir / "barnabas-nats-attendance").read_text()
        return any(
            int(until_ms) > now_ms for until_ms in re.findall(r"^[0-9a-f]{32} (\d+)$", noted, re.MULTILINE)
        )

    eventually(is_noted, retry_on=(FileNotFoundError,))


def _meets(times: Published, gap: Gap) -> bool:
    """The log has whole milliseconds: the last one that it names belongs to the gap."""
    return times.begin_ms < gap.end_ms + 1 and times.end_ms >= gap.begin_ms - 1


def check(bootstrap: str, published: dict[bytes, Published], gaps: list[Gap]) -> int:
    """Asserts that missing messages were published within a gap, none is duplicated, and the order is kept; returns
    the number of missing messages."""
    newest = max(published.values())
    assert newest.begin_ms > max(gap.end_ms for gap in gaps)
    found = by_subject(bootstrap, TOPIC, PARTITIONS, 1)
    counts = Counter(value for values in found.values() for value in values)
    assert counts.keys() <= published.keys()
    assert not [value for value, count in counts.items() if count > 1]
    missing = [times for value, times in published.items() if value not in counts]
    unexplained = [times for times in missing if not any(_meets(times, gap) for gap in gaps)]
    assert not unexplained, (len(unexplained), len(missing), unexplained[:5], gaps)
    for values in found.values():
        numbers = [int(value.rstrip(b".")) for value in values]
        assert numbers == sorted(numbers)
    return len(missing)


def bound_broker(
    fresh_broker: BrokerFactory, server: NatsServer, settings: Mapping[str, str] | None = None
) -> Broker:
    broker = fresh_broker({"nats.servers": server.url, **(settings or {})})
    bind(broker, TOPIC, {"nats.subjects": "s.>"}, partitions=PARTITIONS)
    await_subscribed(server.url, TOPIC, PARTITIONS)
    return broker


def test_servers_and_brokers_that_stop(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    server = nats_server()
    broker = bound_broker(fresh_broker, server)
    publisher = TimedPublisher(server, "s")
    await_noted(broker)

    server.kill()
    time.sleep(0.3)  # in which messages are published and no broker is subscribed
    server.start()
    gap = await_gap(broker, 1, "server gone")
    assert gap.end_ms - gap.begin_ms < SHORT_S * 1000
    await_noted(broker)

    broker.restart()
    gap = await_gap(broker, 2, "the broker was restarted")
    assert gap.end_ms - gap.begin_ms < 2 * SHORT_S * 1000
    await_noted(broker)

    broker.restart(kill=True)
    gap = await_gap(broker, 3, "the broker was restarted")
    assert gap.end_ms - gap.begin_ms < 2 * SHORT_S * 1000
    broker.kill()
    attendance = broker.log_dir / "barnabas-nats-attendance"
    attendance.write_text(
        re.sub("^boot .*", "boot another running", attendance.read_text(), flags=re.MULTILINE)
    )
    broker.start()  # as after a crash of the machine: the gap begins at the log's end
    gap = await_gap(broker, 4, "the broker was restarted")
    assert 10_000 < gap.end_ms - gap.begin_ms < 10_000 + 2 * SHORT_S * 1000
    publisher.await_more(100)

    begun_ms = time.time() * 1000
    bind(broker, TOPIC, {"nats.paused": "true"})
    publisher.await_more(100)
    bind(broker, TOPIC, {"nats.paused": "false"})
    gap = await_gap(broker, 5, "the binding is paused")
    assert gap.begin_ms > begun_ms - 2  # to the log's millisecond
    assert f"topic {TOPIC}: its binding to NATS stops here: the binding is paused" in broker.log_text()
    assert f"topic {TOPIC} takes s.> for its partition" in broker.log_text()
    publisher.await_more(200)
    assert check(broker.bootstrap, publisher.finish(), gaps_of(broker)) > 100


def test_a_paused_broker(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    server = nats_server(config='write_deadline: "1s"\n')
    broker = bound_broker(fresh_broker, server)
    publisher = TimedPublisher(server, "s", size=20_000, burst=8, pause_s=0.01)
    await_noted(broker)
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    time.sleep(4)  # longer than a pause that the broker does not report
    eventually(lambda: "Slow Consumer Detected" in server.log_text())
    broker.process.send_signal(signal.SIGCONT)
    gap = await_gap(broker, 1, "slow consumer")
    assert "stood still" in gap.cause
    publisher.await_more(200)
    assert check(broker.bootstrap, publisher.finish(), gaps_of(broker)) > 100
    assert "Slow Consumer Detected" in server.log_text()


def test_a_log_that_refuses_appends(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    server = nats_server(config='write_deadline: "1s"\n')
    settings = {"log.index.size.max.bytes": "4096", "barnabas.metrics.listener": "127.0.0.1:0"}
    broker = bound_broker(fresh_broker, server, settings)
    bind(broker, TOPIC, {"nats.buffer.bytes": "1000000"})
    publisher = TimedPublisher(server, "s", size=20_000, burst=8, pause_s=0.01)
    limit = 4 << 20
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    eventually(lambda: state(broker, TOPIC) == "paused")
    assert metrics(broker)["barnabas_nats_connection_paused", "in"] == 1
    eventually(lambda: "Slow Consumer Detected" in server.log_text())
    assert "nothing is read from NATS until fewer wait" in broker.log_text()
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await_gap(broker, 1, "slow consumer")
    assert state(broker, TOPIC) == "running"
    publisher.await_more(200)
    assert check(broker.bootstrap, publisher.finish(), gaps_of(broker)) > 100


async def led_partitions(client: NatsClient) -> list[int]:
    """Of all brokers that answer, also those that lead no partition."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish("$BARNABAS.BINDINGS", b"", reply=inbox)
    partitions: list[int] = []
    try:
        while len(partitions) < PARTITIONS:
            answer = json.loads((await answers.next_msg(timeout=5)).data)
            partitions += [index for each in answer["bindings"] for index in each["partitions"]]
    except nats.errors.TimeoutError:
        pass
    await answers.unsubscribe()
    return partitions


@pytest.mark.skipif("BARNABAS_CHAOS_ROUNDS" not in os.environ, reason="slow: `make chaos-nats` runs it")
def test_a_cluster_that_stops_as_a_whole(server: NatsServer, cluster: Cluster) -> None:
    bind(
        cluster,
        TOPIC,
        {"nats.subjects": "s.>", "min.insync.replicas": "2"},
        partitions=PARTITIONS,
        replicas=3,
    )
    cluster.wait_until_whole()
    await_standbys(cluster, TOPIC, PARTITIONS)
    publisher = TimedPublisher(server, "s")
    publisher.await_more(200)
    cluster.restart(cluster.leader(TOPIC, 0))
    cluster.wait_until_whole()
    publisher.await_more(200)
    assert [gaps_of(node) for node in cluster.nodes.values()] == [[], [], []]  # other brokers were subscribed
    with Streams(server) as streams:
        eventually(lambda: sorted(streams.run(led_partitions(streams.client))) == [0, 1, 2])

    cluster.kill(*sorted(cluster.nodes))
    time.sleep(0.5)  # in which messages are published and no broker is subscribed
    cluster.start(*sorted(cluster.nodes))
    cluster.wait_until_whole()
    eventually(lambda: any(gaps_of(node) for node in cluster.nodes.values()))
    with Streams(server) as streams:
        eventually(lambda: sorted(streams.run(led_partitions(streams.client))) == [0, 1, 2])
    publisher.await_more(200)
    published = publisher.finish()
    gaps = [gap for node in cluster.nodes.values() for gap in gaps_of(node)]
    assert all("no broker" in gap.cause or "restarted" in gap.cause for gap in gaps), gaps
    check(cluster.bootstrap, published, gaps)
