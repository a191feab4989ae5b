"""Produce and Fetch with an authorizer: the fast path serves whom the general way has allowed, until the ACLs change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.fastpath.fetch import fast_fetch
from barnabas.broker.fastpath.produce import fast_produce
from barnabas.broker.security.caller import Principal
from barnabas.broker.tests.one_node import OneNode
from barnabas.broker.tests.reply import Reply, encoded, make_context
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.fetch import FETCH_REQUEST, FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import (
    PRODUCE_REQUEST,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from compat_tests.conform.batches import batch

ROOT, BOB = Principal("User", "root"), Principal("User", "bob")
PRODUCE, FETCH, ALLOW, LITERAL, ANY = 0, 1, 3, 3, 1
SETTINGS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:root",
)


class World:
    """A node with topics t and u, and the rights of User:bob."""

    def __init__(self, directory: Path) -> None:
        self.one = OneNode(f"log.dirs={directory}", *SETTINGS)
        for name in ("t", "u"):
            self.one.create(name, 1, ROOT)

    def allow(self, operation: Operation, topic: str = "t") -> None:
        acl = AclCreation(ResourceType.TOPIC, topic, LITERAL, "User:bob", "*", operation, ALLOW)
        self.one.ask(CreateAclsRequest([acl]), 3, ROOT)

    def revoke(self, topic: str = "t") -> None:
        wanted = DeleteAclsFilter(ANY, topic, ANY, None, None, ANY, ANY)
        self.one.ask(DeleteAclsRequest([wanted]), 3, ROOT)

    def fast(self, serve: Any, key: int, version: int, body: bytes, principal: Principal = BOB) -> Any:
        context = make_context(self.one.node.services, Reply(), key, version, principal=principal)
        return serve(context, memoryview(bytearray(body)), 0, len(body))

    def decisions(self) -> int:
        authorizer = self.one.node.services.authorizer
        assert authorizer is not None
        return authorizer.allowed + authorizer.denied

    def fast_produce(self, principal: Principal = BOB) -> Any:
        return self.fast(fast_produce, PRODUCE, 9, encoded(PRODUCE_REQUEST, 9, PRODUCED), principal)

    def produce(self, request: ProduceRequest | None = None) -> int:
        answer = self.one.ask(request or PRODUCED, 9, BOB)
        return int(answer.responses[0].partition_responses[0].error_code)

    def fetch_request(self, *topics: str, session_id: int = 0, epoch: int = -1) -> FetchRequest:
        wanted = [
            FetchTopic(name, partitions=[FetchPartition(0, partition_max_bytes=1000)]) for name in topics
        ]
        return FetchRequest(min_bytes=1, session_id=session_id, session_epoch=epoch, topics=wanted)

    def fast_fetch(self) -> Any:
        return self.fast(fast_fetch, FETCH, 12, encoded(FETCH_REQUEST, 12, self.fetch_request("t")))

    def fetch(self, *topics: str, **session: int) -> Any:
        return self.one.ask(self.fetch_request(*topics, **session), 12, BOB)


def produce_to(topic: str, records: bytes) -> ProduceRequest:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, records)])
    return ProduceRequest(None, 1, 1000, [data])


PRODUCED = produce_to("t", batch())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.one.node.stop()


def test_a_produce_is_fast_once_it_was_allowed(world: World) -> None:
    assert world.fast_produce() is None
    assert world.produce() == E.TOPIC_AUTHORIZATION_FAILED
    assert world.fast_produce() is None
    world.allow(Operation.WRITE)
    assert world.fast_produce() is None
    assert world.produce() == E.NONE
    before = world.decisions()
    assert isinstance(world.fast_produce(), bytes)
    assert world.decisions() - before == 1
    assert world.fast_produce(Principal("User", "eve")) is None
    world.revoke()
    assert world.fast_produce() is None
    assert world.produce() == E.TOPIC_AUTHORIZATION_FAILED


def test_a_produce_that_the_handler_serves_after_all_is_counted_once(world: World) -> None:
    world.allow(Operation.WRITE)
    compacted = CreatableTopic("c", 1, 1, configs=[CreatableTopicConfig("cleanup.policy", "compact")])
    world.one.ask(CreateTopicsRequest([compacted]), 7, ROOT)
    world.allow(Operation.WRITE, "c")
    many = batch([b"v"] * 2000, keys=[b"k"] * 2000)
    request = produce_to("c", many)
    assert world.produce(request) == E.NONE
    before = world.decisions()
    body = encoded(PRODUCE_REQUEST, 9, request)
    assert world.fast(fast_produce, PRODUCE, 9, body) is None, "its records must be read"
    assert world.produce(request) == E.NONE
    assert world.decisions() - before == 1


def test_a_fetch_is_fast_once_it_was_allowed(world: World) -> None:
    world.allow(Operation.WRITE)
    assert world.produce() == E.NONE
    assert world.fast_fetch() is None
    (topic,) = world.fetch("t").responses
    assert topic.partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert not topic.partitions[0].records
    world.allow(Operation.READ)
    (topic,) = world.fetch("t").responses
    assert topic.partitions[0].error_code == E.NONE
    before = world.decisions()
    assert world.fast_fetch() is not None
    assert world.decisions() - before == 1
    world.revoke()
    before = world.decisions()
    assert world.fast_fetch() is None
    assert world.decisions() == before, "the handler is asked next, and counts"


def test_a_session_loses_and_gets_its_topics(world: World) -> None:
    for name in ("t", "u"):
        world.allow(Operation.READ, name)
    first = world.fetch("t", "u", epoch=0)
    assert first.session_id
    session = {"session_id": first.session_id}
    assert world.fetch(epoch=1, **session).responses == []
    world.revoke("u")
    (topic,) = world.fetch(epoch=2, **session).responses
    assert topic.topic == "u"
    assert topic.partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    world.allow(Operation.READ, "u")
    (topic,) = world.fetch(epoch=3, **session).responses
    assert topic.topic == "u"
    assert topic.partitions[0].error_code == E.NONE
