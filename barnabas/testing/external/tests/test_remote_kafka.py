"""A broker that is reached over its port alone, the broker of this process being what is there: both say the same."""

from __future__ import annotations

import unittest
from collections.abc import Iterator

import pytest

from barnabas.testing import Broker
from barnabas.testing.contents import UnknownTopic
from barnabas.testing.external.remote_kafka import RemoteKafka
from barnabas.testing.operations import RequestFailed
from barnabas.wire.errors import ErrorCode

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"message.max.bytes": 10_000}) as broker:
        yield broker


@pytest.fixture
def remote(broker: Broker) -> Iterator[RemoteKafka]:
    remote = RemoteKafka(broker.bootstrap_servers)
    yield remote
    remote.stop()


def test_records_lie_where_a_broker_here_would_have_put_them(broker: Broker, remote: RemoteKafka) -> None:
    seeds = [
        b"1",
        b"2",
        ("key", {"amount": 12}),
        ("gone", None),
        {"value": "v", "headers": {"h": "1"}, "timestamp": 77, "partition": 2},
    ]
    for owner, topic in ((broker, "here"), (remote, "there")):
        owner.create_topic(topic, 3)
        owner.seed(topic, seeds)
    here, there = (
        [(each.partition, each.offset, each.key, each.value, each.headers) for each in broker.records(topic)]
        for topic in ("here", "there")
    )
    assert here == there
    assert len({each.partition for each in broker.records("there")}) == 3
    assert remote.records("there") == broker.records("there")
    assert remote.records("there", 2) == broker.records("there", 2) != []
    with pytest.raises(ValueError, match="there has 3 partitions, and no partition 3"):
        remote.produce("there", "v", partition=3)


def test_one_record_and_a_topic_that_is_made(broker: Broker, remote: RemoteKafka) -> None:
    stored = remote.produce("made", "v", key="k", headers={"h": "1"})
    assert [stored] == remote.records("made") == broker.records("made")
    remote.seed("made", [])
    assert remote.records("made") == [stored]


def test_what_is_refused(broker: Broker, remote: RemoteKafka) -> None:
    with pytest.raises(RequestFailed) as raised:
        remote.seed("small", [b"v" * 20_000])
    assert raised.value.error == ErrorCode.MESSAGE_TOO_LARGE
    assert remote.records("small") == []
    with pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        remote.records("nowhere")
    with pytest.raises(UnknownTopic, match="no partition 1 of 'small'"):
        remote.records("small", 1)


def test_what_only_a_broker_here_has(broker: Broker, remote: RemoteKafka) -> None:
    for name in ("on", "requests", "clock", "group", "reset", "nodes", "kill_node"):
        assert hasattr(broker, name)
        assert not hasattr(remote, name)
        with pytest.raises(unittest.SkipTest, match=f"'{name}' takes Barnabas in this process"):
            getattr(remote, name)
    with pytest.raises(AttributeError, match="no 'recods'") as raised:
        remote.recods("topic")  # type: ignore[attr-defined]
    assert not isinstance(raised.value, unittest.SkipTest)


def test_nobody_answers() -> None:
    with pytest.raises(ConnectionError, match=r"no broker answers at 127\.0\.0\.1:1: .*refused"):
        RemoteKafka("127.0.0.1:1").topics()
