"""Many small messages over 1,000 subjects and 8 partitions, by several publishers at once: each is stored once, and
in each publisher's order on each subject. BARNABAS_NATS_MESSAGES sets their number (100,000 in the short form)."""

from __future__ import annotations

import os

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import Streams
from compat_tests.nats.volume import publish, tally_subjects, tally_topic

pytestmark = pytest.mark.barnabas_only

TOTAL = int(os.environ.get("BARNABAS_NATS_MESSAGES", "100000"))
SUBJECTS = [f"v.{number}" for number in range(1000)]
PARTITIONS = 8
TIMEOUT_S = 120 + TOTAL // 1000


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_core_in_both_directions(server: NatsServer, broker: Broker) -> None:
    """Subjects to a topic, and the topic's records to other subjects."""
    bind(broker, "volume", {"nats.subjects": "v.*"}, partitions=PARTITIONS)
    publish(server, SUBJECTS, TOTAL)
    tally = tally_topic(broker.bootstrap, "volume", PARTITIONS, TOTAL)
    assert (tally.count, tally.wrong) == (TOTAL, [])
    back, thread = tally_subjects(server, "out.>", TOTAL)
    bind(broker, "volume", {"nats.publish.subject": "out.{key}"})
    thread.join(TIMEOUT_S)
    assert (back.count, back.wrong) == (TOTAL, [])


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_jetstream(server: NatsServer, broker: Broker) -> None:
    with Streams(server) as streams:
        streams.add("VOLUME", "v.*")
    bind(broker, "stored", {"nats.subjects": "v.*", "nats.mode": "jetstream"}, partitions=PARTITIONS)
    publish(server, SUBJECTS, TOTAL)
    tally = tally_topic(broker.bootstrap, "stored", PARTITIONS, TOTAL)
    assert (tally.count, tally.wrong) == (TOTAL, [])
