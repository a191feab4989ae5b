"""Every API in every version: refused to who lacks a right, with Kafka's error and nothing else, and served to who has it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.requests.context import RawResponse
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.security.caller import Principal
from barnabas.broker.tests.one_node import KEYS, OneNode
from barnabas.broker.tests.reply import as_received, send
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.wire.registry import API_NAMES, request_type, response_type
from compat_tests.conform.authorized_requests import (
    AUTHORIZATION_ERRORS,
    WITHOUT_RIGHTS,
    AuthorizedRequest,
    Names,
    Right,
    authorized_requests,
    error_codes,
)

LITERAL, ALLOW = 3, 3
ROOT = Principal("User", "root")
SETTINGS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:root",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
)


class World:
    """A node with an authorizer. Each set of rights has a principal of its own."""

    def __init__(self, directory: Path) -> None:
        self.one = OneNode(f"log.dirs={directory}", *SETTINGS)
        services = self.one.node.services
        self._numbers = count()
        self.one.create("t", 1, ROOT)
        topic_id = services.controller.image.topics["t"].topic_id
        self.names = Names("t", topic_id, "absent", "group", "txn")
        for key_type, key in ((0, "group"), (1, "txn")):
            self.ask(FindCoordinatorRequest(key, key_type), 3, ROOT)
        self.commit_offset()
        self.requests = authorized_requests(self.names)

    def ask(self, request: Any, version: int, principal: Principal) -> Any:
        """The response; None while it waits."""
        key = KEYS[type(request).__name__.removesuffix("Request")]
        received = as_received(request_type(key), version, request)
        reply = send(self.one.node.services, key, version, received, principal=principal)
        self.one.runtime.advance(0)
        if not reply.done:
            return None
        (response,) = reply.responses
        if isinstance(response, RawResponse):
            return response_type(key).decode(version, response.body)[0]
        return as_received(response_type(key), version, response)

    def commit_offset(self) -> None:
        position = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 0)])
        answer = self.ask(OffsetCommitRequest("group", topics=[position]), 8, ROOT)
        assert not error_codes(answer)

    def with_rights(self, rights: list[Right]) -> Principal:
        """A principal with these rights."""
        principal = Principal("User", f"user{next(self._numbers)}")
        creations = [
            AclCreation(kind, name, LITERAL, str(principal), "*", operation, ALLOW)
            for kind, name, operation in rights
        ]
        answer = self.ask(CreateAclsRequest(creations), 3, ROOT)
        assert not any(each.error_code for each in answer.results)
        return principal


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("node"))
    yield world
    world.one.node.stop()


def versions(each: AuthorizedRequest) -> list[int]:
    registration = REGISTRATIONS[KEYS[each.api]]
    served = range(registration.min_version, registration.max_version + 1)
    return [version for version in served if version in each.versions]


TITLES = [each.title for each in authorized_requests(Names("t", bytes(16), "absent", "group", "txn"))]


@pytest.mark.parametrize("title", TITLES)
def test_a_request_is_refused_without_the_right_and_served_with_it(world: World, title: str) -> None:
    (each,) = [each for each in world.requests if each.title == title]
    refused = world.with_rights(list(each.given))
    allowed = world.with_rights([*each.given, *each.needed])
    services = world.one.node.services
    assert versions(each)
    for version in versions(each):
        end = services.controller.image.offset, services.partitions.get("t", 0).log.log_end_offset  # type: ignore[union-attr]
        response = world.ask(each.request(version), version, refused)
        assert error_codes(response) == {each.error_at(version)}, (version, response)
        unchanged = services.controller.image.offset, services.partitions.get("t", 0).log.log_end_offset  # type: ignore[union-attr]
        assert unchanged == end, version
        response = world.ask(each.request(version), version, allowed)
        assert response is not None, version
        assert not error_codes(response) & AUTHORIZATION_ERRORS, (version, response)


def test_every_api_is_in_the_table() -> None:
    served = {API_NAMES[key] for key in REGISTRATIONS if not REGISTRATIONS[key].internal}
    assert served == {title.partition(":")[0] for title in TITLES} | WITHOUT_RIGHTS


def test_lists_show_what_the_sender_may_describe(world: World) -> None:
    world.commit_offset()
    rightless = world.with_rights([])
    of_topic = world.with_rights([(ResourceType.TOPIC, "t", Operation.WRITE)])
    of_group = world.with_rights([(ResourceType.GROUP, "group", Operation.READ)])
    of_both = world.with_rights(
        [(ResourceType.TOPIC, "t", Operation.READ), (ResourceType.GROUP, "group", Operation.DESCRIBE)]
    )
    of_cluster = world.with_rights([(ResourceType.CLUSTER, "kafka-cluster", Operation.DESCRIBE)])

    def topics(principal: Principal) -> tuple[list[str], list[str]]:
        metadata = world.ask(MetadataRequest(None), 9, principal)
        described = world.ask(DescribeTopicPartitionsRequest([], 100), 0, principal)
        assert metadata.brokers
        return [each.name for each in metadata.topics], [each.name for each in described.topics]

    def groups(principal: Principal) -> list[str]:
        found = world.ask(ListGroupsRequest(types_filter=["classic"]), 5, principal).groups
        return [each.group_id for each in found]

    def offsets(principal: Principal) -> list[str]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("group", topics=None)])
        (group,) = world.ask(request, 9, principal).groups
        return [each.name for each in group.topics]

    assert topics(rightless) == ([], [])
    assert topics(of_topic) == (["t"], ["t"])
    assert groups(rightless) == []
    assert groups(of_group) == ["group"]
    assert groups(of_cluster) == ["group"]
    assert offsets(of_group) == []
    assert offsets(of_both) == ["t"]
    assert world.ask(ListTransactionsRequest(), 2, rightless).transaction_states == []


def test_authorized_operations_are_the_senders_own(world: World) -> None:
    rightless = world.with_rights([])
    admin = world.with_rights([(ResourceType.CLUSTER, "kafka-cluster", Operation.ALTER)])
    ask = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert world.ask(ask, 1, rightless).cluster_authorized_operations == 0
    bits = 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    assert world.ask(ask, 1, admin).cluster_authorized_operations == bits
    assert world.ask(ask, 1, ROOT).cluster_authorized_operations == 8096
    reader = world.with_rights([(ResourceType.TOPIC, "t", Operation.READ)])
    (topic,) = world.ask(MetadataRequest(None, False, False, True), 9, reader).topics
    assert topic.topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert world.ask(DescribeAclsRequest(1, None, 1, None, None, 1, 1), 3, admin).error_code == 0
