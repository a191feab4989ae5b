"""Requests that a broker forwards are authorized by the active controller, as those of the client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.broker.requests.context import Outcome, RawResponse
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.security.caller import ANONYMOUS, Caller, Principal, own_caller
from barnabas.broker.tests.reply import Reply, encoded, make_context
from barnabas.broker.tests.virtual_cluster import NODE_IDS, VirtualCluster
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.registry import request_type, response_type

ROOT, BOB = Principal("User", "root"), Principal("User", "bob")
ADD_PARTITIONS, METADATA, CREATE_TOPICS, CREATE_ACLS = 24, 3, 19, 30
SETTINGS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:root",
)


class World:
    """A cluster of three, asked through a broker whose controller is not the active one."""

    def __init__(self) -> None:
        self.cluster = VirtualCluster(*SETTINGS)
        self.cluster.run_until(lambda: all(said == ["ready"] for said in self.cluster.said.values()))
        active = self.cluster.active()
        self.node_id = next(node_id for node_id in NODE_IDS if node_id != active)
        self.services = self.cluster.nodes[self.node_id].services

    def ask(self, key: int, version: int, request: Any, principal: Principal) -> Any:
        reply = Reply()
        context = make_context(self.services, reply, key, version, principal=principal)
        if REGISTRATIONS[key].controller:
            body = encoded(request_type(key), version, request)
            outcome: Any = self.services.forward(context, memoryview(body), 0, len(body))
        else:
            outcome = REGISTRATIONS[key].handler(context, request)
        if outcome is not Outcome.PENDING:
            return outcome
        self.cluster.run_until(lambda: reply.done)
        answer = reply.answer
        if isinstance(answer, RawResponse):
            return response_type(key).decode(version, answer.body)[0]
        return answer

    def create(self, name: str, principal: Principal) -> int:
        request = CreateTopicsRequest([CreatableTopic(name, 1, 1)], 1000)
        return int(self.ask(CREATE_TOPICS, 7, request, principal).topics[0].error_code)

    def allow(self, kind: ResourceType, name: str, operation: Operation) -> None:
        acl = AclCreation(kind, name, 3, "User:bob", "*", operation, 3)
        (result,) = self.ask(CREATE_ACLS, 3, CreateAclsRequest([acl]), ROOT).results
        assert not result.error_code


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World()
    yield world
    for node in world.cluster.nodes.values():
        node.stop()


def test_the_active_controller_decides_about_the_client(world: World) -> None:
    assert world.create("t", BOB) == E.TOPIC_AUTHORIZATION_FAILED
    world.allow(ResourceType.TOPIC, "t", Operation.CREATE)
    assert world.create("t", BOB) == E.NONE
    assert world.create("u", BOB) == E.TOPIC_AUTHORIZATION_FAILED


def test_a_topic_is_created_automatically_for_who_may_create_it(world: World) -> None:
    request = MetadataRequest([MetadataRequestTopic(name="auto")], True)
    world.allow(ResourceType.TOPIC, "auto", Operation.DESCRIBE)
    assert world.ask(METADATA, 9, request, BOB).topics[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert "auto" not in world.services.controller.image.topics
    world.allow(ResourceType.TOPIC, "auto", Operation.CREATE)
    assert world.ask(METADATA, 9, request, BOB).topics[0].error_code == E.NONE


def test_brokers_need_no_grant(world: World) -> None:
    """A broker on an authenticated connection, and this node itself; not a client that is no broker."""
    authorizer = world.services.authorizer
    assert authorizer is not None
    for reply, caller, error in (
        (Reply(peer_broker_id=2), Caller(ANONYMOUS, "PLAINTEXT", "10.0.0.2"), E.NONE),
        (Reply(), own_caller(1), E.NONE),
        (Reply(), Caller(ANONYMOUS, "PLAINTEXT", "10.0.0.2"), E.CLUSTER_AUTHORIZATION_FAILED),
    ):
        context = make_context(world.services, reply, ADD_PARTITIONS, 5)
        context.caller = caller
        answer: Any = REGISTRATIONS[ADD_PARTITIONS].handler(context, AddPartitionsToTxnRequest())
        assert answer.error_code == error
